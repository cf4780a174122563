//! Errors of records: lost leases, gateway failures, and reached bounds.

use action_graph::ids::GraphId;
use runner_kit::HostError;

/// Failure to read or write records.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// Another run drives the graph. This run aborts its attempts and sends no further results for it.
    #[error("run {run} drives graph {graph} now")]
    LeaseLost {
        /// Graph that was taken over.
        graph: GraphId,
        /// Id of the run that drives the graph; empty if unknown.
        run: String,
    },
    /// The gateway failed to read or write a record, also after retries. No effect may start.
    #[error("the gateway cannot store the graph")]
    Unavailable(#[source] HostError),
    /// The gateway's quota rejects the size of a record, or another record.
    #[error(
        "the gateway's quota is too small for the graph: remove old records, or raise its bounds"
    )]
    QuotaExceeded(#[source] HostError),
    /// A bound of this service is reached.
    #[error(
        "{what} would exceed {bound} bytes or entries: declare smaller graphs, or close open ones"
    )]
    Full {
        /// Name of the record.
        what: &'static str,
        /// Bound in bytes or entries.
        bound: usize,
    },
    /// This run may not store records.
    #[error("{0}")]
    Refused(&'static str),
}

impl From<HostError> for RecordsError {
    fn from(error: HostError) -> Self {
        if error.code == "payload_too_large" {
            Self::QuotaExceeded(error)
        } else {
            Self::Unavailable(error)
        }
    }
}

impl RecordsError {
    /// True if the run was cancelled. The gateway then accepts only state from it.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Unavailable(error) if error.is_cancelled())
    }
}
