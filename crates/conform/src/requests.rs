//! Checks of input that a runner must accept.

use domain::manifest::AcceptedManifest;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::check_harness::{CheckHarness, RunPlan};
use super::recording::{self, FaultKind, RecordedFault, RunRecording};
use super::report::{ContractCheck, FindingCollector};

const UNKNOWN_FIELDS: ContractCheck = ContractCheck {
    id: "request.unknown_fields",
    expected: "a run whose request and context hold unknown fields ends like any other",
    advice: "ignore fields that you do not know: new ones come without a new protocol version",
};
const BARE_EVENT: ContractCheck = ContractCheck {
    id: "request.bare_event",
    expected: "a run for an event without conversation, actor, subject and text ends with a terminal",
    advice: "treat them as absent or null, and say run.failed when you need one",
};
const CHARSET: ContractCheck = ContractCheck {
    id: "request.content_type",
    expected: "Content-Type: application/json; charset=utf-8 is taken as well",
    advice: "compare the media type without its parameters: a proxy may add them",
};

pub(super) const ALL: [&ContractCheck; 3] = [&UNKNOWN_FIELDS, &BARE_EVENT, &CHARSET];

/// Sends runs with variations that a runner must ignore.
pub(super) async fn check(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let plan = RunPlan {
        modify: add_fields,
        ..check_harness.message(&check_harness.options.text)
    };
    record_outcome(
        &UNKNOWN_FIELDS,
        &check_harness.play(runner, &plan).await,
        book,
    );
    check_bare_event(
        &check_harness
            .play(runner, &CheckHarness::bare_event())
            .await,
        book,
    );
    check_charset(check_harness, runner, book).await;
}

fn record_outcome(
    check: &'static ContractCheck,
    recording: &RunRecording,
    book: &mut FindingCollector<'_>,
) {
    if recording.is_valid() {
        book.pass(check, recording.in_words());
    } else {
        book.fail(check, recording.in_words());
    }
}

/// State without a matching scope in the event is rejected; the run continues.
fn check_bare_event(recording: &RunRecording, book: &mut FindingCollector<'_>) {
    let is_scope = |fault: &RecordedFault| fault.kind == FaultKind::StateKey;
    match recording.faults.first() {
        Some(first) if recording.survives() && recording.faults.iter().all(is_scope) => {
            let seen = format!(
                "the run continues without a rejected result: {}",
                first.seen
            );
            book.warn(&BARE_EVENT, seen);
        }
        _ => record_outcome(&BARE_EVENT, recording, book),
    }
}

/// Adds unknown fields to every object that a newer gateway may extend.
fn add_fields(request: &mut Value) {
    for pointer in [
        "",
        "/host",
        "/context",
        "/context/trigger",
        "/context/event",
        "/context/conversation",
        "/context/actor",
        "/context/subject",
        "/context/input",
        "/context/delivery",
        "/context/resources",
        "/context/context",
        "/context/context/available_apis",
        "/context/state",
        "/context/runtime",
    ] {
        // A path that the request lacks is skipped: the event may have no actor.
        if let Some(Value::Object(object)) = request.pointer_mut(pointer) {
            let unknown = json!({"a": [1, null, {"b": "c"}]});
            object.insert("x_unknown_to_you".to_owned(), unknown);
        }
    }
}

async fn check_charset(
    check_harness: &CheckHarness,
    runner: &AcceptedManifest,
    book: &mut FindingCollector<'_>,
) {
    let mut opened =
        check_harness.open(runner, &check_harness.message(&check_harness.options.text));
    CheckHarness::with_charset(&mut opened);
    let posted = check_harness.post(&opened).await;
    let until = Instant::now() + check_harness.options.timeout;
    let recording = recording::read(check_harness, &opened, posted, until).await;
    check_harness.host.cut(&opened.token);
    if recording.is_valid() {
        book.pass(&CHARSET, recording.in_words());
    } else {
        book.warn(&CHARSET, recording.in_words());
    }
}
