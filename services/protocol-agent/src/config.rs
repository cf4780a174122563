//! The configuration of an agent, as one run reads it. A wrong value ends the run with its JSON pointer.

mod read;
mod tables;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use action_graph::action::Effect;
use action_graph::rules::{AgentRules, CarrierMode, Features, PlainText, Recovery};
use action_graph::transcript::Replay;
use protocol::JsonObject;
use protocol::message::Message;
use protocol::resources::{AgentResources, KnowledgeOperation, ModelOperation};

pub use read::TableFault;
pub use tables::{Remote, RemoteKind, ToolFacts};

pub(crate) use read::PLAN;
use read::TableReader;

/// The most that a run may declare; larger values are refused.
const MOST_DECLARATIONS: u64 = 24;
/// The largest number of parallel actions.
const MOST_PARALLEL: u64 = 16;
/// The longest lifetime of a question, in seconds: the gateway's bound.
const MOST_INTERACTION_SECONDS: u64 = 86_400;

/// The configuration of one run, restricted to what the run was granted.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Models in the order in which they are tried; empty: the run cannot begin.
    pub models: Vec<ModelOption>,
    /// `None`: the gateway's deadline alone holds.
    pub timeout: Option<Duration>,
    /// The agent's role, for events without a prompt of their own.
    pub prompt: Vec<Message>,
    /// Rules of the action protocol, `enabled` among them.
    pub rules: AgentRules,
    /// How the model sees earlier declarations.
    pub replay: Replay,
    /// Bounds of a run besides those in `rules`.
    pub budgets: Budgets,
    /// Whether a person approves each plan before its first action.
    pub approves_plans: bool,
    /// The operator's word about tools, by name.
    pub effects: BTreeMap<String, ToolFacts>,
    /// Services and pipelines.
    pub remotes: Vec<Remote>,
    /// Whether actions may be child runs.
    pub delegation: Delegation,
    /// Lifetime of questions and approvals, in seconds.
    pub interaction_seconds: u32,
    /// The model that shortens long results.
    pub summarizer: Option<String>,
    /// Knowledge bases of `knowledge.search`.
    pub knowledge_bases: Vec<String>,
    /// Passages asked of each knowledge base.
    pub retrieval_top_k: u64,
}

/// A model of the run, and how it may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOption {
    /// Its id.
    pub id: String,
    /// Whether streaming is granted.
    pub streams: bool,
    /// Whether whole answers are granted.
    pub invokes: bool,
    /// Whether its provider accepts a pinned tool, as far as the run knows.
    pub pins: bool,
}

/// Token bounds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Tokens of all model calls; `None`: unbounded.
    pub tokens: Option<u64>,
    /// The model's context window, in tokens.
    pub window: usize,
    /// Tokens of the window that are kept for the answer.
    pub reserve: usize,
}

impl Budgets {
    /// Tokens that a request may take.
    pub fn request(&self) -> usize {
        self.window - self.reserve.min(self.window / 4)
    }
}

/// Where delegated actions run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delegation {
    /// As child runs of the host.
    #[default]
    Host,
    /// Nowhere: agents are not in the catalogue.
    Off,
}

/// A configuration that cannot be run: every fault with its JSON pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig(pub Vec<TableFault>);

impl fmt::Display for InvalidConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let faults = self
            .0
            .iter()
            .map(|fault| format!("{} {}", fault.pointer, fault.message));
        formatter.write_str(&faults.collect::<Vec<_>>().join("; "))
    }
}

impl std::error::Error for InvalidConfig {}

