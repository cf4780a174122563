//! Metadata of a response, and the members repeated from its request.

use protocol::JsonObject;
use serde_json::{Value, json};

/// Maximum bytes, as JSON, of a request member that the answer repeats.
const ECHO_BYTES: usize = 8 * 1024;
/// Request members that the answer repeats, with their defaults.
const ECHOED: [(&str, &str); 19] = [
    ("frequency_penalty", "0"),
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("presence_penalty", "0"),
    ("prompt_cache_key", "null"),
    ("reasoning", r#"{"effort": null, "summary": null}"#),
    ("safety_identifier", "null"),
    ("service_tier", r#""default""#),
    ("temperature", "1"),
    ("text", r#"{"format": {"type": "text"}}"#),
    ("tool_choice", r#""auto""#),
    ("tools", "[]"),
    ("top_logprobs", "0"),
    ("top_p", "1"),
    ("truncation", r#""disabled""#),
    ("user", "null"),
];

/// Metadata of a response.
#[derive(Debug)]
pub struct ResponseHead {
    /// Unique key of the response: letters and digits.
    pub key: String,
    /// Epoch seconds.
    pub created_at: i64,
    /// The granted model.
    pub model: String,
    /// `previous_response_id` of the request.
    pub previous: Option<String>,
}

impl ResponseHead {
    /// Returns a response with these items.
    pub fn response(
        &self,
        echo: &JsonObject,
        status: &str,
        output: Vec<Value>,
        usage: &Value,
    ) -> Value {
        let own = json!({
            "id": format!("resp_{}", self.key),
            "object": "response",
            "created_at": self.created_at,
            "model": self.model,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": null,
            "previous_response_id": self.previous,
            // The gateway itself stores nothing that a client could retrieve.
            "store": false,
            "usage": usage,
        });
        // The gateway's members win over the request's.
        let mut response = echo.clone();
        if let Value::Object(own) = own {
            response.extend(own);
        }
        response.insert("output".to_owned(), Value::Array(output));
        Value::Object(response)
    }
}

/// Returns the request members that the answer repeats.
pub fn echo(request: &JsonObject) -> JsonObject {
    let members = ECHOED.iter().map(|(name, default)| {
        let value = request.get(*name).filter(|value| !value.is_null());
        // Each of the first and last events repeats these members, so large ones are left out.
        let value = value
            .filter(|value| value.to_string().len() <= ECHO_BYTES)
            .cloned();
        let value = value.unwrap_or_else(|| serde_json::from_str(default).unwrap_or_default());
        ((*name).to_owned(), value)
    });
    members.collect()
}
