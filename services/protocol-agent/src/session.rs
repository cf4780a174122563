//! One run of an agent that declares actions: its transcript, its graphs, and what it works with.

use std::collections::BTreeMap;

use action_graph::accept::RepairBudget;
use action_graph::ids::GraphId;
use action_graph::result::observe::ObservationBudget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{AgentRules, KnownFacts};
use action_graph::transcript::TranscriptTurn;
use protocol::message::Message;
use runner_kit::CancellationToken;

use crate::clock::millis;
use crate::execute::ExecutorEnv;
use crate::host::GraphAgentHost;
use crate::live::LiveGraph;
use crate::model::ModelChain;
use crate::records::{GraphRecords, RecordsError};
use crate::work::AttemptTasks;
use crate::writer::ResultWriter;

/// The budget of an observation for a model with this window.
pub(crate) fn budget(window: usize) -> ObservationBudget<'static> {
    ObservationBudget {
        window,
        count: &estimate,
    }
}

/// The graphs of a run, with their records, attempts and results.
#[derive(Debug)]
pub(crate) struct RunGraphs<H> {
    pub(crate) env: ExecutorEnv<H>,
    pub(crate) records: GraphRecords<H>,
    pub(crate) writer: ResultWriter,
    /// Graphs of this run, and those that it took over, oldest first.
    pub(crate) live_graphs: Vec<LiveGraph>,
    pub(crate) work: AttemptTasks,
    /// Whether the run shuts down: cancellation and deadline hold nothing up any more.
    pub(crate) is_closing: bool,
}

/// Moves the graphs of a run: carries out the scheduler's commands, and reports results back to it.
#[derive(Debug)]
pub(crate) struct GraphDriver<H> {
    pub(crate) graphs: RunGraphs<H>,
    pub(crate) cancel: CancellationToken,
    /// Rules of the agent in this run.
    pub(crate) rules: AgentRules,
    /// Turns that follow the next observation.
    pub(crate) extras: Vec<TranscriptTurn>,
}

/// The turns of the conversation.
#[derive(Debug)]
pub(crate) struct RunTranscript {
    /// Oldest first.
    pub(crate) turns: Vec<TranscriptTurn>,
    /// Turns of earlier runs at its beginning.
    pub(crate) earlier: usize,
    /// Whether something happened that the model has not seen.
    pub(crate) needs_model: bool,
}

impl RunTranscript {
    /// A transcript that begins with these turns of earlier runs.
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

/// The state of one run.
#[derive(Debug)]
pub(crate) struct ProtocolSession<H> {
    pub(crate) driver: GraphDriver<H>,
    pub(crate) models: ModelChain,
    /// Role messages.
    pub(crate) prompt: Vec<Message>,
    pub(crate) transcript: RunTranscript,
    /// The user's request.
    pub(crate) goal: String,
    /// Declarations of this run.
    pub(crate) declarations: u32,
    /// How often a piece of work was declared.
    pub(crate) repeats: BTreeMap<String, (GraphId, u32)>,
    pub(crate) repairs: RepairBudget,
    /// Lines about graphs that were lost.
    pub(crate) lost: Vec<String>,
    /// Graphs that other runs drive.
    pub(crate) busy: Vec<GraphId>,
}

impl<H: GraphAgentHost> RunGraphs<H> {
    /// Whether a person can be asked: on this surface, and with records that the answer finds again.
    pub(crate) fn can_ask(&self) -> bool {
        self.env.context.delivery.interactions.is_some() && self.records.can_persist()
    }

    /// The graph of this id.
    pub(crate) fn position(&self, graph: &GraphId) -> Option<usize> {
        let mut live_graphs = self.live_graphs.iter();
        live_graphs.position(|live| live.id() == graph && !live.is_closed)
    }
}

impl<H: GraphAgentHost> ProtocolSession<H> {
    /// Facts for the next declaration. `output` is the model's output: graphs that it names are read whole.
    pub(crate) async fn known(&mut self, output: &str) -> Result<KnownFacts, RecordsError> {
        let mut graphs = self.driver.graphs.records.known(output).await?;
        graphs.retain(|graph| {
            !self
                .driver
                .graphs
                .live_graphs
                .iter()
                .any(|live| *live.id() == graph.id)
        });
        graphs.extend(self.driver.graphs.live_graphs.iter().map(LiveGraph::known));
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
