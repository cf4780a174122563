//! The carrier `AgentProtocolOutput`: arguments of one call to a declaration.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::action::{AUTHORITY, Action, Executor, ExecutorKind};
use crate::code::Code;
use crate::declaration::{Declaration, DeclarationForm, Intent, Payload};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::fence;
use crate::ids::is_action_id;
use crate::json::{self, type_name};
use crate::limits::GraphLimits;
use crate::policy::Return;
use crate::reader::FieldReader;

/// Result forms that the carrier offers.
pub(crate) const RESULTS: [Return; 6] = [
    Return::Summary,
    Return::Full,
    Return::Structured,
    Return::OnFailure,
    Return::OnDemand,
    Return::Adaptive,
];
/// Objects that models put around the fields.
const WRAPPERS: [&str; 3] = ["input", "arguments", "parameters"];
/// Words with the meaning "no dependency".
const NO_DEPENDENCY: [&str; 2] = ["", "none"];

/// The three kinds of the carrier (DSL-09).
#[derive(Clone, Copy, PartialEq)]
enum CarrierKind {
    Act,
    Answer,
    Done,
}

const KINDS: [(&str, CarrierKind); 3] = [
    ("act", CarrierKind::Act),
    ("answer", CarrierKind::Answer),
    ("done", CarrierKind::Done),
];

/// Reads the arguments of the carrier. `None` when no declaration can be made of them.
pub(crate) fn read(
    arguments: &str,
    limits: &GraphLimits,
    found: &mut Diagnostics,
) -> Option<Declaration> {
    // Before parsing: the parser's cost must be bounded.
    if arguments.len() > limits.carrier_bytes {
        let max = limits.carrier_bytes;
        let message = format!("the arguments exceed {max} bytes");
        found.add(Code::TooLarge, "", message);
        return None;
    }
    let object = root(arguments, limits, found)?;
    let mut reader = FieldReader::new(object, "", found);
    reader.require("kind", Code::MissingField);
    let kind = reader.word_of("kind", Code::BadEnum, &KINDS);
    // Bounded only by the size of all arguments.
    let message = reader.text("message", usize::MAX).unwrap_or_default();
    let outcome = reader.word("outcome", Code::BadEnum);
    let actions = read_calls(&mut reader, kind, limits);
    let policies = reader.policies();
    // After all known fields: the rest is unknown.
    let extra = reader.rest();
    let mut declaration = match kind? {
        CarrierKind::Act => {
            let payload = Payload::ActionGraph {
                actions,
                report: None,
            };
            let mut declaration = Declaration::new(Intent::Execute, payload);
            // The message of an act is a word to the user before the work, not an answer.
            declaration.note.clone_from(&message);
            declaration
        }
        kind => {
            // A warning only: an empty answer still ends the turn.
            if kind == CarrierKind::Answer && message.trim().is_empty() {
                let message = "the answer has no message";
                found.add(Code::MessageMissing, "/message", message);
            }
            let intent = match kind {
                CarrierKind::Done => Intent::Stop,
                _ => Intent::Respond,
            };
            let text = message.clone();
            Declaration::new(intent, Payload::Message { text })
        }
    };
    declaration.message = message;
    declaration.outcome = outcome.unwrap_or_default();
    declaration.policies = policies;
    declaration.policies.extra = extra;
    declaration.source.origin = DeclarationForm::Carrier;
    Some(declaration)
}

