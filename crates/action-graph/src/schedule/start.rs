//! Rule 5: starts ready actions in the order of their declaration, as slots and lanes allow.

use serde_json::json;

use crate::action::{Class, Effect, ExecutorKind};
use crate::graph::Graph;
use crate::ids::base32;
use crate::json::canonical;
use crate::node::{Attempt, Node, NodeState, Wait};
use crate::schedule::{Command, Execute, ReadyRules};
use secrets::digest::sha256;

impl ReadyRules<'_, '_> {
    pub(super) fn start_ready(&mut self) {
        if self.step.graph.stop.is_some() {
            return;
        }
        // Counted once for the step; each start below adds itself.
        let mut running = self
            .step
            .graph
            .nodes
            .iter()
            .filter(|node| holds_slot(node))
            .count();
        let mut agents = self
            .step
            .graph
            .nodes
            .iter()
            .filter(|node| holds_agent(node))
            .count();
        for position in 0..self.step.graph.nodes.len() {
            let node = &self.step.graph.nodes[position];
            let is_ready = node.state == NodeState::Pending
                && node.input.is_some()
                && (node.cleared
                    || !node
                        .action
                        .resolved
                        .as_ref()
                        .is_some_and(|one| one.approval));
            if !is_ready {
                continue;
            }
            let kind = node.kind();
            // Questions take no slot: the user's time is not a resource of the runner.
            if kind == ExecutorKind::Human {
                self.start(position);
                continue;
            }
            if running >= usize::from(self.step.graph.settings.parallel) {
                // Not `break`: later questions need no slot.
                continue;
            }
            let is_agent = kind == ExecutorKind::Agent;
            if is_agent && agents >= usize::from(self.step.graph.settings.agents) {
                continue;
            }
            // Two attempts that write one resource must not overlap.
            if is_lane_free(self.step.graph, position) && has_target_slot(self.step.graph, position)
            {
                self.start(position);
                running += 1;
                agents += usize::from(is_agent);
            }
        }
    }

    fn start(&mut self, position: usize) {
        let now = self.step.now;
        let graph_id = self.step.graph.id.clone();
        let node = &mut self.step.graph.nodes[position];
        if std::mem::take(&mut node.resumes) {
            // The same attempt, so that the record has it once.
            node.end_attempt(now, None, None);
            node.attempts.pop();
        } else {
            node.attempt += 1;
            node.tries = node.tries.saturating_add(1);
        }
        let key = key_of(&graph_id.0, node);
        node.push_attempt(Attempt {
            n: node.attempt,
            key: key.clone(),
            started: now,
            ended: None,
            code: None,
            sent: None,
        });
        let execute = Execute {
            id: node.action.id.clone(),
            attempt: node.attempt,
            target: node.target().to_owned(),
            input: node.input.clone().unwrap_or_default(),
            key,
            timeout_ms: node.action.timeout_ms,
            approved_by: node.cleared_by.clone().filter(|_| node.cleared),
        };
        let (state, command) = match node.kind() {
            ExecutorKind::Human => (NodeState::Waiting(Wait::User), Command::Ask(execute)),
            ExecutorKind::Agent => (NodeState::Running, Command::SpawnChild(execute)),
            _ => (NodeState::Running, Command::Execute(execute)),
        };
        self.step.go(position, state, None);
        self.step.effects.push(command);
    }
}

/// The key of an attempt: the same for each retry unless a second call may act twice. A child run that ended is found
/// again by its key, so that each attempt of an agent has its own.
fn key_of(graph: &str, node: &Node) -> String {
    let attempt = match (node.kind(), node.class()) {
        (ExecutorKind::Agent, _) | (_, Class::AtMostOnce) => node.attempt,
        (_, Class::Replayable | Class::Keyed) => 0,
    };
    let parts = json!([
        graph,
        node.action.id,
        node.iteration,
        node.decisions,
        attempt
    ]);
    base32(&sha256(canonical(&parts).as_bytes()))
}

pub(super) fn holds_slot(node: &Node) -> bool {
    node.state == NodeState::Running && node.kind() != ExecutorKind::Human
}

fn holds_agent(node: &Node) -> bool {
    let is_open = matches!(
        node.state,
        NodeState::Running | NodeState::Waiting(Wait::Child)
    );
    is_open && node.kind() == ExecutorKind::Agent
}

/// True if no open attempt conflicts: a common written resource, or effects on one target.
fn is_lane_free(graph: &Graph, position: usize) -> bool {
    let node = &graph.nodes[position];
    let mut open = graph.nodes.iter().filter(|one| one.has_open_attempt());
    !open.any(|other| conflict(node, other))
}

/// True if two actions may not run together. The effects of an agent are guarded in its own run.
pub(crate) fn conflict(one: &Node, other: &Node) -> bool {
    let writes = &one.action.resources.write;
    let shares = writes
        .iter()
        .any(|name| other.action.resources.write.contains(name));
    let acts = |node: &Node| {
        let effects = node.action.resolved.as_ref().map(|one| &one.effects);
        effects.is_some_and(|effects| effects.iter().any(|effect: &Effect| !effect.is_shared()))
    };
    let is_same = one.kind() == other.kind()
        && one.kind() != ExecutorKind::Agent
        && one.target() == other.target();
    shares || is_same && acts(one) && acts(other)
}

fn has_target_slot(graph: &Graph, position: usize) -> bool {
    let node = &graph.nodes[position];
    let max = node
        .action
        .resolved
        .as_ref()
        .and_then(|one| one.max_parallel);
    let Some(max) = max else { return true };
    let is_same =
        |one: &&Node| holds_slot(one) && one.kind() == node.kind() && one.target() == node.target();
    graph.nodes.iter().filter(is_same).count() < usize::from(max)
}
