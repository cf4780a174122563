//! Checks of input that a runner must accept.

use domain::manifest::AcceptedManifest;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kit::{Kit, Plan};
use super::report::{Book, Check};
use super::trace::{self, Fault, FaultKind, Trace};

const UNKNOWN_FIELDS: Check = Check {
    id: "request.unknown_fields",
    expected: "a run whose request and context hold unknown fields ends like any other",
    advice: "ignore fields that you do not know: new ones come without a new protocol version",
};
const BARE_EVENT: Check = Check {
    id: "request.bare_event",
    expected: "a run for an event without conversation, actor, subject and text ends with a terminal",
    advice: "treat them as absent or null, and say run.failed when you need one",
};
const CHARSET: Check = Check {
    id: "request.content_type",
    expected: "Content-Type: application/json; charset=utf-8 is taken as well",
    advice: "compare the media type without its parameters: a proxy may add them",
};

pub(super) const ALL: [&Check; 3] = [&UNKNOWN_FIELDS, &BARE_EVENT, &CHARSET];

/// Sends runs with variations that a runner must ignore.
pub(super) async fn check(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let plan = Plan {
        bend: add_fields,
        ..kit.message(&kit.options.text)
    };
    judge(&UNKNOWN_FIELDS, &kit.play(runner, &plan).await, book);
    check_bare_event(&kit.play(runner, &Kit::bare_event()).await, book);
    check_charset(kit, runner, book).await;
}

fn judge(check: &'static Check, trace: &Trace, book: &mut Book<'_>) {
    if trace.is_sound() {
        book.pass(check, trace.in_words());
    } else {
        book.fail(check, trace.in_words());
    }
}

/// State without a matching scope in the event is rejected; the run continues.
fn check_bare_event(trace: &Trace, book: &mut Book<'_>) {
    let is_scope = |fault: &Fault| fault.kind == FaultKind::StateKey;
    match trace.faults.first() {
        Some(first) if trace.survives() && trace.faults.iter().all(is_scope) => {
            let seen = format!(
                "the run goes on without a result that was refused: {}",
                first.seen
            );
            book.warn(&BARE_EVENT, seen);
        }
        _ => judge(&BARE_EVENT, trace, book),
    }
}

/// Adds unknown fields to every object that a newer gateway may extend.
fn add_fields(request: &mut Value) {
    for place in [
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
        if let Some(Value::Object(object)) = request.pointer_mut(place) {
            let unknown = json!({"a": [1, null, {"b": "c"}]});
            object.insert("x_unknown_to_you".to_owned(), unknown);
        }
    }
}

async fn check_charset(kit: &Kit, runner: &AcceptedManifest, book: &mut Book<'_>) {
    let mut opened = kit.open(runner, &kit.message(&kit.options.text));
    Kit::with_charset(&mut opened);
    let posted = kit.post(&opened).await;
    let until = Instant::now() + kit.options.timeout;
    let trace = trace::read(kit, &opened, posted, until).await;
    kit.host.cut(&opened.token);
    if trace.is_sound() {
        book.pass(&CHARSET, trace.in_words());
    } else {
        book.warn(&CHARSET, trace.in_words());
    }
}