/// The object that holds `kind`: without a fence, a string or one wrapper around it.
fn root(
    arguments: &str,
    limits: &GraphLimits,
    found: &mut Diagnostics,
) -> Option<Map<String, Value>> {
    let text = fence::unwrap(arguments);
    if text.len() != arguments.trim().len() {
        found.add(Code::Unwrapped, "", "the code fence is dropped");
    }
    // The reader reports the fault itself; the error of the result is not needed further.
    let parsed = json::parse(text, limits.json_depth).map_err(|fault| {
        found.add(fault.code, fault.pointer, fault.message);
    });
    let mut value = parsed.ok()?;
    // Some providers pass arguments as a string in a string.
    if let Value::String(inner) = &value
        && let Ok(inner @ Value::Object(_)) = json::parse(inner, limits.json_depth)
    {
        found.add(Code::Unstringified, "", "the JSON in the string is used");
        value = inner;
    }
    let Value::Object(mut object) = value else {
        let found_type = type_name(&value);
        let message = format!("expected an object, found {found_type}");
        found.add(Code::NotObject, "", message);
        return None;
    };
    // Only if nothing else is there: a real field named `input` must not be dropped.
    if !object.contains_key("kind") && object.len() == 1 {
        let holds_kind = |name: &&str| {
            let inner = object.get(*name).and_then(Value::as_object);
            inner.is_some_and(|inner| inner.contains_key("kind"))
        };
        if let Some(wrapper) = WRAPPERS.into_iter().find(|name| holds_kind(name))
            && let Some(Value::Object(inner)) = object.remove(wrapper)
        {
            let message = format!("`{wrapper}` around the fields is dropped");
            found.add(Code::Unwrapped, "", message);
            return Some(inner);
        }
    }
    Some(object)
}

fn read_calls(
    reader: &mut FieldReader<'_>,
    kind: Option<CarrierKind>,
    limits: &GraphLimits,
) -> Vec<Action> {
    if kind == Some(CarrierKind::Act) && reader.has("call") {
        reader.add(Code::SingularCall, "call", "`call` is no field");
        // Removed after the report, or it would be reported as unknown, too.
        let _ = reader.take("call");
    } else if kind == Some(CarrierKind::Act) {
        reader.require("calls", Code::MissingCalls);
    }
    let Some(mut calls) = reader.list("calls") else {
        return Vec::new();
    };
    let all = calls.len();
    // Models send empty strings as entries.
    let is_blank = |call: &Value| call.as_str().is_some_and(|text| text.trim().is_empty());
    calls.retain(|call| !is_blank(call));
    if calls.len() < all {
        reader.add(Code::Repaired, "calls", "blank entries are dropped");
    }
    match kind {
        Some(CarrierKind::Act) if calls.is_empty() => {
            reader.add(Code::EmptyCalls, "calls", "`calls` is empty");
        }
        Some(CarrierKind::Answer | CarrierKind::Done) if !calls.is_empty() => {
            let message = "an ending written together with calls is not based on their results";
            reader.add(Code::UnexpectedCalls, "calls", message);
        }
        _ => {}
    }
    // Cut after the report: the other faults are reported from a bounded list.
    if calls.len() > limits.carrier_actions {
        let max = limits.carrier_actions;
        let message = format!("more than {max} calls");
        reader.add(Code::TooManyActions, "calls", message);
        calls.truncate(max);
    }
    // Collected before the entries are consumed: dependencies may name later calls.
    let ids = calls.iter().filter_map(|call| call.get("id")?.as_str());
    let ids: BTreeSet<String> = ids.map(str::to_owned).collect();
    let mut actions = Vec::with_capacity(calls.len());
    for (index, call) in calls.into_iter().enumerate() {
        let at = format!("/calls/{index}");
        match call {
            Value::Object(call) => {
                let mut reader = FieldReader::new(call, &at, reader.found());
                let mut action = read_call(&mut reader, &ids, limits);
                action.policies = reader.policies();
                action.policies.extra = reader.rest();
                action.pointer = at;
                actions.push(action);
            }
            other => {
                let message = format!("a call must be an object, found {}", type_name(&other));
                reader.found().add(Code::WrongJsonType, at, message);
            }
        }
    }
    actions
}

fn read_call(reader: &mut FieldReader<'_>, ids: &BTreeSet<String>, limits: &GraphLimits) -> Action {
    let id = read_id(reader);
    let kind = read_kind(reader, "type", &[ExecutorKind::Tool, ExecutorKind::Agent]);
    reader.require("name", Code::MissingField);
    let name = reader.text("name", 256);
    let mut action = Action::new(&id, Executor::default());
    action.executor = executor_of(kind, name.as_deref());
    // The name also labels the work, because the carrier has no field for it.
    action.operation = name.unwrap_or_default();
    action.input = reader
        .object("args", Code::ArgsNotObject)
        .unwrap_or_default();
    read_authority(reader, &mut action);
    action.depends_on = read_depends(reader, "depends", ids, limits);
    let results = RESULTS.map(|form| (form.as_str(), form));
    let result = reader.word_of("result", Code::BadEnum, &results);
    action.result = result.map(Into::into);
    let title = reader.text("title", limits.title_chars);
    action.title = title.unwrap_or_else(|| id.clone());
    action.description.clone_from(&action.title);
    action
}

