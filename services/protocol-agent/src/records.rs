//! Persistence: graphs survive the run that declared them, and no effect happens twice (specification, durability).
//!
//! A graph is a run document in the conversation's state: a small head, and bodies that the gateway writes in the same
//! transaction. Its lease belongs to the run that drives the graph and ends with that run. Another run then takes it
//! over.
//!
//! | document | holds | bound |
//! |---|---|---|
//! | `apd.g.{id}` | a graph: 16 open ones, and 50 closed ones for 30 days | 2 KiB |
//! | its bodies | head, declaration, inputs, outputs, observations, closed record | 16 MiB each |
//! | `apd.turns` | turns of earlier runs | 60 KiB |
//! | `apd.allow` | approvals for the conversation | 32 entries |
//! | `apd.in.{hash}` | an answer that arrived while another run drove the graph | 64 KiB |

mod allowances;
mod closed;
mod digests;
mod document;
mod error;
mod head;
mod host;
mod inbox;
mod load;
mod reconcile;
mod save;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{Graph, Millis};
use action_graph::ids::GraphId;
use action_graph::rules::KnownGraph;
use action_graph::transcript::TranscriptTurn;
use protocol::context::AgentRunContext;

pub use allowances::pattern;
pub use closed::GraphArchive;
pub use digests::Digest;
pub use error::RecordsError;
pub use head::{PendingQuestion, QuestionSubject};
pub use host::{HostResult, RecordsHost};
pub use inbox::Submission;
pub use reconcile::RecoveryFindings;
pub use save::DrivenGraphs;

use allowances::Allowances;
use digests::DigestList;
use document::SharedDocument;

/// Identity under which records are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunIdentity {
    /// Id of the run in the gateway.
    pub run: String,
    /// Id of the event that started the run.
    pub event: String,
    /// The event has a conversation; without one, nothing is stored.
    pub has_conversation: bool,
    /// Access to the conversation's state.
    pub has_state: bool,
    /// Access to the status of runs.
    pub has_runs: bool,
}

impl RunIdentity {
    /// Identity of the run with this context.
    pub fn of(context: &AgentRunContext) -> Self {
        let conversation = context.conversation.as_ref();
        let apis = &context.context.available_apis;
        Self {
            run: context.run_id.clone(),
            event: context.event.event_id.clone(),
            has_conversation: conversation.is_some_and(|one| one.conversation_id.is_some()),
            has_state: apis.state,
            has_runs: apis.run_get,
        }
    }

    /// Fails without access to the conversation's state.
    fn needs_state(&self) -> Result<(), RecordsError> {
        let is_open = self.has_state && self.has_conversation;
        is_open.then_some(()).ok_or(RecordsError::Refused(
            "nothing is kept: the event has no conversation, or the agent has no access to its state",
        ))
    }
}

/// Records of one run.
#[derive(Debug)]
pub struct GraphRecords<H> {
    host: H,
    me: RunIdentity,
    /// Reason that graphs are not stored.
    refused: Option<&'static str>,
    digests: SharedDocument<DigestList>,
    /// Open graphs that other runs drive.
    others: BTreeMap<GraphId, KnownGraph>,
    now: Millis,
    allowances: SharedDocument<Allowances>,
    /// Graphs that this run drives.
    pub driven: DrivenGraphs<H>,
    /// Graphs of the conversation, and records of closed ones.
    pub archive: GraphArchive<H>,
}

/// Stored records at the start of a run.
#[derive(Debug, Default)]
pub struct LoadedRecords {
    /// Open graphs that this run drives from now on, oldest first.
    pub mine: Vec<Resumed>,
    /// Open graphs that another run drives, with its id.
    pub busy: Vec<(GraphId, String)>,
    /// Turns of earlier runs, oldest first.
    pub digests: Vec<Digest>,
    /// Unreadable graphs with the reason, for the user.
    pub lost: Vec<(GraphId, String)>,
    /// Answers that arrived while another run drove their graph.
    pub inbox: Vec<Submission>,
}

/// Graph that this run has taken over. Apply the events of `found` in order, save, and only then execute
/// their commands.
#[derive(Debug)]
pub struct Resumed {
    /// Last stored state of the graph.
    pub graph: Graph,
    /// Warnings and repairs of its declaration.
    pub diagnostics: Vec<Diagnostic>,
    /// Observations of runs that stored no turns.
    pub observations: Vec<TranscriptTurn>,
    /// Consequences of stored facts about open attempts.
    pub found: RecoveryFindings,
}

/// Outcome of opening a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenOutcome {
    /// The graph is stored.
    New,
    /// This declaration of this run has already opened that graph.
    Exists(GraphId),
}

/// Outcome of a take-over.
#[derive(Debug)]
pub enum Adoption {
    /// This run drives the graph now.
    Mine(Box<Resumed>),
    /// A live run drives the graph.
    Busy {
        /// Id of that run.
        run: String,
    },
    /// The graph is closed, or was never stored.
    Gone,
    /// The graph is unreadable, for this reason.
    Lost(String),
}

impl<H: RecordsHost> GraphRecords<H> {
    /// True if graphs are stored.
    pub fn can_persist(&self) -> bool {
        self.refused.is_none()
    }

    /// Reason that graphs are not stored.
    pub fn unavailable(&self) -> Option<&'static str> {
        self.refused
    }

    /// Stores the turns of this run for later runs, replacing its earlier ones. Call it before the terminal result.
    pub async fn finish(
        &mut self,
        turns: Vec<TranscriptTurn>,
        now: Millis,
    ) -> Result<(), RecordsError> {
        self.me.needs_state()?;
        let digest = Digest {
            run: self.me.run.clone(),
            event: self.me.event.clone(),
            at: now,
            turns,
        };
        let add = |list: &mut DigestList| Ok(list.add(&digest));
        self.digests.change(&self.host, add).await?;
        if self.can_persist() {
            self.archive.sweep().await;
        }
        Ok(())
    }

    fn needs_documents(&self) -> Result<(), RecordsError> {
        self.refused
            .map_or(Ok(()), |why| Err(RecordsError::Refused(why)))
    }
}
