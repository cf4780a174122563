//! Knowledge bases: chunking of documents, query filters and ranking of passages.

pub mod chunk;
pub mod filter;
pub mod rank;

/// Default and maximum number of passages of a query.
pub const DEFAULT_TOP: u64 = 5;
pub const MAX_TOP: u64 = 50;
/// Maximum bytes of a query.
pub const MAX_QUERY_BYTES: usize = 8 * 1024;

/// Maximum bytes of a document, as uploaded.
pub const MAX_DOCUMENT_BYTES: usize = 20 * 1024 * 1024;
/// Maximum chunks of a document.
pub const MAX_CHUNKS: usize = 20_000;
/// Maximum documents of a knowledge base.
pub const MAX_DOCUMENTS: u64 = 10_000;
/// Maximum bytes of a document id or name.
pub const MAX_NAME_BYTES: usize = 255;
