//! Rules of an agent and facts of a conversation: inputs of validation besides the catalogue.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::Effect;
use crate::ids::{ActionId, GraphId};
use crate::json;
use crate::limits::GraphLimits;

/// Requested form of declarations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CarrierMode {
    /// One tool with a flat schema.
    #[default]
    Flat,
    Fenced,
}

/// Treatment of text without a declaration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlainText {
    /// It is an answer.
    #[default]
    Accept,
    /// The model must declare.
    Repair,
}

/// Loose outputs that are recovered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recovery {
    /// Effects with which a direct call of a tool is recovered; empty: never.
    pub tools: BTreeSet<Effect>,
    /// Calls written as text.
    pub text: bool,
    /// Direct calls of an agent.
    pub delegation: bool,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            tools: BTreeSet::from([Effect::None, Effect::Read]),
            text: false,
            delegation: false,
        }
    }
}

/// Features of the graph that an operator may switch off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "switches of a configuration")]
pub struct Features {
    /// Conditions.
    pub when: bool,
    /// Bindings, in both carriers.
    pub bind: bool,
    /// Runs for each item of a list.
    pub for_each: bool,
    /// Bounded repetition.
    pub repeat: bool,
    /// Reports without a further model call.
    pub report: bool,
}

impl Default for Features {
    fn default() -> Self {
        Self {
            when: true,
            bind: true,
            for_each: true,
            repeat: true,
            report: true,
        }
    }
}

/// Treatment of two writes without an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conflicts {
    /// They run one after the other.
    #[default]
    Serialize,
    /// The declaration is refused.
    Refuse,
}

/// An approval for all runs of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StandingApproval {
    /// Its name, for revocation.
    pub id: String,
    /// The executor that it covers.
    pub target: String,
    /// Effects that it covers.
    pub effects: BTreeSet<Effect>,
    /// Arguments that must have these values, by JSON pointer.
    #[serde(default)]
    pub arguments: BTreeMap<String, Value>,
    /// Arguments that may have any value, by JSON pointer; an argument in neither list is not covered.
    #[serde(default)]
    pub free: BTreeSet<String>,
    /// The question whose answer gave it, in the words of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_by: Option<String>,
}

impl StandingApproval {
    /// True if it covers this call: its executor, its effects, and each of its arguments.
    pub fn covers(&self, target: &str, effects: &BTreeSet<Effect>, input: &Value) -> bool {
        // A missing argument is no match: the tool would use its default.
        let has = |(pointer, value): (&String, &Value)| input.pointer(pointer) == Some(value);
        self.target == target
            && effects.is_subset(&self.effects)
            && self.arguments.iter().all(has)
            && json::leaves(input).iter().all(|(at, _)| self.names(at))
    }

    /// True if a list has this argument, or one that contains it.
    fn names(&self, at: &str) -> bool {
        let is_listed = |at: &str| self.arguments.contains_key(at) || self.free.contains(at);
        let ends = at.match_indices('/').map(|(end, _)| end);
        is_listed(at) || ends.into_iter().any(|end| is_listed(&at[..end]))
    }
}

/// Rules of an agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentRules {
    /// True if the agent declares at all.
    pub enabled: bool,
    /// Requested form of declarations.
    pub carrier: CarrierMode,
    pub plain_text: PlainText,
    /// Loose outputs that are recovered.
    pub recovery: Recovery,
    pub features: Features,
    /// True if the run is a delegated one, so that `outcome` is shown.
    pub delegated: bool,
    /// Effects that need an approval.
    pub approve: BTreeSet<Effect>,
    /// Effects that are refused.
    pub forbid: BTreeSet<Effect>,
    /// Treatment of unordered writes.
    pub conflicts: Conflicts,
    pub limits: GraphLimits,
}

impl Default for AgentRules {
    fn default() -> Self {
        let approve = [
            Effect::Send,
            Effect::Delete,
            Effect::Purchase,
            Effect::Publish,
            Effect::External,
        ];
        Self {
            enabled: false,
            carrier: CarrierMode::Flat,
            plain_text: PlainText::Accept,
            recovery: Recovery::default(),
            features: Features::default(),
            delegated: false,
            approve: BTreeSet::from(approve),
            forbid: BTreeSet::new(),
            conflicts: Conflicts::Serialize,
            limits: GraphLimits::default(),
        }
    }
}