impl Config {
    /// Reads the configuration of an agent that was granted these resources. All faults are reported at once.
    pub fn read(config: &JsonObject, resources: &AgentResources) -> Result<Self, InvalidConfig> {
        let mut reader = TableReader::new(config);
        let window = reader.size("context-window-tokens", 1_024, 10_000_000, 200_000);
        let (rules, approves_plans) = rules(&mut reader);
        let read = Self {
            models: models(&mut reader, resources),
            timeout: reader.timeout("timeout", Duration::from_mins(5)),
            prompt: reader.prompt("prompt"),
            rules,
            approves_plans,
            replay: reader.word(
                "replay",
                &[
                    ("full", Replay::Full),
                    ("compressed", Replay::Compressed),
                    ("hybrid", Replay::Hybrid),
                ],
                Replay::Hybrid,
            ),
            budgets: Budgets {
                tokens: Some(reader.integer("max-tokens", 0, u64::MAX, 0)).filter(|most| *most > 0),
                window,
                reserve: reader.size("context-reserve-tokens", 0, 10_000_000, 16_384),
            },
            effects: reader.table("effects"),
            remotes: tables::remotes(&mut reader),
            delegation: reader.word(
                "delegation",
                &[("host", Delegation::Host), ("off", Delegation::Off)],
                Delegation::Host,
            ),
            interaction_seconds: u32::try_from(reader.integer(
                "interaction-seconds",
                60,
                MOST_INTERACTION_SECONDS,
                1_800,
            ))
            .unwrap_or(1_800),
            summarizer: summarizer(&mut reader, resources),
            knowledge_bases: knowledge_bases(&mut reader, resources),
            retrieval_top_k: reader.integer("retrieval-top-k", 1, 50, 5),
        };
        let faults = reader.finish();
        if faults.is_empty() {
            Ok(read)
        } else {
            Err(InvalidConfig(faults))
        }
    }
}

/// Rules of the protocol, and whether plans need an approval.
fn rules(reader: &mut TableReader<'_>) -> (AgentRules, bool) {
    let defaults = AgentRules::default();
    let carriers = [
        ("flat", CarrierMode::Flat),
        ("strict", CarrierMode::Strict),
        ("fenced", CarrierMode::Fenced),
    ];
    let (approve, approves_plans) = {
        let effects: Vec<_> = defaults.approve.iter().copied().collect();
        reader.approvals(&effects)
    };
    let mut rules = AgentRules {
        enabled: reader.flag("protocol-enabled", false),
        carrier: reader.word("carrier", &carriers, CarrierMode::Flat),
        plain_text: reader.word(
            "plain-text",
            &[("accept", PlainText::Accept), ("repair", PlainText::Repair)],
            PlainText::Accept,
        ),
        recovery: Recovery {
            tools: reader.effects("recovery-tools", &[Effect::None, Effect::Read]),
            text: reader.flag("recovery-text", false),
            delegation: reader.flag("recovery-delegation", false),
        },
        features: Features {
            when: reader.flag("feature-when", true),
            bind: reader.flag("feature-bind", true),
            for_each: reader.flag("feature-for-each", true),
            repeat: reader.flag("feature-repeat", true),
            report: reader.flag("feature-report", true),
        },
        approve,
        forbid: reader.effects("forbid", &[]),
        ..defaults
    };
    let declarations = reader.integer("max-declarations", 1, MOST_DECLARATIONS, MOST_DECLARATIONS);
    rules.limits.declarations = u32::try_from(declarations).unwrap_or(24);
    rules.limits.parallel =
        u8::try_from(reader.integer("max-parallel", 1, MOST_PARALLEL, 4)).unwrap_or(4);
    (rules, approves_plans)
}

/// The first model and its fallbacks, without those that the run may not ask.
fn models(reader: &mut TableReader<'_>, resources: &AgentResources) -> Vec<ModelOption> {
    let mut models: Vec<ModelOption> = Vec::new();
    for id in reader.models("model") {
        let granted = resources.models.iter().find(|model| model.model_id == id);
        let Some(granted) = granted else { continue };
        let model = ModelOption {
            id,
            streams: granted.operations.contains(&ModelOperation::Stream),
            invokes: granted.operations.contains(&ModelOperation::Invoke),
            pins: true,
        };
        if (model.streams || model.invokes) && !models.contains(&model) {
            models.push(model);
        }
    }
    models
}

fn summarizer(reader: &mut TableReader<'_>, resources: &AgentResources) -> Option<String> {
    let id = reader.selected("summarizer-model")?;
    let mut granted = resources.models.iter();
    let is_granted = granted
        .any(|model| model.model_id == id && model.operations.contains(&ModelOperation::Invoke));
    is_granted.then_some(id)
}

fn knowledge_bases(reader: &mut TableReader<'_>, resources: &AgentResources) -> Vec<String> {
    let mut bases: Vec<String> = Vec::new();
    for id in reader.texts("knowledge-bases") {
        let mut granted = resources.knowledge_bases.iter();
        let is_granted = granted.any(|base| {
            base.kb_id == id && base.operations.contains(&KnowledgeOperation::Retrieve)
        });
        if is_granted && !bases.contains(&id) {
            bases.push(id);
        }
    }
    bases
}

#[cfg(test)]
mod tests;
