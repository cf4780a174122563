//! Questions to a person, with fields by JSON Schema, and answers as values of that schema.

use protocol::JsonObject;
use protocol::interaction::{
    InteractionAction, InteractionActionStyle, InteractionField, InteractionFieldType,
    InteractionKind, InteractionOption, InteractionRequest,
};
use serde_json::{Value, json};

use crate::upstream::json::{self, filled};
use crate::upstream::results::cut;

/// The field of an answer that is no object.
pub const ANSWER: &str = "answer";
/// Maximum fields of one question.
pub const MAX_FIELDS: usize = 50;
const MAX_OPTIONS: usize = 100;
/// Maximum buttons of one question.
pub const MAX_ACTIONS: usize = 20;

/// A question that the run waits for.
pub fn question(
    id: &str,
    text: &str,
    fields: Vec<InteractionField>,
    actions: Vec<InteractionAction>,
) -> InteractionRequest {
    // The protocol refuses an empty title, so a question without text gets a fixed one.
    let text = filled(&json!(text)).unwrap_or("Question").to_owned();
    let labels: Vec<_> = actions.iter().map(|action| action.label.as_str()).collect();
    let fallback = if labels.is_empty() {
        // Surfaces without buttons show only this text: it lists the labels that a person can type.
        text.clone()
    } else {
        format!("{text}\n{}", labels.join(" / "))
    };
    InteractionRequest {
        interaction_id: cut(id, 255),
        kind: match (fields.is_empty(), actions.len()) {
            (false, _) => InteractionKind::Form,
            (true, 0..=2) => InteractionKind::Confirmation,
            (true, _) => InteractionKind::Choice,
        },
        title: cut(text.lines().next().unwrap_or_default(), 1_000),
        fallback_text: cut(&fallback, 20_000),
        description: text.contains('\n').then(|| cut(&text, 10_000)),
        fields,
        actions,
        expires_at: None,
        awaits: true,
    }
}

/// A button at this position; the first one of a question is the primary one.
pub fn action(id: &str, label: &str, position: usize) -> InteractionAction {
    InteractionAction {
        id: cut(id, 128),
        label: cut(filled(&json!(label)).unwrap_or(id), 512),
        style: match position {
            0 => InteractionActionStyle::Primary,
            _ => InteractionActionStyle::Default,
        },
    }
}

/// One field for each property of an object schema; any other schema gives one field named [`ANSWER`], a textarea if
/// it
/// is a text.
pub fn fields_of(schema: &Value) -> Vec<InteractionField> {
    let Some(properties) = properties_of(schema) else {
        let mut field = field(ANSWER, schema, true);
        if field.kind == InteractionFieldType::Text {
            field.kind = InteractionFieldType::Textarea;
        }
        return vec![field];
    };
    let required = |name: &str| {
        let mut names = schema["required"].as_array().into_iter().flatten();
        names.any(|required| required == name)
    };
    let fields = properties
        .iter()
        .map(|(name, schema)| field(name, schema, required(name)));
    fields.take(MAX_FIELDS).collect()
}

/// The answer as a value of the schema.
pub fn value_of(schema: &Value, values: &JsonObject) -> Value {
    let Some(properties) = properties_of(schema) else {
        return typed(schema, values.get(ANSWER).unwrap_or(&Value::Null));
    };
    let members = properties.iter().filter_map(|(name, schema)| {
        // Field ids are cut to 128 bytes, so look the value up under the cut name.
        let value = values.get(&cut(name, 128)).unwrap_or(&schema["default"]);
        (!value.is_null()).then(|| (name.clone(), typed(schema, value)))
    });
    Value::Object(members.collect())
}

fn properties_of(schema: &Value) -> Option<&JsonObject> {
    let properties = schema["properties"].as_object();
    properties.filter(|properties| !properties.is_empty())
}

