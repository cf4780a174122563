//! Why something could not be kept.

use action_graph::ids::GraphId;
use action_graph::record::RestoreError;
use runner_kit::HostError;

/// Something that could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// Another run drives the graph: this one ends its attempts and sends nothing more for it.
    #[error("run {run} drives graph {graph} now")]
    LeaseLost {
        /// The graph.
        graph: GraphId,
        /// The run that drives it.
        run: String,
    },
    /// The gateway did not take or give a record, also when asked again. No effect may start.
    #[error("the gateway does not keep the graph")]
    Unavailable(#[source] HostError),
    /// The gateway has no room for a record of this size, or for one more.
    #[error("the gateway has no room for the graph: remove old records, or raise its bounds")]
    NoRoom(#[source] HostError),
    /// A bound is reached.
    #[error(
        "{what} would exceed {most} bytes or entries: declare smaller graphs, or close open ones"
    )]
    Full {
        /// The record.
        what: &'static str,
        /// Its bound.
        most: usize,
    },
    /// This run keeps nothing.
    #[error("{0}")]
    Refused(&'static str),
    /// A stored record is damaged, or of a later version.
    #[error(transparent)]
    Restore(#[from] RestoreError),
}

impl From<HostError> for RecordsError {
    fn from(error: HostError) -> Self {
        if error.code == "payload_too_large" {
            Self::NoRoom(error)
        } else {
            Self::Unavailable(error)
        }
    }
}

impl RecordsError {
    /// Whether the run was cancelled, so that the gateway takes state alone.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Unavailable(error) if error.is_cancelled())
    }
}
