//! Results: summaries, what the model sees of an output, and budgets.

pub mod deliver;
pub mod excerpt;
pub mod expand;
pub mod observe;
pub mod summary;
pub mod tokens;
