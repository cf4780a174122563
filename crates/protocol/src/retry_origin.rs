//! The results after which a retry of an ended run begins (`docs/protocol.md`, Retry from a result).

use serde::{Deserialize, Serialize};

use crate::id::RunId;
use crate::run::AgentRunEvent;

/// Results of an ended run. Its retry begins after them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RetryOrigin {
    /// The ended run: `retry_of` of the new one.
    pub run_id: RunId,
    /// Sequence of the last of these results in the ledger of that run.
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub after: u64,
    /// Results in their order, without `message.delta`: at most 1000, with 256 KiB in total. If the ended run was
    /// itself retried from a result, the list begins with the results of the earlier run; `run_id` of a result names
    /// its run.
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub results: Vec<AgentRunEvent>,
}