impl AgentRules {
    /// The effects among these that need an approval or are forbidden.
    pub fn guarded(&self, effects: &BTreeSet<Effect>) -> BTreeSet<Effect> {
        let is_guarded =
            |effect: &&Effect| self.approve.contains(effect) || self.forbid.contains(effect);
        effects.iter().filter(is_guarded).copied().collect()
    }
}

/// Facts of the conversation and the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnownFacts {
    /// Text of the user's request.
    pub goal: String,
    /// The event that began the run, as far as references may read it.
    pub event: Value,
    /// Graphs of the conversation, oldest first.
    pub graphs: Vec<KnownGraph>,
    /// Ids of answers, which are no dependencies.
    pub answers: BTreeSet<String>,
    /// Declarations of this run so far.
    pub declarations: u32,
    /// Semantic hashes of declarations and how often each was accepted.
    pub repeats: BTreeMap<String, (GraphId, u32)>,
    /// True if the run's budget is used up.
    pub budget_gone: bool,
    /// Delegation depth of this run; 0 for a run of a user.
    pub depth: u8,
    /// True if a graph can be stored.
    pub can_persist: bool,
    /// True if this surface can ask the user.
    pub can_ask: bool,
    /// Time until the run's deadline.
    pub remaining_ms: u64,
}

impl KnownFacts {
    /// The newest action of this id in earlier graphs.
    pub fn action(&self, id: &ActionId) -> Option<(&KnownGraph, &KnownAction)> {
        // Ids may repeat in later graphs; the model means the latest.
        let mut newest_first = self.graphs.iter().rev();
        newest_first.find_map(|graph| Some((graph, graph.actions.get(id)?)))
    }

    /// The graph of this id.
    pub fn graph(&self, id: &GraphId) -> Option<&KnownGraph> {
        self.graphs.iter().find(|graph| graph.id == *id)
    }
}

/// A graph of the same conversation and agent.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownGraph {
    pub id: GraphId,
    /// True if it still runs or waits.
    pub open: bool,
    /// True if its stored results are gone.
    pub expired: bool,
    pub actions: BTreeMap<ActionId, KnownAction>,
}

/// An action of an earlier graph.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KnownAction {
    /// Status word of the projection.
    pub status: String,
    /// True if it opens edges.
    pub satisfying: bool,
    /// True if the model may not read its result.
    pub private: bool,
    pub summary: String,
    /// Its output, where the caller has loaded it.
    pub output: Option<Value>,
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn standing_approvals_cover_named_arguments_alone() {
        let effects = BTreeSet::from([Effect::Send]);
        let standing = StandingApproval {
            id: "s".to_owned(),
            target: "send".to_owned(),
            effects: effects.clone(),
            arguments: BTreeMap::from([("/to/0".to_owned(), json!("a@b"))]),
            free: BTreeSet::from(["/text".to_owned(), "/a~1b".to_owned()]),
            given_by: None,
        };
        for (input, covered) in [
            (json!({"to": ["a@b"], "text": "hello"}), true),
            (json!({"to": ["a@b"]}), true),
            (json!({"to": ["a@b"], "a/b": {"any": 1}}), true),
            (json!({"to": ["c@d"], "text": "hello"}), false),
            (json!({"to": ["a@b", "c@d"]}), false),
            (json!({"to": ["a@b"], "bcc": "c@d"}), false),
            (json!({"to": ["a@b"], "bcc": []}), false),
            (json!({"text": "hello"}), false),
            (json!("a@b"), false),
        ] {
            assert_eq!(
                standing.covers("send", &effects, &input),
                covered,
                "{input}"
            );
        }
        let more = BTreeSet::from([Effect::Send, Effect::Delete]);
        let input = json!({"to": ["a@b"]});
        assert!(!standing.covers("send", &more, &input), "another effect");
        assert!(!standing.covers("mail", &effects, &input), "another tool");
    }
}
