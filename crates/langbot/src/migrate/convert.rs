//! Converts one value of an old section for the new runner.

use serde_json::{Map, Value, json};

use super::families::FieldKind;

/// Maximum nesting of JSON documents in texts.
const LAYERS: usize = 3;

/// Result of a conversion.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Converted {
    Same(Value),
    /// Read leniently; `&str` describes the change.
    Changed(Value, &'static str),
    /// Empty: treated as absent.
    Empty,
    /// Invalid; `&str` describes the required value.
    Wrong(&'static str),
}

/// Converts a value to its kind.
pub(super) fn convert(kind: FieldKind, value: &Value) -> Converted {
    match kind {
        FieldKind::Text | FieldKind::Secret => text(value),
        FieldKind::Url => match text(value) {
            Converted::Same(Value::String(url)) | Converted::Changed(Value::String(url), _) => {
                // Forms of LangBot keep spaces that users paste.
                let trimmed = url.trim();
                if trimmed.starts_with("https://") || trimmed.starts_with("http://") {
                    Converted::Same(json!(trimmed))
                } else {
                    Converted::Wrong("must be an http or https URL")
                }
            }
            other => other,
        },
        FieldKind::Bool => boolean(value),
        FieldKind::RemoveReasoning => match value.as_str() {
            Some("remove") => Converted::Changed(json!(true), "reasoning is removed"),
            Some("" | "plain" | "original") => Converted::Empty,
            _ => Converted::Wrong("is none of plain, original and remove"),
        },
        FieldKind::Integer => number(value, true),
        FieldKind::Number => number(value, false),
        FieldKind::Names => names(value),
        FieldKind::Choice(choices) => match value.as_str() {
            Some("") => Converted::Empty,
            Some(choice) if choices.contains(&choice) => Converted::Same(value.clone()),
            _ => Converted::Wrong("is none of the choices"),
        },
        FieldKind::Object => object(value),
        FieldKind::Model => model(value),
        FieldKind::Prompt => prompt(value),
        FieldKind::Policy | FieldKind::Nowhere(_) => Converted::Same(value.clone()),
    }
}

fn text(value: &Value) -> Converted {
    match value {
        Value::String(text) if text.trim().is_empty() => Converted::Empty,
        Value::String(_) => Converted::Same(value.clone()),
        Value::Number(number) => {
            Converted::Changed(json!(number.to_string()), "a number made a text")
        }
        _ => Converted::Wrong("must be a text"),
    }
}

fn boolean(value: &Value) -> Converted {
    let read = match value {
        Value::Bool(_) => return Converted::Same(value.clone()),
        Value::Number(number) => match number.as_i64() {
            Some(0) => Some(false),
            Some(1) => Some(true),
            _ => None,
        },
        Value::String(text) => match text.trim().to_lowercase().as_str() {
            "true" | "t" | "1" | "yes" | "on" => Some(true),
            "false" | "f" | "0" | "no" | "off" => Some(false),
            "" => return Converted::Empty,
            _ => None,
        },
        _ => None,
    };
    read.map_or(Converted::Wrong("must be true or false"), |read| {
        Converted::Changed(json!(read), "made true or false")
    })
}

/// Converts a number, which must be positive as in all old sections.
fn number(value: &Value, needs_integer: bool) -> Converted {
    let parsed: Option<Value> = match value {
        Value::Number(_) => Some(value.clone()),
        // An empty text is an unset field of a form.
        Value::String(text) if text.trim().is_empty() => return Converted::Empty,
        Value::String(text) => {
            let text = text.trim();
            // Integers first: a large id would lose digits as a float.
            let parsed = text.parse::<i64>().map(|number| json!(number));
            parsed
                .or_else(|_| text.parse::<f64>().map(|number| json!(number)))
                .ok()
        }
        _ => None,
    };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "compared with what it came from"
    )]
    let read = parsed.as_ref().and_then(Value::as_f64).and_then(|number| {
        let rounded = number as i64;
        #[expect(clippy::cast_precision_loss, reason = "settings are small numbers")]
        let is_integer = (rounded as f64 - number).abs() < f64::EPSILON;
        match (is_integer, needs_integer) {
            // All old settings are limits or durations, for which 0 and less have no meaning.
            _ if number <= 0.0 => None,
            (true, _) => Some(json!(rounded)),
            (false, false) => Some(json!(number)),
            (false, true) => None,
        }
    });
    match read {
        Some(read) if read == *value => Converted::Same(read),
        Some(read) => Converted::Changed(read, "made a number"),
        None if needs_integer => Converted::Wrong("must be an integer above 0"),
        None => Converted::Wrong("must be a number above 0"),
    }
}

