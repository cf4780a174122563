//! Invariants for every input, one module per target. Each `check` panics on a violation.
//!
//! `protocol`, `domain` and `action-graph` are dependencies. Modules of `egress` and of the gateway are pure,
//! too, but their crates bring an HTTP client and the entire gateway. Their sources are compiled here again, so
//! that a target builds in a minute.

pub mod cursor;
pub mod event;
pub mod graph;
pub mod judge;
pub mod sse;
pub mod token;
pub mod url;

mod egress;

#[path = "../../crates/keys/src/cursor.rs"]
mod keys_cursor;
#[path = "../../crates/keys/src/token.rs"]
mod keys_token;

/// Splits the input into its first byte and the rest.
fn split(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}
