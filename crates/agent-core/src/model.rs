//! Model calls: the granted models in fallback order until one answers, and the assembly of its answer.

mod chain;
mod collected;
mod finish;

pub use chain::{FallbackChain, ModelAttempts, ModelFailure, Silence, is_over};
pub use collected::{CollectedReply, ModelReply, NewContent, with_ids};
pub use finish::FinishKind;
