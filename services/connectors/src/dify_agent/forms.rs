//! Forms of paused workflows as questions, and answers as submissions.

use protocol::JsonObject;
use protocol::interaction::{
    InteractionAction, InteractionActionStyle, InteractionField, InteractionFieldType,
    InteractionKind, InteractionRequest,
};
use serde_json::{Value, json};

use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::json::{filled, object};
use crate::upstream::question::{MAX_ACTIONS, MAX_FIELDS, action, options};
use crate::upstream::results::cut;

/// The members of a form that its question and its answer need.
const MEMBERS: [&str; 8] = [
    "form_id",
    "form_token",
    "node_title",
    "form_content",
    "inputs",
    "actions",
    "resolved_default_values",
    "expiration_time",
];

/// A form that waits for its answer.
#[derive(Clone, Debug)]
pub(super) struct DifyForm {
    token: String,
    pub(super) run_id: String,
    data: Value,
}

/// The failure of a pause without an answerable form.
pub(super) fn unanswerable() -> ConnectorFailure {
    let message = "the workflow waits for a form that cannot be answered here: deliver it as a web app, and update Dify if it already is";
    ConnectorFailure::new(FailureKind::ApiError, message)
}

impl DifyForm {
    /// The form of `human_input_required`, or of [`DifyForm::stored`]; `None` without a token.
    pub(super) fn read(event: &Value) -> Option<Self> {
        let data = event["data"].as_object()?;
        let members = MEMBERS
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), data.get(*key)?.clone())));
        Some(Self {
            token: filled(&event["data"]["form_token"])?.to_owned(),
            run_id: filled(&event["workflow_run_id"])?.to_owned(),
            data: Value::Object(members.collect()),
        })
    }

    /// The form as stored in the state.
    pub(super) fn stored(&self) -> Value {
        json!({"workflow_run_id": self.run_id, "data": self.data})
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }

    /// The id of the question: the form's id, because the token is a credential.
    pub(super) fn interaction_id(&self) -> String {
        let id = filled(&self.data["form_id"]).unwrap_or(&self.run_id);
        cut(&format!("dify_{id}"), 255)
    }

    fn inputs(&self) -> impl Iterator<Item = (&str, &Value)> {
        let inputs = self.data["inputs"].as_array().into_iter().flatten();
        let inputs =
            inputs.filter_map(|input| Some((filled(&input["output_variable_name"])?, input)));
        inputs.take(MAX_FIELDS)
    }

    fn actions(&self) -> impl Iterator<Item = (&str, &Value)> {
        let actions = self.data["actions"].as_array().into_iter().flatten();
        let actions = actions.filter_map(|action| Some((filled(&action["id"])?, action)));
        actions.take(MAX_ACTIONS)
    }

    /// The question for the person.
    pub(super) fn question(&self) -> InteractionRequest {
        let fields: Vec<_> = self
            .inputs()
            .map(|(name, input)| self.field(name, input))
            .collect();
        let actions: Vec<_> = self
            .actions()
            .map(|(id, entry)| {
                let style = match entry["button_style"].as_str() {
                    Some("primary" | "accent") => InteractionActionStyle::Primary,
                    _ => InteractionActionStyle::Default,
                };
                let label = entry["title"].as_str().unwrap_or_default();
                InteractionAction {
                    style,
                    ..action(id, label, 0)
                }
            })
            .collect();
        let content = without_marks(self.data["form_content"].as_str().unwrap_or_default());
        let title = filled(&self.data["node_title"]).unwrap_or("Form");
        let labels: Vec<_> = actions.iter().map(|action| action.label.as_str()).collect();
        InteractionRequest {
            interaction_id: self.interaction_id(),
            kind: if fields.is_empty() {
                InteractionKind::Confirmation
            } else {
                InteractionKind::Form
            },
            title: cut(title, 1_000),
            fallback_text: cut(
                &format!("{title}\n{content}\n{}", labels.join(" / ")),
                20_000,
            ),
            description: filled(&json!(content)).map(|content| cut(content, 10_000)),
            fields,
            actions,
            expires_at: self.data["expiration_time"].as_i64(),
            awaits: true,
        }
    }

    fn field(&self, name: &str, input: &Value) -> InteractionField {
        let values = input["option_source"]["value"].as_array();
        let values = values.into_iter().flatten().filter_map(filled);
        let options = options(values.map(str::to_owned));
        let kind = match input["type"].as_str().unwrap_or_default() {
            "paragraph" => InteractionFieldType::Textarea,
            "select" if !options.is_empty() => InteractionFieldType::Select,
            "number" => InteractionFieldType::Number,
            "checkbox" | "boolean" => InteractionFieldType::Boolean,
            "file" | "file-list" => InteractionFieldType::File,
            _ => InteractionFieldType::Text,
        };
        let default = self.default_of(name, input);
        InteractionField {
            id: cut(name, 128),
            label: cut(name, 512),
            // An input with a default may stay empty.
            required: default.is_null(),
            options: if kind == InteractionFieldType::Select {
                options
            } else {
                Vec::new()
            },
            kind,
            placeholder: None,
            default,
        }
    }

    fn default_of(&self, name: &str, input: &Value) -> Value {
        let resolved = &self.data["resolved_default_values"][name];
        let stated = &input["default"]["value"];
        [resolved, stated]
            .into_iter()
            .find(|value| filled(value).is_some())
            .cloned()
            .unwrap_or_default()
    }

    /// The body that submits an answer. Inputs without a value get their defaults.
    pub(super) fn submission(
        &self,
        action: Option<&str>,
        values: &JsonObject,
        user: &str,
    ) -> Mapped<JsonObject> {
        let mut inputs = JsonObject::new();
        for (name, input) in self.inputs() {
            // Field ids are cut to 128 bytes, so look the value up under the cut name.
            let value = values.get(&cut(name, 128)).filter(|value| !value.is_null());
            let value = value
                .cloned()
                .unwrap_or_else(|| self.default_of(name, input));
            let value = match input["type"].as_str() {
                Some("file") if !value.is_null() => file(name, &value)?,
                Some("file-list") if !value.is_null() => json!([file(name, &value)?]),
                _ => value,
            };
            if !value.is_null() {
                inputs.insert(name.to_owned(), value);
            }
        }
        // Surfaces without buttons send no action: use the first one.
        let action = action.or_else(|| self.actions().next().map(|(id, _)| id));
        let body = json!({"inputs": inputs, "action": action.unwrap_or_default(), "user": user});
        Ok(object(body))
    }
}