/// Converts a list of names, without the placeholders for "none".
pub(super) fn names(value: &Value) -> Converted {
    if let Some(held) = decoded(value) {
        return match names(&held) {
            Converted::Same(names) => Converted::Changed(names, "a text of JSON made a list"),
            // A text that contains null is an unset value.
            _ if held.is_null() => Converted::Empty,
            other => other,
        };
    }
    let read: Option<Vec<&str>> = match value {
        // The start of an unreadable list is not a name.
        Value::String(one) if one.trim_start().starts_with(['[', '{']) => None,
        Value::String(one) => Some(vec![one.as_str()]),
        Value::Array(items) => items.iter().map(Value::as_str).collect(),
        _ => None,
    };
    let Some(read) = read else {
        return Converted::Wrong("must be a list of names");
    };
    // These names are placeholders of LangBot's selectors for "none".
    let chosen: Vec<&str> = read
        .iter()
        .map(|name| name.trim())
        .filter(|name| !matches!(*name, "" | "__none__" | "__none"))
        .collect();
    let chosen = json!(chosen);
    match value {
        _ if chosen == json!([]) => Converted::Empty,
        Value::Array(_) if chosen == *value => Converted::Same(chosen),
        Value::Array(_) => Converted::Changed(chosen, "placeholders for none are removed"),
        _ => Converted::Changed(chosen, "one name made a list"),
    }
}

fn object(value: &Value) -> Converted {
    match value {
        Value::Object(_) => Converted::Same(value.clone()),
        // `SQLite` stores objects as texts; an unset one is the text `null`.
        Value::String(text) if matches!(text.trim(), "" | "null") => Converted::Empty,
        Value::String(_) => match decoded(value) {
            Some(object @ Value::Object(_)) => {
                Converted::Changed(object, "a text of JSON made an object")
            }
            _ => Converted::Wrong("must be an object"),
        },
        _ => Converted::Wrong("must be an object"),
    }
}

/// Converts a model with fallbacks. A single id has no fallbacks.
fn model(value: &Value) -> Converted {
    let of = |primary: &str, fallbacks: Value, reasoning: Value| json!({"primary": primary, "fallbacks": fallbacks, "reasoning": reasoning});
    if let Some(held) = decoded(value) {
        return match model(&held) {
            Converted::Same(read) => Converted::Changed(read, "a text of JSON made a model"),
            _ if held.is_null() => Converted::Empty,
            other => other,
        };
    }
    match value {
        // An unreadable object is not a model id.
        Value::String(text) if text.trim_start().starts_with('{') => {
            Converted::Wrong("must be a model id")
        }
        Value::String(id) if is_chosen(id) => Converted::Changed(
            of(id, json!([]), json!({})),
            "one model made a model with fallbacks",
        ),
        Value::Object(model) => {
            let primary = model.get("primary").and_then(Value::as_str);
            let Some(primary) = primary.filter(|id| is_chosen(id)) else {
                return Converted::Empty;
            };
            // Fallbacks are optional, so an unreadable list must not block the pipeline.
            let fallbacks = match names(model.get("fallbacks").unwrap_or(&Value::Null)) {
                Converted::Same(names) | Converted::Changed(names, _) => names,
                _ => json!([]),
            };
            let reasoning = match model.get("reasoning") {
                Some(levels @ Value::Object(_)) => levels.clone(),
                _ => json!({}),
            };
            let read = of(primary, fallbacks, reasoning);
            if read == *value {
                Converted::Same(read)
            } else {
                Converted::Changed(read, "brought into the form of primary and fallbacks")
            }
        }
        Value::String(_) => Converted::Empty,
        _ => Converted::Wrong("must be a model id"),
    }
}

fn is_chosen(id: &str) -> bool {
    !matches!(id.trim(), "" | "__none__" | "__none")
}

/// Converts messages with role and text. A plain text becomes one system message.
fn prompt(value: &Value) -> Converted {
    // A text may contain the list of messages. Any other text is one message.
    if let Some(held @ Value::Array(_)) = decoded(value)
        && let Converted::Same(read) = prompt(&held)
    {
        return Converted::Changed(read, "a text of JSON made a list of messages");
    }
    match value {
        Value::String(text) if text.trim().is_empty() => Converted::Empty,
        Value::String(text) => Converted::Changed(
            json!([{"role": "system", "content": text}]),
            "a text made a message of the system",
        ),
        Value::Array(items) => {
            let is_message = |item: &&Value| {
                // Other items, such as images, have no counterpart in a prompt.
                let has = |name: &str| item.get(name).is_some_and(Value::is_string);
                has("role") && has("content")
            };
            let messages: Vec<&Value> = items.iter().filter(is_message).collect();
            match messages.len() {
                0 => Converted::Empty,
                all if all == items.len() => Converted::Same(value.clone()),
                _ => Converted::Changed(
                    json!(messages),
                    "only messages with a role and a text are kept",
                ),
            }
        }
        _ => Converted::Wrong("must be a text or a list of messages"),
    }
}

