//! A message of the user as the answer to a question of the task.

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::interaction::{InteractionField, InteractionFieldType, InteractionRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use super::message::A2aPart;

const PARTS: &str = "/params/message/parts";

/// The chosen action and the values.
#[derive(Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(super) struct A2aAnswer {
    /// Id of the question, if the task has several open ones.
    pub(super) question: Option<String>,
    pub(super) action_id: Option<String>,
    pub(super) values: JsonObject,
}

impl A2aAnswer {
    /// The answer of a data part, if the message has one.
    pub(super) fn of_data(parts: &[A2aPart]) -> Result<Option<Self>, Fault> {
        let data = parts.iter().enumerate();
        let mut data = data.filter_map(|(at, part)| Some((at, part.data.as_ref()?)));
        let Some((at, data)) = data.next() else {
            return Ok(None);
        };
        let read = Self::deserialize(data).map(Some);
        read.map_err(|_| {
            let message = r#"must be like {"action_id": "book", "values": {"guests": 2}}"#;
            Fault::new(format!("{PARTS}/{at}/data"), message)
        })
    }

    /// The answer of the texts: an action, or the value of the only field.
    pub(super) fn of_text(parts: &[A2aPart], request: &InteractionRequest) -> Result<Self, Fault> {
        let texts: Vec<_> = parts
            .iter()
            .filter_map(|part| part.text.as_deref())
            .collect();
        let text = texts.join("\n");
        let text = text.trim();
        let mut actions = request.actions.iter();
        if let Some(action) = actions.find(|one| matches(text, &[&one.id, &one.label])) {
            return Ok(Self {
                action_id: Some(action.id.clone()),
                ..Self::default()
            });
        }
        let value = match request.fields.as_slice() {
            [field] => value_of(text, field).map(|value| (field.id.clone(), value)),
            _ => None,
        };
        let (field, value) = value.ok_or_else(|| {
            let message = "must answer the question: a text that is an action or the value of its only \
                field, or a data part with action_id and values";
            Fault::new(PARTS, message)
        })?;
        Ok(Self {
            values: [(field, value)].into_iter().collect(),
            ..Self::default()
        })
    }
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

    fn parts(parts: Value) -> Vec<A2aPart> {
        serde_json::from_value(parts).unwrap()
    }

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
            let answer = A2aAnswer::of_text(&parts(json!([{"text": text}])), &request);
            let expected = expected.map(|answer| serde_json::from_value(answer).unwrap());
            assert_eq!(answer.ok(), expected, "{text}");
        }
    }

    #[test]
    fn data_parts_are_complete_answers() {
        let data = json!({"question": "q-1", "action_id": "book", "values": {"menu": "a"}});
        let answer = A2aAnswer::of_data(&parts(json!([{"text": "x"}, {"data": data}])));
        let answer = answer.unwrap().unwrap();
        assert_eq!(answer.question.as_deref(), Some("q-1"));
        assert_eq!(answer.values, *json!({"menu": "a"}).as_object().unwrap());
        assert_eq!(A2aAnswer::of_data(&parts(json!([{"text": "x"}]))), Ok(None));
        let fault = A2aAnswer::of_data(&parts(json!([{"data": {"menu": "a"}}]))).unwrap_err();
        assert_eq!(fault.pointer, "/params/message/parts/0/data");
    }
}
