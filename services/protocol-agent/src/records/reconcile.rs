//! Recovery of attempts without a stored end (rule 16), decided only from stored facts.

use std::collections::BTreeSet;

use action_graph::code::Code;
use action_graph::graph::{Graph, Millis};
use action_graph::ids::ActionId;
use action_graph::node::{Node, NodeState, Sent, Wait};
use action_graph::schedule::{
    ActionOutcome, ApprovalRequest, Denial, GraphEvent, RecoveredAttempt,
};
use serde_json::Value;

use crate::records::head::PendingQuestion;

/// Stored facts about a graph at its take-over.
pub(super) struct RecoveryFacts<'a> {
    /// Questions in the head.
    pub(super) asks: &'a [PendingQuestion],
    /// Runs that completed, so that their questions were sent.
    pub(super) ended: &'a BTreeSet<String>,
    /// Time of the take-over.
    pub(super) now: Millis,
}

/// Consequences of a take-over for a graph.
#[derive(Debug, Default, PartialEq)]
pub struct RecoveryFindings {
    /// Events for the scheduler, in this order.
    pub events: Vec<GraphEvent>,
    /// Child runs to query: action, attempt, run. Apply `Recovered` for each.
    pub children: Vec<(ActionId, u32, String)>,
    /// Timers to set: action, attempt, time.
    pub timers: Vec<(ActionId, u32, Millis)>,
    /// Questions that were sent and have not expired.
    pub asks: Vec<PendingQuestion>,
    /// Approvals whose question may never have been sent: ask again.
    pub unsent: Vec<ApprovalRequest>,
}

impl RecoveryFindings {
    /// Derives the findings for each action of a graph at its take-over.
    pub(super) fn of(graph: &Graph, facts: &RecoveryFacts<'_>) -> Self {
        let mut found = Self::default();
        for node in &graph.nodes {
            found.add(node, facts);
        }
        found
    }

    fn add(&mut self, node: &Node, facts: &RecoveryFacts<'_>) {
        let (id, attempt) = (node.action.id.clone(), node.attempt);
        match node.state {
            NodeState::Running => self.recovered(node, RecoveredAttempt::Nothing),
            NodeState::Waiting(Wait::Child) => match &node.child {
                Some(run) => self.children.push((id, attempt, run.clone())),
                None => self.recovered(node, RecoveredAttempt::Unknown),
            },
            NodeState::Waiting(Wait::Retry) => self.timer(node, node.due.unwrap_or(0), facts.now),
            NodeState::Waiting(Wait::Timer) => self.timer(node, due(node), facts.now),
            NodeState::Waiting(Wait::User | Wait::Approval) | NodeState::Uncertain => {
                self.question(node, facts);
            }
            _ => {}
        }
    }

    fn recovered(&mut self, node: &Node, found: RecoveredAttempt) {
        self.events.push(GraphEvent::Recovered {
            id: node.action.id.clone(),
            attempt: node.attempt,
            found,
        });
    }

    fn timer(&mut self, node: &Node, at: Millis, now: Millis) {
        let (id, attempt) = (node.action.id.clone(), node.attempt);
        if at <= now {
            self.events.push(GraphEvent::TimerFired { id, attempt });
        } else {
            self.timers.push((id, attempt, at));
        }
    }

    /// Recovers the question of an action.
    fn question(&mut self, node: &Node, facts: &RecoveryFacts<'_>) {
        // A question that was certainly sent is open until it expires; any other is sent again.
        let asks = facts.asks.iter().rev();
        let mut asks = asks.filter(|ask| ask.about.iter().any(|one| one.id == node.action.id));
        let sent = asks.find(|ask| facts.ended.contains(&ask.run));
        match sent {
            Some(ask) if facts.now < ask.expires_at => {
                if !self.asks.contains(ask) {
                    self.asks.push(ask.clone());
                }
            }
            Some(_) => self.expired(node),
            None => self.unsent(node),
        }
    }

    fn expired(&mut self, node: &Node) {
        let (id, attempt) = (node.action.id.clone(), node.attempt);
        match node.state {
            NodeState::Waiting(Wait::Approval) => self.events.push(GraphEvent::Denied {
                ids: vec![id],
                why: Denial::Expired,
            }),
            NodeState::Waiting(Wait::User) => {
                let message = "the user did not answer in time";
                let outcome = ActionOutcome::failed(Code::InteractionExpired, message, Sent::Yes);
                self.events.push(GraphEvent::Finished {
                    id,
                    attempt,
                    outcome,
                });
            }
            // The outcome of an effect stays unknown until a person answers.
            _ => {}
        }
    }

    fn unsent(&mut self, node: &Node) {
        match node.state {
            NodeState::Waiting(Wait::Approval) => self.unsent.extend(ApprovalRequest::of(node)),
            NodeState::Waiting(Wait::User) => self.recovered(node, RecoveredAttempt::Unknown),
            _ => {}
        }
    }
}

/// End of a wait: `ms` of its arguments after the start of its attempt.
fn due(node: &Node) -> Millis {
    let started = node.attempts.last().map_or(0, |last| last.started);
    let input = node.input.as_ref();
    let wait = input.and_then(|input| input.get("ms").and_then(Value::as_u64));
    started.saturating_add(wait.unwrap_or(0))
}
