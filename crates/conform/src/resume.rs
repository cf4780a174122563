//! Checks of runners with the capability `resumable`: their runs survive the connection.

mod connection;

use std::time::Duration;

use domain::manifest::AcceptedManifest;
use http::StatusCode;
use protocol::id::RunId;
use tokio::time::Instant;
use uuid::Uuid;

use super::check_harness::{CheckHarness, SignatureKind};
use super::report::{ContractCheck, FindingCollector, counted};
use connection::{CutRun, ResumeFault};

const REFUSES_UNSIGNED: ContractCheck = ContractCheck {
    id: "resume.refuses_unsigned",
    expected: "a resume without a signature is refused with 4xx",
    advice: "verify this route as well: it replaces the token of a live run",
};
const UNKNOWN: ContractCheck = ContractCheck {
    id: "resume.unknown_run",
    expected: "a resume of a run that the runner does not have is answered 404",
    advice: "answer 404 for a run id without a buffer: the gateway then ends the run as runner.lost",
};
const CONTINUES: ContractCheck = ContractCheck {
    id: "resume.continues",
    expected: "a run that is cut after each result continues after each resume",
    advice: "produce the results into a buffer, not into the response; a resume reads it after `after`, then live",
};
const EQUAL: ContractCheck = ContractCheck {
    id: "resume.equal_results",
    expected: "a result that comes twice has equal bytes, and sequences have no gap",
    advice: "buffer the serialized result; number results 1, 2, 3 in `sequence`",
};
const ENDED: ContractCheck = ContractCheck {
    id: "resume.ended_run",
    expected: "a resume of a run that has ended yields its last results",
    advice: "hold the buffer for resume_within_seconds after the terminal: the gateway may stop before it stores it",
};
const LATE: ContractCheck = ContractCheck {
    id: "resume.late",
    expected: "a run works on without a connection, and a resume after 2 s yields all results",
    advice: "do not stop the work when the response closes, only after resume_within_seconds",
};
const SUPERSEDES: ContractCheck = ContractCheck {
    id: "resume.supersedes",
    expected: "a resume closes the older connection of the run within 5 s",
    advice: "close the response of the earlier attempt when a higher one attaches",
};
const STALE: ContractCheck = ContractCheck {
    id: "resume.stale_attempt",
    expected: "a resume with a lower attempt is answered 409",
    advice: "remember the highest attempt of each run; an older gateway must not take the run back",
};

pub(super) const ALL: [&ContractCheck; 8] = [
    &REFUSES_UNSIGNED,
    &UNKNOWN,
    &CONTINUES,
    &EQUAL,
    &ENDED,
    &LATE,
    &SUPERSEDES,
    &STALE,
];

/// Wait before the late resume.
const LATE_AFTER: Duration = Duration::from_secs(2);
/// Maximum time until a superseded connection is closed.
const CLOSES_WITHIN: Duration = Duration::from_secs(5);
/// Cuts of one run. Further results are read without a cut.
const MAX_CUTS: usize = 100;

/// Cuts and resumes runs of a runner with the capability.
pub(super) async fn check(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    if !runner.manifest.capabilities.resumable {
        let reason = "the runner does not claim the capability resumable";
        book.skip_open(&[&ALL], reason);
        return;
    }
    check_unknown(check_harness, runner, book).await;
    check_cuts(check_harness, runner, book).await;
    check_late(check_harness, runner, book).await;
    check_attempts(check_harness, runner, book).await;
    book.skip_open(&[&ALL], "a run was not taken, or is answered with 202");
}

async fn check_unknown(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let opened = check_harness.open(runner, &check_harness.message(&check_harness.options.text));
    let run = CutRun::new(check_harness, runner, opened);
    let call = run.call_of(RunId(Uuid::now_v7()), 2, None);
    match check_harness.status(&call, &SignatureKind::Missing).await {
        Ok(status) if status.is_client_error() => book.pass(&REFUSES_UNSIGNED, http(status)),
        Ok(status) => book.fail(&REFUSES_UNSIGNED, http(status)),
        Err(error) => book.fail(&REFUSES_UNSIGNED, format!("no answer: {error}")),
    }
    run.leave();
    match check_harness.status(&call, &SignatureKind::Right).await {
        Ok(StatusCode::NOT_FOUND) => book.pass(&UNKNOWN, "HTTP 404"),
        Ok(status) => book.fail(&UNKNOWN, http(status)),
        Err(error) => book.fail(&UNKNOWN, format!("no answer: {error}")),
    }
}

