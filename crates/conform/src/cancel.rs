//! Checks of the cancel call: supported by runners with the capability `interrupt`, refused by others.

use std::pin::pin;

use domain::manifest::AcceptedManifest;
use http::StatusCode;
use protocol::id::RunId;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use super::check_harness::{CheckHarness, SignatureKind};
use super::recording::{self, End, RunRecording};
use super::report::{ContractCheck, FindingCollector};
use crate::mock_host::RecordedCall;

const REFUSES_UNSIGNED: ContractCheck = ContractCheck {
    id: "cancel.refuses_unsigned",
    expected: "a cancel notice without a signature is refused with 4xx",
    advice: "verify this route as well: otherwise a run's id suffices to stop it",
};
const ACCEPTED: ContractCheck = ContractCheck {
    id: "cancel.accepted",
    expected: "the cancel notice for a run that lives is answered 202",
    advice: "answer 202 at once and stop the run afterwards",
};
const ENDS: ContractCheck = ContractCheck {
    id: "cancel.ends",
    expected: "a cancelled run ends within 5 s",
    advice: "look between two steps whether the run was cancelled, and end it with run.failed",
};
const SAYS_CANCELLED: ContractCheck = ContractCheck {
    id: "cancel.says_cancelled",
    expected: "a cancelled run ends with run.failed, code cancelled",
    advice: "end with {\"code\": \"cancelled\", \"message\": …}: the run's status distinguishes it from a failure",
};
const UNSUPPORTED: ContractCheck = ContractCheck {
    id: "cancel.unsupported",
    expected: "without the capability interrupt the cancel notice is answered 404, 405 or 501",
    advice: "claim interrupt in the manifest if you can stop a run; else do not serve the route",
};

pub(super) const ALL: [&ContractCheck; 5] = [
    &REFUSES_UNSIGNED,
    &ACCEPTED,
    &ENDS,
    &SAYS_CANCELLED,
    &UNSUPPORTED,
];

/// Cancels a run if the runner supports it.
pub(super) async fn check(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    if runner.manifest.capabilities.interrupt {
        check_interrupt(check_harness, runner, book).await;
        book.skip_open(&[&ALL], "the runner claims the capability interrupt");
    } else {
        check_unsupported(check_harness, book).await;
        book.skip_open(
            &[&ALL],
            "the runner does not claim the capability interrupt",
        );
    }
}

async fn check_unsupported(check_harness: &CheckHarness, book: &mut FindingCollector<'_>) {
    // An id of no run: the call is harmless even if the runner supports it.
    let call = check_harness
        .options
        .endpoint
        .cancel_call(RunId(Uuid::now_v7()), 1);
    match check_harness.status(&call, &SignatureKind::Right).await {
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
async fn check_interrupt(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let opened = check_harness.open(
        runner,
        &check_harness.message(&check_harness.options.cancel_text),
    );
    let calls = check_harness.host.call_count();
    check_harness.host.hold(&opened.token);
    // A runner may call back before its response begins, so the host gets half of that time.
    let mut posting = pin!(check_harness.post(&opened));
    let early = timeout(check_harness.first_byte() / 2, &mut posting).await;
    let held = early.is_ok();
    let posted = if let Ok(posted) = early {
        posted
    } else {
        check_harness.host.release(&opened.token);
        posting.await
    };
    if posted.is_taken() {
        let call = check_harness.options.endpoint.cancel_call(opened.run, 1);
        // Unsigned first: the signed call would end the run.
        let unsigned = check_harness.status(&call, &SignatureKind::Missing).await;
        let answer = check_harness.status(&call, &SignatureKind::Right).await;
        let own = |call: &RecordedCall| call.run == Some(opened.run);
        let is_held = held && check_harness.host.calls_after(calls).iter().any(own);
        check_harness.host.cancel(&opened.token);
        // The gateway waits as long before it closes the connection.
        let until = Instant::now() + check_harness.limits.cancel_grace;
        let recording = recording::read(check_harness, &opened, posted, until).await;
        check_unsigned(unsigned, book);
        check_answer(answer, is_held, &recording, book);
    } else {
        book.skip_open(&[&ALL], "the run was not taken");
    }
    // Also after a failure: held callbacks would keep the runner's run alive.
    check_harness.host.cut(&opened.token);
}

fn check_unsigned(answer: Result<StatusCode, String>, book: &mut FindingCollector<'_>) {
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
    recording: &RunRecording,
    book: &mut FindingCollector<'_>,
) {
    match answer {
        Ok(StatusCode::ACCEPTED) => {
            book.pass(&ACCEPTED, "HTTP 202");
            check_ending(recording, book);
        }
        // The run ended before the notice: nothing was tested, and the runner did no wrong.
        Ok(status) if !is_held && matches!(recording.end, End::Completed | End::Failed { .. }) => {
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

fn refused(seen: &str, book: &mut FindingCollector<'_>) {
    book.fail(&ACCEPTED, seen);
    for check in [&ENDS, &SAYS_CANCELLED] {
        book.skip(check, "the runner did not receive the cancel call");
    }
}

fn check_ending(recording: &RunRecording, book: &mut FindingCollector<'_>) {
    match &recording.end {
        End::Going | End::Idle => {
            book.fail(&ENDS, recording.in_words());
            book.skip(&SAYS_CANCELLED, "the run has no end");
        }
        End::Failed { code, .. } if code == "cancelled" => {
            book.pass(&ENDS, recording.in_words());
            book.pass(&SAYS_CANCELLED, recording.in_words());
        }
        End::Completed => {
            book.pass(&ENDS, recording.in_words());
            let seen = format!(
                "{}; if that was before the cancel notice came, give a --cancel-text that keeps the runner busy",
                recording.in_words()
            );
            book.warn(&SAYS_CANCELLED, seen);
        }
        _ => {
            book.pass(&ENDS, recording.in_words());
            book.warn(&SAYS_CANCELLED, recording.in_words());
        }
    }
}

fn http(status: StatusCode) -> String {
    format!("HTTP {}", status.as_u16())
}
