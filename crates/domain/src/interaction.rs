//! Validation of questions and answers.

pub mod form_post;
pub mod unknown_effect;

use std::collections::HashSet;

use protocol::admin::Fault;
use protocol::interaction::{
    InteractionAction, InteractionField, InteractionFieldType, InteractionKind, InteractionOption,
    InteractionRequest, InteractionSubmission,
};
use serde::Serialize;
use serde_json::Value;

use crate::canonical::canonical_json;
use crate::event::contains_nul;
use crate::form::escape_pointer;

/// Maximum bytes of a request, as JSON.
pub const REQUEST_BYTES: usize = 256 * 1024;

/// Maximum bytes of a submission, as JSON.
pub const SUBMISSION_BYTES: usize = 256 * 1024;

/// Default lifetime of a question without `expires_at`, in seconds.
pub const DEFAULT_SECONDS: i64 = 30 * 60;

/// Maximum lifetime of a question, in seconds.
pub const MAX_SECONDS: i64 = 24 * 60 * 60;

/// Returns all faults of a question. `now`: epoch seconds.
pub fn check_request(request: &InteractionRequest, now: Option<i64>) -> Vec<Fault> {
    let mut faults = Faults::default();
    faults.check_document(request, REQUEST_BYTES);
    faults.text("/interaction_id", &request.interaction_id, 1, 255);
    if request.kind == InteractionKind::Budget {
        faults.add("/kind", "must be form, confirmation or choice");
    }
    faults.text("/title", &request.title, 1, 1_000);
    faults.optional("/description", request.description.as_deref(), 10_000);
    faults.count("/fields", request.fields.len(), 50);
    faults.once("/fields", "/id", request.fields.iter().map(|f| &*f.id));
    for (index, field) in request.fields.iter().enumerate() {
        check_field(&mut faults, &format!("/fields/{index}"), field);
    }
    faults.count("/actions", request.actions.len(), 20);
    faults.once("/actions", "/id", request.actions.iter().map(|a| &*a.id));
    for (index, InteractionAction { id, label, .. }) in request.actions.iter().enumerate() {
        faults.text(&format!("/actions/{index}/id"), id, 1, 128);
        faults.text(&format!("/actions/{index}/label"), label, 1, 512);
    }
    // `None` checks a stored question again: its expiry was checked when it was stored.
    if let Some((expires_at, now)) = request.expires_at.zip(now)
        && (expires_at <= now || expires_at > now.saturating_add(MAX_SECONDS))
    {
        faults.add("/expires_at", "must be later than now, by 24 hours at most");
    }
    faults.text("/fallback_text", &request.fallback_text, 1, 20_000);
    faults.0
}

fn check_field(faults: &mut Faults, at: &str, field: &InteractionField) {
    faults.text(&format!("{at}/id"), &field.id, 1, 128);
    faults.text(&format!("{at}/label"), &field.label, 1, 512);
    let placeholder = field.placeholder.as_deref();
    faults.optional(&format!("{at}/placeholder"), placeholder, 1_000);
    let options = format!("{at}/options");
    if is_choice(field.kind) && field.options.is_empty() {
        faults.add(&options, "select and multiselect need an option");
    }
    faults.count(&options, field.options.len(), 100);
    let values = field.options.iter().map(|option| &*option.value);
    faults.once(&options, "/value", values);
    for (index, option) in field.options.iter().enumerate() {
        let InteractionOption {
            value,
            label,
            description,
        } = option;
        faults.text(&format!("{options}/{index}/value"), value, 1, 512);
        faults.text(&format!("{options}/{index}/label"), label, 1, 512);
        let at = format!("{options}/{index}/description");
        faults.optional(&at, description.as_deref(), 2_000);
    }
}

fn is_choice(kind: InteractionFieldType) -> bool {
    matches!(
        kind,
        InteractionFieldType::Select | InteractionFieldType::Multiselect
    )
}

/// Returns the expiry of a valid question, in epoch seconds.
pub fn expires_at(request: &InteractionRequest, now: i64) -> i64 {
    request.expires_at.unwrap_or(now + DEFAULT_SECONDS)
}

/// Returns all faults of an answer without its question. [`check_answer`] compares it with the question.
pub fn check_submission(submission: &InteractionSubmission) -> Vec<Fault> {
    let mut faults = Faults::default();
    faults.check_document(submission, SUBMISSION_BYTES);
    faults.text("/interaction_id", &submission.interaction_id, 1, 255);
    faults.optional("/action_id", submission.action_id.as_deref(), 128);
    faults.0
}

