//! What the writer counts. Nothing is kept unless the process has installed a recorder before.

use std::sync::LazyLock;
use std::time::Duration;

use base::metric_names::{COMMIT_ITEMS, COMMIT_SECONDS, COMMITS_FAILED, PANICS};
use metrics::{Counter, Histogram, counter, histogram};

struct Meter {
    seconds: Histogram,
    items: Histogram,
    failed: Counter,
}

static METER: LazyLock<Meter> = LazyLock::new(|| Meter {
    seconds: histogram!(COMMIT_SECONDS),
    items: histogram!(COMMIT_ITEMS),
    failed: counter!(COMMITS_FAILED),
});

/// Makes the metrics known to the recorder before anything is counted.
pub fn register() {
    LazyLock::force(&METER);
    // It begins at 0 and not with the first: a rise from nothing is no rise.
    counter!(PANICS, "task" => "writer").absolute(0);
}

/// The writer has panicked, and goes on.
pub(crate) fn panicked() {
    counter!(PANICS, "task" => "writer").increment(1);
}

/// A transaction of this many items has ended after this time.
#[expect(clippy::cast_precision_loss, reason = "a batch is small")]
pub(crate) fn transacted(items: usize, after: Duration, committed: bool) {
    if committed {
        METER.seconds.record(after);
        METER.items.record(items as f64);
    } else {
        METER.failed.increment(1);
    }
}
