//! The end of a run: one terminal, by compare-and-set, in the transaction that writes it.

use std::sync::Arc;

use domain::normalize::ResultCounts;
use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use serde_json::Value;
use serde_json::value::RawValue;
use store::{
    Appended, Dispatch, DispatchPurpose, Dispatched, LeaseFilter, Promotion, RunEnd, SharedParts,
    StoreError, failpoint,
};

use crate::artifacts::announced_attachments;
use crate::child_cancellation;
use crate::decide::{Decider, promote_next};
use crate::deps::RunDeps;
use crate::ending::EndCause;
use crate::endpoint::endpoint_name;
use crate::event_buffer::{EventBuffer, relayed};
use crate::executor::next_step::{OrphanClaim, claim_of};
use crate::live::LiveRun;
use output::terminal_of;
use telemetry::metrics;

pub(crate) mod output;

/// Writes the ends of runs.
pub(super) struct Finisher {
    pub(super) deps: Arc<RunDeps>,
    pub(super) decider: Arc<Decider>,
}

/// A run whose end is committed.
pub(super) struct EndedRun {
    status: RunStatus,
    reason: String,
    code: &'static str,
    /// `{code, message, …}` of a run that failed.
    error: Option<String>,
    /// Runs of the conversation that the end has released.
    pub(super) next: Vec<RunId>,
}

impl Finisher {
    /// Commits the rest of the buffer with the terminal, shows both to clients, and ends the child runs. `None`:
    /// another process has ended the run. On an error the run has no end yet.
    pub(super) async fn finish(
        &self,
        live: &LiveRun,
        run: &Run,
        mut buffer: EventBuffer,
        tally: ResultCounts,
        ending: EndCause,
    ) -> Result<Option<EndedRun>, StoreError> {
        let code = ending.code();
        let mut terminal = terminal_of(
            run,
            &mut buffer,
            tally,
            ending,
            self.deps.clock.now_seconds(),
        );
        terminal.promotion = run.conversation_key.as_ref().map(|key| Promotion {
            conversation_key: key.clone(),
            promote_next: promote_next(&self.decider, &run.workspace, run.agent_id),
        });
        if let Err(error) = self.name_announced(run, &buffer, &mut terminal).await {
            return Err(end_failed(run, error));
        }
        let (mut status, reason) = (terminal.status, terminal.reason.clone());
        let error = terminal.error.clone();
        if live.cancel.is_cancelled() {
            // The commit writes this status, also where another replica has accepted the cancel.
            status = RunStatus::Cancelled;
        }
        let read_at = buffer.take_read_at();
        let (append, frames) = buffer.take(Some(terminal), self.deps.clock.now_ms());
        // Before the commit: from here on only the table has the state of the run.
        live.begin_end();
        match self.deps.ledger.commit(Arc::new(append)).await {
            Ok(Appended::Written { next }) => {
                // After the commit: clients must not see events that a crash could undo.
                self.deps.live.settle(run.id, live, frames);
                relayed(read_at);
                self.deps.notifier.notify_changed(run.id);
                // Local calls may wait for the end of this child run.
                self.deps.notifier.wake(run.id);
                child_cancellation::end_children(&self.deps, live, run.id).await;
                for next in &next {
                    self.deps.notifier.notify_changed(*next);
                }
                Ok(Some(EndedRun {
                    status,
                    reason,
                    code,
                    error,
                    next,
                }))
            }
            Ok(Appended::Lost | Appended::Overtaken) => {
                tracing::warn!(run.id = %run.id, "run {} was already ended by another replica", run.id);
                Ok(None)
            }
            Err(error) => Err(end_failed(run, error)),
        }
    }

    /// Counts, traces and logs a committed end.
    pub(super) async fn report(&self, live: &LiveRun, run: &Run, ended: &EndedRun) {
        let EndedRun { status, code, .. } = ended;
        let duration_ms = self.deps.clock.now_ms() - run.created_at;
        metrics::run_ended(status.as_str(), code, duration_ms);
        self.trace_end(live, run, code).await;
        self.deps.ended.publish(&run.workspace, run.id);
        self.log_end(run, ended, duration_ms).await;
    }

    async fn log_end(&self, run: &Run, ended: &EndedRun, duration_ms: i64) {
        let EndedRun { status, reason, .. } = ended;
        let status = status.as_str();
        if !matches!(ended.status, RunStatus::Failed | RunStatus::Timeout) {
            tracing::info!(
                run.id = %run.id, runner.id = %run.runner_id, status, reason, duration_ms,
                "run {} ended as {status}", run.id
            );
            return;
        }
        let (code, message) = code_and_message(ended);
        let endpoint = endpoint_name(&self.deps.store, run.endpoint_id).await;
        tracing::warn!(
            run.id = %run.id, runner.id = %run.runner_id, endpoint.name = endpoint, status, code, duration_ms,
            error = message, "run {} ended as {status}, {code}: {message}", run.id
        );
    }

