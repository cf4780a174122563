//! Deletion of expired rows, and indexing of old transcripts.

use std::time::Duration;

use store::{StoreError, SweepWakes, SweepWebhooks};
use tokio::time::Instant;

use crate::artifacts::Artifacts;
use crate::deps::RunDeps;
use crate::ticks::ticks_every;

/// Shortest pause between two deletes, in which other writes commit.
const BETWEEN_DELETES: Duration = Duration::from_millis(20);
/// Pause after a delete in multiples of its duration, so that a backlog takes a third of the writer.
const PAUSE_FACTOR: u32 = 2;
/// Time after which a backlog is deleted with the shortest pauses: more rows expire than long pauses let it delete.
const LONG_BACKLOG: Duration = Duration::from_hours(1);

/// Time for which finished jobs are stored: seven days.
const JOB_RETENTION_MS: i64 = 7 * DAY_MS;
const DAY_MS: i64 = 24 * 3600 * 1000;
/// Time for which expired sessions are stored: runs and changes name them.
const SESSION_RETENTION_MS: i64 = 90 * DAY_MS;
/// Time for which expired approvals are stored: audit entries name them.
const APPROVAL_RETENTION_MS: i64 = 90 * DAY_MS;
/// Time for the tries of a delivery: a day, and an hour for the waits that receivers demand.
const DELIVERY_MS: i64 = DAY_MS + 3600 * 1000;
/// Time for which delivered deliveries are stored.
const DELIVERED_RETENTION_MS: i64 = 7 * DAY_MS;
/// Time for which messages and dead deliveries are stored.
const MESSAGE_RETENTION_MS: i64 = 30 * DAY_MS;

/// Time after a wake for which its key is in use.
const WAKE_RETENTION_MS: i64 = 30 * DAY_MS;

/// A kind of expired rows, deleted by itself in small transactions.
#[derive(Clone, Copy)]
enum ExpiredRows {
    Storage,
    Knowledge,
    Artifacts,
    Appends,
    Checkpoints,
    ToolCalls,
    Approvals,
    Budgets,
    StreamLinks,
    ActorTokens,
    Sessions,
    SharedParts,
    Jobs,
    Webhooks,
    Wakes,
    Ledgers,
    Audit,
    Changes,
}

impl ExpiredRows {
    const ALL: [Self; 18] = [
        Self::Storage,
        Self::Knowledge,
        Self::Artifacts,
        Self::Appends,
        Self::Checkpoints,
        Self::ToolCalls,
        Self::Approvals,
        Self::Budgets,
        Self::StreamLinks,
        Self::ActorTokens,
        Self::Sessions,
        Self::SharedParts,
        Self::Jobs,
        Self::Webhooks,
        Self::Wakes,
        Self::Ledgers,
        Self::Audit,
        Self::Changes,
    ];

    /// Deletes a batch; returns the number of deleted rows or runs.
    async fn delete_some(self, artifacts: &Artifacts) -> Result<u64, StoreError> {
        let deps = &artifacts.deps;
        let (store, limits) = (&deps.store, &deps.limits);
        let retention = store.retention();
        let at = deps.clock.now_ms();
        match self {
            Self::Storage => store.state().sweep_storage().await,
            Self::Knowledge => store.knowledge().sweep_knowledge().await.map(u64::from),
            Self::Artifacts => artifacts.sweep().await,
            Self::Appends => store.leases().sweep_appends().await,
            Self::Checkpoints => retention.sweep_checkpoints().await,
            Self::ToolCalls => retention.sweep_tool_calls().await,
            Self::Approvals => retention.sweep_approvals(at - APPROVAL_RETENTION_MS).await,
            Self::Budgets => retention.sweep_budgets().await,
            Self::StreamLinks => retention.sweep_stream_links(at).await,
            Self::ActorTokens => retention.sweep_actor_tokens().await,
            Self::Sessions => retention.sweep_sessions(at - SESSION_RETENTION_MS).await,
            Self::SharedParts => retention.sweep_shared_parts().await,
            Self::Jobs => retention.sweep_jobs(at - JOB_RETENTION_MS).await,
            Self::Webhooks => sweep_webhooks(deps).await,
            Self::Wakes => sweep_wakes(deps).await,
            Self::Ledgers => match limits.retention {
                Some(age) => retention.prune_runs(age).await,
                None => Ok(0),
            },
            Self::Audit => match limits.audit_retention {
                Some(age) => store.audit_log().sweep_audit(age).await,
                None => Ok(0),
            },
            Self::Changes => match limits.change_retention {
                Some(age) => store.audit_log().sweep_changes(age).await,
                None => Ok(0),
            },
        }
    }
}