/// Removes nulls, which TOML cannot represent.
pub(super) fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, without_nulls(value)))
                .collect::<Map<_, _>>(),
        ),
        Value::Array(items) => items
            .into_iter()
            .filter(|item| !item.is_null())
            .map(without_nulls)
            .collect(),
        plain => plain,
    }
}

/// Returns the object, list or null in a JSON text, also if encoded as text several times.
pub(super) fn decoded(value: &Value) -> Option<Value> {
    let mut text = value.as_str()?.to_owned();
    for _ in 0..LAYERS {
        // Texts of texts occur when a column was exported twice.
        match serde_json::from_str(text.trim_start_matches('\u{feff}')).ok()? {
            Value::String(inner) => text = inner,
            held @ (Value::Object(_) | Value::Array(_) | Value::Null) => return Some(held),
            _ => return None,
        }
    }
    None
}

/// Returns a text as a name: one line of at most 100 bytes. `None`: nothing remains.
pub(super) fn short_name(text: &str) -> Option<String> {
    let plain: String = text.chars().filter(|letter| !letter.is_control()).collect();
    let mut short = String::new();
    for letter in plain.trim().chars() {
        if short.len() + letter.len_utf8() > 100 {
            break;
        }
        short.push(letter);
    }
    (!short.is_empty()).then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: FieldKind, value: &Value, expected: &Value) {
        let read = match convert(kind, value) {
            Converted::Same(read) => {
                assert_eq!(&read, value);
                read
            }
            Converted::Changed(read, _) => {
                assert_ne!(&read, value);
                read
            }
            Converted::Empty => json!("empty"),
            Converted::Wrong(_) => json!("wrong"),
        };
        assert_eq!(&read, expected, "{kind:?} of {value}");
    }

    #[test]
    fn converts_values_leniently_without_loss() {
        let (empty, wrong) = (json!("empty"), json!("wrong"));
        for (kind, value, expected) in [
            (FieldKind::Text, json!("x"), json!("x")),
            (FieldKind::Text, json!(7), json!("7")),
            (FieldKind::Text, json!(" "), empty.clone()),
            (FieldKind::Text, json!([]), wrong.clone()),
            (
                FieldKind::Url,
                json!("https://x.test"),
                json!("https://x.test"),
            ),
            (FieldKind::Url, json!("x.test"), wrong.clone()),
            (FieldKind::Bool, json!("yes"), json!(true)),
            (FieldKind::Bool, json!(2), wrong.clone()),
            (FieldKind::Integer, json!("5"), json!(5)),
            (FieldKind::Integer, json!(5.0), json!(5)),
            (FieldKind::Integer, json!(5.5), wrong.clone()),
            (FieldKind::Number, json!("5.5"), json!(5.5)),
            (FieldKind::Number, json!(0), wrong.clone()),
            (FieldKind::Names, json!("kb"), json!(["kb"])),
            (FieldKind::Names, json!(["kb", "__none__"]), json!(["kb"])),
            (FieldKind::Names, json!("__none__"), empty.clone()),
            (FieldKind::Names, json!([7]), wrong.clone()),
            (FieldKind::Choice(&["a"]), json!("b"), wrong.clone()),
            (FieldKind::Object, json!(r#"{"a":1}"#), json!({"a": 1})),
            (FieldKind::Object, json!("{"), wrong.clone()),
            (
                FieldKind::Model,
                json!("m"),
                json!({"primary": "m", "fallbacks": [], "reasoning": {}}),
            ),
            (FieldKind::Model, json!({"primary": ""}), empty.clone()),
            (
                FieldKind::Prompt,
                json!("Hi"),
                json!([{"role": "system", "content": "Hi"}]),
            ),
            (
                FieldKind::Prompt,
                json!([{"role": "system"}]),
                empty.clone(),
            ),
            (
                FieldKind::Prompt,
                json!("[1]"),
                json!([{"role": "system", "content": "[1]"}]),
            ),
            (
                FieldKind::Prompt,
                json!(r#"[{"role":"system","content":"Hi"}]"#),
                json!([{"role": "system", "content": "Hi"}]),
            ),
            (
                FieldKind::Names,
                json!(r#"["kb","__none__"]"#),
                json!(["kb"]),
            ),
            (FieldKind::Names, json!("[\"kb\""), wrong.clone()),
            (
                FieldKind::Model,
                json!(r#"{"primary":"m"}"#),
                json!({"primary": "m", "fallbacks": [], "reasoning": {}}),
            ),
            (FieldKind::Model, json!("{\"primary\""), wrong.clone()),
            (FieldKind::RemoveReasoning, json!("remove"), json!(true)),
            (FieldKind::RemoveReasoning, json!("plain"), empty.clone()),
            (FieldKind::RemoveReasoning, json!("strip"), wrong.clone()),
        ] {
            check(kind, &value, &expected);
        }
    }
}
