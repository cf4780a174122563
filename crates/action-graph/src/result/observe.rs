//! Observations: the results of a graph within one budget.

use crate::graph::Graph;
use crate::ids::ActionId;
use crate::node::{Node, NodeState};
use crate::policy::Return;
use crate::result::deliver::{Shown, deliver, deliver_as, policy_of};
use crate::result::tokens::TokenCounter;

/// Tokens of one observation.
const MAX_TOKENS: usize = 12_000;
/// Tokens that each action keeps.
pub const FLOOR: usize = 60;

/// Bounds of one observation.
#[derive(Clone, Copy)]
pub struct ObservationBudget<'a> {
    /// Context window of the model in tokens: an observation takes a quarter at most.
    pub window: usize,
    /// Counts tokens.
    pub count: TokenCounter<'a>,
}

impl ObservationBudget<'_> {
    /// Tokens of one observation.
    pub fn max_tokens(&self) -> usize {
        MAX_TOKENS.min(self.window / 4)
    }
}

/// Forms from the fullest to the smallest.
const LADDER: [Return; 4] = [
    Return::Full,
    Return::Excerpt,
    Return::Summary,
    Return::OnDemand,
];

struct ObservedItem<'a> {
    node: &'a Node,
    shown: Shown,
    level: usize,
}

/// The view of each declared action, in the order of the declaration. Over budget, the oldest successes are
/// degraded first, one level at a time; each action keeps 60 tokens.
pub fn observe(graph: &Graph, budget: ObservationBudget<'_>) -> Vec<(ActionId, Shown)> {
    let max_tokens = budget.max_tokens();
    let mut items: Vec<_> = graph
        .declared()
        .map(|node| {
            let shown = deliver(graph, node, max_tokens, budget.count);
            let form = policy_of(graph, node).return_to_model;
            // Forms outside of the ladder start at the step of similar size.
            let level = LADDER.iter().position(|one| *one == form);
            let level = level.unwrap_or(match form {
                Return::Adaptive | Return::OnFailure => 0,
                Return::Structured => 1,
                _ => 3,
            });
            ObservedItem { node, shown, level }
        })
        .collect();
    let total = |items: &[ObservedItem<'_>]| {
        items
            .iter()
            .map(|item| item.shown.delivered.tokens)
            .sum::<usize>()
    };
    while total(&items) > max_tokens {
        // Every action keeps a few tokens, so that the model knows of its result.
        let can_shrink = |item: &ObservedItem<'_>| item.shown.delivered.tokens > FLOOR;
        let is_failed = |item: &ObservedItem<'_>| item.node.state == NodeState::Failed;
        // Failures last: the model needs their details to decide.
        let next = items
            .iter()
            .position(|item| can_shrink(item) && !is_failed(item));
        let Some(next) = next.or_else(|| items.iter().position(can_shrink)) else {
            break;
        };
        degrade(graph, &mut items[next], budget.count);
    }
    let shown = items
        .into_iter()
        .map(|item| (item.node.action.id.clone(), item.shown));
    shown.collect()
}

/// One level less; at the last one, the floor.
fn degrade(graph: &Graph, item: &mut ObservedItem<'_>, count: TokenCounter<'_>) {
    let before = item.shown.delivered.tokens;
    let policy = policy_of(graph, item.node);
    item.level += 1;
    let (form, cap) = match LADDER.get(item.level) {
        Some(form) => (*form, before / 2),
        // Past the ladder only the size can shrink.
        None => (Return::OnDemand, FLOOR),
    };
    item.shown = deliver_as(graph, item.node, &policy, form, cap.max(FLOOR), count);
    item.shown.delivered.why = Some("budget".to_owned());
}

/// Marks every settled action as shown. Returns those that were not shown before: each end is delivered once.
pub fn mark_delivered(graph: &mut Graph) -> Vec<ActionId> {
    let mut fresh = Vec::new();
    for node in &mut graph.nodes {
        // Attempt and state together: a retried action is delivered again.
        let now = Some((node.attempt, node.state));
        let is_end = node.is_settled() || node.state == NodeState::Uncertain;
        if is_end && node.delivered != now {
            node.delivered = now;
            fresh.push(node.action.id.clone());
        }
    }
    fresh
}
