//! Asks questions of a run at the terminal and submits the answers as interactions.

use anyhow::Context as _;
use http::Method;
use serde_json::{Map, Value, json};

use crate::gateway::{Gateway, encoded};
use crate::output;

/// Capabilities of a terminal, for the `delivery` of an event.
pub(super) fn delivery() -> Value {
    json!({"surface": "terminal", "supports_streaming": true, "interactions": {
        "field_types": ["text", "textarea", "select", "multiselect", "number", "boolean"],
        "action_styles": ["default", "primary", "danger"],
    }})
}

/// The oldest open question of a run.
pub(super) async fn open_question(gateway: &Gateway, run: &str) -> anyhow::Result<Option<Value>> {
    let run = encoded(run);
    let path = format!("/v1/interactions?status=open&run_id={run}");
    let page = gateway.ask(gateway.request(Method::GET, &path)?).await?;
    let last = page["items"].as_array().and_then(|items| items.last());
    Ok(last.cloned())
}

/// Submits an answer. Returns the id of the new run that continues, if any.
pub(super) async fn submit(
    gateway: &Gateway,
    question: &Value,
    answer: &QuestionAnswer,
) -> anyhow::Result<Option<String>> {
    let id = question["id"].as_str().context("the question has no id")?;
    let body = json!({
        "interaction_id": question["request"]["interaction_id"],
        "action_id": answer.action, "values": answer.values,
    });
    let path = format!("/v1/interactions/{}/submit", encoded(id));
    let request = gateway.request(Method::POST, &path)?.json(&body);
    let taken = gateway.ask(request).await?;
    // If a live run waits for the answer, the response is the interaction itself.
    let run = taken["run_id"]
        .as_str()
        .filter(|_| taken["request"].is_null());
    Ok(run.map(str::to_owned))
}

/// The answer to a question.
#[derive(Debug, PartialEq)]
pub(super) struct QuestionAnswer {
    action: Option<String>,
    values: Map<String, Value>,
}

impl QuestionAnswer {
    /// An answer of arguments: an action by number, name or label, and values by field.
    pub(super) fn new(
        request: &Value,
        action: Option<&str>,
        values: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let actions = list(request, "actions");
        let action = match action {
            None => None,
            Some(named) => Some(chosen(actions, "id", named).with_context(|| {
                format!("there is no action {named}: {}", choices(actions, "id"))
            })?),
        };
        let fields = list(request, "fields");
        let mut filled = Map::new();
        for (id, typed) in values {
            let field = fields.iter().find(|field| field["id"] == *id);
            let field = field.with_context(|| {
                let ids: Vec<_> = fields
                    .iter()
                    .filter_map(|field| field["id"].as_str())
                    .collect();
                format!("there is no field {id}; known are: {}", ids.join(", "))
            })?;
            let (kind, options) = (field["type"].as_str(), list(field, "options"));
            let value = value_of(kind.unwrap_or_default(), options, typed.trim());
            let value = value.with_context(|| {
                format!("{typed} is no value of the field {id}{}", hint_of(field))
            })?;
            filled.insert((*id).to_owned(), value);
        }
        Ok(Self {
            action: action.map(str::to_owned),
            values: filled,
        })
    }
}

/// Prompts for every field and the action. `None`: the input ended first, and the question stays open.
pub(super) fn ask(
    request: &Value,
    mut line: impl FnMut(&str) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<Option<QuestionAnswer>> {
    let text = |key: &str| request[key].as_str().unwrap_or_default();
    output::remark(text("title"));
    if !text("description").is_empty() {
        output::remark(text("description"));
    }
    let mut values = Map::new();
    for field in list(request, "fields") {
        let Some(value) = ask_field(field, &mut line)? else {
            return Ok(None);
        };
        if !value.is_null() {
            values.insert(field["id"].as_str().unwrap_or_default().to_owned(), value);
        }
    }
    let actions = list(request, "actions");
    let action = match actions {
        [] => None,
        // A form with one button needs no further input.
        [only] if !values.is_empty() => only["id"].as_str(),
        _ => {
            let prompt = format!("{} > ", choices(actions, "id"));
            let Some(chosen) = choose(&prompt, actions, &mut line)? else {
                return Ok(None);
            };
            Some(chosen)
        }
    };
    Ok(Some(QuestionAnswer {
        action: action.map(str::to_owned),
        values,
    }))
}

/// The value of a field; null if an optional field is left empty.
fn ask_field(
    field: &Value,
    line: &mut impl FnMut(&str) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<Option<Value>> {
    let kind = field["type"].as_str().unwrap_or_default();
    let label = field["label"].as_str().unwrap_or_default();
    let options = list(field, "options");
    let hint = hint_of(field);
    loop {
        let Some(typed) = line(&format!("{label}{hint}: "))? else {
            return Ok(None);
        };
        let typed = typed.trim();
        if typed.is_empty() {
            let fallback = &field["default"];
            if !fallback.is_null() || field["required"] != true {
                return Ok(Some(fallback.clone()));
            }
        } else if let Some(value) = value_of(kind, options, typed) {
            return Ok(Some(value));
        }
        output::remark("an answer of this field is needed");
    }
}

/// The accepted values of a field.
fn hint_of(field: &Value) -> String {
    let options = || choices(list(field, "options"), "value");
    match field["type"].as_str().unwrap_or_default() {
        "select" => format!(" ({})", options()),
        "multiselect" => format!(" ({}; several with commas)", options()),
        "boolean" => " (yes or no)".to_owned(),
        "number" => " (a number)".to_owned(),
        _ => String::new(),
    }
}

fn value_of(kind: &str, options: &[Value], typed: &str) -> Option<Value> {
    let option = |typed: &str| Some(json!(chosen(options, "value", typed.trim())?));
    match kind {
        "select" => option(typed),
        "multiselect" => typed.split(',').map(option).collect(),
        "number" => typed.parse::<serde_json::Number>().ok().map(Value::Number),
        "boolean" => match typed.to_lowercase().as_str() {
            "y" | "yes" | "true" => Some(json!(true)),
            "n" | "no" | "false" => Some(json!(false)),
            _ => None,
        },
        _ => Some(json!(typed)),
    }
}

/// Id of the selected action. `None`: the input ended.
fn choose<'a>(
    prompt: &str,
    actions: &'a [Value],
    line: &mut impl FnMut(&str) -> anyhow::Result<Option<String>>,
) -> anyhow::Result<Option<&'a str>> {
    loop {
        let Some(typed) = line(prompt)? else {
            return Ok(None);
        };
        if let Some(found) = chosen(actions, "id", typed.trim()) {
            return Ok(Some(found));
        }
        output::remark("type the number or the name of a choice; Ctrl-D leaves the question open");
    }
}

