//! Questions of `human.ask` and `human.approve`: forms, choices and confirmations.

use action_graph::code::Code;
use action_graph::graph::Millis;
use action_graph::node::{ActionOutput, Sent};
use action_graph::schedule::{ActionFailure, ActionOutcome, Execute};
use protocol::interaction::{
    InteractionActionStyle, InteractionField, InteractionFieldType, InteractionKind,
    InteractionOption, InteractionRequest,
};
use serde_json::{Value, json};

use super::{LABEL, button, clip};
use crate::records::Submission;

const SUBMIT: &str = "submit";
const DECLINE: &str = "decline";
const YES: &str = "yes";
/// Id prefix of choice buttons, followed by the index of the choice.
const CHOICE: &str = "choice_";
/// Maximum options of one field.
const MAX_OPTIONS: usize = 100;
/// Maximum characters of a field name.
const MAX_NAME_CHARS: usize = 128;
/// Maximum choice buttons of one question.
const MAX_BUTTONS: usize = 16;

/// Kind of a question, by its bound arguments.
fn kind_of(execute: &Execute) -> InteractionKind {
    let kind = execute.input.get("kind").and_then(Value::as_str);
    match (execute.target.as_str(), kind) {
        ("approve", _) | (_, Some("confirmation")) => InteractionKind::Confirmation,
        (_, Some("choice")) => InteractionKind::Choice,
        _ => InteractionKind::Form,
    }
}

/// Question of an action. Fails for unusable fields, with a message for the model.
pub(crate) fn request(
    id: String,
    execute: &Execute,
    until: Millis,
) -> Result<InteractionRequest, ActionFailure> {
    let text = |name| execute.input.get(name).and_then(Value::as_str);
    let title = text("title").unwrap_or_default();
    let description = text("details").unwrap_or_default();
    let kind = kind_of(execute);
    let fields = fields(&execute.input)?;
    let decline = |label| button(DECLINE, label, InteractionActionStyle::Danger);
    let primary = |id, label| button(id, label, InteractionActionStyle::Primary);
    let actions = match kind {
        InteractionKind::Confirmation => vec![primary(YES, "Yes"), decline("No")],
        // Only the gateway asks about budgets.
        InteractionKind::Form | InteractionKind::Budget => {
            vec![primary(SUBMIT, "Submit"), decline("Decline")]
        }
        InteractionKind::Choice => {
            let choices = choices(&execute.input);
            if choices.is_empty() && fields.is_empty() {
                return Err(refused("a question of kind choice needs choices"));
            }
            let mut actions: Vec<_> = choices
                .iter()
                .enumerate()
                .take(MAX_BUTTONS)
                .map(|(index, label)| {
                    // By index: labels may exceed the length of an id or repeat.
                    button(
                        &format!("{CHOICE}{index}"),
                        label,
                        InteractionActionStyle::Default,
                    )
                })
                .collect();
            if choices.is_empty() {
                actions.push(primary(SUBMIT, "Submit"));
            }
            actions.push(decline("Decline"));
            actions
        }
    };
    Ok(super::request(
        id,
        kind,
        title,
        description,
        fields,
        actions,
        until,
    ))
}

fn refused(message: &str) -> ActionFailure {
    ActionFailure::new(Code::ArgsSchema, message, Sent::No)
}

