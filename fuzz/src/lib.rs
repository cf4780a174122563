//! What holds for every input, one module a target. Each `check` panics where it does not.
//!
//! `protocol`, `domain` and `action-graph` are used as they are. Modules of `egress` and of the gateway are pure, too, but behind them stand
//! an HTTP client and the whole gateway: their sources are compiled here once more, so that a target builds in a minute.

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

/// The first byte, and the rest.
fn split(data: &[u8]) -> (u8, &[u8]) {
    data.split_first().map_or((0, data), |(first, rest)| (*first, rest))
}
