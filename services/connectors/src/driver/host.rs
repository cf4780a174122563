//! The counterpart of a run: it receives results and gives history and answers.

use protocol::interaction::{AwaitedInteraction, InteractionRequest};
use protocol::result::AgentRunResult;

use crate::machine::HistoryMessage;
use crate::upstream::failure::Mapped;

/// A gateway, or a terminal.
pub trait RunHost: Send {
    /// Receives a result. Waits while its reader is slow (backpressure).
    fn tell(&mut self, result: AgentRunResult) -> impl Future<Output = ()> + Send;

    /// Returns up to `messages` messages before the current one, oldest first; none if the run may not read the
    /// history.
    fn history(&mut self, messages: u32) -> impl Future<Output = Vec<HistoryMessage>> + Send;

    /// Waits for the answer to a question that was sent before.
    fn answer(
        &mut self,
        question: &InteractionRequest,
    ) -> impl Future<Output = Mapped<AwaitedInteraction>> + Send;

    /// Stores a file and returns its id, or the reason that it cannot be stored.
    fn save(&mut self, file: NewFile) -> impl Future<Output = Result<String, String>> + Send;
}

/// A file of the platform, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub name: String,
    pub mime_type: String,
    pub bytes: Vec<u8>,
}