fn choices(input: &Value) -> Vec<&str> {
    let choices = input.get("choices").and_then(Value::as_array);
    choices
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn fields(input: &Value) -> Result<Vec<InteractionField>, ActionFailure> {
    let list = input.get("fields").and_then(Value::as_array);
    let mut fields: Vec<InteractionField> = Vec::new();
    for one in list.into_iter().flatten() {
        let field = field(one)?;
        if fields.iter().any(|existing| existing.id == field.id) {
            return Err(refused(&format!("field `{}` is named twice", field.id)));
        }
        fields.push(field);
    }
    Ok(fields)
}

fn field(one: &Value) -> Result<InteractionField, ActionFailure> {
    let text = |name| {
        one.get(name)
            .and_then(Value::as_str)
            .filter(|text| !text.trim().is_empty())
    };
    let name = text("name").ok_or_else(|| refused("a field needs a name"))?;
    if name.chars().count() > MAX_NAME_CHARS {
        return Err(refused("the name of a field is too long"));
    }
    let options = options(one);
    let kind = match text("type") {
        None if !options.is_empty() => InteractionFieldType::Select,
        None => InteractionFieldType::Text,
        Some(word) => serde_json::from_value(json!(word)).map_err(|_| {
            refused(&format!(
                "field `{name}` has the type `{word}`: use text, textarea, select, multiselect, number, boolean or file"
            ))
        })?,
    };
    let needs_options = matches!(
        kind,
        InteractionFieldType::Select | InteractionFieldType::Multiselect
    );
    if needs_options && options.is_empty() {
        return Err(refused(&format!("field `{name}` needs options")));
    }
    Ok(InteractionField {
        id: name.to_owned(),
        label: clip(text("label").unwrap_or(name), LABEL),
        kind,
        required: one.get("required") == Some(&Value::Bool(true)),
        options,
        placeholder: text("placeholder").map(|text| clip(text, LABEL)),
        default: one.get("default").cloned().unwrap_or_default(),
    })
}

/// Options of a field: texts, or objects with value and label. Duplicates are dropped.
fn options(one: &Value) -> Vec<InteractionOption> {
    let list = one.get("options").and_then(Value::as_array);
    let read = |option: &Value| {
        let text = |name: &str| option.get(name).and_then(Value::as_str);
        let value = option.as_str().or_else(|| text("value"))?;
        let label = text("label").unwrap_or(value);
        Some(InteractionOption {
            value: clip(value, LABEL),
            label: clip(label, LABEL),
            description: None,
        })
    };
    let mut options: Vec<InteractionOption> = Vec::new();
    for option in list
        .into_iter()
        .flatten()
        .filter_map(read)
        .take(MAX_OPTIONS)
    {
        if !options
            .iter()
            .any(|existing| existing.value == option.value)
        {
            options.push(option);
        }
    }
    options
}

/// Outcome of an action by its answer. A refusal is an output, too; it satisfies the action only with `allow_decline`.
pub(crate) fn outcome(execute: &Execute, submission: &Submission) -> ActionOutcome {
    let button = submission.action.as_deref();
    let picked = button.and_then(|id| id.strip_prefix(CHOICE)?.parse::<usize>().ok());
    // A client may send an index without a button.
    let choice = picked.and_then(|index| choices(&execute.input).get(index).copied());
    let kind = kind_of(execute);
    let (value, is_given) = match (kind, button, choice) {
        (_, Some(DECLINE), _) => (json!({"declined": true}), allows_decline(&execute.input)),
        (InteractionKind::Confirmation, Some(YES), _) => (json!({"confirmed": true}), true),
        // Fail closed: any other button declines.
        (InteractionKind::Confirmation, _, _) => {
            (json!({"declined": true}), allows_decline(&execute.input))
        }
        (_, _, Some(choice)) => (json!({"choice": choice}), true),
        _ => (Value::Object(submission.values.clone()), true),
    };
    let value = match value {
        Value::Object(mut object) if is_given => {
            // Fields must not override the result of the button.
            for (name, given) in &submission.values {
                object.entry(name.clone()).or_insert_with(|| given.clone());
            }
            Value::Object(object)
        }
        other => other,
    };
    ActionOutcome::Ok {
        output: ActionOutput::json(value),
        satisfying: is_given,
    }
}

fn allows_decline(input: &Value) -> bool {
    let fields = input.get("fields").and_then(Value::as_array);
    let mut fields = fields.into_iter().flatten();
    fields.any(|field| field.get("allow_decline") == Some(&Value::Bool(true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn execute(target: &str, input: Value) -> Execute {
        Execute {
            id: "a".into(),
            attempt: 1,
            target: target.to_owned(),
            input,
            key: "k".to_owned(),
            timeout_ms: None,
            approved_by: None,
        }
    }

    fn answered(target: &str, input: Value, action: &str, values: &Value) -> (Value, bool) {
        let submission = Submission {
            interaction: "i".to_owned(),
            action: Some(action.to_owned()),
            values: values.as_object().cloned().unwrap_or_default(),
            at: 0,
        };
        match outcome(&execute(target, input), &submission) {
            ActionOutcome::Ok { output, satisfying } => (output.value, satisfying),
            ActionOutcome::Err(failure) => panic!("{failure:?}"),
        }
    }

    #[test]
    fn answers_become_outputs() {
        let form = json!({"kind": "form", "title": "t", "fields": [{"name": "city"}]});
        let optional = json!({"kind": "form", "title": "t", "fields": [{"name": "city", "allow_decline": true}]});
        let choice = json!({"kind": "choice", "title": "t", "choices": ["red", "blue"]});
        let sure = json!({"title": "Sure?"});
        let (city, none) = (json!({"city": "Bonn"}), json!({}));
        let declined = json!({"declined": true});
        let (blue, confirmed) = (json!({"choice": "blue"}), json!({"confirmed": true}));
        for (target, input, action, values, expected, satisfying) in [
            ("ask", &form, "submit", &city, &city, true),
            ("ask", &form, "decline", &none, &declined, false),
            ("ask", &optional, "decline", &none, &declined, true),
            ("ask", &choice, "choice_1", &none, &blue, true),
            ("approve", &sure, "yes", &none, &confirmed, true),
            ("approve", &sure, "decline", &none, &declined, false),
            ("approve", &sure, "other", &none, &declined, false),
        ] {
            let found = answered(target, input.clone(), action, values);
            assert_eq!(found, (expected.clone(), satisfying), "{target} {action}");
        }
    }

    #[test]
    fn rejects_unsupported_form_fields() {
        let ask = |fields: Value| {
            let input = json!({"kind": "form", "title": "t", "fields": fields});
            request("i".to_owned(), &execute("ask", input), 0)
        };
        for fields in [
            json!([{"label": "no name"}]),
            json!([{"name": "a", "type": "robot"}]),
            json!([{"name": "a", "type": "select"}]),
            json!([{"name": "a"}, {"name": "a"}]),
            json!([{"name": "x".repeat(200)}]),
        ] {
            assert_eq!(
                ask(fields.clone()).unwrap_err().code,
                Code::ArgsSchema,
                "{fields}"
            );
        }
        let question = ask(
            json!([{"name": "color", "options": ["red", {"value": "b", "label": "Blue"}, "red"]}]),
        );
        let field = &question.unwrap().fields[0];
        assert_eq!(field.kind, InteractionFieldType::Select);
        assert_eq!(field.options.len(), 2);
    }
}
