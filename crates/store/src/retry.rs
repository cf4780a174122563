//! Retry of an ended run: a new run of the same event.

use protocol::id::{RunId, WorkspaceId};
use sea_orm::DatabaseTransaction;

use crate::capacity::{count_live, limits_of, lock_capacity};
use crate::conversation::{InterruptedRun, cancel_all, live_runs, lock_all, lock_runs};
use crate::error::StoreError;
use crate::generations::generations_of;
use crate::model::ingest::{DecideEvent, DecisionFacts, IngestPlan};
use crate::mutation::Mutation;
use crate::new_run::{Begin, RunEvent, RunRow, cached_candidates, insert_runs};
use crate::recorded_calls::copy_record;
use crate::repositories::RunRepository;
use crate::runs::retry_of;
use crate::shared_parts::StoredParts;
use crate::tx_cache::TxCache;

/// An ended run to repeat, and the decision about its event as of now.
pub struct RetryRun<D> {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub event_id: String,
    pub conversation_key: Option<String>,
    /// Sequence of the result after which the new run begins. `None`: it begins with the event.
    pub from: Option<u64>,
    /// Maximum live runs of the workspace.
    pub max_live_runs: Option<u64>,
    pub at: i64,
    pub decide: D,
}

/// Result of a retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// The new run.
    Created(RunId),
    /// The run of an earlier retry.
    Existing(RunId),
    /// The decision made no run; nothing is stored.
    Refused,
}

/// Outcome of a retry, with the effects of its decision, if one was made.
#[derive(Debug)]
pub struct RetryOutcome<E> {
    pub retried: Retried,
    pub effects: Option<E>,
}

impl RunRepository<'_> {
    /// Repeats a run that has ended. A repeated retry returns the run of the first.
    pub async fn retry_run<D: DecideEvent>(
        self,
        retry: RetryRun<D>,
    ) -> Result<RetryOutcome<D::Effects>, StoreError> {
        self.db.write(retry).await
    }
}

impl<D: DecideEvent> Mutation for RetryRun<D> {
    type Output = RetryOutcome<D::Effects>;
    const TAKES_EVENT: bool = true;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        self.apply_with(tx, &mut TxCache::default()).await
    }

    async fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        tx_cache: &mut TxCache,
    ) -> Result<Self::Output, StoreError> {
        let candidates = cached_candidates(tx, &self.workspace, tx_cache).await?;
        let limits = limits_of(tx, &self.workspace, self.max_live_runs).await?;
        let limits = limits.with_agents(&candidates);
        let counted = count_live(tx, &self.workspace, limits).await?;
        let capacities = lock_capacity(tx, &self.workspace, counted).await?;
        let conversation = self.conversation_key.as_deref();
        lock_all(tx, conversation.into_iter()).await?;
        // Concurrent retries of this run wait here, and then find its successor.
        lock_runs(tx, &[self.run_id.0].into(), std::iter::empty()).await?;
        if let Some(existing) = retry_of(tx, self.run_id).await? {
            return Ok(RetryOutcome {
                retried: Retried::Existing(existing),
                effects: None,
            });
        }
        let decision = self.decide.decide(&DecisionFacts {
            generations: generations_of(tx, &candidates, conversation, 0).await?,
            candidates,
            // The dispatch reads the position.
            position: None,
            live: live_runs(tx, conversation).await?,
            capacities,
            unanswerable: None,
            child_refused: None,
        });
        let effects = Some(decision.effects);
        let (run, begin, cancel) = match decision.plan {
            IngestPlan::Start { run, .. } => (run, Begin::Created, Vec::new()),
            IngestPlan::Queue { run, cancel, .. } => (run, Begin::Queued, cancel),
            IngestPlan::Refuse | IngestPlan::Keep { .. } | IngestPlan::Absorb { .. } => {
                let retried = Retried::Refused;
                return Ok(RetryOutcome { retried, effects });
            }
        };
        let cancels = cancel.into_iter().map(|run| InterruptedRun {
            run,
            event_id: self.event_id.clone(),
            at: self.at,
        });
        cancel_all(tx, cancels.collect()).await?;
        let event = RunEvent {
            workspace: &self.workspace,
            event_id: &self.event_id,
            conversation_key: conversation,
            at: self.at,
        };
        let (run, begin) = (&*run, &begin);
        let parts = StoredParts::find(tx, [&run.shared].into_iter(), tx_cache).await?;
        insert_runs(tx, &[RunRow { event, run, begin }], &parts).await?;
        if let Some(from) = self.from {
            copy_record(tx, run.id, self.run_id, from).await?;
        }
        let retried = Retried::Created(run.id);
        Ok(RetryOutcome { retried, effects })
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        let successor = retry_of(tx, self.run_id).await?;
        Ok(matches!(output.retried, Retried::Created(run) if successor == Some(run)))
    }
}