/// Deletes expired rows in small steps, so that other writes do not wait long.
pub(super) async fn keep_deleting(artifacts: &Artifacts) {
    let pause = artifacts.deps.limits.lease / 3;
    let mut tick = ticks_every(pause);
    let mut backlog_since = Instant::now();
    loop {
        tick.tick().await;
        let next = Instant::now() + pause;
        let mut left = ExpiredRows::ALL.to_vec();
        // Kinds without expired rows cost no further transactions until the next tick.
        while !left.is_empty() && Instant::now() < next {
            let begin = Instant::now();
            left = clean_some(artifacts, left).await;
            tokio::time::sleep(pause_after(begin.elapsed(), backlog_since.elapsed())).await;
        }
        if left.is_empty() {
            backlog_since = Instant::now();
        }
    }
}

fn pause_after(delete: Duration, backlog: Duration) -> Duration {
    if backlog < LONG_BACKLOG {
        BETWEEN_DELETES.max(delete * PAUSE_FACTOR)
    } else {
        BETWEEN_DELETES
    }
}

/// Deletes a batch of each kind; returns the kinds that may have more. Each kind is independent, so that a failure of
/// one does not delay the others.
async fn clean_some(artifacts: &Artifacts, kinds: Vec<ExpiredRows>) -> Vec<ExpiredRows> {
    let mut left = Vec::new();
    for kind in kinds {
        match kind.delete_some(artifacts).await {
            Ok(0) => {}
            Ok(_) => left.push(kind),
            // Not repeated before the next tick, so that it does not cause a busy loop.
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "cannot delete expired data, trying again");
            }
        }
    }
    left
}

async fn sweep_webhooks(deps: &RunDeps) -> Result<u64, StoreError> {
    let at = deps.clock.now_ms();
    let sweep = SweepWebhooks {
        pending_before: at - DELIVERY_MS,
        delivered_before: at - DELIVERED_RETENTION_MS,
        messages_before: at - MESSAGE_RETENTION_MS,
        at,
    };
    deps.store.retention().sweep_webhooks(sweep).await
}

async fn sweep_wakes(deps: &RunDeps) -> Result<u64, StoreError> {
    let before = deps.clock.now_ms() - WAKE_RETENTION_MS;
    deps.store
        .retention()
        .sweep_wakes(SweepWakes { before })
        .await
}

/// Adds transcripts of older gateways to the full-text index.
pub(super) async fn keep_indexing(deps: &RunDeps) {
    let mut tick = ticks_every(deps.limits.lease / 3);
    loop {
        tick.tick().await;
        if let Err(error) = index_all(deps).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot index transcripts; their search is incomplete until it succeeds"
            );
        }
    }
}

async fn index_all(deps: &RunDeps) -> Result<(), StoreError> {
    // In steps, between which other writes commit.
    while deps.store.conversations().index_backlog().await? {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backlog_takes_a_third_of_the_writer_for_an_hour() {
        let (delete, hour) = (Duration::from_millis(50), Duration::from_hours(1));
        assert_eq!(
            pause_after(delete, Duration::ZERO),
            Duration::from_millis(100)
        );
        assert_eq!(pause_after(Duration::ZERO, Duration::ZERO), BETWEEN_DELETES);
        assert_eq!(pause_after(delete, hour), BETWEEN_DELETES);
    }
}
