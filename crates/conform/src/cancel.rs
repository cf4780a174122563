//! Checks of the cancel call: supported by runners with the capability `interrupt`, refused by others.

use std::pin::pin;

use domain::manifest::AcceptedManifest;
use http::StatusCode;
use protocol::id::RunId;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::kit::{Kit, Signing};
use super::report::{Book, Check};
use super::trace::{self, End, Trace};
use api::rehearsal::HostCall;

const REFUSES_UNSIGNED: Check = Check {
    id: "cancel.refuses_unsigned",
    expected: "a cancel notice without a signature is refused with 4xx",
    advice: "verify this route as well: otherwise a run's id suffices to stop it",
};
const ACCEPTED: Check = Check {
    id: "cancel.accepted",
    expected: "the cancel notice for a run that lives is answered 202",
    advice: "answer 202 at once and stop the run behind it",
};
const ENDS: Check = Check {
    id: "cancel.ends",
    expected: "a cancelled run ends within 5 s",
    advice: "look between two steps whether the run was cancelled, and end it with run.failed",
};
const SAYS_CANCELLED: Check = Check {
    id: "cancel.says_cancelled",
    expected: "a cancelled run ends with run.failed, code cancelled",
    advice: "end with {\"code\": \"cancelled\", \"message\": …}: the run's status tells it from a failure",
};
const UNSUPPORTED: Check = Check {
    id: "cancel.unsupported",
    expected: "without the capability interrupt the cancel notice is answered 404, 405 or 501",
    advice: "claim interrupt in the manifest if you can stop a run; else do not serve the route",
};

pub(super) const ALL: [&Check; 5] = [
    &REFUSES_UNSIGNED,
    &ACCEPTED,
    &ENDS,
    &SAYS_CANCELLED,
    &UNSUPPORTED,
];

/// Cancels a run if the runner supports it.
pub(super) async fn check(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    if runner.manifest.capabilities.interrupt {
        check_interrupt(kit, runner, book).await;
        book.skip_open(&[&ALL], "the runner claims the capability interrupt");
    } else {
        check_unsupported(kit, book).await;
        book.skip_open(
            &[&ALL],
            "the runner does not claim the capability interrupt",
        );
    }
}

async fn check_unsupported(kit: &Kit, book: &mut Book<'_>) {
    let call = kit.options.endpoint.cancel_call(RunId(Uuid::now_v7()), 1);
    match kit.status(&call, &Signing::Right).await {
        Ok(status) if matches!(status.as_u16(), 404 | 405 | 501) => {
            book.pass(&UNSUPPORTED, http(status));
        }
        // The gateway does not cancel such runners. Refusing an unknown action conforms to the contract.
        Ok(status) if status.is_success() || status.is_client_error() => {
            book.warn(&UNSUPPORTED, http(status));
        }
        Ok(status) => book.fail(&UNSUPPORTED, http(status)),
        Err(error) => book.fail(&UNSUPPORTED, format!("no answer: {error}")),
    }
}

/// The run stays busy until the cancel call returns: its callbacks are held, and its body is not read.
async fn check_interrupt(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let opened = kit.open(runner, &kit.message(&kit.options.cancel_text));
    let calls = kit.host.call_count();
    kit.host.hold(&opened.token);
    // A runner may call back before its response begins, so the host gets half of that time.
    let mut posting = pin!(kit.post(&opened));
    let early = timeout(kit.first_byte() / 2, &mut posting).await;
    let held = early.is_ok();
    let posted = if let Ok(posted) = early {
        posted
    } else {
        kit.host.release(&opened.token);
        posting.await
    };
    if posted.is_taken() {
        let call = kit.options.endpoint.cancel_call(opened.run, 1);
        let unsigned = kit.status(&call, &Signing::Missing).await;
        let answer = kit.status(&call, &Signing::Right).await;
        let own = |call: &HostCall| call.run == Some(opened.run);
        let is_held = held && kit.host.calls_after(calls).iter().any(own);
        kit.host.cancel(&opened.token);
        let until = Instant::now() + kit.limits.cancel_grace;
        let trace = trace::read(kit, &opened, posted, until).await;
        check_unsigned(unsigned, book);
        check_answer(answer, is_held, &trace, book);
    } else {
        book.skip_open(&[&ALL], "the run was not taken");
    }
    kit.host.cut(&opened.token);
}

fn check_unsigned(answer: Result<StatusCode, String>, book: &mut Book<'_>) {
    match answer {
        Ok(status) if status.is_client_error() => book.pass(&REFUSES_UNSIGNED, http(status)),
        Ok(status) => book.fail(&REFUSES_UNSIGNED, http(status)),
        Err(error) => book.fail(&REFUSES_UNSIGNED, format!("no answer: {error}")),
    }
}

/// `is_held`: the run waited for a callback, so it was alive.
fn check_answer(
    answer: Result<StatusCode, String>,
    is_held: bool,
    trace: &Trace,
    book: &mut Book<'_>,
) {
    match answer {
        Ok(StatusCode::ACCEPTED) => {
            book.pass(&ACCEPTED, "HTTP 202");
            check_ending(trace, book);
        }
        Ok(status) if !is_held && matches!(trace.end, End::Completed | End::Failed { .. }) => {
            let over = format!(
                "HTTP {}: the run was over before it could be cancelled; give a --cancel-text that keeps it busy",
                status.as_u16()
            );
            for check in [&ACCEPTED, &ENDS, &SAYS_CANCELLED] {
                book.skip(check, &over);
            }
        }
        Ok(status) => refused(&http(status), book),
        Err(error) => refused(&format!("no answer: {error}"), book),
    }
}

fn refused(seen: &str, book: &mut Book<'_>) {
    book.fail(&ACCEPTED, seen);
    for check in [&ENDS, &SAYS_CANCELLED] {
        book.skip(check, "the runner did not receive the cancel call");
    }
}

fn check_ending(trace: &Trace, book: &mut Book<'_>) {
    match &trace.end {
        End::Going | End::Idle => {
            book.fail(&ENDS, trace.in_words());
            book.skip(&SAYS_CANCELLED, "the run has no end");
        }
        End::Failed { code, .. } if code == "cancelled" => {
            book.pass(&ENDS, trace.in_words());
            book.pass(&SAYS_CANCELLED, trace.in_words());
        }
        _ => {
            book.pass(&ENDS, trace.in_words());
            book.warn(&SAYS_CANCELLED, trace.in_words());
        }
    }
}

fn http(status: StatusCode) -> String {
    format!("HTTP {}", status.as_u16())
}
