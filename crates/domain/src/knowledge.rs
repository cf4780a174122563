//! Knowledge bases: how a document is cut, what may be asked of a base, and which passages are closest.

pub mod chunk;
pub mod filter;
pub mod rank;

/// Passages that a query brings when it names no number, and at most.
pub const DEFAULT_TOP: u64 = 5;
pub const MOST_TOP: u64 = 50;
/// Bytes of a query at most.
pub const MOST_QUERY_BYTES: usize = 8 * 1024;

/// Bytes of a document at most, as it is sent.
pub const MOST_DOCUMENT_BYTES: usize = 20 * 1024 * 1024;
/// Chunks of a document at most.
pub const MOST_CHUNKS: usize = 20_000;
/// Documents of a base at most.
pub const MOST_DOCUMENTS: u64 = 10_000;
/// Bytes of a document's id and of its name at most.
pub const MOST_NAME_BYTES: usize = 255;
