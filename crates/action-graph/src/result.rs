//! Results: summaries, what the model sees of an output, and budgets.

pub mod summary;
