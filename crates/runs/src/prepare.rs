//! Preparation of a dispatch: from inputs that are in memory since the decision, or from rows.

use std::sync::Arc;

use domain::manifest::resume_window;
use domain::normalize::ExpectedOutput;
use domain::run::{Failure, FailureCode, Run};
use protocol::JsonObject;
use protocol::admin::{AgentSpec, DeltaMode};
use protocol::event::EventEnvelope;
use protocol::id::{RunId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::retry_origin::RetryOrigin;
use protocol::run::RunStatus;
use serde_json::value::RawValue;
use store::{EndpointAddress, SharedParts, StoreError};

use crate::context::{ContextInputs, ContextWriter, readable_prompt, static_refs};
use crate::deps::RunDeps;
use crate::grant::read_snapshot;
use crate::inputs::{ExpectedPosition, PreparedDispatch, RunInputs};
use crate::retry_origin::{RetryPointError, read_origin};
use runner_client::Endpoint;
use telemetry::spans::trace_of;

/// Cause of a run that cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// The run ends with this failure.
    #[error("the run cannot be prepared: {}", .0.message)]
    Never(Failure),
    #[error(transparent)]
    Store(#[from] StoreError),
}

pub(super) struct Preparer {
    pub(super) deps: Arc<RunDeps>,
    pub(super) context: ContextWriter,
}

impl Preparer {
    /// Prepares a created run. Without `inputs` it reads them. `None`: the run does not exist, was dispatched, or a
    /// pause holds it.
    pub(super) async fn prepare(
        &self,
        workspace: &WorkspaceId,
        id: RunId,
        inputs: Option<Box<RunInputs>>,
    ) -> Result<Option<(Box<Run>, PreparedDispatch)>, PrepareError> {
        let inputs = match inputs {
            Some(inputs) => inputs,
            None => match self.read_created(workspace, id).await? {
                Some(inputs) => Box::new(inputs),
                None => return Ok(None),
            },
        };
        let RunInputs {
            mut run,
            snapshot,
            spec,
            event,
            position,
            arrived_at,
            interruptible,
            resume_window,
            wants_static_refs,
            endpoint,
            shared,
            context: _,
            dispatch,
            live_entry: _,
        } = *inputs;
        if let Some(dispatch) = dispatch {
            return Ok(Some((Box::new(run), dispatch)));
        }
        // The deadline counts from now, without the time in the queue. A child run keeps the deadline of its parent.
        if run.parent_run_id.is_none() {
            run.deadline_at += self.deps.clock.now_ms() - run.created_at;
        }
        let (endpoint, delta_mode) = self.open_endpoint(&run, endpoint).await?;
        let from = self.read_origin(&run).await?;
        let context_inputs = ContextInputs {
            snapshot: &snapshot,
            snapshot_sha256: &run.snapshot_sha256,
            spec: &spec,
            event: &event,
            arrived_at,
            deadline_at: run.deadline_at,
            trace: trace_of(&run),
            static_refs: if wants_static_refs {
                static_refs(
                    &spec,
                    &snapshot.resources,
                    readable_prompt(&snapshot, &event),
                )
            } else {
                JsonObject::new()
            },
            from,
        };
        let context = self.context.write(context_inputs, position);
        let dispatch = PreparedDispatch {
            context: context.await?,
            shared,
            snapshot,
            agent_name: spec.name.clone(),
            retry: spec.retry.clone(),
            expected_output: ExpectedOutput::of(&event),
            endpoint: Some(endpoint),
            delta_mode,
            interruptible,
            resume_window,
            lease_requested_at: None,
        };
        Ok(Some((Box::new(run), dispatch)))
    }

    /// Prepares the continuation of a run that another process has dispatched: everything except the context.
    pub(super) async fn prepare_again(
        &self,
        run: Run,
    ) -> Result<(Run, PreparedDispatch), PrepareError> {
        let inputs = self.read_inputs(run).await?;
        // The runner was called already; without its endpoint, only the cancel notice is not sent.
        let (endpoint, delta_mode) = match self.open_endpoint(&inputs.run, None).await {
            Ok((endpoint, delta_mode)) => (Some(endpoint), delta_mode),
            Err(PrepareError::Never(_)) => (None, DeltaMode::default()),
            Err(error) => return Err(error),
        };
        let dispatch = PreparedDispatch {
            context: RawValue::NULL.to_owned().into(),
            shared: SharedParts::default(),
            snapshot: inputs.snapshot,
            agent_name: inputs.spec.name.clone(),
            retry: inputs.spec.retry.clone(),
            expected_output: ExpectedOutput::of(&inputs.event),
            endpoint,
            delta_mode,
            interruptible: inputs.interruptible,
            resume_window: inputs.resume_window,
            lease_requested_at: None,
        };
        Ok((inputs.run, dispatch))
    }

    /// The results after which a retry begins.
    async fn read_origin(&self, run: &Run) -> Result<Option<RetryOrigin>, PrepareError> {
        let (Some(id), Some(after)) = (run.retry_of, run.retry_from) else {
            return Ok(None);
        };
        let origin = self.deps.find_run(&run.workspace, id).await?;
        let origin = origin.ok_or_else(|| broken("the run that it repeats is gone"))?;
        match read_origin(&self.deps.store, &origin, after).await {
            Ok(origin) => Ok(Some(origin)),
            Err(RetryPointError::Store(error)) => Err(error.into()),
            // Checked as the retry was requested; the retention may have deleted them since.
            Err(_) => Err(broken("the results that it begins after are gone")),
        }
    }

    /// Without `address` it reads the address.
    async fn open_endpoint(
        &self,
        run: &Run,
        address: Option<Arc<EndpointAddress>>,
    ) -> Result<(Arc<Endpoint>, DeltaMode), PrepareError> {
        let address = if address.is_some() {
            address
        } else {
            let found = self
                .deps
                .store
                .endpoints()
                .find_endpoint_address(&run.workspace, run.endpoint_id);
            found.await?.map(Arc::new)
        };
        let address = address.ok_or_else(|| broken("its endpoint is gone"))?;
        let endpoint = self
            .deps
            .endpoint_cache
            .open(&address)
            .map_err(|_| broken("its endpoint cannot be opened with this master key"))?;
        Ok((endpoint, address.delta_mode))
    }

    /// Reads a created run. `None`: it does not exist, has another status, or a pause holds it.
    async fn read_created(
        &self,
        workspace: &WorkspaceId,
        id: RunId,
    ) -> Result<Option<RunInputs>, PrepareError> {
        let Some(run) = self.deps.find_run(workspace, id).await? else {
            return Ok(None);
        };
        // The dispatch would refuse a held run; here it costs no context.
        if run.status != RunStatus::Created || self.deps.pauses.holds(&run) {
            return Ok(None);
        }
        let agent = self
            .deps
            .store
            .agents()
            .find_agent(workspace, run.agent_id)
            .await?;
        // Checked again: the run may have been queued for an hour.
        if agent.is_none_or(|agent| !agent.spec.enabled) {
            let why = "its agent was disabled or deleted while it waited";
            return Err(PrepareError::Never(Failure::new(
                FailureCode::Cancelled,
                why,
            )));
        }
        self.read_inputs(run).await.map(Some)
    }

    /// Reads the inputs of a run from its rows.
    async fn read_inputs(&self, run: Run) -> Result<RunInputs, PrepareError> {
        let stored = self
            .deps
            .store
            .runs()
            .find_run_inputs(&run)
            .await?
            .ok_or_else(|| broken("its event is gone"))?;
        let spec: AgentSpec = serde_json::from_str(&stored.agent_spec)
            .map_err(|_| broken("its agent is unreadable"))?;
        let event: EventEnvelope = serde_json::from_str(&stored.envelope)
            .map_err(|_| broken("its event is unreadable"))?;
        let snapshot =
            read_snapshot(&stored.snapshot).map_err(|_| broken("its snapshot is unreadable"))?;
        let manifest = self.deps.find_manifest(&run).await?;
        // The current manifest: the snapshot has the rights, not the capabilities.
        let is = |wanted: fn(&AgentRunnerManifest) -> bool| manifest.as_ref().is_some_and(wanted);
        let json = serde_json::to_string(&*snapshot.resources).unwrap_or_default();
        let config = serde_json::to_string(&spec.config).unwrap_or_default();
        Ok(RunInputs {
            run,
            snapshot: Arc::new(snapshot),
            spec: Arc::new(spec),
            event: Arc::new(event),
            position: ExpectedPosition {
                event_seq: stored.event_seq,
                transcript_before: stored.transcript_before,
            },
            arrived_at: stored.arrived_at,
            interruptible: is(|manifest| manifest.capabilities.interrupt),
            resume_window: manifest.as_ref().and_then(resume_window),
            wants_static_refs: is(|manifest| manifest.context.wants_static_context_refs),
            endpoint: None,
            shared: SharedParts::of([json, config]),
            context: None,
            dispatch: None,
            live_entry: None,
        })
    }
}

fn broken(why: &str) -> PrepareError {
    PrepareError::Never(Failure::new(FailureCode::HostInternal, why))
}
