//! OpenAI's Responses API over chat completions. A request becomes a completion request, and completion chunks
//! become response events. Providers with a Responses API receive the request member by member.

mod answer;
mod ask;
mod assistant_turn;
mod envelope;
mod head;
mod input;
mod item;
mod parts;
mod passthrough;
pub(crate) mod pointers;
mod tools;
mod unknown;

use serde_json::{Value, json};

use domain::usage::TokenParts;

pub use answer::{ANSWER_BYTES, AnswerTooLarge, ResponseEventWriter};
pub use ask::{ProviderApi, ResponsesRequest, keeps_items, read_request, wants_stream};
pub use head::{ResponseHead, echo};
pub use passthrough::{
    AnswerEnd, ResponsesPassthrough, output_bytes, passthrough_body, rewrite_response,
};

/// Converts token usage to the names of the Responses API. Null: the provider did not count tokens.
fn usage(provider_usage: Option<&protocol::message::LlmTokenUsage>) -> Value {
    let Some(provider_usage) = provider_usage else {
        return Value::Null;
    };
    let parts = TokenParts::of(Some(provider_usage));
    let (prompt, completion) = (parts.prompt(), parts.completion());
    let mut input = json!({"cached_tokens": parts.cache_read});
    // OpenAI's own answers have no such count, so the member is absent without stored tokens.
    if parts.cache_write() > 0 {
        input["cache_write_tokens"] = json!(parts.cache_write());
    }
    let total = provider_usage
        .total_tokens
        .and_then(|total| u64::try_from(total).ok());
    json!({
        "input_tokens": prompt,
        "input_tokens_details": input,
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": parts.reasoning},
        "total_tokens": total.unwrap_or(prompt.saturating_add(completion)),
    })
}
