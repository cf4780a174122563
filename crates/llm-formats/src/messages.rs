//! Anthropic's Messages API without I/O: validates and translates requests, and writes answers of any model in
//! its format.
//!
//! A provider with this API receives the validated request ([`check_request`]), and its answers pass through a
//! [`MessageRelay`]. Other providers receive a [`chat_request`], and a [`MessageEventWriter`] converts their answers.

mod answer;
mod chat;
mod check;
mod counted;
mod errors;
mod events;
mod pass;
mod relay;
mod sources;
mod visible_text;

pub(crate) use chat::BEGINS_EARLIER;
pub use chat::chat_request;
pub use check::{MAX_MESSAGES, MAX_TOOLS, check_request};
pub use counted::{counted_request, other_texts};
pub use errors::{ErrorKind, error_kind};
pub use events::MessageEventWriter;
pub use pass::{betas, disable_budget, pass_request, remove_thinking_blocks};
pub use relay::MessageRelay;
pub use sources::{MediaSource, has_document, sources};
pub(crate) use visible_text::VisibleTextFilter;

use serde_json::Value;

use crate::list;

/// Prefix of the signature of thinking blocks written by the gateway. The model id follows.
const OWN_SIGNATURE: &str = "runnel:";

/// Returns the signature for reasoning of a model whose provider does not sign it. The reasoning returns only to
/// that model.
fn own_signature(model: &str) -> String {
    format!("{OWN_SIGNATURE}{model}")
}

/// Returns the model in the signature of the gateway's own thinking block. `None`: a provider signed it.
fn own_signature_model(block: &Value) -> Option<&str> {
    // A provider's signature is opaque text without this prefix.
    block
        .get("signature")?
        .as_str()?
        .strip_prefix(OWN_SIGNATURE)
}

/// Returns the text of a member, or an empty text.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
