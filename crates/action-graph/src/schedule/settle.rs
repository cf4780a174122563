//! Rules 1 to 4 and 6: pending actions that settle or wait without a start.

use serde_json::{Value, json};

use crate::action::{ExecutorKind, ForEach, Rest};
use crate::bind::bind;
use crate::code::Code;
use crate::graph::Graph;
use crate::json::{self, canonical};
use crate::node::{ActionError, ActionOutput, BlockReason, FanOutItem, Node, NodeState, Wait};
use crate::policy::Visibility;
use crate::record::instance;
use crate::schedule::{ApprovalRequest, Command, ReadyRules};
use secrets::digest::sha256_hex;

/// Bytes of all values that replace references in one input; a body of the host API holds as much.
const BOUND_BYTES: usize = 1 << 20;

/// Verdict of the rules about a pending node.
enum RuleVerdict {
    Wait,
    Block(BlockReason, Code),
    Skip,
    Expand(Vec<Value>, usize),
    Fail(Code, String),
    Bound(Value, Visibility),
    Approve,
    Ready,
}

impl ReadyRules<'_, '_> {
    /// Applies the rules until nothing changes. Each round settles at least one node.
    pub(super) fn settle_all(&mut self) {
        let mut requests = Vec::new();
        loop {
            // By index: `settle` may insert instances after the current node.
            let before = self.step.graph.seq;
            let mut position = 0;
            while position < self.step.graph.nodes.len() {
                match self.step.graph.nodes[position].state {
                    NodeState::Pending if self.step.graph.stop.is_none() => {
                        self.settle(position, &mut requests);
                    }
                    NodeState::FanOut => self.join(position),
                    _ => {}
                }
                position += 1;
            }
            // No transition in a round means that no rule applies any more.
            if self.step.graph.seq == before {
                break;
            }
        }
        // A later rule of the same step may have cancelled an action that waits for approval.
        requests.retain(|request: &ApprovalRequest| {
            let node = self.step.graph.node(&request.id);
            node.is_some_and(|node| node.state == NodeState::Waiting(Wait::Approval))
        });
        if !requests.is_empty() {
            // One command: the user gets one form for all approvals.
            self.step.effects.push(Command::AskApproval(requests));
        }
    }

    fn settle(&mut self, position: usize, requests: &mut Vec<ApprovalRequest>) {
        match next(self.step.graph, position) {
            RuleVerdict::Wait | RuleVerdict::Ready => {}
            RuleVerdict::Block(block, why) => {
                self.step.go(position, NodeState::Blocked(block), Some(why));
            }
            RuleVerdict::Skip => {
                self.step.graph.nodes[position].satisfying = true;
                self.step
                    .go(position, NodeState::Skipped, Some(Code::ConditionFalse));
            }
            RuleVerdict::Expand(items, left) => self.expand(position, items, left),
            RuleVerdict::Fail(code, message) => {
                self.step.fail(position, ActionError { code, message });
            }
            RuleVerdict::Bound(input, taint) => {
                let node = &mut self.step.graph.nodes[position];
                // The strictest reader is kept over retries.
                node.input = Some(input);
                node.taint = node.taint.max(taint);
                // Once more at once: a bound action may need an approval.
                self.settle(position, requests);
            }
            RuleVerdict::Approve => requests.extend(self.ask(position)),
        }
    }

    /// Rule 4: a standing approval, a question, or a failure when the surface cannot ask.
    fn ask(&mut self, position: usize) -> Option<ApprovalRequest> {
        let node = &self.step.graph.nodes[position];
        let (Some(resolved), Some(input)) = (&node.action.resolved, &node.input) else {
            return None;
        };
        let mut standing = self.step.graph.settings.standing.iter();
        let covering = standing.find(|one| one.covers(&resolved.target, &resolved.effects, input));
        if let Some(covering) = covering {
            let by = covering.given_by.clone();
            let node = &mut self.step.graph.nodes[position];
            node.cleared = true;
            node.cleared_by = by;
            return None;
        }
        // Fails now: no event could ever end the wait.
        if !self.step.graph.settings.can_ask {
            let message = "no person can approve on this surface".to_owned();
            let code = Code::ApprovalUnavailable;
            self.step.fail(position, ActionError { code, message });
            return None;
        }
        // With the number of the attempt, so that an answer that arrives twice approves no later iteration.
        let call = json!([resolved.kind, resolved.target, input, resolved.effects]);
        let covered = json!([
            self.step.graph.id,
            node.action.id,
            node.attempt,
            node.decisions,
            call
        ]);
        let hash = sha256_hex(canonical(&covered));
        self.step.graph.nodes[position].approval = Some(hash);
        self.step.go(
            position,
            NodeState::Waiting(Wait::Approval),
            Some(Code::ApprovalRequired),
        );
        ApprovalRequest::of(&self.step.graph.nodes[position])
    }

    /// Rule 6: one instance for each item, after the action. `left`: items after the slice.
    fn expand(&mut self, position: usize, items: Vec<Value>, left: usize) {
        self.step.graph.nodes[position].left = left;
        let parent = &self.step.graph.nodes[position];
        let taint = match &parent.action.for_each {
            Some(each) => self.step.graph.readers_of(&each.items, Some(parent)),
            None => Visibility::Model,
        };
        let instances = items.into_iter().enumerate().map(|(index, item)| {
            let id = parent.action.id.instance(index);
            let action = instance(&parent.action, &id);
            let mut node = Node::new(action);
            node.parent = Some(parent.action.id.clone());
            node.item = Some(FanOutItem { value: item });
            node.taint = taint;
            node
        });
        // Collected, because the instances borrow the node list.
        let instances: Vec<_> = instances.collect();
        self.step
            .graph
            .nodes
            .splice(position + 1..=position, instances);
        // Positions after the action have moved.
        self.step.graph.relink();
        self.step.go(position, NodeState::FanOut, None);
    }

