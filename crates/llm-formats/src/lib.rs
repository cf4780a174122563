//! Formats of model APIs without I/O, in both directions: OpenAI's chat completions and responses, Anthropic's
//! messages, Google's Gemini API.

pub mod anthropic;
pub mod chat;
pub mod gemini;
pub mod messages;

use protocol::JsonObject;
use serde_json::Value;

/// Both names of the output token limit. Each provider reads one of them.
pub const BOUNDS: [&str; 2] = ["max_completion_tokens", "max_tokens"];
/// Default output token limit, for providers that require one.
pub const UNSAID_TOKENS: u64 = 8192;

/// A request or a response that the other format cannot carry.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The request needs something that the provider's format lacks. The text names it.
    #[error("{0}")]
    Unsupported(String),
    /// The response breaks its format.
    #[error("{0}")]
    Malformed(String),
}

/// The members of an object; none for any other value.
pub fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(members) => members,
        _ => JsonObject::new(),
    }
}

/// Returns the items of a list, or an empty slice for any other value.
fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Escapes a name for JSON pointers.
pub fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
