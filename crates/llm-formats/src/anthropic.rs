//! Anthropic's Messages API as a provider of chat completions: request bodies, complete messages and events.

mod answer;
mod ask;
mod schema;
mod thinking;

pub use answer::{EventReader, completion};
pub use ask::messages;
pub use thinking::Thinking;
