//! Work on a whole catalog: megabytes of schemas, which would hold up every request of a worker.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::ApiState;
use crate::auth::RunCaller;
use crate::error::{ApiError, ApiResult};
use runs::grant::Grant;

/// Works on catalogs that go on at a time, one of them per run; the next one waits.
static ALL: Semaphore = Semaphore::const_new(4);

/// Does it on a thread of its own, when it is the turn of its run.
pub(super) async fn of_run<T: Send + 'static>(
    caller: &RunCaller,
    state: &ApiState,
    work: impl FnOnce(&Grant) -> T + Send + 'static,
) -> ApiResult<T> {
    let own = state.runs.catalog_turn(&caller.grant).await;
    let turn = ALL.acquire().await;
    let grant = Arc::clone(&caller.grant);
    aside(move || {
        let _turns = (own, turn);
        work(&grant)
    })
    .await
}

/// Does it on a thread of its own, when it is its turn.
pub(super) async fn in_turn<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let turn = ALL.acquire().await;
    aside(move || {
        let _turn = turn;
        work()
    })
    .await
}

/// Does it on a thread of its own at once: for a caller that has its turn.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::panicked())
}
