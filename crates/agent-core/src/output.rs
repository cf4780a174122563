//! Output of a run: the size limit of its results, and the texts that clients see as they grow.

mod limit;
mod writer;

pub use limit::{LineLimit, json_bytes};
pub use writer::{DeltaWriter, FullText};
