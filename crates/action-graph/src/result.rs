//! Results: summaries, views for the model, and budgets.

pub mod deliver;
pub mod excerpt;
pub mod expand;
pub mod observe;
pub mod summary;
pub mod tokens;
