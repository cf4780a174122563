//! Actions of the full DSL.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::action::{
    Action, Condition, Effect, Executor, ExecutorKind, FailureMode, FailurePolicy, ForEach, Repeat,
    Resources, Test,
};
use crate::carrier::{read_authority, read_depends, read_id, read_kind};
use crate::code::{Code, Severity};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::ids::ActionId;
use crate::limits::{FOR_EACH_MAX, GraphLimits, REPEAT_DELAY_MAX, REPEAT_MAX};
use crate::policy::{ResultPolicy, Return};
use crate::reader::FieldReader;
use crate::reference::{BadReference, Reference};
use crate::word::Word;

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
    let code = Code::TooManyActions;
    let list = reader.entries("actions", limits.full_actions, code, "actions");
    // Before the loop: dependencies may name later actions.
    let ids = list
        .iter()
        .filter_map(|(_, action)| action.get("id")?.as_str());
    let ids: BTreeSet<String> = ids.map(str::to_owned).collect();
    let mut actions = Vec::with_capacity(list.len());
    for (at, value) in list {
        let found = reader.found();
        let Value::Object(object) = value else {
            found.add(Code::WrongJsonType, at, "an action must be an object");
            continue;
        };
        // Before the reader consumes the object.
        recommend(&object, &at, found);
        let mut inner = FieldReader::new(object, &at, found);
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
    if reader.require("type", Code::MissingField)
        && reader.text("type", 64).as_deref() != Some("action")
    {
        reader.add(Code::BadEnum, "type", "`type` of an action is `action`");
    }
    let id = read_id(reader);
    let mut action = Action::new(&id, read_executor(reader));
    let title = reader.text("title", limits.title_chars);
    // A blank title would be an empty line in user interfaces.
    action.title = title.filter(|title| !title.trim().is_empty()).unwrap_or(id);
    let description = reader.text("description", limits.description_chars);
    action.description = description.unwrap_or_default();
    let reason = reader.text("reason", limits.reason_chars);
    action.reason = reason.unwrap_or_default();
    action.operation = reader.text("operation", 256).unwrap_or_default();
    let input = reader.object("input", Code::ArgsNotObject);
    action.input = input.unwrap_or_default();
    read_authority(reader, &mut action);
    action.depends_on = read_depends(reader, "depends_on", ids, limits);
    action.context_refs = read_references(reader, "context_refs");
    action.prompt_ref = read_reference(reader, "prompt_ref");
    action.result = read_result(reader, "result_policy");
    action.failure = read_failure(reader);
    action.persist = reader.flag("persist");
    action.when = reader.nested("when", read_condition).flatten();
    action.for_each = reader.nested("for_each", read_for_each).flatten();
    action.repeat = reader.nested("repeat", read_repeat).flatten();
    action.effects = read_effects(reader);
    let resources = reader.nested("resources", |inner| Resources {
        read: inner.texts("read", NAMES),
        write: inner.texts("write", NAMES),
    });
    action.resources = resources.unwrap_or_default();
    action.timeout_ms = reader.number("timeout_ms", 1, 86_400_000);
    action
}

fn read_executor(reader: &mut FieldReader<'_>) -> Executor {
    let executor = reader.nested("executor", |inner| {
        let kind = read_kind(inner, "type", &ExecutorKind::ALL);
        let target = inner.text("target", 256);
        Executor {
            kind,
            // `auto` and an empty name leave the choice to the runtime.
            target: target.filter(|target| target != "auto" && !target.is_empty()),
            capabilities: inner.texts("capabilities", NAMES),
        }
    });
    executor.unwrap_or_default()
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
        let parsed: Result<Reference, BadReference> = text.trim().parse();
        match parsed {
            Ok(reference) => references.push(reference),
            // Each bad reference is reported at its index; the good ones are still checked.
            Err(error) => {
                let at = format!("{}/{index}", reader.at(key));
                let found = reader.found();
                found.add(Code::BadReference, at, error.to_string());
            }
        }
    }
    references
}

/// A result policy: a word or an object.
pub(crate) fn read_result(reader: &mut FieldReader<'_>, key: &str) -> Option<ResultPolicy> {
    if reader.is_text(key) {
        let form = reader.word::<Return>(key, Code::BadEnum);
        return form.map(Into::into);
    }
    reader.nested(key, |inner| ResultPolicy {
        return_to_model: inner
            .word("return_to_model", Code::BadEnum)
            .unwrap_or_default(),
        priority: inner.texts("priority", NAMES),
        max_tokens: inner.number("max_tokens", 1, u64::from(u32::MAX)),
        store_full: inner.flag("store_full").unwrap_or(true),
        if_truncated: inner
            .word("if_truncated", Code::BadEnum)
            .unwrap_or_default(),
    })
}

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
        policy.mode = reader.word(KEY, Code::BadEnum).unwrap_or_default();
        policy.max_attempts = attempts(policy.mode);
        return policy;
    }
    let Some(object) = reader.object(KEY, Code::WrongJsonType) else {
        return policy;
    };
    let at = reader.at(KEY);
    let mut inner = FieldReader::new(object, &at, reader.found());
    inner.require("mode", Code::MissingField);
    policy.mode = inner.word("mode", Code::BadEnum).unwrap_or_default();
    let max = inner.number("max_attempts", 1, ATTEMPTS);
    // `retry` without a number means several attempts; other modes have one.
    policy.max_attempts = max.unwrap_or(attempts(policy.mode));
    let backoff = inner.number("backoff_ms", 0, 60_000);
    policy.backoff_ms = backoff.unwrap_or(policy.backoff_ms);
    // Not `retry`: the second policy applies once attempts are used up.
    let then = inner.word_of("then", Code::BadEnum, &FailureMode::WORDS[1..]);
    policy.then = then.unwrap_or_default();
    // A misspelled field would silently change what happens after a failure.
    inner.rest_as(Severity::Error);
    policy
}

