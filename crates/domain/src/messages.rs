//! Anthropic's Messages API without I/O: requests are checked and translated, answers of any model are written in its form.
//!
//! A provider that speaks this API gets the checked request itself ([`check_request`]) and its answers pass through a
//! [`Relay`]. Any other provider is asked by [`chat_request`]; [`message`] and [`EventWriter`] write its answers.

mod answer;
mod chat;
mod check;
mod counted;
mod errors;
mod events;
mod json_end;
mod pass;
mod relay;
mod sources;
mod spoken;

pub use answer::message;
pub use chat::chat_request;
pub use check::{MOST_MESSAGES, MOST_TOOLS, check_request};
pub use counted::{counted_request, other_texts};
pub use errors::{ErrorKind, error_kind};
pub use events::EventWriter;
pub use pass::{betas, pass_request};
pub use relay::Relay;
pub use sources::{Source, has_document, sources};

use serde_json::Value;

/// The beginning of the signature of a thinking block that the gateway wrote: the id of the model follows.
const OWN_SIGNATURE: &str = "runnel:";

/// The signature of thoughts of a model whose provider signs none. Only that model gets them back.
fn own_signature(model: &str) -> String {
    format!("{OWN_SIGNATURE}{model}")
}

/// The model that a thinking block of the gateway's names. `None`: a provider signed it.
fn own_thinker(block: &Value) -> Option<&str> {
    block
        .get("signature")?
        .as_str()?
        .strip_prefix(OWN_SIGNATURE)
}

/// The items of a list; none of what is no list.
fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The text of a member; empty without one.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}
