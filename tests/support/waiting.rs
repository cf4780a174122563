//! Waits with an end, and tests that are left out aloud.

use std::io::Write;
use std::sync::Once;
use std::time::Duration;

/// Far more than anything here takes: it only tells slow from never.
const PATIENCE: Duration = Duration::from_mins(1);

/// Waits for `future` and names what did not come.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// Says once that tests are left out, unless `RUNNEL_TEST_REQUIRE` names what they need.
pub fn skipped(once: &Once, need: &str, why: &str) {
    let required = std::env::var("RUNNEL_TEST_REQUIRE").unwrap_or_default();
    assert!(
        !required.contains(need),
        "RUNNEL_TEST_REQUIRE names {need}, but {why}"
    );
    announce(once, &format!("SKIPPED {need}: {why}"));
}

/// Prints a line once, also when the test passes: `eprintln` is shown for failed tests only.
pub fn announce(once: &Once, line: &str) {
    once.call_once(|| {
        let _ = writeln!(std::io::stderr(), "{line}");
    });
}

/// Returns once `holds`; looks again and again, with a breath in between.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
