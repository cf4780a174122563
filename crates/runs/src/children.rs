//! Child runs: started for a run, followed by it, and ended with it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use domain::authorization::{AuthorizationSnapshot, ParentGrant};
use domain::canonical::canonical_json;
use domain::child_run::{Asking, child_event};
use domain::run::Run;
use domain::trace::TraceParent;
use protocol::child_run::{ChildGrants, ChildRunRequest};
use protocol::id::{AgentId, RunId};
use store::{ParentRun, StoreError, sha256_hex};
use tokio::time::Instant;
use uuid::Uuid;

use crate::Runs;
use crate::artifacts::BodyFiles;
use crate::bus::Ring;
use crate::doorbell::Bell;
use crate::grant::Grant;
use crate::live::LiveRun;
use crate::over::{LastLook, Over};
use crate::start::{Incoming, StartError};
use telemetry::spans::trace_of;

/// The least time between two looks of a call that waits.
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// The parent of a child run that is to be started.
#[derive(Clone, Debug)]
pub(super) struct ChildOf {
    pub(super) parent: ParentRun,
    pub(super) snapshot: Arc<AuthorizationSnapshot>,
    grants: Option<ChildGrants>,
    /// The latest deadline, in epoch milliseconds.
    pub(super) deadline_at: i64,
}

impl ChildOf {
    /// The part of the parent's grant that the child run may have.
    pub(super) fn grant(&self) -> ParentGrant<'_> {
        ParentGrant {
            snapshot: &self.snapshot,
            grants: self.grants.as_ref(),
        }
    }
}

