//! Checks of runs that the gateway ends: at the deadline, or early. The gateway closes the connection.

use std::time::Duration;

use domain::manifest::AcceptedManifest;
use tokio::time::Instant;

use super::kit::{Kit, Plan};
use super::report::{Book, Check};
use super::trace::{self, End, Trace};

const RESPECTED: Check = Check {
    id: "deadline.respected",
    expected: "a run that waits for the host ends by itself at ctx.runtime.deadline_at",
    advice: "bound each callback by what is left until the deadline, and end with run.failed, code \
             deadline_exceeded; the gateway cuts the run at that moment",
};
const SURVIVES: Check = Check {
    id: "deadline.survives_cut",
    expected: "the endpoint serves the next run after the gateway closed the socket of one",
    advice: "end a run when its response can no longer be written, and let no run block the others",
};

pub(super) const ALL: [&Check; 2] = [&RESPECTED, &SURVIVES];

const DEADLINE: Duration = Duration::from_secs(2);
/// Allowance for clock differences.
const TOLERANCE: Duration = Duration::from_secs(2);
/// Maximum time that a runner may be at capacity after a disconnect.
const PATIENCE: Duration = Duration::from_secs(10);

/// Holds a callback beyond the run's deadline, then disconnects.
pub(super) async fn check(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    check_deadline(kit, runner, book).await;
    check_cut(kit, runner, book).await;
}

async fn check_deadline(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let plan = Plan {
        deadline: DEADLINE,
        ..kit.message(&kit.options.text)
    };
    let opened = kit.open(runner, &plan);
    let until = Instant::now() + DEADLINE + TOLERANCE;
    let calls = kit.host.call_count();
    kit.host.hold(&opened.token);
    let reading = async {
        let posted = kit.post(&opened).await;
        trace::read(kit, &opened, posted, until).await
    };
    let trace = tokio::time::timeout_at(until + TOLERANCE, reading).await;
    let own = |call: &api::rehearsal::HostCall| call.run == Some(opened.run);
    let waited = kit.host.calls_after(calls).iter().any(own);
    kit.host.cut(&opened.token);
    match trace {
        Err(_) => book.warn(&RESPECTED, "the answer had not begun at the deadline"),
        Ok(trace) if !trace.is_deferred() && matches!(trace.end, End::Going | End::Idle) => {
            book.warn(&RESPECTED, "the run was still going when it was cut");
        }
        Ok(trace) if trace.end == End::NotStarted => {
            book.skip(
                &RESPECTED,
                format!("the run was not taken: {}", trace.in_words()),
            );
        }
        // The token expires with the run, so the runner cannot report the end.
        Ok(trace) if trace.is_deferred() => {
            book.skip(&RESPECTED, "a run that appends ends with its token");
        }
        Ok(trace) if waited => book.pass(&RESPECTED, trace.in_words()),
        Ok(_) => book.skip(
            &RESPECTED,
            "the run was over before its deadline, and waited for nothing",
        ),
    }
}

async fn check_cut(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let opened = kit.open(runner, &kit.message(&kit.options.text));
    kit.host.hold(&opened.token);
    let posted = tokio::time::timeout(DEADLINE, kit.post(&opened)).await;
    drop(posted);
    kit.host.cut(&opened.token);
    let next = next_run(kit, runner).await;
    if next.is_sound() {
        book.pass(&SURVIVES, next.in_words());
    } else {
        book.fail(&SURVIVES, next.in_words());
    }
}

/// The run after the disconnect. A runner at capacity may not have noticed the disconnect yet, so the run is
/// retried.
async fn next_run(kit: &Kit, runner: &AcceptedManifest) -> Trace {
    let until = Instant::now() + PATIENCE;
    loop {
        let next = kit.play(runner, &kit.message(&kit.options.text)).await;
        let Some(wait) = next.asks_to_wait() else {
            return next;
        };
        let again = Instant::now() + wait.max(Duration::from_millis(100));
        if again > until {
            return next;
        }
        tokio::time::sleep_until(again).await;
    }
}
