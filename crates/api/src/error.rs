//! The common error body and the mapping of errors to status codes (host API).
//!
//! `ApiError` has the constructors of general errors. Errors of one area are functions of the modules below.

pub(super) mod appended;
pub(super) mod artifact;
pub(super) mod body;
pub(super) mod cursor;
pub(super) mod interaction;
pub(super) mod limits;
pub(super) mod routing;
pub(super) mod version;

mod api_error;
mod billing_outcome;
mod causes;
mod moved;
mod register;

pub(super) use api_error::{ApiError, ApiResult, ErrorExtension};
pub(crate) use billing_outcome::BillingOutcome;
