//! Checks of runs that the gateway ends: at the deadline, or early. The gateway closes the connection.

use std::time::Duration;

use domain::manifest::AcceptedManifest;
use tokio::time::Instant;

use super::check_harness::{CheckHarness, RunPlan};
use super::recording::{self, End, RunRecording};
use super::report::{ContractCheck, FindingCollector};

const RESPECTED: ContractCheck = ContractCheck {
    id: "deadline.respected",
    expected: "a run that waits for the host ends by itself at ctx.runtime.deadline_at",
    advice: "bound each callback by what is left until the deadline, and end with run.failed, code \
             deadline_exceeded; the gateway cuts the run at that moment",
};
const SURVIVES: ContractCheck = ContractCheck {
    id: "deadline.survives_cut",
    expected: "the endpoint serves the next run after the gateway closed the socket of one",
    advice: "end a run when its response can no longer be written, and let no run block the others",
};

pub(super) const ALL: [&ContractCheck; 2] = [&RESPECTED, &SURVIVES];

const DEADLINE: Duration = Duration::from_secs(2);
/// Allowance for clock differences.
const TOLERANCE: Duration = Duration::from_secs(2);
/// Maximum time that a runner may be at capacity after a disconnect.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Holds a callback beyond the run's deadline, then disconnects.
pub(super) async fn check(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    check_deadline(check_harness, runner, book).await;
    check_cut(check_harness, runner, book).await;
}

async fn check_deadline(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let plan = RunPlan {
        deadline: DEADLINE,
        ..check_harness.message(&check_harness.options.text)
    };
    let opened = check_harness.open(runner, &plan);
    let until = Instant::now() + DEADLINE + TOLERANCE;
    let calls = check_harness.host.call_count();
    check_harness.host.hold(&opened.token);
    let reading = async {
        let posted = check_harness.post(&opened).await;
        recording::read(check_harness, &opened, posted, until).await
    };
    // Bounds a runner that does not answer the POST at all.
    let recording = tokio::time::timeout_at(until + TOLERANCE, reading).await;
    let own = |call: &crate::mock_host::RecordedCall| call.run == Some(opened.run);
    let waited = check_harness.host.calls_after(calls).iter().any(own);
    check_harness.host.cut(&opened.token);
    match recording {
        Err(_) => book.warn(&RESPECTED, "the answer had not begun at the deadline"),
        Ok(recording)
            if !recording.is_deferred() && matches!(recording.end, End::Going | End::Idle) =>
        {
            book.warn(&RESPECTED, "the run was still going when it was cut");
        }
        Ok(recording) if recording.end == End::NotStarted => {
            book.skip(
                &RESPECTED,
                format!("the run was not taken: {}", recording.in_words()),
            );
        }
        // The token expires with the run, so the runner cannot report the end.
        Ok(recording) if recording.is_deferred() => {
            book.skip(&RESPECTED, "a run that appends ends with its token");
        }
        Ok(recording) if waited => book.pass(&RESPECTED, recording.in_words()),
        Ok(_) => book.skip(
            &RESPECTED,
            "the run was over before its deadline, and waited for nothing",
        ),
    }
}

async fn check_cut(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let opened = check_harness.open(runner, &check_harness.message(&check_harness.options.text));
    check_harness.host.hold(&opened.token);
    let posted = tokio::time::timeout(DEADLINE, check_harness.post(&opened)).await;
    // Closes the socket before the body is read, like the gateway at a deadline.
    drop(posted);
    check_harness.host.cut(&opened.token);
    let next = next_run(check_harness, runner).await;
    if next.is_valid() {
        book.pass(&SURVIVES, next.in_words());
    } else {
        book.fail(&SURVIVES, next.in_words());
    }
}

/// The run after the disconnect. A runner at capacity may not have noticed the disconnect yet, so the run is
/// retried.
async fn next_run(check_harness: &CheckHarness, runner: &AcceptedManifest) -> RunRecording {
    let until = Instant::now() + TIMEOUT;
    loop {
        let next = check_harness
            .play(runner, &check_harness.message(&check_harness.options.text))
            .await;
        let Some(wait) = next.asks_to_wait() else {
            return next;
        };
        // A runner may answer `Retry-After: 0`; the pause avoids a busy loop.
        let again = Instant::now() + wait.max(Duration::from_millis(100));
        if again > until {
            return next;
        }
        tokio::time::sleep_until(again).await;
    }
}
