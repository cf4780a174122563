//! The side that a run works for.

use protocol::interaction::{AwaitedInteraction, InteractionRequest};
use protocol::result::AgentRunResult;

use crate::machine::HistoryMessage;
use crate::upstream::failure::ConnectorFailure;

/// A gateway, or a terminal.
pub trait RunHost: Send {
    /// Takes a result. Waits while its reader does not read.
    fn tell(&mut self, result: AgentRunResult) -> impl Future<Output = ()> + Send;

    /// So many messages before the current one, oldest first. Empty where the history is closed to the run.
    fn history(&mut self, messages: u32) -> impl Future<Output = Vec<HistoryMessage>> + Send;

    /// Waits for the answer to a question that was told.
    fn answer(
        &mut self,
        question: &InteractionRequest,
    ) -> impl Future<Output = Result<AwaitedInteraction, ConnectorFailure>> + Send;

    /// Keeps a file. Its id, or the reason why it is not kept.
    fn save(&mut self, file: NewFile) -> impl Future<Output = Result<String, String>> + Send;
}

/// A file of the platform with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewFile {
    pub name: String,
    pub mime_type: String,
    pub bytes: Vec<u8>,
}
