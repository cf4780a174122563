//! The catalogue: executors that the model may name, with their schemas and effects.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::action::{Effect, ExecutorKind, Idempotency};
use crate::policy::Visibility;

/// Relative cost of an executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    #[default]
    Low,
    Medium,
    High,
}

/// One executor of the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CatalogEntry {
    /// Its name; runtime and human words without their prefix.
    pub name: String,
    #[serde(rename = "type")]
    pub kind: ExecutorKind,
    /// A line for the model.
    pub description: String,
    /// Labels for matching.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// True if the run's grant has it.
    pub granted: bool,
    /// True if it takes work; only agents may refuse.
    pub can_execute: bool,
    /// True if it responds at present.
    pub available: bool,
    /// JSON Schema of its arguments.
    pub schema: Value,
    /// Effects as configured by the operator or a trusted source; empty: unknown.
    #[serde(default)]
    pub effects: BTreeSet<Effect>,
    /// Idempotency, from the same source.
    #[serde(default)]
    pub idempotency: Idempotency,
    #[serde(default)]
    pub cost: Cost,
    /// Calls at the same time.
    #[serde(default)]
    pub max_parallel: Option<u8>,
    /// Readers of its results.
    #[serde(default)]
    pub visibility: Visibility,
}

impl CatalogEntry {
    /// A granted and available executor without effects known.
    pub fn new(kind: ExecutorKind, name: &str, description: &str, schema: Value) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            description: description.to_owned(),
            capabilities: Vec::new(),
            granted: true,
            can_execute: true,
            available: true,
            schema,
            effects: BTreeSet::new(),
            idempotency: Idempotency::Unknown,
            cost: Cost::Low,
            max_parallel: None,
            visibility: Visibility::Model,
        }
    }

    /// The same with these effects and this idempotency.
    #[must_use]
    pub fn acting(mut self, effects: &[Effect], idempotency: Idempotency) -> Self {
        self.effects = effects.iter().copied().collect();
        self.idempotency = idempotency;
        self
    }

    /// The same with these capabilities.
    #[must_use]
    pub fn able(mut self, capabilities: &[&str]) -> Self {
        self.capabilities = capabilities.iter().map(|&one| one.to_owned()).collect();
        self
    }

    /// The effects that are known, or `unknown`. Agents, words and questions have their own defaults.
    pub fn known_effects(&self) -> BTreeSet<Effect> {
        if !self.effects.is_empty() {
            return self.effects.clone();
        }
        // Unknown effects count as dangerous; words and questions change nothing by themselves.
        match self.kind {
            ExecutorKind::Runtime | ExecutorKind::Human => BTreeSet::from([Effect::None]),
            _ => BTreeSet::from([Effect::Unknown]),
        }
    }

    /// The name by which the carrier calls it: words have a prefix.
    pub fn carrier_name(&self) -> String {
        match self.kind {
            ExecutorKind::Runtime => format!("runtime.{}", self.name),
            ExecutorKind::Human => format!("human.{}", self.name),
            _ => self.name.clone(),
        }
    }
}

/// The executors of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Catalog {
    entries: Vec<CatalogEntry>,
    /// Targets that the operator replaces: `kind:name` to the name of the same class.
    pub overrides: BTreeMap<String, String>,
}

impl Catalog {
    /// A catalogue of these executors and the runtime's own words.
    pub fn new(entries: Vec<CatalogEntry>) -> Self {
        let mut entries: Vec<_> = entries.into_iter().chain(words()).collect();
        // Sorted for binary search, and for a stable prompt.
        entries.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        // An executor of the caller precedes a word of the same name: the sort is stable.
        entries.dedup_by(|a, b| a.kind == b.kind && a.name == b.name);
        Self {
            entries,
            overrides: BTreeMap::new(),
        }
    }

    /// All executors, by class and name.
    pub fn entries(&self) -> &[CatalogEntry] {
        &self.entries
    }

    /// The executors of a class, by name.
    pub fn of_kind(&self, kind: ExecutorKind) -> impl Iterator<Item = &CatalogEntry> {
        self.entries.iter().filter(move |entry| entry.kind == kind)
    }

    /// The executor of this class and name.
    pub fn find(&self, kind: ExecutorKind, name: &str) -> Option<&CatalogEntry> {
        let at = self
            .entries
            .binary_search_by(|entry| (entry.kind, entry.name.as_str()).cmp(&(kind, name)));
        at.ok().map(|at| &self.entries[at])
    }
}

/// Built-in executors: runtime words and questions to the user.
fn words() -> Vec<CatalogEntry> {
    let object = |properties: Value, required: &[&str]| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let word = |name, line, schema| CatalogEntry::new(ExecutorKind::Runtime, name, line, schema);
    let human = |name, line, schema| CatalogEntry::new(ExecutorKind::Human, name, line, schema);
    let text = || json!({"type": "string"});
    let texts =
        || json!({"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 16});
    let decision = object(
        json!({"graph": text(), "action": text(), "choice": {"type": "string", "enum": ["retry", "skip", "continue", "abort", "cancel", "resume", "execute"]}, "reason": text(), "input": {"type": "object"}}),
        &["graph", "choice"],
    );
    let expand = object(
        json!({"refs": {"type": "array", "minItems": 1, "maxItems": 16, "items": {"type": "object", "properties": {"ref": text(), "reason": text(), "range": {"type": "object"}}, "required": ["ref"]}}}),
        &["refs"],
    );
    let fields =
        json!({"type": "array", "maxItems": 20, "items": {"type": "object", "required": ["name"]}});
    let ask = object(
        json!({"kind": {"type": "string", "enum": ["form", "choice", "confirmation"]}, "title": text(), "fields": fields, "choices": texts()}),
        &["kind", "title"],
    );
    let approve = object(json!({"title": text(), "details": text()}), &["title"]);
    vec![
        word(
            "wait",
            "Wait.",
            object(json!({"ms": {"type": "integer", "minimum": 0}}), &["ms"]),
        ),
        word(
            "merge",
            "Join results into one.",
            object(
                json!({"refs": {"type": "array", "minItems": 1, "maxItems": 64}}),
                &["refs"],
            ),
        ),
        word("checkpoint", "Store the state now.", object(json!({}), &[])),
        word(
            "summarize",
            "Shorten results.",
            object(
                json!({"refs": {"type": "array", "minItems": 1, "maxItems": 16}, "style": text()}),
                &["refs"],
            ),
        ),
        word("expand", "Show more of stored results.", expand),
        word(
            "decide",
            "Decide about a failed or blocked action.",
            decision,
        ),
        human("ask", "Ask the user.", ask),
        human("approve", "Ask the user for an approval.", approve),
    ]
}
