//! Actions of the full DSL.

mod loops;

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::action::{
    Action, ActionEnding, Condition, Effect, Executor, ExecutorKind, FailureMode, FailurePolicy,
    Resources, Test,
};
use crate::carrier::{read_authority, read_depends, read_id, read_kind};
use crate::code::Code;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::ids::ActionId;
use crate::limits::GraphLimits;
use crate::policy::{IfTruncated, ResultPolicy, Return};
use crate::reader::FieldReader;
use crate::reference::Reference;

use loops::{read_for_each, read_repeat};

/// References of one action's context.
const CONTEXT_REFS: usize = 16;
/// Names of one list: capabilities, resources, priorities.
const NAMES: usize = 32;
/// Attempts that a policy may ask for.
const ATTEMPTS: u64 = 5;
/// Attempts of `retry` when the model gives no number.
const RETRY_ATTEMPTS: u8 = 3;

/// The actions of a payload.
pub(crate) fn read_actions(reader: &mut FieldReader<'_>, limits: &GraphLimits) -> Vec<Action> {
    if !reader.has("actions") {
        reader.add(Code::MissingField, "actions", "`actions` is missing");
    }
    let mut list = reader.list("actions").unwrap_or_default();
    if list.len() > limits.full_actions {
        let max = limits.full_actions;
        reader.add(
            Code::TooManyActions,
            "actions",
            format!("more than {max} actions"),
        );
        // Cut after the report: the other faults come from a bounded list.
        list.truncate(max);
    }
    // Before the loop: dependencies may name later actions.
    let ids = list.iter().filter_map(|action| action.get("id")?.as_str());
    let ids: BTreeSet<String> = ids.map(str::to_owned).collect();
    let mut actions = Vec::with_capacity(list.len());
    for (index, value) in list.into_iter().enumerate() {
        let at = format!("{}/{index}", reader.at("actions"));
        let Value::Object(object) = value else {
            reader
                .found()
                .add(Code::WrongJsonType, at, "an action must be an object");
            continue;
        };
        // Before the reader consumes the object.
        recommend(&object, &at, reader.found());
        let mut inner = FieldReader::new(object, &at, reader.found());
        let mut action = read_action(&mut inner, &ids, limits);
        action.policies = inner.policies();
        action.policies.extra = inner.rest();
        action.pointer = at;
        actions.push(action);
    }
    actions
}

/// One warning for all fields of an action that help readers and are absent.
fn recommend(action: &Map<String, Value>, at: &str, found: &mut Diagnostics) {
    let is_blank = |key: &&str| match action.get(*key) {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str().is_some_and(|text| text.trim().is_empty()),
    };
    let fields = ["title", "description", "reason", "operation"];
    let lacking = fields.into_iter().filter(is_blank);
    let lacking: Vec<_> = lacking.map(|key| format!("`{key}`")).collect();
    // One diagnostic for all fields: these are hints, and notices are short.
    if !lacking.is_empty() {
        let message = format!("{} of an action help its readers", lacking.join(", "));
        let diagnostic = Diagnostic::new(Code::TitleMissing, at, message);
        found.push(diagnostic.hint(format!("add {}", lacking.join(", "))));
    }
}

fn read_action(
    reader: &mut FieldReader<'_>,
    ids: &BTreeSet<String>,
    limits: &GraphLimits,
) -> Action {
    if !reader.has("type") {
        reader.add(Code::MissingField, "type", "`type` is missing");
    } else if reader.text("type", 64).as_deref() != Some("action") {
        reader.add(Code::BadEnum, "type", "`type` of an action is `action`");
    }
    let id = read_id(reader);
    let mut action = Action::new(&id, read_executor(reader));
    let title = reader.text("title", limits.title_chars);
    // A blank title would be an empty line in user interfaces.
    action.title = title.filter(|title| !title.trim().is_empty()).unwrap_or(id);
    action.description = reader
        .text("description", limits.description_chars)
        .unwrap_or_default();
    action.reason = reader
        .text("reason", limits.reason_chars)
        .unwrap_or_default();
    action.operation = reader.text("operation", 256).unwrap_or_default();
    action.input = reader
        .object("input", Code::ArgsNotObject)
        .unwrap_or_default();
    read_authority(reader, &mut action);
    action.depends_on = read_depends(reader, "depends_on", ids, limits);
    action.context_refs = read_references(reader, "context_refs");
    action.prompt_ref = read_reference(reader, "prompt_ref");
    action.result = read_result(reader, "result_policy");
    action.failure = read_failure(reader);
    action.persist = reader.flag("persist");
    action.when = read_condition(reader, "when");
    action.for_each = read_for_each(reader);
    action.repeat = read_repeat(reader);
    action.effects = read_effects(reader);
    action.resources = read_resources(reader);
    action.timeout_ms = reader.number("timeout_ms", 1, 86_400_000);
    action
}

