//! What the dispatch of a run needs: kept in memory since its event was decided about, or read again.

mod beginning;
mod told;

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use domain::run::{Failure, FailureCode, Run};
use protocol::admin::{AgentSpec, DeltaMode};
use protocol::event::EventEnvelope;
use protocol::id::{RunId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::run::RunStatus;
use serde_json::json;
use serde_json::value::RawValue;
use store::{DecisionFacts, EndpointAddress, FirstAttempt, NewRun, SharedParts, StoreError};
use tokio::time::Instant;

use crate::Inner;
use crate::decide::{Deciding, Made};
use crate::grant::read_snapshot;
use crate::live::Entered;
use runner_client::Endpoint;
use telemetry::spans::trace_of;
use told::{Told, write_context};

pub(super) use beginning::{Beginning, PlaceAhead};
pub use told::told_limits;

/// All that the dispatch of a run needs.
pub(super) struct Prepared {
    pub(super) snapshot: Arc<AuthorizationSnapshot>,
    pub(super) agent_name: String,
    /// How often it is tried again at most.
    pub(super) retries: u32,
    /// Its event was a message: who says nothing has failed.
    pub(super) expects_message: bool,
    /// `None`: it is gone, after another process has called it.
    pub(super) endpoint: Option<Arc<Endpoint>>,
    pub(super) delta_mode: DeltaMode,
    pub(super) interruptible: bool,
    /// The context as it is sent.
    pub(super) context: Arc<RawValue>,
    /// The parts of the context that other runs share.
    pub(super) shared: SharedParts,
    /// It is dispatched already: when the database was asked for its lease.
    pub(super) begun: Option<Instant>,
}

/// Why a run cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    /// The run ends so.
    #[error("the run cannot be prepared: {}", .0.message)]
    Never(Failure),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A created run and what it was made from: as it was stored just now, or as it was read again.
pub(super) struct Fresh {
    pub(super) run: Run,
    pub(super) snapshot: AuthorizationSnapshot,
    pub(super) spec: Arc<AgentSpec>,
    pub(super) event: Arc<EventEnvelope>,
    pub(super) event_seq: Option<i64>,
    /// When the event arrived, in epoch milliseconds.
    pub(super) arrived_at: i64,
    /// The newest place of the transcript, the event's own message apart; 0 for none.
    pub(super) transcript_before: i64,
    pub(super) interruptible: bool,
    /// How its runner is called; `None`: to be read.
    pub(super) endpoint: Option<Arc<EndpointAddress>>,
    pub(super) shared: SharedParts,
    /// It is dispatched with its event.
    pub(super) beginning: Option<Beginning>,
    /// It has its place here already.
    pub(super) entered: Option<Entered>,
}

impl Fresh {
    /// A run that begins now, as its rows will have it.
    pub(super) fn of(
        deciding: &Deciding<'_>,
        event: &Arc<EventEnvelope>,
        new: &NewRun,
        (made, facts, at): (Made, &DecisionFacts, i64),
    ) -> Box<Self> {
        let place = facts.place.as_ref();
        let at_place = PlaceAhead::of(place);
        let begins = made.beginning.is_some();
        let number = u32::from(begins) * FirstAttempt::NUMBER;
        let run = Run {
            id: new.id,
            workspace: deciding.workspace.clone(),
            event_id: deciding.event_id.to_owned(),
            parent_run_id: new.parent_run_id,
            trace_parent: new.trace_parent,
            agent_id: new.agent_id,
            agent_version: new.agent_version,
            runner_id: new.runner_id.clone(),
            endpoint_id: new.endpoint_id,
            conversation_key: place.map(|place| place.conversation_key.clone()),
            status: if begins {
                RunStatus::Running
            } else {
                RunStatus::Created
            },
            status_reason: None,
            attempt: number,
            lease_epoch: i64::from(number),
            last_sequence: 0,
            deadline_at: new.deadline_at,
            cancel_requested_at: None,
            snapshot_sha256: new.snapshot_sha256.clone(),
            output: None,
            error: None,
            usage: None,
            metadata: json!({}).into(),
            created_at: at,
            started_at: begins.then_some(at),
            finished_at: None,
            pruned_at: None,
        };
        Box::new(Self {
            run,
            snapshot: made.snapshot,
            spec: made.spec,
            event: Arc::clone(event),
            event_seq: at_place.event_seq,
            arrived_at: at,
            transcript_before: at_place.transcript_before,
            interruptible: made.interruptible,
            endpoint: made.endpoint,
            shared: new.shared.clone(),
            beginning: made.beginning,
            entered: None,
        })
    }
}

impl Fresh {
    /// The bytes of the context that its runner is told, as far as it is made: most of what is kept of a run.
    pub(super) fn told_bytes(&self) -> usize {
        let beginning = self.beginning.as_ref();
        beginning.map_or(0, |beginning| beginning.context.get().len())
    }
}

/// Builds the context of a created run, and gives it with the run; reads the run again unless it is fresh.
pub(super) async fn prepare(
    inner: &Inner,
    workspace: &WorkspaceId,
    id: RunId,
    fresh: Option<Box<Fresh>>,
) -> Result<Option<(Box<Run>, Prepared)>, PrepareError> {
    let fresh = match fresh {
        Some(fresh) => fresh,
        None => match read_again(inner, workspace, id).await? {
            Some(read) => Box::new(read),
            None => return Ok(None),
        },
    };
    let Fresh {
        mut run,
        snapshot,
        spec,
        event,
        event_seq,
        arrived_at,
        transcript_before,
        interruptible,
        endpoint,
        shared,
        beginning,
        entered: _,
    } = *fresh;
    let beginning = if let Some(beginning) = beginning {
        beginning
    } else {
        // The time of a run begins now, however long it has waited for its turn. That of a child run ends with its
        // parent's.
        if run.parent_run_id.is_none() {
            run.deadline_at += inner.clock.now_ms() - run.created_at;
        }
        let (endpoint, delta_mode) = open_endpoint(inner, &run, endpoint).await?;
        let told = Told {
            workspace,
            snapshot: &snapshot,
            snapshot_sha256: &run.snapshot_sha256,
            spec: &spec,
            event: &event,
            event_seq,
            transcript_before,
            arrived_at,
            deadline_at: run.deadline_at,
            trace: trace_of(&run),
        };
        Beginning {
            context: write_context(inner, told).await?,
            endpoint,
            delta_mode,
            asked_at: None,
        }
    };
    let prepared = Prepared {
        context: beginning.context,
        shared,
        begun: beginning.asked_at,
        snapshot: Arc::new(snapshot),
        agent_name: spec.name.clone(),
        retries: spec.retry.max,
        expects_message: expects_message(&event),
        endpoint: Some(beginning.endpoint),
        delta_mode: beginning.delta_mode,
        interruptible,
    };
    Ok(Some((Box::new(run), prepared)))
}

/// What going on with a run needs that was dispatched by another: all but its context.
pub(super) async fn prepare_again(
    inner: &Inner,
    run: Run,
) -> Result<(Run, Prepared), PrepareError> {
    let read = read_inputs(inner, run).await?;
    // Its runner has been called; it can only be told of a cancel no more.
    let (endpoint, delta_mode) = match open_endpoint(inner, &read.run, None).await {
        Ok((endpoint, delta_mode)) => (Some(endpoint), delta_mode),
        Err(PrepareError::Never(_)) => (None, DeltaMode::default()),
        Err(error) => return Err(error),
    };
    let prepared = Prepared {
        context: RawValue::NULL.to_owned().into(),
        shared: SharedParts::default(),
        begun: None,
        snapshot: Arc::new(read.snapshot),
        agent_name: read.spec.name.clone(),
        retries: 0,
        expects_message: expects_message(&read.event),
        endpoint,
        delta_mode,
        interruptible: read.interruptible,
    };
    Ok((read.run, prepared))
}

fn broken(why: &str) -> PrepareError {
    PrepareError::Never(Failure::new(FailureCode::HostInternal, why))
}

fn expects_message(event: &EventEnvelope) -> bool {
    event.event_type.starts_with("message.")
}

/// `address`: `None` to have it read.
async fn open_endpoint(
    inner: &Inner,
    run: &Run,
    address: Option<Arc<EndpointAddress>>,
) -> Result<(Arc<Endpoint>, DeltaMode), PrepareError> {
    let address = if address.is_some() {
        address
    } else {
        let store = &inner.store;
        let found = store
            .endpoints()
            .find_endpoint_address(&run.workspace, run.endpoint_id);
        found.await?.map(Arc::new)
    };
    let address = address.ok_or_else(|| broken("its endpoint is gone"))?;
    let endpoint = inner
        .endpoints
        .open(&inner.master_key, &address)
        .map_err(|_| broken("its endpoint cannot be opened with this master key"))?;
    Ok((endpoint, address.delta_mode))
}

/// A created run as its rows have it. `None`: it is not there, or not created any more.
async fn read_again(
    inner: &Inner,
    workspace: &WorkspaceId,
    id: RunId,
) -> Result<Option<Fresh>, PrepareError> {
    let Some(run) = inner.store.runs().find_run(workspace, id).await? else {
        return Ok(None);
    };
    if run.status != RunStatus::Created {
        return Ok(None);
    }
    let agent = inner
        .store
        .agents()
        .find_agent(workspace, run.agent_id)
        .await?;
    if agent.is_none_or(|agent| !agent.spec.enabled) {
        let why = "its agent was disabled or deleted while it waited";
        return Err(PrepareError::Never(Failure::new(
            FailureCode::Cancelled,
            why,
        )));
    }
    read_inputs(inner, run).await.map(Some)
}

/// What a run was made from, as its rows have it.
async fn read_inputs(inner: &Inner, run: Run) -> Result<Fresh, PrepareError> {
    let inputs = inner
        .store
        .runs()
        .find_run_inputs(&run)
        .await?
        .ok_or_else(|| broken("its event is gone"))?;
    let spec: AgentSpec =
        serde_json::from_str(&inputs.agent_spec).map_err(|_| broken("its agent is unreadable"))?;
    let event: EventEnvelope =
        serde_json::from_str(&inputs.envelope).map_err(|_| broken("its event is unreadable"))?;
    let snapshot =
        read_snapshot(&inputs.snapshot).map_err(|_| broken("its snapshot is unreadable"))?;
    let runner = inner
        .store
        .endpoints()
        .find_runner(&run.workspace, &run.runner_id)
        .await?;
    let manifest = runner
        .and_then(|runner| serde_json::from_str::<AgentRunnerManifest>(&runner.manifest).ok());
    let json = serde_json::to_string(&*snapshot.resources).unwrap_or_default();
    let config = serde_json::to_string(&spec.config).unwrap_or_default();
    let shared = SharedParts::of([json, config]);
    Ok(Fresh {
        run,
        snapshot,
        spec: Arc::new(spec),
        event: Arc::new(event),
        event_seq: inputs.event_seq,
        arrived_at: inputs.arrived_at,
        transcript_before: inputs.transcript_before,
        interruptible: manifest.is_some_and(|manifest| manifest.capabilities.interrupt),
        endpoint: None,
        shared,
        beginning: None,
        entered: None,
    })
}
