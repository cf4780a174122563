//! Waits with a timeout, and notices of skipped tests.

use std::io::Write;
use std::sync::Once;
use std::time::Duration;

/// Upper bound for waits, far above any expected duration, so that only a hang reaches it.
const MAX_WAIT: Duration = Duration::from_mins(1);

/// Waits for `future`; the panic on timeout names `what`.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(MAX_WAIT, future).await;
    waited.unwrap_or_else(|_| panic!("waited {MAX_WAIT:?} for {what}"))
}

/// Prints a skip notice once. Panics if `RUNNEL_TEST_REQUIRE` names `need`.
pub fn skipped(once: &Once, need: &str, why: &str) {
    let required = std::env::var("RUNNEL_TEST_REQUIRE").unwrap_or_default();
    assert!(
        !required.contains(need),
        "RUNNEL_TEST_REQUIRE names {need}, but {why}"
    );
    announce(once, &format!("SKIPPED {need}: {why}"));
}

/// Prints a line once, even if the test passes; the test harness hides `eprintln` output of passing tests.
pub fn announce(once: &Once, line: &str) {
    once.call_once(|| {
        let _ = writeln!(std::io::stderr(), "{line}");
    });
}

/// Polls `holds` with a short pause until it returns true.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    within(what, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