fn read_executor(reader: &mut FieldReader<'_>) -> Executor {
    let Some(object) = reader.object("executor", Code::WrongJsonType) else {
        return Executor::default();
    };
    let at = reader.at("executor");
    let mut inner = FieldReader::new(object, &at, reader.found());
    let kind = read_kind(&mut inner, "type", &ExecutorKind::ALL);
    let target = inner.text("target", 256);
    let executor = Executor {
        kind,
        // `auto` and an empty name leave the choice to the runtime.
        target: target.filter(|target| target != "auto" && !target.is_empty()),
        capabilities: inner.texts("capabilities", NAMES),
    };
    inner.rest();
    executor
}

/// A field with one reference.
pub(crate) fn read_reference(reader: &mut FieldReader<'_>, key: &str) -> Option<Reference> {
    let text = reader.text(key, 2_048)?;
    let parsed = text.trim().parse::<Reference>();
    parsed
        .map_err(|error| reader.add(Code::BadReference, key, error.to_string()))
        .ok()
}

fn read_references(reader: &mut FieldReader<'_>, key: &str) -> Vec<Reference> {
    let texts = reader.texts(key, CONTEXT_REFS);
    let mut references = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        match text.trim().parse() {
            Ok(reference) => references.push(reference),
            Err(error) => {
                let error: crate::reference::BadReference = error;
                // Each bad reference is reported at its index; the good ones are still checked.
                let at = format!("{}/{index}", reader.at(key));
                reader
                    .found()
                    .add(Code::BadReference, at, error.to_string());
            }
        }
    }
    references
}

/// A result policy: a word or an object.
pub(crate) fn read_result(reader: &mut FieldReader<'_>, key: &str) -> Option<ResultPolicy> {
    let words = Return::ALL.map(|form| (form.as_str(), form));
    let is_word = reader.is_text(key);
    if is_word {
        return reader.word(key, Code::BadEnum, &words).map(Into::into);
    }
    let object = reader.object(key, Code::WrongJsonType)?;
    let at = reader.at(key);
    let mut inner = FieldReader::new(object, &at, reader.found());
    let form = inner.word("return_to_model", Code::BadEnum, &words);
    let otherwise = [
        ("provide_ref_and_summary", IfTruncated::ProvideRefAndSummary),
        ("truncate", IfTruncated::Truncate),
        ("refuse", IfTruncated::Refuse),
    ];
    let policy = ResultPolicy {
        return_to_model: form.unwrap_or_default(),
        priority: inner.texts("priority", NAMES),
        max_tokens: inner.number("max_tokens", 1, u64::from(u32::MAX)),
        store_full: inner.flag("store_full").unwrap_or(true),
        if_truncated: inner
            .word("if_truncated", Code::BadEnum, &otherwise)
            .unwrap_or_default(),
    };
    inner.rest();
    Some(policy)
}

const MODES: [(&str, FailureMode); 4] = [
    ("retry", FailureMode::Retry),
    ("abort", FailureMode::Abort),
    ("continue", FailureMode::Continue),
    ("ask_model", FailureMode::AskModel),
];

/// A failure policy: a word or an object.
fn read_failure(reader: &mut FieldReader<'_>) -> FailurePolicy {
    const KEY: &str = "failure_policy";
    let attempts = |mode| match mode {
        FailureMode::Retry => RETRY_ATTEMPTS,
        _ => 1,
    };
    let mut policy = FailurePolicy::default();
    if reader.is_text(KEY) {
        // The short form: a word instead of an object.
        policy.mode = reader.word(KEY, Code::BadEnum, &MODES).unwrap_or_default();
        policy.max_attempts = attempts(policy.mode);
        return policy;
    }
    let Some(object) = reader.object(KEY, Code::WrongJsonType) else {
        return policy;
    };
    let at = reader.at(KEY);
    let mut inner = FieldReader::new(object, &at, reader.found());
    if !inner.has("mode") {
        inner.add(Code::MissingField, "mode", "`mode` is missing");
    }
    policy.mode = inner
        .word("mode", Code::BadEnum, &MODES)
        .unwrap_or_default();
    let max = inner.number("max_attempts", 1, ATTEMPTS);
    // `retry` without a number means several attempts; other modes have one.
    policy.max_attempts = max.unwrap_or(attempts(policy.mode));
    let backoff = inner.number("backoff_ms", 0, 60_000);
    policy.backoff_ms = backoff.unwrap_or(policy.backoff_ms);
    // Not `retry`: the second policy applies once attempts are used up.
    let then = inner.word("then", Code::BadEnum, &MODES[1..]);
    policy.then = then.unwrap_or_default();
    // A misspelled field would silently change what happens after a failure.
    inner.refuse_rest();
    policy
}