fn read_condition(reader: &mut FieldReader<'_>) -> Option<Condition> {
    // `action` decides the form: fields of both forms together are reported as unknown.
    if reader.has("action") {
        let action = reader.text("action", 64).map(ActionId);
        reader.require("is", Code::MissingField);
        let is = reader.word("is", Code::BadEnum);
        return action
            .zip(is)
            .map(|(action, is)| Condition::Ending { action, is });
    }
    if !reader.has("ref") {
        let message = "a condition needs `action` or `ref`";
        reader.add(Code::MissingField, "ref", message);
    }
    let reference = read_reference(reader, "ref");
    let test = read_test(reader);
    let negate = reader.flag("negate").unwrap_or_default();
    let (reference, (test, is_turned)) = reference.zip(test)?;
    Some(Condition::Value {
        reference,
        test,
        // `exists: false` and `negate: true` cancel each other.
        negate: negate ^ is_turned,
    })
}

/// The test of a condition, and whether its result is turned around.
fn read_test(reader: &mut FieldReader<'_>) -> Option<(Test, bool)> {
    let number = |reader: &mut FieldReader<'_>, key| {
        let number = reader.take(key)?.as_f64();
        if number.is_none() {
            let message = format!("`{key}` must be a number");
            reader.add(Code::WrongJsonType, key, message);
        }
        number
    };
    // First match in a fixed order; further tests of the object are reported as unknown.
    let test = if reader.has("exists") {
        let exists = reader.flag("exists")?;
        return Some((Test::Exists, !exists));
    } else if let Some(value) = reader.take("equals") {
        Test::Equals(value)
    } else if reader.has("in") {
        Test::In(reader.list("in")?)
    } else if reader.has("less") {
        Test::Less(number(reader, "less")?)
    } else if reader.has("more") {
        Test::More(number(reader, "more")?)
    } else {
        let message = "a condition on a value needs `exists`, `equals`, `in`, `less` or `more`";
        reader.add(Code::MissingField, "equals", message);
        return None;
    };
    Some((test, false))
}

fn read_for_each(reader: &mut FieldReader<'_>) -> Option<ForEach> {
    reader.require("items", Code::MissingField);
    let items = read_reference(reader, "items");
    let max = read_max(reader, FOR_EACH_MAX, Code::FanOutTooLarge, "for_each");
    // Other formats name the item; here it is always `item`.
    let _ = reader.text("as", 64);
    let failures = reader.number("max_failures", 0, u64::from(FOR_EACH_MAX));
    let from = reader.number("from", 0, u64::from(u32::MAX));
    let rest = reader.word("rest", Code::BadEnum);
    Some(ForEach {
        items: items?,
        max: max?,
        max_failures: failures.unwrap_or_default(),
        from: from.unwrap_or_default(),
        rest: rest.unwrap_or_default(),
    })
}

fn read_repeat(reader: &mut FieldReader<'_>) -> Option<Repeat> {
    let max = read_max(reader, REPEAT_MAX, Code::LoopUnbounded, "repeat");
    if !reader.has("until") {
        reader.add(Code::LoopUnbounded, "until", "`repeat` has no `until`");
    }
    let until = reader.nested("until", read_condition).flatten();
    let delay = reader.number("delay_ms", 0, u64::from(REPEAT_DELAY_MAX));
    Some(Repeat {
        max: max?,
        until: until?,
        delay_ms: delay.unwrap_or_default(),
    })
}

/// The bound of a loop. A larger one than `bound` is reported and lowered, so that the loop stays finite.
fn read_max<T: Copy + Into<u32> + TryFrom<u32>>(
    reader: &mut FieldReader<'_>,
    bound: T,
    code: Code,
    form: &str,
) -> Option<T> {
    if !reader.has("max") {
        reader.add(Code::LoopUnbounded, "max", format!("`{form}` has no `max`"));
    }
    // Read with the full range, so that a too large number gets its own code.
    let max: u32 = reader.number("max", 1, u64::from(u32::MAX))?;
    let limit = bound.into();
    if max > limit {
        reader.add(code, "max", format!("`max` exceeds {limit}"));
    }
    Some(T::try_from(max.min(limit)).unwrap_or(bound))
}

fn read_effects(reader: &mut FieldReader<'_>) -> BTreeSet<Effect> {
    let mut effects = BTreeSet::new();
    for (index, text) in reader.texts("effects", NAMES).iter().enumerate() {
        // Case and blanks are repaired without a report: the meaning is clear.
        let word = text.trim().to_lowercase();
        let mut all = Effect::ALL.into_iter();
        let found = all.find(|effect| effect.as_str() == word);
        if found.is_none() {
            let at = format!("{}/{index}", reader.at("effects"));
            reader.found().add(Code::BadEnum, at, "no such effect");
        }
        effects.extend(found);
    }
    effects
}