fn field(name: &str, schema: &Value, required: bool) -> InteractionField {
    let options = options(choices_of(schema).filter_map(json::text_of));
    let kind = match schema["type"].as_str().unwrap_or_default() {
        "array" if !options.is_empty() => InteractionFieldType::Multiselect,
        _ if !options.is_empty() => InteractionFieldType::Select,
        "boolean" => InteractionFieldType::Boolean,
        "number" | "integer" => InteractionFieldType::Number,
        "object" | "array" => InteractionFieldType::Textarea,
        _ => InteractionFieldType::Text,
    };
    InteractionField {
        id: cut(name, 128),
        label: cut(filled(&schema["title"]).unwrap_or(name), 512),
        kind,
        required,
        options,
        placeholder: filled(&schema["description"]).map(|text| cut(text, 1_000)),
        default: match (&schema["default"], kind) {
            (Value::Object(_) | Value::Array(_), InteractionFieldType::Textarea) => {
                json!(schema["default"].to_string())
            }
            (default, _) => default.clone(),
        },
    }
}

fn choices_of(schema: &Value) -> impl Iterator<Item = &Value> {
    let source = if schema["type"] == "array" {
        &schema["items"]
    } else {
        schema
    };
    source["enum"].as_array().into_iter().flatten()
}

/// The options of a field: distinct texts that are not empty.
pub fn options(values: impl Iterator<Item = String>) -> Vec<InteractionOption> {
    let mut options: Vec<InteractionOption> = Vec::new();
    for text in values {
        let value = cut(&text, 512);
        let is_new = options.iter().all(|option| option.value != value);
        if is_new && !value.is_empty() && options.len() < MAX_OPTIONS {
            options.push(InteractionOption {
                label: value.clone(),
                value,
                description: None,
            });
        }
    }
    options
}

/// Converts a value to the schema's type: surfaces send options and numbers as texts.
fn typed(schema: &Value, value: &Value) -> Value {
    let chosen = |value: &Value| {
        let text = json::text_of(value)?;
        let mut choices = choices_of(schema);
        choices.find(|choice| json::text_of(choice).is_some_and(|choice| cut(&choice, 512) == text))
    };
    match (schema["type"].as_str(), value) {
        (Some("array"), Value::Array(values)) => values
            // Return the schema's own element: an option `2` of a number enum comes back as the text `"2"`.
            .iter()
            .map(|value| chosen(value).unwrap_or(value).clone())
            .collect(),
        (Some("number" | "integer" | "boolean" | "object" | "array"), Value::String(text)) => {
            json::parse(text).unwrap_or_else(|| value.clone())
        }
        _ => chosen(value).unwrap_or(value).clone(),
    }
}

#[cfg(test)]
mod tests {
    use InteractionFieldType::{Boolean, Multiselect, Number, Select, Text, Textarea};

    use super::*;

    #[test]
    fn schemas_become_fields_and_values() {
        let schema = json!({"type": "object", "required": ["ok"], "properties": {
            "ok": {"type": "boolean"},
            "level": {"enum": [1, 2]},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}},
            "count": {"type": "integer", "default": 3},
            "note": {"type": "string", "title": "Note"},
            "more": {"type": "object"},
        }});
        let fields = fields_of(&schema);
        let kinds: Vec<_> = fields
            .iter()
            .map(|field| (field.id.as_str(), field.kind, field.required))
            .collect();
        assert_eq!(
            kinds,
            [
                ("count", Number, false),
                ("level", Select, false),
                ("more", Textarea, false),
                ("note", Text, false),
                ("ok", Boolean, true),
                ("tags", Multiselect, false),
            ]
        );
        let values = json!({"ok": true, "level": "2", "tags": ["a"], "more": "{\"x\": 1}"});
        assert_eq!(
            value_of(&schema, values.as_object().unwrap()),
            json!({"ok": true, "level": 2, "tags": ["a"], "count": 3, "more": {"x": 1}})
        );
    }

    #[test]
    fn answers_without_schema_are_texts() {
        let fields = fields_of(&Value::Null);
        assert_eq!((fields[0].id.as_str(), fields[0].kind), (ANSWER, Textarea));
        let values = json!({"answer": "12"});
        let values = values.as_object().unwrap();
        assert_eq!(value_of(&Value::Null, values), "12");
        assert_eq!(value_of(&json!({"type": "number"}), values), 12);
    }

    #[test]
    fn questions_have_a_title_and_a_fallback() {
        let actions = vec![action("yes", "", 0), action("no", "No", 1)];
        let request = question("q", "Go?\nIt is late.", Vec::new(), actions);
        assert_eq!(request.title, "Go?");
        assert_eq!(request.fallback_text, "Go?\nIt is late.\nyes / No");
        assert_eq!(question("q", " ", Vec::new(), Vec::new()).title, "Question");
    }
}
