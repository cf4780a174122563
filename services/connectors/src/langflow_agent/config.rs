//! The configuration of a Langflow flow.

use protocol::JsonObject;
use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::{ConnectorFailure, Mapped};

const BASE_URL: &str = "http://localhost:7860";

/// The API that runs flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LangflowApi {
    V1,
    V2,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    pub(super) key: SecretString,
    pub(super) flow: String,
    pub(super) input_type: String,
    pub(super) output_type: String,
    pub(super) tweaks: JsonObject,
    /// Absent: the new API, then the old one.
    pub(super) api: Option<LangflowApi>,
    /// The component with the input for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        let apis = [
            ("auto", None),
            ("v2", Some(LangflowApi::V2)),
            ("v1", Some(LangflowApi::V1)),
        ];
        let stated = Value::Object(reader.object("tweaks")?);
        // Such a reference would be sent as text, and the flow would fail far away from the cause.
        if names_variable_within(&stated) {
            let fault = "holds env:NAME within a longer text, or as a name: a variable must be a complete value";
            return Err(ConnectorFailure::config("tweaks", fault));
        }
        Ok(Self {
            base: reader.base_url("base-url", BASE_URL)?,
            key: reader.required_secret("api-key")?,
            flow: reader.required("flow-id")?,
            input_type: reader.text_or("input-type", "chat")?,
            output_type: reader.text_or("output-type", "chat")?,
            tweaks: reader.object_with_secrets("tweaks")?,
            api: reader.choice("api", &apis)?,
            host_tools: reader.host_tools()?,
        })
    }
}

/// True if a reference to a variable would be sent as text.
fn names_variable_within(value: &Value) -> bool {
    match value {
        Value::String(text) => has_reference(text.strip_prefix("env:").unwrap_or(text)),
        Value::Array(items) => items.iter().any(names_variable_within),
        Value::Object(members) => members
            .iter()
            .any(|(name, value)| has_reference(name) || names_variable_within(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn has_reference(text: &str) -> bool {
    let mut behind = text.split("env:").skip(1);
    behind.any(|behind| {
        behind.starts_with(|letter: char| letter.is_ascii_uppercase() || letter == '_')
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_must_be_complete_values() {
        for (value, is_refused) in [
            (
                json!({"A": {"key": "env:CONNECTOR_A", "list": ["env:CONNECTOR_B"]}}),
                false,
            ),
            (json!({"A": {"text": "see env: and env:lower"}}), false),
            (json!({"A": {"header": "Bearer env:CONNECTOR_A"}}), true),
            (
                json!({"A": {"json": "{\"key\": \"env:CONNECTOR_A\"}"}}),
                true,
            ),
            (
                json!({"A": [{"two": "env:CONNECTOR_A env:CONNECTOR_B"}]}),
                true,
            ),
            (json!({"env:CONNECTOR_A": 1}), true),
        ] {
            assert_eq!(names_variable_within(&value), is_refused, "{value}");
        }
    }
}
