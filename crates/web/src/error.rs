//! The common error body and the mapping of errors to status codes (`docs/protocol.md`, Error model).
//!
//! `ApiError` has the constructors of general errors. Errors of one area are functions of the modules below.

pub mod appended;
pub mod artifact;
pub mod body;
pub mod cursor;
pub mod face;
pub mod interaction;
pub mod limits;
pub mod openai;
pub mod routing;
pub mod version;

mod api_error;
mod billing_outcome;
mod causes;
mod hook;
mod moved;
mod register;
mod schedule;
mod source;
mod webhook;

pub use api_error::{ApiError, ApiResult, ErrorExtension};
pub use billing_outcome::BillingOutcome;