/// Returns all faults of a valid answer to this question.
pub fn check_answer(
    request: &InteractionRequest,
    submission: &InteractionSubmission,
) -> Vec<Fault> {
    let mut faults = Faults::default();
    if submission.interaction_id != request.interaction_id {
        // An answer to an older question of the same run must not close this one.
        faults.add(
            "/interaction_id",
            "must be the interaction_id of the question",
        );
    }
    // One action is implied; several need a choice.
    match &submission.action_id {
        Some(id) if !request.actions.iter().any(|action| action.id == *id) => {
            faults.add("/action_id", "must be an action of the request");
        }
        None if request.actions.len() > 1 => {
            faults.add("/action_id", "is required: the request has several actions");
        }
        _ => {}
    }
    for (id, value) in &submission.values {
        let at = format!("/values/{}", escape_pointer(id));
        let field = request.fields.iter().find(|field| field.id == *id);
        match field.map(|field| check_value(field, value)) {
            None => faults.add(&at, "must be a field of the request"),
            Some(Err(message)) => faults.add(&at, message),
            Some(Ok(())) => {}
        }
    }
    // Of several actions, one may be to leave the form, which needs no values.
    let required = request.fields.iter().filter(|field| field.required);
    for field in required.filter(|_| request.actions.len() <= 1) {
        if submission.values.get(&field.id).is_none_or(is_empty) {
            let at = format!("/values/{}", escape_pointer(&field.id));
            faults.add(&at, "is required by the request");
        }
    }
    faults.0
}

fn check_value(field: &InteractionField, value: &Value) -> Result<(), &'static str> {
    let is_option = |value: &Value| {
        let mut options = field.options.iter();
        options.any(|option| value.as_str() == Some(&option.value))
    };
    let (fits, message) = match field.kind {
        // Null is an empty field; the check of required fields rejects it if necessary.
        _ if value.is_null() => (true, ""),
        InteractionFieldType::Text | InteractionFieldType::Textarea => {
            (value.is_string(), "must be a text")
        }
        InteractionFieldType::Number => (value.is_number(), "must be a number"),
        InteractionFieldType::Boolean => (value.is_boolean(), "must be true or false"),
        InteractionFieldType::Select => (is_option(value), "must be the value of an option"),
        InteractionFieldType::Multiselect => (
            value.as_array().is_some_and(|picked| {
                let mut seen = HashSet::new();
                let mut picked = picked.iter();
                picked.all(|value| is_option(value) && seen.insert(value.as_str()))
            }),
            "must be a list of option values without duplicates",
        ),
        InteractionFieldType::File => (true, ""),
    };
    if fits { Ok(()) } else { Err(message) }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

/// Faults in document order.
#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn add(&mut self, pointer: &str, message: impl Into<String>) {
        self.0.push(Fault::new(pointer, message));
    }

    fn check_document(&mut self, document: &impl Serialize, max_bytes: usize) {
        // Canonical, so that the white space of the client does not count.
        let json = canonical_json(document);
        if json.len() > max_bytes {
            self.add("", format!("is larger than {} KiB", max_bytes / 1024));
        }
        // PostgreSQL rejects U+0000 in text and JSON.
        if contains_nul(&json) {
            self.add("", "must not contain the character U+0000");
        }
    }

    /// Lengths are in characters, like in the protocol's SDK.
    fn text(&mut self, pointer: &str, text: &str, least: usize, max: usize) {
        let length = text.chars().count();
        if length < least || length > max {
            self.add(
                pointer,
                format!("must have {least} to {max} characters, not {length}"),
            );
        }
    }

    fn optional(&mut self, pointer: &str, text: Option<&str>, max: usize) {
        self.text(pointer, text.unwrap_or_default(), 0, max);
    }

    fn count(&mut self, pointer: &str, found: usize, max: usize) {
        if found > max {
            self.add(
                pointer,
                format!("must have {max} entries at most, not {found}"),
            );
        }
    }

    /// Reports each entry of the list at `pointer` that repeats an earlier entry.
    fn once<'a>(&mut self, pointer: &str, field: &str, names: impl Iterator<Item = &'a str>) {
        let mut seen = HashSet::new();
        for (index, name) in names.enumerate() {
            if !seen.insert(name) {
                let at = format!("{pointer}/{index}{field}");
                self.add(&at, "must be unique in its list");
            }
        }
    }
}

#[cfg(test)]
mod tests;