/// Cuts one run after each of its results.
async fn check_cuts(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let Some((mut run, mut connection)) = CutRun::start(check_harness, runner).await else {
        return;
    };
    let until = Instant::now() + check_harness.options.timeout;
    let mut cuts = 0;
    let outcome = loop {
        let least = if cuts < MAX_CUTS { 1 } else { usize::MAX };
        if let Err(fault) = run.read(&mut connection, least, until).await {
            break Err(fault);
        }
        // The connection is dropped here: the gateway may have stored all of its results but the last.
        drop(connection);
        if run.has_ended() {
            break Ok(());
        }
        cuts += 1;
        connection = match run.resume(run.last() - 1).await {
            Ok(connection) => connection,
            Err(fault) => break Err(fault),
        };
    };
    match outcome {
        Ok(()) => {
            let seen = format!("{} after {cuts} cuts", counted(run.last(), "result"));
            book.pass(&CONTINUES, &seen);
            check_ended(&mut run, until, book).await;
            book.skip_open(&[&[&EQUAL]], "the run could not be resumed after its end");
        }
        Err(ResumeFault::Lost(seen)) => {
            book.fail(&CONTINUES, format!("after {cuts} cuts: {seen}"));
            book.skip_open(&[&[&EQUAL, &ENDED]], "the run was lost");
        }
        Err(ResumeFault::Differs(seen)) => {
            book.fail(&EQUAL, format!("after {cuts} cuts: {seen}"));
            book.skip_open(&[&[&CONTINUES, &ENDED]], "the results differ");
        }
    }
    run.leave();
}

/// Resumes a run after its terminal, as a gateway that stopped before it stored the terminal.
async fn check_ended(run: &mut CutRun<'_>, until: Instant, book: &mut FindingCollector<'_>) {
    let read = match run.resume(run.last() - 1).await {
        Ok(mut connection) => run.read(&mut connection, usize::MAX, until).await,
        Err(fault) => Err(fault),
    };
    match read {
        Ok(()) => {
            book.pass(&ENDED, "its terminal came again");
            book.pass(&EQUAL, "they are equal");
        }
        Err(ResumeFault::Lost(seen)) => book.fail(&ENDED, seen),
        Err(ResumeFault::Differs(seen)) => {
            book.fail(&EQUAL, seen);
            book.skip(&ENDED, "the results differ");
        }
    }
}

async fn check_late(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let Some((mut run, connection)) = CutRun::start(check_harness, runner).await else {
        return;
    };
    drop(connection);
    tokio::time::sleep(LATE_AFTER).await;
    let until = Instant::now() + check_harness.options.timeout;
    let read = match run.resume(0).await {
        Ok(mut connection) => run.read(&mut connection, usize::MAX, until).await,
        Err(fault) => Err(fault),
    };
    match read {
        Ok(()) => book.pass(&LATE, counted(run.last(), "result")),
        Err(ResumeFault::Lost(seen) | ResumeFault::Differs(seen)) => book.fail(&LATE, seen),
    }
    run.leave();
}

/// Resumes a run whose connection is open, then with a lower attempt.
async fn check_attempts(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let Some((mut run, mut older)) = CutRun::start(check_harness, runner).await else {
        return;
    };
    run.skip_attempt();
    match run.resume(0).await {
        Ok(mut newer) => {
            if older.closes(Instant::now() + CLOSES_WITHIN).await {
                book.pass(&SUPERSEDES, "it is closed");
            } else {
                book.fail(&SUPERSEDES, "it was still open");
            }
            let stale = run.call_of(run.id(), 2, None);
            match check_harness.status(&stale, &SignatureKind::Right).await {
                Ok(StatusCode::CONFLICT) => book.pass(&STALE, "HTTP 409"),
                Ok(status) => book.fail(&STALE, http(status)),
                Err(error) => book.fail(&STALE, format!("no answer: {error}")),
            }
            // Read to the end, so that the run does not outlive the check.
            let until = Instant::now() + check_harness.options.timeout;
            let _ = run.read(&mut newer, usize::MAX, until).await;
        }
        Err(ResumeFault::Lost(seen) | ResumeFault::Differs(seen)) => {
            book.fail(&SUPERSEDES, &seen);
            book.skip(&STALE, "the first resume was refused");
        }
    }
    run.leave();
}

fn http(status: StatusCode) -> String {
    format!("HTTP {}", status.as_u16())
}
