//! Google's Gemini API without I/O, over chat completions in both directions.
//!
//! A request of a client becomes a [`GeminiRequest`], and a [`ContentWriter`] writes the answer. A provider with this
//! API receives [`generate_content`], and a [`ContentReader`] reads its answer.

mod ask;
mod contents;
mod errors;
mod events;
mod members;
mod reader;
mod request;
mod schema;
mod signature;
mod thinking;
mod tools;

pub use ask::generate_content;
pub use errors::status_name;
pub use events::ContentWriter;
pub use reader::{ContentReader, completion};
pub use request::{GeminiRequest, read_request};
