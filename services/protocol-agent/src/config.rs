//! Configuration of an agent for one run. An invalid value fails the run with its JSON pointer.

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

/// Upper bound of the setting `max-declarations`.
const MAX_DECLARATIONS: u64 = 24;
/// Upper bound of the setting `max-parallel`.
const MAX_PARALLEL: u64 = 16;
/// Upper bound of the setting `interaction-seconds`, as in the gateway.
const MAX_INTERACTION_SECONDS: u64 = 86_400;

/// Configuration of one run, restricted to its granted resources.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Models in the order of attempts; empty: the run cannot begin.
    pub models: Vec<ModelOption>,
    /// Time limit of the agent; `None`: only the gateway's deadline applies.
    pub timeout: Option<Duration>,
    /// The agent's role, for events without a prompt of their own.
    pub prompt: Vec<Message>,
    /// Rules of the action protocol, `enabled` among them.
    pub rules: AgentRules,
    /// Replay mode of earlier declarations in model requests.
    pub replay: Replay,
    /// Token bounds of a run, in addition to the limits of `rules`.
    pub budgets: Budgets,
    /// Requires a person's approval of each plan before its first action.
    pub approves_plans: bool,
    /// Facts about tools from the operator, by tool name.
    pub effects: BTreeMap<String, ToolFacts>,
    /// Services and pipelines, called through tools of the host.
    pub remotes: Vec<Remote>,
    /// Execution of delegated actions.
    pub delegation: Delegation,
    /// Lifetime of questions and approvals, in seconds.
    pub interaction_seconds: u32,
    /// Model that summarizes long results.
    pub summarizer: Option<String>,
    /// Ids of the knowledge bases for `knowledge.search`.
    pub knowledge_bases: Vec<String>,
    /// Passages requested from each knowledge base.
    pub retrieval_top_k: u64,
}

/// Model of the run with its granted operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelOption {
    /// Model id in the resource policy.
    pub id: String,
    /// The grant includes `stream`.
    pub streams: bool,
    /// The grant includes `invoke`.
    pub invokes: bool,
    /// The provider accepts a pinned tool. Assumed until it refuses one.
    pub pins: bool,
}

/// Token bounds of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Tokens of all model calls; `None`: unbounded.
    pub tokens: Option<u64>,
    /// Context window of the model, in tokens.
    pub window: usize,
    /// Tokens of the window that are reserved for the answer.
    pub reserve: usize,
}

impl Budgets {
    /// Maximum tokens of a request.
    pub fn request(&self) -> usize {
        // A reserve beyond the window must not leave an empty request.
        self.window - self.reserve.min(self.window / 4)
    }
}

/// Execution of delegated actions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delegation {
    /// As child runs of the host.
    #[default]
    Host,
    /// Disabled: the catalogue lists no agents.
    Off,
}

/// Invalid configuration: every fault with its JSON pointer.
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
    /// Reads the configuration of an agent with these granted resources. Reports all faults together.
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
                // 0 means unbounded.
                tokens: Some(reader.integer("max-tokens", 0, u64::MAX, 0))
                    .filter(|limit| *limit > 0),
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
                MAX_INTERACTION_SECONDS,
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

/// Rules of the protocol, and true if plans need an approval.
fn rules(reader: &mut TableReader<'_>) -> (AgentRules, bool) {
    let defaults = AgentRules::default();
    let carriers = [("flat", CarrierMode::Flat), ("fenced", CarrierMode::Fenced)];
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
    let declarations = reader.integer("max-declarations", 1, MAX_DECLARATIONS, MAX_DECLARATIONS);
    rules.limits.declarations = u32::try_from(declarations).unwrap_or(24);
    rules.limits.parallel =
        u8::try_from(reader.integer("max-parallel", 1, MAX_PARALLEL, 4)).unwrap_or(4);
    (rules, approves_plans)
}

/// First model and its fallbacks, without models that lack a grant.
fn models(reader: &mut TableReader<'_>, resources: &AgentResources) -> Vec<ModelOption> {
    let mut models: Vec<ModelOption> = Vec::new();
    // Grants vary between entries of one agent: a model without one is skipped, not a fault.
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
    // Without a grant, summaries are mechanical; the run does not fail.
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
