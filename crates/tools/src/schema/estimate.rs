//! Estimates the cost of validation in advance, since a small schema can require an exponential number of
//! visits.

use serde_json::Value;

use super::cost_graph::{ROOT, SchemaGraph, SchemaNode};

/// Maximum nesting of subschemas and parameters on one path.
const DEPTH: usize = 128;
/// Maximum length of a text for a backtracking pattern.
const STEEP_BYTES: usize = 4 * 1024;

/// Upper bound of the cost of one check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ValidationCost {
    /// Number of subschema visits.
    pub(super) visits: u64,
    /// Cost in units of about 100 ns in the worst case.
    pub(super) cost: u64,
}

/// The cost of a check; `None` if it exceeds `max_cost`.
pub(super) fn estimate(
    cost_graph: &SchemaGraph,
    parameters: &Value,
    max_cost: u64,
) -> Option<ValidationCost> {
    let mut walk = CostEstimator {
        cost_graph,
        max_cost,
        spent: ValidationCost::default(),
    };
    walk.visit(ROOT, parameters, 0)?;
    Some(walk.spent)
}

struct CostEstimator<'a> {
    cost_graph: &'a SchemaGraph,
    max_cost: u64,
    spent: ValidationCost,
}

impl CostEstimator<'_> {
    fn visit(&mut self, at: usize, instance: &Value, depth: usize) -> Option<()> {
        let node = self.cost_graph.node(at);
        if depth > DEPTH {
            return None;
        }
        self.spent.visits += 1;
        self.spend(cost(node, instance)?)?;
        // Validators follow the references once more to find evaluated members.
        let times = if node.is_unevaluated { 2 } else { 1 };
        for _ in 0..times {
            for &next in &node.same_value {
                self.visit(next, instance, depth + 1)?;
            }
        }
        match instance {
            Value::Object(members) => {
                for (name, value) in members {
                    let named = node.properties.get(name);
                    for &next in named.into_iter().chain(&node.members) {
                        self.visit(next, value, depth + 1)?;
                    }
                    for &next in &node.names {
                        // Names are validated as strings by `propertyNames`.
                        self.visit(next, &Value::String(name.clone()), depth + 1)?;
                    }
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    for &next in node.first.get(index).into_iter().chain(&node.items) {
                        self.visit(next, item, depth + 1)?;
                    }
                }
            }
            _ => {}
        }
        Some(())
    }

    fn spend(&mut self, cost: u64) -> Option<()> {
        self.spent.cost = self.spent.cost.saturating_add(cost);
        (self.spent.cost <= self.max_cost).then_some(())
    }
}

/// Cost of the keywords of one subschema for a value. `None`: too high.
fn cost(node: &SchemaNode, instance: &Value) -> Option<u64> {
    let plain = |size: usize| node.plain.saturating_mul(1 + size as u64 / 64);
    Some(match instance {
        Value::String(text) => plain(text.len()).saturating_add(node.patterns.cost(text)?),
        Value::Array(items) => plain(items.len()),
        Value::Object(members) => {
            let mut cost = plain(members.len());
            for name in members.keys() {
                cost = cost.saturating_add(node.member_patterns.cost(name)?);
            }
            cost
        }
        _ => plain(0),
    })
}

/// Patterns that apply to one text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Patterns {
    /// Patterns with linear time.
    pub(super) plain: u64,
    /// Patterns with lookaround or backreferences, which may backtrack.
    pub(super) steep: u64,
}

impl Patterns {
    fn cost(self, text: &str) -> Option<u64> {
        if self.steep > 0 && text.len() > STEEP_BYTES {
            return None;
        }
        let length = text.len() as u64;
        let plain = self.plain.saturating_mul(50 + 8 * length);
        Some(plain.saturating_add(self.steep.saturating_mul(1500 + 16 * length)))
    }
}
