//! CPU-bound work on tool catalogs. Schemas take megabytes, so this work runs on blocking threads.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::auth::RunCaller;
use crate::error::{ApiError, ApiResult};
use crate::state::ApiState;
use runs::grant::Grant;

/// Limits concurrent catalog work to 4 in the process and 1 for each run. Further work queues.
static CATALOG_PERMITS: Semaphore = Semaphore::const_new(4);

/// Runs the work on a blocking thread after a permit of the run and of the process.
pub async fn of_run<T: Send + 'static>(
    caller: &RunCaller,
    state: &ApiState,
    work: impl FnOnce(&Grant) -> T + Send + 'static,
) -> ApiResult<T> {
    // The permit of the run first: a run that waits for itself must not hold one of the process.
    let own = state.runs.calls.catalog_permit(&caller.grant).await;
    let turn = CATALOG_PERMITS.acquire().await;
    let grant = Arc::clone(&caller.grant);
    run_blocking(move || {
        // Dropped at the end of the work: a blocking thread continues when the request is aborted.
        let _turns = (own, turn);
        work(&grant)
    })
    .await
}

/// Runs the work on a blocking thread after a permit of the process.
pub async fn with_permit<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let turn = CATALOG_PERMITS.acquire().await;
    run_blocking(move || {
        // Dropped at the end of the work: a blocking thread continues when the request is aborted.
        let _turn = turn;
        work()
    })
    .await
}

/// Runs the work on a blocking thread without a permit; the caller holds one.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::panicked())
}