fn read_condition(reader: &mut FieldReader<'_>, key: &str) -> Option<Condition> {
    let object = reader.object(key, Code::WrongJsonType)?;
    let at = reader.at(key);
    let mut inner = FieldReader::new(object, &at, reader.found());
    // `action` decides the form: both forms together are reported by `rest`.
    let condition = if inner.has("action") {
        let endings = [
            ("completed", ActionEnding::Completed),
            ("failed", ActionEnding::Failed),
            ("skipped", ActionEnding::Skipped),
            ("blocked", ActionEnding::Blocked),
        ];
        let action = inner.text("action", 64).map(ActionId);
        if !inner.has("is") {
            inner.add(Code::MissingField, "is", "`is` is missing");
        }
        let is = inner.word("is", Code::BadEnum, &endings);
        action
            .zip(is)
            .map(|(action, is)| Condition::Ending { action, is })
    } else {
        if !inner.has("ref") {
            inner.add(
                Code::MissingField,
                "ref",
                "a condition needs `action` or `ref`",
            );
        }
        let reference = read_reference(&mut inner, "ref");
        let test = read_test(&mut inner);
        let mut negate = inner.flag("negate").unwrap_or_default();
        let test = test.map(|(test, turned)| {
            // `exists: false` and `negate: true` cancel each other.
            negate ^= turned;
            test
        });
        reference
            .zip(test)
            .map(|(reference, test)| Condition::Value {
                reference,
                test,
                negate,
            })
    };
    inner.rest();
    condition
}

/// The test of a condition, and whether its result is turned around.
fn read_test(reader: &mut FieldReader<'_>) -> Option<(Test, bool)> {
    let number = |reader: &mut FieldReader<'_>, key| {
        let value = reader.take(key)?;
        let number = value.as_f64();
        if number.is_none() {
            reader.add(
                Code::WrongJsonType,
                key,
                format!("`{key}` must be a number"),
            );
        }
        number
    };
    // First match in a fixed order; further tests of the object are reported as unknown.
    if reader.has("exists") {
        let exists = reader.flag("exists")?;
        return Some((Test::Exists, !exists));
    }
    if let Some(value) = reader.take("equals") {
        return Some((Test::Equals(value), false));
    }
    if reader.has("in") {
        return Some((Test::In(reader.list("in")?), false));
    }
    if reader.has("less") {
        return Some((Test::Less(number(reader, "less")?), false));
    }
    if reader.has("more") {
        return Some((Test::More(number(reader, "more")?), false));
    }
    let message = "a condition on a value needs `exists`, `equals`, `in`, `less` or `more`";
    reader.add(Code::MissingField, "equals", message);
    None
}

fn read_effects(reader: &mut FieldReader<'_>) -> BTreeSet<Effect> {
    let mut effects = BTreeSet::new();
    for (index, text) in reader.texts("effects", NAMES).iter().enumerate() {
        // Case and blanks are repaired without a report: the meaning is clear.
        let word = text.trim().to_lowercase();
        let found = Effect::ALL
            .into_iter()
            .find(|effect| effect.as_str() == word);
        if found.is_none() {
            let at = format!("{}/{index}", reader.at("effects"));
            reader.found().add(Code::BadEnum, at, "no such effect");
        }
        effects.extend(found);
    }
    effects
}

fn read_resources(reader: &mut FieldReader<'_>) -> Resources {
    let Some(object) = reader.object("resources", Code::WrongJsonType) else {
        return Resources::default();
    };
    let at = reader.at("resources");
    let mut inner = FieldReader::new(object, &at, reader.found());
    let resources = Resources {
        read: inner.texts("read", NAMES),
        write: inner.texts("write", NAMES),
    };
    inner.rest();
    resources
}
