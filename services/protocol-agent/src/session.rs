//! State of one run of an agent that declares actions: transcript, graphs, models and records.

use std::collections::BTreeMap;

use action_graph::accept::RepairBudget;
use action_graph::ids::GraphId;
use action_graph::node::Node;
use action_graph::result::observe::ObservationBudget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{AgentRules, KnownFacts};
use action_graph::transcript::TranscriptTurn;
use protocol::message::Message;
use runner_kit::CancellationToken;

use crate::execute::ExecutorEnv;
use crate::host::GraphAgentHost;
use crate::live::{GraphWait, LiveGraph};
use crate::model::ModelChain;
use crate::records::{GraphRecords, RecordsError};
use crate::run_clock::millis;
use crate::work::{AttemptKey, AttemptTasks};
use crate::writer::ResultWriter;

/// Observation budget for a model with this context window.
pub(crate) fn budget(window: usize) -> ObservationBudget<'static> {
    ObservationBudget {
        window,
        count: &estimate,
    }
}

/// Graphs of a run with their records, attempts and results.
#[derive(Debug)]
pub(crate) struct RunGraphs<H> {
    pub(crate) env: ExecutorEnv<H>,
    pub(crate) records: GraphRecords<H>,
    pub(crate) writer: ResultWriter,
    /// Graphs of this run, and those that it took over, oldest first.
    pub(crate) live_graphs: Vec<LiveGraph>,
    pub(crate) work: AttemptTasks,
    /// The run is shutting down: it ignores further cancels, and failed writes do not fail it.
    pub(crate) is_closing: bool,
}

/// Drives the graphs of a run: executes the scheduler's commands and reports their results to it.
#[derive(Debug)]
pub(crate) struct GraphDriver<H> {
    pub(crate) graphs: RunGraphs<H>,
    pub(crate) cancel: CancellationToken,
    /// Rules of the agent in this run.
    pub(crate) rules: AgentRules,
    /// Turns to append after the next observation.
    pub(crate) extras: Vec<TranscriptTurn>,
}

/// Turns of the conversation.
#[derive(Debug)]
pub(crate) struct RunTranscript {
    /// Turns of earlier runs, then those of this run.
    pub(crate) turns: Vec<TranscriptTurn>,
    /// Number of leading turns from earlier runs.
    pub(crate) earlier: usize,
    /// A turn was added that the model has not seen.
    pub(crate) needs_model: bool,
}

impl RunTranscript {
    /// Transcript with these turns of earlier runs.
    pub(crate) fn new(turns: Vec<TranscriptTurn>) -> Self {
        Self {
            earlier: turns.len(),
            turns,
            needs_model: false,
        }
    }

    /// Adds a turn that the model has not seen.
    pub(crate) fn push(&mut self, turn: TranscriptTurn) {
        self.turns.push(turn);
        self.needs_model = true;
    }
}

/// State of one run.
#[derive(Debug)]
pub(crate) struct ProtocolSession<H> {
    pub(crate) driver: GraphDriver<H>,
    pub(crate) models: ModelChain,
    /// Messages of the agent's role.
    pub(crate) prompt: Vec<Message>,
    pub(crate) transcript: RunTranscript,
    /// Text of the user's latest request.
    pub(crate) goal: String,
    /// Number of declarations in this run.
    pub(crate) declarations: u32,
    /// Graph and number of declarations for each semantic hash.
    pub(crate) repeats: BTreeMap<String, (GraphId, u32)>,
    pub(crate) repairs: RepairBudget,
    /// Lines about lost graphs, for the next message.
    pub(crate) lost: Vec<String>,
    /// Graphs that other runs drive.
    pub(crate) busy: Vec<GraphId>,
}

impl<H: GraphAgentHost> RunGraphs<H> {
    /// True if questions to a person are possible.
    pub(crate) fn can_ask(&self) -> bool {
        // The answer starts another run, which finds the graph only in the records.
        self.env.context.delivery.interactions.is_some() && self.records.can_persist()
    }

    /// Graph with this id, also after its end.
    pub(crate) fn live(&self, graph: &GraphId) -> Option<&LiveGraph> {
        self.live_graphs.iter().find(|live| live.id() == graph)
    }

    /// Action of an attempt of an active graph.
    pub(crate) fn node(&self, key: &AttemptKey) -> Option<&Node> {
        let position = self.position(&key.graph)?;
        self.live_graphs[position].graph.node(&key.id)
    }

    /// True if a graph waits for this party or condition.
    pub(crate) fn any_needs(&self, need: GraphWait) -> bool {
        self.live_graphs.iter().any(|live| live.need() == need)
    }

    /// Index of the active graph with this id.
    pub(crate) fn position(&self, graph: &GraphId) -> Option<usize> {
        let mut live_graphs = self.live_graphs.iter();
        live_graphs.position(|live| live.id() == graph && !live.is_closed)
    }
}

impl<H: GraphAgentHost> ProtocolSession<H> {
    /// Facts for the validation of a declaration. `output`: model output; graphs that it names are loaded completely.
    pub(crate) async fn facts(&mut self, output: &str) -> Result<KnownFacts, RecordsError> {
        let mut graphs = self.driver.graphs.records.graph_facts(output).await?;
        // Graphs of this run replace their stored versions, which may be older.
        graphs.retain(|graph| self.driver.graphs.live(&graph.id).is_none());
        graphs.extend(self.driver.graphs.live_graphs.iter().map(LiveGraph::facts));
        Ok(KnownFacts {
            goal: self.goal.clone(),
            event: self.driver.graphs.env.event(),
            graphs,
            declarations: self.declarations,
            repeats: self.repeats.clone(),
            budget_gone: self.driver.graphs.env.is_spent(),
            depth: u8::from(self.driver.rules.delegated),
            can_persist: self.driver.graphs.records.can_persist(),
            can_ask: self.driver.graphs.can_ask(),
            remaining_ms: millis(self.driver.graphs.env.left()),
            ..KnownFacts::default()
        })
    }
}