    /// Adds the artifacts that the run has announced to its last message in the transcript.
    async fn name_announced(
        &self,
        run: &Run,
        buffer: &EventBuffer,
        terminal: &mut RunEnd,
    ) -> Result<(), StoreError> {
        if let Some(message) = terminal.transcript.last_mut()
            // Only a run that has announced artifacts needs the query.
            && let Some(announcing) = buffer.announcing()
        {
            let ask = || {
                self.deps
                    .store
                    .artifacts()
                    .announced_artifacts(run.id, &announcing)
            };
            let announced = Box::pin(self.deps.ledger.retry_within_lease(run.id, ask)).await?;
            message.attachment_refs = announced_attachments(&announced);
        }
        Ok(())
    }

    /// Exports the span of the ended run.
    async fn trace_end(&self, live: &LiveRun, run: &Run, code: &'static str) {
        if !self.deps.spans.exports(run) {
            return;
        }
        let now = self.deps.clock.now_ms();
        let error = (code != "ok").then_some(code);
        if let Some(name) = live.agent_name() {
            return self.deps.spans.run_ended(run, name, now, error);
        }
        // This process has not prepared the run.
        let found = self
            .deps
            .store
            .agents()
            .find_agent(&run.workspace, run.agent_id)
            .await;
        let found = found.ok().flatten();
        let name = found.map_or_else(|| run.agent_id.to_string(), |agent| agent.spec.name);
        self.deps.spans.run_ended(run, &name, now, error);
    }

    /// Takes the run's lease if it is among `leases`, or if the run has none.
    pub(super) async fn own_orphan(
        &self,
        id: RunId,
        workspace: &WorkspaceId,
        leases: LeaseFilter,
    ) -> Result<Option<Run>, StoreError> {
        let Some(run) = self.deps.find_run(workspace, id).await? else {
            return Ok(None);
        };
        let lease = self.deps.limits.lease;
        match claim_of(run.status, leases) {
            Some(OrphanClaim::TakeOver(leases)) => {
                let taken = self
                    .deps
                    .store
                    .leases()
                    .take_over(&run, &self.deps.owner, lease, leases)
                    .await?;
                let Some(epoch) = taken else { return Ok(None) };
                failpoint::pass("orphan.after_takeover").await?;
                // Read again under the new epoch, which fences off appends of the former owner.
                let row = self.deps.find_run(workspace, id).await?;
                Ok(row.filter(|row| row.fencing_token == epoch))
            }
            Some(OrphanClaim::Begin) => self.own_unbegun(run).await,
            None => Ok(None),
        }
    }

    /// Takes a run that has not begun. `None`: its status has changed.
    pub(super) async fn own_unbegun(&self, run: Run) -> Result<Option<Run>, StoreError> {
        let dispatch = Dispatch {
            attempt: run.attempt + 1,
            owner: self.deps.owner.clone(),
            lease: self.deps.limits.lease,
            context: RawValue::NULL.to_owned().into(),
            shared: SharedParts::default(),
            deadline_at: run.deadline_at,
            purpose: DispatchPurpose::End,
            at: self.deps.clock.now_ms(),
            run,
        };
        match self.deps.store.write(dispatch).await? {
            Dispatched::Owned(run) => Ok(Some(*run)),
            Dispatched::Lost => Ok(None),
        }
    }
}

/// Maximum size of a failure's message in the log, in bytes. Runners write it.
const MAX_LOGGED: usize = 500;

fn code_and_message(ended: &EndedRun) -> (String, String) {
    let error: Value = ended
        .error
        .as_deref()
        .and_then(|error| serde_json::from_str(error).ok())
        .unwrap_or_default();
    let text = |key: &str| error[key].as_str().unwrap_or_default().to_owned();
    let (code, mut message) = (text("code"), text("message"));
    // A cut within a character would panic.
    message.truncate(message.floor_char_boundary(MAX_LOGGED));
    let code = if code.is_empty() {
        ended.reason.clone()
    } else {
        code
    };
    (code, message)
}

fn end_failed(run: &Run, error: StoreError) -> StoreError {
    tracing::error!(
        run.id = %run.id, error = &error as &dyn std::error::Error,
        "run {} could not be ended; recovery will end it", run.id
    );
    error
}
