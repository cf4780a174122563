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
mod places;
mod tools;
mod unknown;

use serde_json::{Value, json};

pub use answer::{ANSWER_BYTES, AnswerTooLarge, ResponseEventWriter};
pub use ask::{ProviderApi, ResponsesRequest, keeps_items, read_request, wants_stream};
pub use head::ResponseHead;
pub use passthrough::{
    AnswerEnd, ResponsesPassthrough, passthrough_body, rewrite_response, said_bytes,
};

/// Converts token usage to the names of the Responses API. Null: the provider did not count tokens.
fn usage(told: Option<&protocol::message::LlmTokenUsage>) -> Value {
    let Some(told) = told else {
        return Value::Null;
    };
    let prompt = told.prompt_tokens.unwrap_or(0);
    let completion = told.completion_tokens.unwrap_or(0);
    let detail = |names: [&str; 2], name: &str| {
        let mut details = names.iter().filter_map(|of| told.further.get(*of));
        let count = details.find_map(|details| super::count(details.get(name)?));
        count.unwrap_or(0)
    };
    let of_input = ["prompt_tokens_details", "input_tokens_details"];
    let of_output = ["completion_tokens_details", "output_tokens_details"];
    let mut input = json!({"cached_tokens": detail(of_input, "cached_tokens")});
    for name in ["cache_write_tokens", "cache_creation_tokens"] {
        let written = detail(of_input, name);
        if written > 0 {
            input["cache_write_tokens"] = json!(written);
        }
    }
    json!({
        "input_tokens": prompt,
        "input_tokens_details": input,
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": detail(of_output, "reasoning_tokens")},
        "total_tokens": told.total_tokens.unwrap_or(prompt.saturating_add(completion)),
    })
}

/// Escapes a name for JSON pointers.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
