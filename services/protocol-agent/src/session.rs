//! One run of an agent that declares actions: its transcript, its graphs, and what it works with.

use std::collections::BTreeMap;
use std::time::Duration;

use action_graph::accept::RepairBudget;
use action_graph::ids::GraphId;
use action_graph::result::observe::Budget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{Known, Rules};
use action_graph::transcript::Turn;
use protocol::message::Message;
use runner_kit::CancellationToken;
use serde_json::{Value, json};
use tokio::time::Instant;

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

/// The state of one run.
#[derive(Debug)]
pub(crate) struct Session<H> {
    pub(crate) hands: Hands<H>,
    pub(crate) keep: Keep<H>,
    pub(crate) speaker: Speaker,
    pub(crate) models: Models,
    pub(crate) cancel: CancellationToken,
    /// Rules of the agent in this run.
    pub(crate) rules: Rules,
    /// Role messages.
    pub(crate) prompt: Vec<Message>,
    /// Graphs of this run, and those that it took over, oldest first.
    pub(crate) lives: Vec<Live>,
    pub(crate) work: Work,
    /// The transcript, oldest first.
    pub(crate) turns: Vec<Turn>,
    /// Turns of earlier runs at its beginning.
    pub(crate) earlier: usize,
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
    /// Turns that follow the next observation.
    pub(crate) extras: Vec<Turn>,
    /// Whether something happened that the model has not seen.
    pub(crate) needs_model: bool,
    /// Whether the run shuts down: cancellation and deadline hold nothing up any more.
    pub(crate) is_closing: bool,
}

impl<H: AgentHost> Session<H> {
    /// Whether a person can be asked: on this surface, and with records that the answer finds again.
    pub(crate) fn can_ask(&self) -> bool {
        self.hands.context.delivery.interactions.is_some() && self.keep.can_persist()
    }

    /// Time that is left.
    pub(crate) fn left(&self) -> Duration {
        self.hands.end.saturating_duration_since(Instant::now())
    }

    /// The graph of this id.
    pub(crate) fn place(&self, graph: &GraphId) -> Option<usize> {
        let mut lives = self.lives.iter();
        lives.position(|live| live.id() == graph && !live.is_closed)
    }

    /// Adds turns that the model has not seen.
    pub(crate) fn push(&mut self, turn: Turn) {
        self.turns.push(turn);
        self.needs_model = true;
    }

    /// Whether the tokens of the run are used up.
    pub(crate) fn is_spent(&self) -> bool {
        let (input, output) = self.hands.usage.tokens();
        let most = self.hands.config.budgets.tokens;
        most.is_some_and(|most| input + output >= most)
    }

    /// Facts for the next declaration. `output` is the model's output: graphs that it names are read whole.
    pub(crate) async fn known(&mut self, output: &str) -> Result<Known, KeepError> {
        let mut graphs = self.keep.known(output).await?;
        graphs.retain(|graph| !self.lives.iter().any(|live| *live.id() == graph.id));
        graphs.extend(self.lives.iter().map(Live::known));
        Ok(Known {
            goal: self.goal.clone(),
            event: self.event(),
            graphs,
            declarations: self.declarations,
            repeats: self.repeats.clone(),
            budget_gone: self.is_spent(),
            depth: u8::from(self.rules.delegated),
            can_persist: self.keep.can_persist(),
            can_ask: self.can_ask(),
            remaining_ms: millis(self.left()),
            ..Known::default()
        })
    }

    /// The event as references may read it.
    fn event(&self) -> Value {
        let context = &self.hands.context;
        json!({
            "event_id": context.event.event_id,
            "event_type": context.event.event_type,
            "data": context.event.data,
            "text": context.input.text,
            "attachments": context.input.attachments,
        })
    }
}