/// The item with that number, name or label.
fn chosen<'a>(items: &'a [Value], key: &str, typed: &str) -> Option<&'a str> {
    let is_named = |item: &&Value| {
        [key, "label"].iter().any(|key| {
            let name = item[*key].as_str();
            name.is_some_and(|name| name.eq_ignore_ascii_case(typed))
        })
    };
    // Numbers are shown from 1.
    let number = typed.parse::<usize>().ok().and_then(|n| n.checked_sub(1));
    let named = items.iter().find(is_named);
    // Names come first: an option may be named like a number.
    named.or_else(|| items.get(number?))?[key].as_str()
}

fn choices(items: &[Value], key: &str) -> String {
    let choice = |(at, item): (usize, &Value)| {
        let label = item["label"].as_str().or(item[key].as_str());
        format!("{} {}", at + 1, label.unwrap_or_default())
    };
    let choices: Vec<_> = items.iter().enumerate().map(choice).collect();
    choices.join(", ")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(request: &Value, typed: &[&str]) -> Option<QuestionAnswer> {
        let mut typed = typed.iter();
        let line = |_: &str| Ok(typed.next().map(|line| (*line).to_owned()));
        ask(request, line).unwrap()
    }

    fn approval() -> Value {
        json!({"title": "Delete it?", "actions": [
            {"id": "once", "label": "Allow once"}, {"id": "no", "label": "Refuse"}]})
    }

    #[test]
    fn choices_go_by_number_name_or_label() {
        for (typed, action) in [("1", "once"), ("NO", "no"), ("refuse", "no")] {
            let answer = answer(&approval(), &["maybe", "0", "3", typed]).unwrap();
            assert_eq!(answer.action.as_deref(), Some(action), "{typed}");
        }
    }

    #[test]
    fn arguments_answer_like_typed_lines() {
        let request = json!({"fields": [{"id": "days", "label": "Days", "type": "number"}],
            "actions": [{"id": "once", "label": "Allow once"}]});
        let built = |action, values: &[(&str, &str)]| {
            QuestionAnswer::new(&request, action, values).map_err(|error| error.to_string())
        };
        let answer = built(Some("allow once"), &[("days", "2")]).unwrap();
        assert_eq!(answer.action.as_deref(), Some("once"));
        assert_eq!(answer.values["days"], 2);
        let check = |action, values: &[(&str, &str)], expected: &str| {
            assert_eq!(built(action, values).unwrap_err(), expected);
        };
        check(Some("never"), &[], "there is no action never: 1 Allow once");
        check(
            None,
            &[("day", "2")],
            "there is no field day; known are: days",
        );
        check(
            None,
            &[("days", "two")],
            "two is no value of the field days (a number)",
        );
    }

    #[test]
    fn ended_input_leaves_questions_open() {
        assert_eq!(answer(&approval(), &["maybe"]), None);
    }

    #[test]
    fn fields_take_values_of_their_types() {
        let option = |value: &str| json!({"value": value, "label": value.to_uppercase()});
        let field = |id: &str, kind: &str, required: bool| {
            json!({"id": id, "label": id, "type": kind,
            "required": required, "options": [option("a"), option("b")]})
        };
        let request = json!({"title": "Where?", "fields": [
            field("text", "text", true), field("select", "select", true), field("several", "multiselect", true),
            field("number", "number", true), field("boolean", "boolean", true), field("free", "text", false)],
            "actions": [{"id": "send", "label": "Send"}]});
        let typed = [
            "", "Oslo", "c", "2", "1, B", "x", "2.5", "perhaps", "yes", "",
        ];
        let answer = answer(&request, &typed).unwrap();
        let expected = json!({"text": "Oslo", "select": "b", "several": ["a", "b"], "number": 2.5, "boolean": true});
        assert_eq!(Value::Object(answer.values), expected);
        assert_eq!(answer.action.as_deref(), Some("send"));
    }
}