/// Rights of an agent that were written next to its arguments: a misplaced restriction must not be lost.
pub(crate) fn read_authority(reader: &mut FieldReader<'_>, action: &mut Action) {
    if let Some(authority) = reader.take(AUTHORITY).filter(|one| !one.is_null()) {
        // Rights inside the arguments take precedence: there the schema asks for them.
        action.input.entry(AUTHORITY).or_insert(authority);
    }
}

/// The id of an action. A bad one is reported and kept, so that later gates can name it.
pub(crate) fn read_id(reader: &mut FieldReader<'_>) -> String {
    reader.require("id", Code::MissingField);
    let id = reader.text("id", usize::MAX).unwrap_or_default();
    // Kept for later messages, but cut: a model may put a complete text here.
    if !id.is_empty() && !is_action_id(&id) {
        let shown: String = id.chars().take(64).collect();
        reader.add(Code::BadId, "id", format!("`{shown}` is no id"));
        return shown;
    }
    id
}

/// The class of an executor among `allowed`.
pub(crate) fn read_kind(
    reader: &mut FieldReader<'_>,
    key: &str,
    allowed: &[ExecutorKind],
) -> Option<ExecutorKind> {
    // The carrier offers two classes, the full form all of them.
    let code = match allowed.len() {
        2 => Code::MissingField,
        _ => Code::ExecutorTypeMissing,
    };
    if !reader.require(key, code) {
        return None;
    }
    let mut words: Vec<_> = allowed
        .iter()
        .map(|kind| (kind.as_str(), Some(*kind)))
        .collect();
    words.push(("auto", None));
    let kind = reader.word_of(key, Code::BadEnum, &words)?;
    // Only the target may be `auto`: the class decides which rules apply.
    if kind.is_none() {
        let at = reader.at(key);
        let diagnostic = Diagnostic::new(Code::ExecutorTypeAuto, at, "the type is `auto`");
        let allowed = allowed.iter().map(|kind| kind.as_str());
        reader.found().push(diagnostic.allow(allowed));
    }
    kind
}

/// A call's executor: `runtime.` and `human.` name words, `auto` names none.
pub(crate) fn executor_of(kind: Option<ExecutorKind>, name: Option<&str>) -> Executor {
    let name = name.filter(|name| *name != "auto");
    let word = name.and_then(|name| {
        let runtime = name
            .strip_prefix("runtime.")
            .map(|word| (ExecutorKind::Runtime, word));
        runtime.or_else(|| Some((ExecutorKind::Human, name.strip_prefix("human.")?)))
    });
    // A prefix decides the class, whatever `type` was written next to it.
    match word {
        Some((kind, word)) => Executor::named(kind, word),
        None => Executor {
            kind,
            target: name.map(str::to_owned),
            capabilities: Vec::new(),
        },
    }
}

/// Dependencies: a text or a list; doubles and words for "none" are dropped.
pub(crate) fn read_depends(
    reader: &mut FieldReader<'_>,
    key: &str,
    ids: &BTreeSet<String>,
    limits: &GraphLimits,
) -> Vec<crate::ids::ActionId> {
    let list = reader.texts(key, 256);
    let mut depends: Vec<String> = Vec::new();
    let mut is_repaired = false;
    for entry in &list {
        for id in entry.split(',').map(str::trim) {
            // An action may really be called `none`.
            let is_none = NO_DEPENDENCY.contains(&id.to_lowercase().as_str()) && !ids.contains(id);
            if is_none || depends.iter().any(|one| one == id) {
                is_repaired = true;
            } else {
                // Longer ids cannot exist; the cut bounds the message.
                depends.push(id.chars().take(64).collect());
            }
        }
    }
    if is_repaired {
        reader.add(Code::Repaired, key, "doubles and empty entries are dropped");
    }
    if depends.len() > limits.dependencies {
        let max = limits.dependencies;
        reader.add(Code::TooLarge, key, format!("more than {max} dependencies"));
        depends.truncate(max);
    }
    depends.iter().map(|id| id.as_str().into()).collect()
}
