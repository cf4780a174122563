//! Polling for cancels that other replicas have stored.

use std::time::Duration;

use store::{Backend, StoreError};

use crate::deps::RunDeps;

/// Minimum pause between two queries, because notifications may come in bursts.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// Polls for stored cancel requests, on notification and at an interval.
pub(super) async fn keep_polling(deps: &RunDeps) {
    let mut is_failing = false;
    while deps.store.backend() == Backend::Postgres {
        tokio::select! {
            () = deps.notifier.cancels.notified() => {}
            () = tokio::time::sleep(deps.limits.poll) => {}
        }
        let polled = poll(deps).await;
        if let Err(error) = &polled
            && !is_failing
        {
            let error = error as &dyn std::error::Error;
            tracing::error!(error, "cannot read the cancels of other replicas");
        }
        is_failing = polled.is_err();
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

async fn poll(deps: &RunDeps) -> Result<(), StoreError> {
    for (id, at) in deps.store.leases().cancel_requests_of(&deps.owner).await? {
        if let Some(live) = deps.live.get(id) {
            live.request_cancel(at);
        }
    }
    Ok(())
}
