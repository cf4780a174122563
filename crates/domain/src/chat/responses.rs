//! OpenAI's Responses API over chat completions: a request becomes the body of a completion, and the chunks of the
//! completion become the events of a response. A provider that takes Responses itself gets the request as it came,
//! member by member.

mod answer;
mod ask;
mod envelope;
mod head;
mod input;
mod item;
mod parts;
mod passed;
mod places;
mod tools;

use serde_json::{Value, json};

pub use answer::{ANSWER_BYTES, AnswerTooLarge, EventWriter};
pub use ask::{Asked, Target, asks_for_stream, read_request};
pub use head::Head;
pub use passed::{End, Passing, passed_body, rewrite_response, said_bytes};

/// The tokens of a response by the names of the Responses API. `None`: the provider has not counted them.
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

/// A name as JSON pointers have it.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}
