//! The memory budget of model requests. Each request is read, parsed and serialized again for the provider.

use std::ops::Deref;

use axum::extract::{FromRequest, Request};
use http::HeaderMap;
use serde::de::DeserializeOwned;

use super::BODY_BYTES;
use crate::ApiState;
use crate::discard_body::discard_request_body;
use crate::error::ApiError;
use crate::json::{announced, json_bytes, parse};
use crate::memory_budget::{BudgetSpec, MemoryBudget};

/// Maximum size of a model request, in bytes.
pub(crate) const BODY_BYTES: usize = 20 * 1024 * 1024;
/// Maximum size of a request: its body, and its images in base64. One such request per run always fits.
const LARGEST: usize = 2 * BODY_BYTES;

const MODELS: BudgetSpec = BudgetSpec {
    small: 64 * 1024,
    own_full: (
        "model_bytes_of_run",
        "other large requests of this run to models fill its share of the gateway's memory for them; wait for their \
         answers, or send less",
    ),
    endpoint_full: (
        "model_bytes_of_endpoint",
        "other large requests to models by runs of the same endpoint fill its share of the gateway's memory for them; wait as \
         long as `Retry-After` says, or send less",
    ),
    full: (
        "model_bytes",
        "other large requests to models fill the gateway's memory for them; wait as long as `Retry-After` says, or \
         send less",
    ),
};

/// The JSON body of a model request with its memory permit.
pub(crate) struct ModelBody<T> {
    pub(crate) value: T,
    pub(crate) permit: MemoryPermit,
}

/// Creates the memory budget for model requests.
pub(crate) fn model_memory_budget(bytes: usize) -> MemoryBudget {
    MemoryBudget::new(MODELS, bytes, LARGEST)
}
