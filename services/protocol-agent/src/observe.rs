//! Decision points: what the model is shown of graphs that do not move, and what a person is asked about them.

use action_graph::action::ExecutorKind;
use action_graph::declaration::{Choice, Decision};
use action_graph::node::Node;
use action_graph::schedule::{Actor, Event};
use action_graph::transcript::{Turn, protocol_turn};

use crate::execute::{human, remote};
use crate::failure::Halt;
use crate::host::AgentHost;
use crate::keep::Asked;
use crate::live::Need;
use crate::session::{GraphDriver, RunGraphs, Transcript, budget};

/// Status tools that are asked for one decision point.
const MOST_LOOKS: usize = 16;

impl<H: AgentHost> GraphDriver<H> {
    /// Drives all graphs to their next decision point, and observes them there.
    pub(crate) async fn advance(&mut self, transcript: &mut Transcript) -> Result<(), Halt> {
        loop {
            self.drive().await?;
            if !self.look_after_uncertain().await? {
                break;
            }
        }
        self.observe(transcript).await
    }

    /// Adds a turn for every graph that has come to a new decision point.
    async fn observe(&mut self, transcript: &mut Transcript) -> Result<(), Halt> {
        let window = self.graphs.hands.config.budgets.window;
        for place in 0..self.graphs.lives.len() {
            let live = &mut self.graphs.lives[place];
            let point = (live.graph.generation, live.graph.seq);
            let Some(why) = live
                .why
                .filter(|_| !live.is_closed && live.seen != Some(point))
            else {
                continue;
            };
            live.seen = Some(point);
            let make = |graph: &action_graph::Graph| {
                Turn::Protocol(protocol_turn(graph, why, budget(window)))
            };
            let turn = match self
                .graphs
                .keep
                .driven
                .observed(&mut live.graph, make)
                .await
            {
                Ok(turn) => turn,
                Err(error) => {
                    self.graphs.kept(place, error)?;
                    continue;
                }
            };
            // A run that died before it closed the graph has left this turn already.
            if !transcript.turns.contains(&turn) {
                transcript.turns.push(turn);
            }
            transcript.needs_model |= self.graphs.lives[place].need() == Need::Model;
        }
        let extras = std::mem::take(&mut self.extras);
        transcript.turns.extend(extras);
        Ok(())
    }

    /// Finds out about effects of unknown outcome: by a status tool, else by a person. Gives whether a graph moves on.
    async fn look_after_uncertain(&mut self) -> Result<bool, Halt> {
        let mut moves = false;
        for place in 0..self.graphs.lives.len() {
            if self.graphs.lives[place].is_closed {
                continue;
            }
            let live = &self.graphs.lives[place];
            let open: Vec<Node> = live
                .uncertain()
                .filter(|node| !live.is_asked(node))
                .take(MOST_LOOKS)
                .cloned()
                .collect();
            for node in open {
                let attempt = (node.action.id.clone(), node.attempt);
                self.graphs.lives[place].asked.insert(attempt.clone());
                if self.decide_by_tool(place, &node).await? {
                    moves = true;
                } else if self.graphs.can_ask()
                    && self.graphs.keep.driven.holds(self.graphs.lives[place].id())
                {
                    self.graphs.ask_outcome(place, &node).await?;
                } else {
                    self.graphs.lives[place].asked.remove(&attempt);
                }
            }
        }
        Ok(moves)
    }

    async fn decide_by_tool(&mut self, place: usize, node: &Node) -> Result<bool, Halt> {
        let is_remote = matches!(node.kind(), ExecutorKind::Service | ExecutorKind::Pipeline);
        let remotes = &self.graphs.hands.config.remotes;
        let remote = remote::find(remotes, node.kind(), node.target()).filter(|_| is_remote);
        let (Some(remote), Some(attempt)) = (remote, node.attempts.last()) else {
            return Ok(false);
        };
        let Some((is_done, output)) =
            remote::status(&self.graphs.hands, remote, &attempt.key).await
        else {
            return Ok(false);
        };
        let decision = Decision {
            graph: self.graphs.lives[place].id().clone(),
            action: Some(node.action.id.clone()),
            choice: if is_done {
                Choice::Continue
            } else {
                Choice::Retry
            },
            reason: "the status tool knows".to_owned(),
            input: is_done.then_some(output),
        };
        let by = Actor::StatusTool;
        let is_refused = self
            .graphs
            .apply(place, vec![Event::Decide { decision, by }])
            .await?;
        Ok(!is_refused)
    }
}

impl<H: AgentHost> RunGraphs<H> {
    async fn ask_outcome(&mut self, place: usize, node: &Node) -> Result<(), Halt> {
        let graph = &self.lives[place].graph;
        let id = format!("{}.{}.outcome.{}", graph.id, node.action.id, node.attempt);
        let until = self.hands.until();
        let request = human::uncertain(id, graph, node, until);
        let about = vec![Asked {
            id: node.action.id.clone(),
            attempt: node.attempt,
            hash: None,
        }];
        self.send_question(place, request, about).await
    }
}