/// A file of an answer, by its public address.
fn file(name: &str, value: &Value) -> Mapped<Value> {
    let url = value.as_str().or_else(|| value["url"].as_str());
    let url = url.filter(|url| url.starts_with("https://") || url.starts_with("http://"));
    let url =
        url.ok_or_else(|| ConnectorFailure::upload(name, "of the form has no public address"))?;
    Ok(json!({"transfer_method": "remote_url", "url": url}))
}

/// A form's text with `[name]` instead of `{{#$output.name#}}`.
fn without_marks(content: &str) -> String {
    let mut parts = content.split("{{#$output.");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once("#}}") {
            Some((name, rest)) => text.extend(["[", name, "]", rest]),
            None => text.push_str(part),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use InteractionFieldType::{File, Select, Textarea};

    use super::*;

    fn form() -> DifyForm {
        let data = json!({
            "form_id": "f", "form_token": "t", "node_title": "Review", "form_content": "Note: {{#$output.note#}}",
            "inputs": [
                {"type": "paragraph", "output_variable_name": "note", "default": {"type": "constant", "value": "ok"}},
                {"type": "select", "output_variable_name": "level", "option_source": {"value": ["low", "high"]}},
                {"type": "file-list", "output_variable_name": "files"},
            ],
            "actions": [{"id": "go", "title": "Go", "button_style": "primary"}],
            "expiration_time": 1_700_000_000,
        });
        DifyForm::read(&json!({"workflow_run_id": "r", "data": data})).unwrap()
    }

    #[test]
    fn forms_become_questions() {
        let question = form().question();
        assert_eq!(question.interaction_id, "dify_f");
        assert_eq!(question.description.as_deref(), Some("Note: [note]"));
        assert_eq!(question.fallback_text, "Review\nNote: [note]\nGo");
        let kinds: Vec<_> = question
            .fields
            .iter()
            .map(|field| (field.kind, field.required))
            .collect();
        assert_eq!(kinds, [(Textarea, false), (Select, true), (File, true)]);
        assert!(question.awaits);
    }

    #[test]
    fn answers_become_submissions() {
        let form = DifyForm::read(&form().stored()).unwrap();
        let values = json!({"level": "low", "files": "https://a.example/f", "other": 1});
        let body = form
            .submission(None, values.as_object().unwrap(), "u")
            .unwrap();
        let expected = json!({
            "inputs": {"note": "ok", "level": "low", "files": [{"transfer_method": "remote_url", "url": "https://a.example/f"}]},
            "action": "go", "user": "u",
        });
        assert_eq!(Value::Object(body), expected);
        let values = json!({"files": "handle"});
        let failure = form
            .submission(None, values.as_object().unwrap(), "u")
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::UploadError);
    }
}
