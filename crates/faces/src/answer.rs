//! Answers to questions in the words of a client: an action, the value of the only field, or both as data.

use protocol::JsonObject;
use protocol::interaction::{InteractionField, InteractionFieldType, InteractionRequest};
use serde::Deserialize;
use serde_json::{Value, json};

/// The chosen action and the values.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GivenAnswer {
    /// Id of the question, if there are several open ones.
    pub(crate) question: Option<String>,
    pub(crate) action_id: Option<String>,
    pub(crate) values: JsonObject,
}

impl GivenAnswer {
    /// Form of a complete answer, for messages.
    pub(crate) const FORM: &str = r#"{"action_id": "book", "values": {"guests": 2}}"#;

    /// A complete answer. `None`: another form.
    pub(crate) fn of_value(value: &Value) -> Option<Self> {
        Self::deserialize(value).ok()
    }

    /// An action by its id or label, or the value of the only field. `None`: the text is neither.
    pub(crate) fn of_text(text: &str, request: &InteractionRequest) -> Option<Self> {
        let text = text.trim();
        let mut actions = request.actions.iter();
        if let Some(action) = actions.find(|one| matches(text, &[&one.id, &one.label])) {
            return Some(Self {
                action_id: Some(action.id.clone()),
                ..Self::default()
            });
        }
        let [field] = request.fields.as_slice() else {
            return None;
        };
        let value = value_of(text, field)?;
        Some(Self {
            values: [(field.id.clone(), value)].into_iter().collect(),
            ..Self::default()
        })
    }
}

/// JSON Schema of a complete answer.
pub(crate) fn answer_schema(request: &InteractionRequest) -> Value {
    let fields = request
        .fields
        .iter()
        .map(|field| (field.id.clone(), value_schema(field)));
    let fields: JsonObject = fields.collect();
    let is_required = |field: &&InteractionField| field.required;
    let required = request.fields.iter().filter(is_required);
    let required: Vec<_> = required.map(|field| field.id.as_str()).collect();
    let values = json!({"type": "object", "properties": fields, "required": required});
    let mut properties = json!({"values": values});
    let actions: Vec<_> = request
        .actions
        .iter()
        .map(|action| action.id.as_str())
        .collect();
    if !actions.is_empty() {
        properties["action_id"] = json!({"type": "string", "enum": actions});
    }
    json!({"type": "object", "properties": properties})
}

/// JSON Schema of the value of a field.
pub(crate) fn value_schema(field: &InteractionField) -> Value {
    let options: Vec<_> = field
        .options
        .iter()
        .map(|option| option.value.as_str())
        .collect();
    let mut schema = match field.kind {
        InteractionFieldType::Select => json!({"type": "string", "enum": options}),
        InteractionFieldType::Multiselect => {
            json!({"type": "array", "items": {"type": "string", "enum": options}})
        }
        InteractionFieldType::Number => json!({"type": "number"}),
        InteractionFieldType::Boolean => json!({"type": "boolean"}),
        InteractionFieldType::Text
        | InteractionFieldType::Textarea
        | InteractionFieldType::File => {
            json!({"type": "string"})
        }
    };
    schema["title"] = json!(field.label);
    schema
}

fn value_of(text: &str, field: &InteractionField) -> Option<Value> {
    let option = || {
        let mut options = field.options.iter();
        let option = options.find(|one| matches(text, &[&one.value, &one.label]))?;
        Some(option.value.clone())
    };
    match field.kind {
        InteractionFieldType::Text | InteractionFieldType::Textarea => Some(json!(text)),
        InteractionFieldType::Select => Some(json!(option()?)),
        InteractionFieldType::Multiselect => Some(json!([option()?])),
        InteractionFieldType::Number => text.parse::<serde_json::Number>().ok().map(Value::Number),
        InteractionFieldType::Boolean if matches(text, &["yes", "true"]) => Some(json!(true)),
        InteractionFieldType::Boolean if matches(text, &["no", "false"]) => Some(json!(false)),
        InteractionFieldType::Boolean | InteractionFieldType::File => None,
    }
}

fn matches(text: &str, names: &[&str]) -> bool {
    names
        .iter()
        .any(|name| text.to_lowercase() == name.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: &Value, actions: &Value) -> InteractionRequest {
        serde_json::from_value(
            json!({"interaction_id": "q", "title": "t", "fallback_text": "t",
            "fields": fields, "actions": actions}),
        )
        .unwrap()
    }

    #[test]
    fn texts_choose_actions_and_values() {
        let actions = json!([{"id": "book", "label": "Book it"}]);
        let menu = json!({"id": "menu", "label": "Menu", "type": "select",
            "options": [{"value": "a", "label": "Menu A"}]});
        let seats = json!({"id": "seats", "label": "Seats", "type": "number"});
        for (fields, text, expected) in [
            (json!([]), "book it", Some(json!({"action_id": "book"}))),
            (
                json!([menu]),
                "menu a",
                Some(json!({"values": {"menu": "a"}})),
            ),
            (json!([menu]), "Menu B", None),
            (json!([seats]), "4", Some(json!({"values": {"seats": 4}}))),
            (json!([menu, seats]), "4", None),
        ] {
            let request = request(&fields, &actions);
            let answer = GivenAnswer::of_text(text, &request);
            let expected = expected.map(|answer| serde_json::from_value(answer).unwrap());
            assert_eq!(answer, expected, "{text}");
        }
    }
}
