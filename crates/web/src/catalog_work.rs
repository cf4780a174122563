//! CPU-bound work on tool catalogs. Schemas take megabytes, so this work runs on blocking threads.

use std::sync::{Arc, LazyLock};

use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Share};
use protocol::id::RunId;

use crate::auth::RunCaller;
use crate::error::{ApiError, ApiResult};
use runs::grant::Grant;

/// No caller receives it: work queues without a timeout.
const QUEUED: LimitRefusal = LimitRefusal::new("catalog_work", "other catalog work is in progress");
/// Maximum concurrent catalog work in the process, and of one run. Further work queues.
const TOTAL: LimitSpec = QUEUED.at(4);
const OF_RUN: LimitSpec = QUEUED.at(1);

static CATALOG_WORK: LazyLock<KeyedLimiter<RunId>> = LazyLock::new(|| KeyedLimiter::new(TOTAL));

/// Runs the work on a blocking thread after a permit of the run and of the process.
pub async fn of_run<T: Send + 'static>(
    caller: &RunCaller,
    work: impl FnOnce(&Grant) -> T + Send + 'static,
) -> ApiResult<T> {
    let grant = Arc::clone(&caller.grant);
    let share = Share {
        key: grant.run.id,
        limit: OF_RUN,
    };
    run_queued(vec![share], move || work(&grant)).await
}

/// Runs the work on a blocking thread after a permit of the process.
pub async fn with_permit<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    run_queued(Vec::new(), work).await
}

async fn run_queued<T: Send + 'static>(
    shares: Vec<Share<RunId>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    let permit = CATALOG_WORK.acquire(shares).await;
    run_blocking(move || {
        // Dropped at the end of the work: a blocking thread continues when the request is aborted.
        let _permit = permit;
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
