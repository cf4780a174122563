//! Metrics of the writer. They count only after the process installs a recorder.

use std::sync::LazyLock;
use std::time::Duration;

use base::metric_names::{COMMIT_ITEMS, COMMIT_SECONDS, COMMITS_FAILED, PANICS};
use metrics::{Counter, Histogram, counter, histogram};

struct WriterMetrics {
    seconds: Histogram,
    items: Histogram,
    failed: Counter,
}

static METRICS: LazyLock<WriterMetrics> = LazyLock::new(|| WriterMetrics {
    seconds: histogram!(COMMIT_SECONDS),
    items: histogram!(COMMIT_ITEMS),
    failed: counter!(COMMITS_FAILED),
});

/// Registers the metrics before the first count.
pub fn register() {
    LazyLock::force(&METRICS);
    // Starts at 0: `rate` sees no increase when a series begins at 1.
    counter!(PANICS, "task" => "writer").absolute(0);
}

/// Counts a panic of the writer, which continues.
pub(crate) fn panicked() {
    counter!(PANICS, "task" => "writer").increment(1);
}

/// Records the end of a transaction.
#[expect(clippy::cast_precision_loss, reason = "a batch is small")]
pub(crate) fn transacted(items: usize, after: Duration, committed: bool) {
    if committed {
        METRICS.seconds.record(after);
        METRICS.items.record(items as f64);
    } else {
        METRICS.failed.increment(1);
    }
}
