//! Persistence: graphs survive the run that declared them, and no effect happens twice (specification, durability).
//!
//! A graph has a small head in the conversation's state, written where its last version still stands, and bodies in
//! the agent's storage, written before the head that names them. The run that drives a graph stands in its head;
//! another run takes it over once the first one is over, with the next epoch. No clock decides that.
//!
//! | record | holds | bound |
//! |---|---|---|
//! | state `apd.index` | open graphs, the last 50 closed ones, which declaration made which graph | 60 KiB |
//! | state `apd.g.{id}` | the head of an open graph | 200 KiB |
//! | state `apd.turns` | turns of earlier runs | 60 KiB |
//! | state `apd.allow` | approvals for the conversation | 32 entries |
//! | state `apd.in.{hash}` | an answer that came while another run drove the graph | 64 KiB |
//! | storage `apd/{conversation}/{graph}/…` | declaration, sections, inputs, outputs, observations, closed records | 256 MiB a graph, 30 days |

mod allowances;
mod bodies;
mod closed;
mod digests;
mod document;
mod error;
mod head;
mod host;
mod inbox;
mod index;
mod load;
mod open;
mod reconcile;
mod save;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{Graph, Millis};
use action_graph::ids::{ActionId, GraphId};
use action_graph::rules::KnownGraph;
use action_graph::schedule::{ApprovalRequest, GraphEvent};
use action_graph::transcript::TranscriptTurn;
use protocol::context::AgentRunContext;

pub use allowances::{Approvals, pattern};
pub use closed::GraphArchive;
pub use digests::Digest;
pub use error::RecordsError;
pub use head::{PendingQuestion, QuestionSubject};
pub use host::{HostResult, RecordsHost};
pub use inbox::{AnswerInbox, Submission};
pub use save::DrivenGraphs;

use digests::DigestRing;
use document::StateDocument;

/// The run that keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunIdentity {
    /// Its id.
    pub run: String,
    /// Its attempt: a later one of the same run takes graphs of an earlier one over.
    pub attempt: u32,
    /// Its conversation and thread; absent: nothing is kept.
    pub conversation: Option<String>,
    /// Id of the event that began it.
    pub event: String,
    /// Whether it may read and write the conversation's state.
    pub has_state: bool,
    /// Whether it may read and write the agent's storage, and look up runs.
    pub has_storage: bool,
}

impl RunIdentity {
    /// The run of this context.
    pub fn of(context: &AgentRunContext, attempt: u32) -> Self {
        let conversation = context.conversation.as_ref();
        let thread = conversation.and_then(|one| one.thread_id.as_deref());
        let conversation = conversation.and_then(|one| one.conversation_id.as_deref());
        let named = conversation.map(|id| match thread {
            Some(thread) => format!("{id}\n{thread}"),
            None => id.to_owned(),
        });
        let apis = &context.context.available_apis;
        let has_area = context.resources.storage.binding_storage;
        Self {
            run: context.run_id.clone(),
            attempt,
            conversation: named,
            event: context.event.event_id.clone(),
            has_state: apis.state,
            has_storage: apis.storage && apis.run_get && has_area,
        }
    }

    /// The conversation, or an empty text.
    fn conversation(&self) -> String {
        self.conversation.clone().unwrap_or_default()
    }

    /// Fails without access to the conversation's state.
    fn needs_state(&self) -> Result<(), RecordsError> {
        let is_open = self.has_state && self.conversation.is_some();
        is_open.then_some(()).ok_or(RecordsError::Refused(
            "nothing is kept: the event has no conversation, or the agent has no access to its state",
        ))
    }
}

/// The records of one run.
#[derive(Debug)]
pub struct GraphRecords<H> {
    host: H,
    me: RunIdentity,
    /// Why graphs are not kept.
    refused: Option<&'static str>,
    ring: StateDocument<DigestRing>,
    /// Open graphs that other runs drive.
    others: BTreeMap<GraphId, KnownGraph>,
    now: Millis,
    /// Approvals for the conversation.
    pub approvals: Approvals<H>,
    /// Graphs that this run drives.
    pub driven: DrivenGraphs<H>,
    /// The index of graphs, and closed ones.
    pub archive: GraphArchive<H>,
    /// Answers for graphs that other runs drive.
    pub inbox: AnswerInbox<H>,
}

/// Stored state at the start of a run.
#[derive(Debug, Default)]
pub struct LoadedRecords {
    /// Open graphs that this run drives from now on, oldest first.
    pub mine: Vec<Resumed>,
    /// Open graphs that another run drives, with its id.
    pub busy: Vec<(GraphId, String)>,
    /// Turns of earlier runs, oldest first.
    pub digests: Vec<Digest>,
    /// Graphs that could not be read, and why, for the user.
    pub lost: Vec<(GraphId, String)>,
    /// Answers that came while another run drove their graph.
    pub inbox: Vec<Submission>,
}

/// A graph that this run took over. Step `events` in their order, save, and only then act on their commands.
#[derive(Debug)]
pub struct Resumed {
    /// The graph, as it was stored.
    pub graph: Graph,
    /// Warnings and repairs of its declaration.
    pub diagnostics: Vec<Diagnostic>,
    /// Observations of runs that left no turns.
    pub observations: Vec<TranscriptTurn>,
    /// Stored facts about its open attempts.
    pub events: Vec<GraphEvent>,
    /// Child runs to look at: action, attempt, run. Give `Recovered` for each.
    pub children: Vec<(ActionId, u32, String)>,
    /// Timers to set: action, attempt, time.
    pub timers: Vec<(ActionId, u32, Millis)>,
    /// Questions that are open.
    pub asks: Vec<PendingQuestion>,
    /// Approvals whose question was perhaps never sent: ask again.
    pub unasked: Vec<ApprovalRequest>,
}

/// Whether a graph may be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenOutcome {
    /// It is stored.
    New,
    /// This declaration of this run has made that graph before.
    Exists(GraphId),
}

/// Whether this run drives a graph now.
#[derive(Debug)]
pub enum Adoption {
    /// It does.
    Mine(Box<Resumed>),
    /// A live run does.
    Busy {
        /// The run.
        run: String,
    },
    /// The graph is closed, or was never stored.
    Gone,
    /// It cannot be read, and why.
    Lost(String),
}

impl<H: RecordsHost> GraphRecords<H> {
    /// Whether graphs are kept.
    pub fn can_persist(&self) -> bool {
        self.refused.is_none()
    }

    /// Why graphs are not kept.
    pub fn unavailable(&self) -> Option<&'static str> {
        self.refused
    }

    /// Keeps the turns of this run for later ones, instead of those that it kept before. Once, right before the
    /// terminal. Removes some bodies of forgotten graphs, too.
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
        let add = |ring: &mut DigestRing| Ok(ring.add(&digest));
        self.ring.change(&self.host, add).await?;
        if self.can_persist() {
            self.archive.sweep().await;
        }
        Ok(())
    }

    fn needs_storage(&self) -> Result<(), RecordsError> {
        self.refused
            .map_or(Ok(()), |why| Err(RecordsError::Refused(why)))
    }
}
