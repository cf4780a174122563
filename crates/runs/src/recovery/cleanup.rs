//! Deletion of expired rows, and indexing of old transcripts.

use std::time::Duration;

use store::{StoreError, SweepWakes, SweepWebhooks};

use crate::artifacts::Artifacts;
use crate::deps::RunDeps;
use crate::ticks::ticks_every;

/// Pause between two deletes, in which other writes commit.
const BETWEEN_DELETES: Duration = Duration::from_millis(20);

/// Time for which finished jobs are stored: seven days.
const JOB_RETENTION_MS: i64 = 7 * DAY_MS;
const DAY_MS: i64 = 24 * 3600 * 1000;
/// Time for the tries of a delivery: a day, and an hour for the waits that receivers demand.
const DELIVERY_MS: i64 = DAY_MS + 3600 * 1000;
/// Time for which delivered deliveries are stored.
const DELIVERED_RETENTION_MS: i64 = 7 * DAY_MS;
/// Time for which messages and dead deliveries are stored.
const MESSAGE_RETENTION_MS: i64 = 30 * DAY_MS;

/// Time after a wake for which its key is in use.
const WAKE_RETENTION_MS: i64 = 30 * DAY_MS;

/// Deletes expired rows in small steps, so that other writes do not wait long.
pub(super) async fn keep_deleting(artifacts: &Artifacts) {
    let mut tick = ticks_every(artifacts.deps.limits.lease / 3);
    loop {
        tick.tick().await;
        while clean_some(artifacts).await > 0 {
            tokio::time::sleep(BETWEEN_DELETES).await;
        }
    }
}

/// Each kind is independent, so that a failure of one does not delay the others.
async fn clean_some(artifacts: &Artifacts) -> u64 {
    let deps = &artifacts.deps;
    let store = &deps.store;
    let mut swept = vec![
        store.state().sweep_storage().await,
        store.knowledge().sweep_knowledge().await.map(u64::from),
        artifacts.sweep().await,
        store.leases().sweep_appends().await,
        store.retention().sweep_checkpoints().await,
        store.retention().sweep_tool_calls().await,
        store.retention().sweep_budgets().await,
        store
            .retention()
            .sweep_stream_links(deps.clock.now_ms())
            .await,
        store.retention().sweep_shared_parts().await,
        store
            .retention()
            .sweep_jobs(deps.clock.now_ms() - JOB_RETENTION_MS)
            .await,
        sweep_webhooks(deps).await,
        sweep_wakes(deps).await,
    ];
    if let Some(retention) = deps.limits.retention {
        swept.push(store.retention().prune_runs(retention).await);
    }
    if let Some(audit_retention) = deps.limits.audit_retention {
        swept.push(store.audit_log().sweep_audit(audit_retention).await);
    }
    // A failure counts as 0, so that it does not cause a busy loop.
    let deleted = swept.into_iter().map(|one| {
        one.unwrap_or_else(|error| {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot delete expired data, trying again");
            0
        })
    });
    deleted.sum()
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
