//! Decision points: observations of quiescent graphs for the model, and questions about unknown outcomes.

use action_graph::action::ExecutorKind;
use action_graph::declaration::{DecisionChoice, GraphDecision};
use action_graph::node::Node;
use action_graph::schedule::{Actor, GraphEvent};
use action_graph::transcript::{TranscriptTurn, protocol_turn};

use crate::execute::{human, remote};
use crate::failure::Halt;
use crate::host::GraphAgentHost;
use crate::live::GraphWait;
use crate::records::QuestionSubject;
use crate::session::{GraphDriver, RunGraphs, RunTranscript, budget};

/// Maximum actions of unknown outcome that are resolved at one decision point.
const MAX_OUTCOMES: usize = 16;

impl<H: GraphAgentHost> GraphDriver<H> {
    /// Drives all graphs to their next decision point and observes them.
    pub(crate) async fn advance(&mut self, transcript: &mut RunTranscript) -> Result<(), Halt> {
        loop {
            self.drive().await?;
            if !self.resolve_uncertain().await? {
                break;
            }
        }
        self.observe(transcript).await
    }

    /// Adds a turn for every graph at a new decision point.
    async fn observe(&mut self, transcript: &mut RunTranscript) -> Result<(), Halt> {
        for position in 0..self.graphs.live_graphs.len() {
            self.observe_graph(position, transcript).await?;
        }
        let extras = std::mem::take(&mut self.extras);
        transcript.turns.extend(extras);
        Ok(())
    }

    /// Like [`Self::observe`], only for graphs that wait for the model.
    pub(crate) async fn observe_ended(
        &mut self,
        transcript: &mut RunTranscript,
    ) -> Result<(), Halt> {
        for position in 0..self.graphs.live_graphs.len() {
            if self.graphs.live_graphs[position].need() == GraphWait::Model {
                self.observe_graph(position, transcript).await?;
            }
        }
        Ok(())
    }

    async fn observe_graph(
        &mut self,
        position: usize,
        transcript: &mut RunTranscript,
    ) -> Result<(), Halt> {
        let window = self.graphs.env.config.budgets.window;
        let live = &mut self.graphs.live_graphs[position];
        let point = (live.graph.generation, live.graph.seq);
        let Some(why) = live
            .why
            .filter(|_| !live.is_closed && live.seen != Some(point))
        else {
            return Ok(());
        };
        live.seen = Some(point);
        // The turn is stored before the model reads it: a later run must show the same observation.
        let make = |graph: &action_graph::Graph| {
            TranscriptTurn::Protocol(protocol_turn(graph, why, budget(window)))
        };
        let records = &mut self.graphs.records.driven;
        let turn = match records.observed(&mut live.graph, make).await {
            Ok(turn) => turn,
            Err(error) => {
                self.graphs.handle_records_error(position, error)?;
                return Ok(());
            }
        };
        // An earlier run that died before it closed the graph has stored this turn already.
        if !transcript.turns.contains(&turn) {
            transcript.turns.push(turn);
        }
        transcript.needs_model |= self.graphs.live_graphs[position].need() == GraphWait::Model;
        Ok(())
    }

    /// Resolves effects of unknown outcome by a status tool, otherwise by a person. True if a graph moves again.
    async fn resolve_uncertain(&mut self) -> Result<bool, Halt> {
        let mut moves = false;
        for position in 0..self.graphs.live_graphs.len() {
            if self.graphs.live_graphs[position].is_closed {
                continue;
            }
            let live = &self.graphs.live_graphs[position];
            // Cloned: the loop below changes the graph.
            let open: Vec<Node> = live
                .uncertain()
                .filter(|node| !live.has_question_about(node))
                .take(MAX_OUTCOMES)
                .cloned()
                .collect();
            for node in open {
                let attempt = (node.action.id.clone(), node.attempt);
                // Marked before the await: each attempt gets one question.
                self.graphs.live_graphs[position]
                    .questioned
                    .insert(attempt.clone());
                if self.decide_by_tool(position, &node).await? {
                    moves = true;
                } else if self.graphs.can_ask()
                    && self
                        .graphs
                        .records
                        .driven
                        .holds(self.graphs.live_graphs[position].id())
                {
                    self.graphs.ask_outcome(position, &node).await?;
                } else {
                    // No question is possible in this run; the model sees the unknown outcome.
                    self.graphs.live_graphs[position]
                        .questioned
                        .remove(&attempt);
                }
            }
        }
        Ok(moves)
    }

    async fn decide_by_tool(&mut self, position: usize, node: &Node) -> Result<bool, Halt> {
        let is_remote = matches!(node.kind(), ExecutorKind::Service | ExecutorKind::Pipeline);
        let remotes = &self.graphs.env.config.remotes;
        let remote = remote::find(remotes, node.kind(), node.target()).filter(|_| is_remote);
        let (Some(remote), Some(attempt)) = (remote, node.attempts.last()) else {
            return Ok(false);
        };
        let Some((is_done, output)) = remote::status(&self.graphs.env, remote, &attempt.key).await
        else {
            return Ok(false);
        };
        let decision = GraphDecision {
            graph: self.graphs.live_graphs[position].id().clone(),
            action: Some(node.action.id.clone()),
            choice: if is_done {
                DecisionChoice::Continue
            } else {
                DecisionChoice::Retry
            },
            reason: "the status tool knows".to_owned(),
            input: is_done.then_some(output),
        };
        let by = Actor::StatusTool;
        let event = GraphEvent::Decide { decision, by };
        Ok(!self.graphs.apply(position, vec![event]).await?)
    }
}

impl<H: GraphAgentHost> RunGraphs<H> {
    async fn ask_outcome(&mut self, position: usize, node: &Node) -> Result<(), Halt> {
        let graph = &self.live_graphs[position].graph;
        let id = format!("{}.{}.outcome.{}", graph.id, node.action.id, node.attempt);
        let until = self.env.until();
        let request = human::uncertain(id, graph, node, until);
        let about = vec![QuestionSubject {
            id: node.action.id.clone(),
            attempt: node.attempt,
            hash: None,
        }];
        self.send_question(position, request, about).await
    }
}
