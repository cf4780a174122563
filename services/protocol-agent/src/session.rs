//! One run of an agent that declares actions: its transcript, its graphs, and what it works with.

use std::collections::BTreeMap;

use action_graph::accept::RepairBudget;
use action_graph::ids::GraphId;
use action_graph::result::observe::Budget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{Known, Rules};
use action_graph::transcript::Turn;
use protocol::message::Message;
use runner_kit::CancellationToken;

use crate::clock::millis;
use crate::execute::Hands;
use crate::host::AgentHost;
use crate::keep::{Keep, KeepError};
use crate::live::Live;
use crate::model::Models;
use crate::speaker::Speaker;
use crate::work::Work;

/// The budget of an observation for a model with this window.
pub(crate) fn budget(window: usize) -> Budget<'static> {
    Budget {
        window,
        count: &estimate,
    }
}

/// The graphs of a run, with their records, attempts and results.
#[derive(Debug)]
pub(crate) struct RunGraphs<H> {
    pub(crate) hands: Hands<H>,
    pub(crate) keep: Keep<H>,
    pub(crate) speaker: Speaker,
    /// Graphs of this run, and those that it took over, oldest first.
    pub(crate) lives: Vec<Live>,
    pub(crate) work: Work,
    /// Whether the run shuts down: cancellation and deadline hold nothing up any more.
    pub(crate) is_closing: bool,
}

/// Moves the graphs of a run: carries out the scheduler's commands, and reports results back to it.
#[derive(Debug)]
pub(crate) struct GraphDriver<H> {
    pub(crate) graphs: RunGraphs<H>,
    pub(crate) cancel: CancellationToken,
    /// Rules of the agent in this run.
    pub(crate) rules: Rules,
    /// Turns that follow the next observation.
    pub(crate) extras: Vec<Turn>,
}

/// The turns of the conversation.
#[derive(Debug)]
pub(crate) struct Transcript {
    /// Oldest first.
    pub(crate) turns: Vec<Turn>,
    /// Turns of earlier runs at its beginning.
    pub(crate) earlier: usize,
    /// Whether something happened that the model has not seen.
    pub(crate) needs_model: bool,
}

impl Transcript {
    /// A transcript that begins with these turns of earlier runs.
    pub(crate) fn new(turns: Vec<Turn>) -> Self {
        Self {
            earlier: turns.len(),
            turns,
            needs_model: false,
        }
    }

    /// Adds a turn that the model has not seen.
    pub(crate) fn push(&mut self, turn: Turn) {
        self.turns.push(turn);
        self.needs_model = true;
    }
}

/// The state of one run.
#[derive(Debug)]
pub(crate) struct Session<H> {
    pub(crate) driver: GraphDriver<H>,
    pub(crate) models: Models,
    /// Role messages.
    pub(crate) prompt: Vec<Message>,
    pub(crate) transcript: Transcript,
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

impl<H: AgentHost> RunGraphs<H> {
    /// Whether a person can be asked: on this surface, and with records that the answer finds again.
    pub(crate) fn can_ask(&self) -> bool {
        self.hands.context.delivery.interactions.is_some() && self.keep.can_persist()
    }

    /// The graph of this id.
    pub(crate) fn place(&self, graph: &GraphId) -> Option<usize> {
        let mut lives = self.lives.iter();
        lives.position(|live| live.id() == graph && !live.is_closed)
    }
}

impl<H: AgentHost> Session<H> {
    /// Facts for the next declaration. `output` is the model's output: graphs that it names are read whole.
    pub(crate) async fn known(&mut self, output: &str) -> Result<Known, KeepError> {
        let mut graphs = self.driver.graphs.keep.known(output).await?;
        graphs.retain(|graph| {
            !self
                .driver
                .graphs
                .lives
                .iter()
                .any(|live| *live.id() == graph.id)
        });
        graphs.extend(self.driver.graphs.lives.iter().map(Live::known));
        Ok(Known {
            goal: self.goal.clone(),
            event: self.driver.graphs.hands.event(),
            graphs,
            declarations: self.declarations,
            repeats: self.repeats.clone(),
            budget_gone: self.driver.graphs.hands.is_spent(),
            depth: u8::from(self.driver.rules.delegated),
            can_persist: self.driver.graphs.keep.can_persist(),
            can_ask: self.driver.graphs.can_ask(),
            remaining_ms: millis(self.driver.graphs.hands.left()),
            ..Known::default()
        })
    }
}
