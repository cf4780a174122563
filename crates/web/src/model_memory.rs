//! The memory budget of model requests. Each request is read, parsed and serialized again for the provider.

use egress::limiter::LimitRefusal;

use crate::memory_budget::{BudgetSpec, MemoryBudget};

/// Maximum size of a model request, in bytes.
pub const BODY_BYTES: usize = 20 * 1024 * 1024;
/// Maximum size of a request: its body, and its images in base64. One such request per run always fits.
const LARGEST: usize = 2 * BODY_BYTES;

const MODELS: BudgetSpec = BudgetSpec {
    small: 64 * 1024,
    own_full: LimitRefusal::new(
        "model_bytes_of_run",
        "other large requests of this run to models fill its share of the gateway's memory for them; wait for their \
         answers, or send less",
    ),
    endpoint_full: LimitRefusal::new(
        "model_bytes_of_endpoint",
        "other large requests to models by runs of the same endpoint fill its share of the gateway's memory for them; \
         retry after `Retry-After` seconds, or send less",
    ),
    full: LimitRefusal::new(
        "model_bytes",
        "other large requests to models fill the gateway's memory for them; retry after `Retry-After` seconds, or \
         send less",
    ),
};

/// Creates the memory budget for model requests.
pub fn model_memory_budget(bytes: usize) -> MemoryBudget {
    MemoryBudget::new(MODELS, bytes, LARGEST)
}