    /// The end of a fan-out: its output is a list in the order of the items.
    fn join(&mut self, position: usize) {
        let parent = &self.step.graph.nodes[position];
        let own = |node: &&Node| node.parent.as_ref() == Some(&parent.action.id);
        // Instances follow their fan-out directly, so the search ends with the first other node.
        let instances = self.step.graph.nodes[position + 1..].iter().take_while(own);
        if instances.clone().any(|node| !node.is_settled()) {
            return;
        }
        let is_lost = |node: &&Node| node.state != NodeState::Completed || !node.satisfying;
        let lost = instances.clone().filter(is_lost).count();
        // A missing value is null: positions in the list are those of the items.
        let value_of = |node: &Node| match (&node.state, &node.output) {
            (NodeState::Completed, Some(output)) => output.value.clone(),
            _ => Value::Null,
        };
        let list: Vec<_> = instances.clone().map(value_of).collect();
        let artifacts = instances.clone().filter_map(|node| node.output.as_ref());
        let artifacts = artifacts
            .flat_map(|output| output.artifacts.clone())
            .collect();
        let taint = instances.clone().map(|node| node.taint).max();
        let allowed = parent
            .action
            .for_each
            .as_ref()
            .map_or(0, |each| usize::from(each.max_failures));
        let message = format!(
            "{lost} of {} items failed, at most {allowed} may",
            list.len()
        );
        let mut output = ActionOutput::json(Value::Array(list));
        output.artifacts = artifacts;
        let node = &mut self.step.graph.nodes[position];
        // The list is as private as its most private item.
        node.taint = node.taint.max(taint.unwrap_or_default());
        node.output = Some(output);
        if lost > allowed {
            let code = Code::UpstreamFailed;
            return self.step.fail(position, ActionError { code, message });
        }
        node.satisfying = true;
        self.step.go(position, NodeState::Completed, None);
    }
}

/// Verdict of the rules about a pending node. Without side effects.
fn next(graph: &Graph, position: usize) -> RuleVerdict {
    let node = &graph.nodes[position];
    if let Some(next) = edges(graph, position) {
        return next;
    }
    if let Some(each) = &node.action.for_each {
        return match graph.value_of(&each.items, Some(node)) {
            Some(Value::Array(items)) => slice(each, items),
            _ => RuleVerdict::Block(BlockReason::Input, Code::InputUnresolved),
            // Edges are settled, but the list itself does not exist.
        };
    }
    if node.input.is_none() {
        return bound(graph, node);
    }
    let wants_approval = node
        .action
        .resolved
        .as_ref()
        .is_some_and(|one| one.approval);
    if wants_approval && !node.cleared {
        return RuleVerdict::Approve;
    }
    RuleVerdict::Ready
}

/// The items from the first one on, at most `max`.
fn slice(each: &ForEach, items: Vec<Value>) -> RuleVerdict {
    let from = usize::try_from(each.from).unwrap_or(usize::MAX);
    let max = usize::from(each.max);
    let left = items.len().saturating_sub(from).saturating_sub(max);
    if left > 0 && each.rest == Rest::Refuse {
        let message = format!("{} items, at most {}", max + left, each.max);
        return RuleVerdict::Fail(Code::FanOutTooLarge, message);
    }
    let items = items.into_iter().skip(from).take(max);
    RuleVerdict::Expand(items.collect(), left)
}

/// The input with the values of its references. The sum of the values has a limit: a chain of actions could double its
/// data with each step.
fn bound(graph: &Graph, node: &Node) -> RuleVerdict {
    let limit = match node.kind() {
        ExecutorKind::Runtime => graph.settings.output_bytes,
        _ => BOUND_BYTES,
    };
    let (mut taint, mut left) = (Visibility::Model, Some(limit));
    let input = bind(&node.action.input, &mut |reference| {
        // Before the lookup: a value that is missing still taints the input.
        taint = taint.max(graph.readers_of(reference, Some(node)));
        let value = graph.value_of(reference, Some(node))?;
        // Estimated size: counting is cheaper than printing each value.
        left = left.and_then(|left| left.checked_sub(json::size(&value)));
        left.map(|_| value)
    });
    if left.is_none() {
        let message = format!("the values of its references exceed {limit} bytes");
        return RuleVerdict::Fail(Code::ArgsTooLarge, message);
    }
    match input {
        Ok(input) => RuleVerdict::Bound(input, taint),
        Err(_) => RuleVerdict::Block(BlockReason::Input, Code::InputUnresolved),
    }
}

/// Edges and condition; `None` when the node is ready.
fn edges(graph: &Graph, position: usize) -> Option<RuleVerdict> {
    let node = &graph.nodes[position];
    // Bound once, edges are not evaluated again: a later failure does not unbind.
    if node.input.is_some() {
        return None;
    }
    let edges = graph.edges(position);
    let mut is_open = true;
    for &need in &edges.needs {
        let need = &graph.nodes[need];
        if !need.satisfying {
            // A dependency that ended without success can never open this edge.
            if need.is_settled() {
                return Some(RuleVerdict::Block(
                    BlockReason::Dependency,
                    Code::UpstreamFailed,
                ));
            }
            is_open = false;
        }
    }
    if !is_open
        || edges
            .settles
            .iter()
            .any(|&other| !graph.nodes[other].is_settled())
    {
        return Some(RuleVerdict::Wait);
    }
    let condition = node.action.when.as_ref();
    let is_false = condition.is_some_and(|condition| !graph.holds(condition, Some(node)));
    is_false.then_some(RuleVerdict::Skip)
}
