//! Child runs: started and followed by a run, and ended with it.

use std::sync::Arc;
use std::time::Duration;

use domain::api_key::AgentReach;
use domain::canonical::canonical_json;
use domain::child_run::{ParentRun, child_event};
use domain::run::Run;
use domain::trace::TraceParent;
use protocol::child_run::ChildRunRequest;
use protocol::id::{AgentId, RunId};
use store::{ParentAttempt, StoreError, sha256_hex};
use tokio::time::Instant;
use uuid::Uuid;

use crate::artifacts::BodyFiles;
use crate::call_abort::{AbortReason, CallAborts};
use crate::call_limits::CallKind;
use crate::call_wait::{CallWait, Looked, WaitError, Waited};
use crate::decide::ParentContext;
use crate::deps::RunDeps;
use crate::grant::Grant;
use crate::intake::{Intake, IntakeError, IntakeRequest};
use crate::own_limits::KeyStart;
use telemetry::spans::trace_of;

/// Starts child runs, and follows them for their parents.
pub struct Children {
    pub(super) deps: Arc<RunDeps>,
    pub(super) intake: Arc<Intake>,
    pub(super) aborts: CallAborts,
}

impl Children {
    /// Starts a child run of an agent that the run was granted. The request is valid. A repeated request under
    /// the same key returns the same child run. `span`: the span of the runner's call.
    pub async fn start_child(
        &self,
        grant: &Grant,
        agent: AgentId,
        request: ChildRunRequest,
        span: Option<TraceParent>,
    ) -> Result<RunId, IntakeError> {
        if self.deps.lifecycle.stopping.is_cancelled() {
            return Err(IntakeError::Stopping);
        }
        let run = &grant.run;
        let now = self.deps.clock.now_ms();
        // Hashed, so that a key of any length and content fits the dedupe key.
        let key = sha256_hex(request.idempotency_key.as_bytes());
        let body_sha256 = sha256_hex(canonical_json(&request).as_bytes());
        let incoming = IntakeRequest {
            event_id: Uuid::now_v7().to_string(),
            dedupe_key: format!("child:{}:{key}", run.id),
            body_sha256,
            trace_parent: Some(self.child_span(run, span)),
            only: Some(agent),
            scope: AgentReach::All,
            posted_by: None,
            answers: None,
            parent: Some(ParentContext {
                parent: ParentAttempt {
                    run_id: run.id,
                    attempt: grant.attempt,
                },
                snapshot: Arc::clone(&grant.snapshot),
                grants: request.grants.clone(),
                deadline_at: latest_deadline(grant.deadline_at(), request.deadline_seconds, now),
            }),
            start: KeyStart::default(),
            // The child run has a part of the parent's grants, so the token opens nothing more to it.
            actor_token: self.deps.actor_token(run).await?,
        };
        let name = self.deps.live.get(run.id);
        let name = name.as_ref().and_then(|live| live.agent_name());
        let asking = ParentRun {
            run_id: run.id,
            agent_id: run.agent_id,
            agent_name: name,
        };
        let event = child_event(request, &asking, now.div_euclid(1000));
        let files = BodyFiles::default();
        let stored = self
            .intake
            .store_event(&run.workspace, event, &files, incoming);
        let accepted = stored.await?;
        accepted.answer.run_id.ok_or(IntakeError::CalledAgentGone)
    }

    /// Span that the child run continues: the runner's own if it named one, else that of the run.
    fn child_span(&self, run: &Run, call_span: Option<TraceParent>) -> TraceParent {
        let header = self.deps.spans.header_of(run);
        TraceParent {
            span_id: trace_of(run).parent_of_call(call_span),
            ..header
        }
    }

    /// Finds a child run that the run of this grant may see. It is a child of this run, or of an earlier run of
    /// the agent in its conversation; its agent is granted.
    pub async fn find_child(&self, grant: &Grant, id: RunId) -> Result<Option<Run>, StoreError> {
        let own = &grant.run;
        let Some(child) = self.deps.find_run(&own.workspace, id).await? else {
            return Ok(None);
        };
        let Some(parent) = child.parent_run_id else {
            return Ok(None);
        };
        // A revoked or foreign agent's run is reported as absent, not as forbidden.
        if grant.snapshot.agent(&child.agent_id.to_string()).is_err() {
            return Ok(None);
        }
        // A later run of the conversation may follow what an earlier one has started.
        let is_in_sight = parent == own.id
            || own.conversation_key.is_some() && {
                let parent = self.deps.find_run(&own.workspace, parent).await?;
                parent.is_some_and(|parent| {
                    parent.agent_id == own.agent_id
                        && parent.conversation_key == own.conversation_key
                })
            };
        Ok(is_in_sight.then_some(child))
    }

    /// Returns the child run when it has ended, `wait` is over, or the run of the grant is to end.
    pub async fn await_child(
        &self,
        grant: &Grant,
        child: Run,
        wait: Duration,
    ) -> Result<Run, WaitError> {
        if child.status.is_terminal() || wait.is_zero() {
            return Ok(child);
        }
        let call = CallWait::begin(&self.aborts, grant, CallKind::ChildWait, child.id)?;
        let deadline = Instant::now() + wait;
        let waiter = &call.waiter;
        let waited = call.until_done(|looked_at| async move {
            let row = waiter.look(&self.deps.store, looked_at).await?;
            Ok::<_, StoreError>(if row.has_ended || looked_at >= deadline {
                Looked::Done(())
            } else {
                Looked::Again(deadline.min(looked_at + self.deps.limits.poll))
            })
        });
        match waited.await? {
            Waited::Over(over @ (AbortReason::Ended | AbortReason::Deadline)) => {
                return Err(WaitError::Over(over));
            }
            // The child's state is still valid in a cancelled run: the runner gets it, and can call again.
            Waited::Done(()) | Waited::Over(AbortReason::Cancelled | AbortReason::Stopping) => {}
        }
        let now = self.deps.find_run(&child.workspace, child.id).await?;
        Ok(now.unwrap_or(child))
    }
}

/// Epoch milliseconds; never later than the parent's.
fn latest_deadline(of_parent: i64, seconds: Option<u64>, now: i64) -> i64 {
    let wanted = seconds.map(|seconds| {
        let wanted = i64::try_from(seconds).unwrap_or(i64::MAX);
        now.saturating_add(wanted.saturating_mul(1000))
    });
    wanted.map_or(of_parent, |wanted| wanted.min(of_parent))
}