/// Why a call cannot wait for the end of a child run.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error("as many calls of the run wait for child runs as may")]
    Full,
    #[error("the run is over")]
    Over(Over),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Runs {
    /// Starts a child run of an agent that the run was granted, by a request that is sound. The same request under the
    /// same key gives the same child run. `span`: the one that the runner called under.
    pub async fn start_child(
        &self,
        grant: &Grant,
        agent: AgentId,
        request: ChildRunRequest,
        span: Option<TraceParent>,
    ) -> Result<RunId, StartError> {
        if self.0.stopping.is_cancelled() {
            return Err(StartError::Stopping);
        }
        let run = &grant.run;
        let now = self.0.clock.now_ms();
        let key = sha256_hex(request.idempotency_key.as_bytes());
        let body_sha256 = sha256_hex(canonical_json(&request).as_bytes());
        let incoming = Incoming {
            event_id: Uuid::now_v7().to_string(),
            dedupe_key: format!("child:{}:{key}", run.id),
            body_sha256,
            trace_parent: Some(self.child_span(run, span)),
            only: Some(agent),
            answers: None,
            child: Some(ChildOf {
                parent: ParentRun {
                    run_id: run.id,
                    attempt: grant.attempt,
                },
                snapshot: Arc::clone(&grant.snapshot),
                grants: request.grants.clone(),
                deadline_at: latest_deadline(run, request.deadline_seconds, now),
            }),
        };
        let name = self.0.live.get(run.id);
        let name = name.as_ref().and_then(|live| live.agent_name());
        let asking = Asking {
            run_id: run.id,
            agent_id: run.agent_id,
            agent_name: name,
        };
        let event = child_event(request, &asking, now.div_euclid(1000));
        let files = BodyFiles::default();
        let stored = self.store_event(&run.workspace, (event, &files), incoming);
        let accepted = stored.await?;
        accepted.answer.run_id.ok_or(StartError::CalledAgentGone)
    }

    /// The span that a child run goes on with: the runner's own, where it named one, else that of the run.
    fn child_span(&self, run: &Run, told: Option<TraceParent>) -> TraceParent {
        let header = self.0.spans.header_of(run);
        TraceParent {
            span_id: trace_of(run).parent_of_call(told),
            ..header
        }
    }

    /// A child run that the run of this grant may see: one of its own, or one of an earlier run of its agent in its
    /// conversation; of an agent that it was granted.
    pub async fn find_child(&self, grant: &Grant, id: RunId) -> Result<Option<Run>, StoreError> {
        let own = &grant.run;
        let Some(child) = self.0.store.runs().find_run(&own.workspace, id).await? else {
            return Ok(None);
        };
        let Some(parent) = child.parent_run_id else {
            return Ok(None);
        };
        if grant.snapshot.agent(&child.agent_id.to_string()).is_err() {
            return Ok(None);
        }
        let is_in_sight = parent == own.id
            || own.conversation_key.is_some() && {
                let parent = self.0.store.runs().find_run(&own.workspace, parent).await?;
                parent.is_some_and(|parent| {
                    parent.agent_id == own.agent_id
                        && parent.conversation_key == own.conversation_key
                })
            };
        Ok(is_in_sight.then_some(child))
    }

    /// The child run once it has ended, or as it is when `wait` is over or the run of the grant is to end.
    pub async fn await_child(
        &self,
        grant: &Grant,
        child: Run,
        wait: Duration,
    ) -> Result<Run, WaitError> {
        if child.status.is_terminal() || wait.is_zero() {
            return Ok(child);
        }
        let _place = self.begin_child_wait(grant).ok_or(WaitError::Full)?;
        let bell = Bell::of(&self.0, child.id);
        let give_up = Instant::now() + wait;
        let last_look = LastLook::default();
        let mut over = pin!(self.until_over(grant, &last_look));
        loop {
            let rings = bell.ring();
            let mut rung = pin!(rings.notified());
            // Enabled before the look: no ring is missed.
            rung.as_mut().enable();
            let looked_at = Instant::now();
            if bell.look(looked_at).await?.has_ended || looked_at >= give_up {
                break;
            }
            let next_look = (looked_at + self.0.limits.poll).min(give_up);
            tokio::select! {
                () = &mut rung => tokio::time::sleep_until(looked_at + BETWEEN_LOOKS).await,
                () = tokio::time::sleep_until(next_look) => {}
                over = &mut over => match over {
                    Over::Cancelled | Over::Stopping => break,
                    Over::Ended | Over::Deadline => return Err(WaitError::Over(over)),
                },
            }
        }
        let now = self
            .0
            .store
            .runs()
            .find_run(&child.workspace, child.id)
            .await?;
        Ok(now.unwrap_or(child))
    }

    /// Asks the child runs of a run that was asked to end.
    pub(super) async fn cancel_children(&self, id: RunId) {
        let live = self.0.live.get(id);
        if live.is_none_or(|live| live.may_have_children()) {
            self.end_children_of(id).await;
        }
    }

    /// Asks the child runs of a run that has ended, unless it leaves them running.
    pub(super) async fn end_children(&self, live: &LiveRun, id: RunId) {
        if live.may_have_children() {
            self.end_children_of(id).await;
        }
    }

    async fn end_children_of(&self, id: RunId) {
        if let Err(error) = self.ask_children(Some(id)).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                run.id = %id, error,
                "child runs of run {id} were not asked to end; the sweep will"
            );
        }
    }

    /// The same for all runs: of processes that died in between, and of runs that others asked to end.
    pub(super) async fn end_all_children(&self) -> Result<(), StoreError> {
        self.ask_children(None).await
    }

    async fn ask_children(&self, parent: Option<RunId>) -> Result<(), StoreError> {
        let at = self.0.clock.now_ms();
        for child in self.0.store.runs().end_children(parent, at).await? {
            match self.0.live.get(child) {
                Some(live) => live.request_cancel(at),
                None => self.0.doorbell.ring(Ring::Cancelled(child)),
            }
        }
        Ok(())
    }
}

/// Epoch milliseconds; never later than the parent's.
fn latest_deadline(parent: &Run, seconds: Option<u64>, now: i64) -> i64 {
    let wanted = seconds.map(|seconds| {
        let wanted = i64::try_from(seconds).unwrap_or(i64::MAX);
        now.saturating_add(wanted.saturating_mul(1000))
    });
    wanted.map_or(parent.deadline_at, |wanted| wanted.min(parent.deadline_at))
}
