//! Graphs: accepted declarations with the state of each action.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::code::Code;
use crate::declaration::{
    AcceptedDeclaration, DeclarationForm, Durability, Execution, Intent, Payload, ReportSpec,
    Strategy,
};
use crate::ids::{ActionId, GraphId};
pub use crate::node::{GraphStatus, Millis};
use crate::node::{Node, NodeState};
use crate::policy::{Policies, ResultPolicy};
use crate::reference::Reference;
use crate::rules::{AgentRules, KnownFacts, StandingApproval};

/// A graph in memory. [`step`](crate::schedule::step) changes it, nothing else does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    /// Its id: `run_id` in transcripts.
    pub id: GraphId,
    /// Revisions so far, from 1.
    pub generation: u32,
    /// Data of its declaration.
    pub info: Info,
    /// Its actions in the order of their declaration; instances follow their fan-out.
    pub nodes: Vec<Node>,
    /// Values that were known at acceptance.
    pub constants: BTreeMap<Reference, Value>,
    /// Bounds and approvals of the run.
    pub settings: RunSettings,
    /// True once it has started; a plan has not.
    pub begun: bool,
    /// Reason that nothing starts any more.
    pub stop: Option<StopReason>,
    /// Number of the last transition.
    pub seq: u64,
    /// The last transitions, oldest first.
    pub transitions: VecDeque<Transition>,
    #[serde(skip)]
    links: Links,
}

/// Data of a graph's declaration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Info {
    /// Short label.
    pub title: String,
    /// The note for the user.
    pub note: String,
    /// The request of the user.
    pub goal: String,
    /// Execute or plan.
    pub intent: Intent,
    /// The form in which it was declared.
    pub origin: DeclarationForm,
    /// Durability and order.
    pub execution: Execution,
    /// Result policy of actions that give none.
    pub response_policy: Option<ResultPolicy>,
    /// The report that ends the run.
    pub report: Option<ReportSpec>,
    /// Reserved policies and unknown fields.
    pub policies: Policies,
    /// SHA-256 of the raw output.
    pub raw_sha256: String,
    /// SHA-256 of the accepted declaration.
    pub accepted_sha256: String,
    /// SHA-256 over its work only.
    pub semantic_sha256: String,
}

/// Bounds and approvals of the run that drives the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    /// Actions at the same time.
    pub parallel: u8,
    /// Agents at the same time, those that are waited for included.
    pub agents: u8,
    /// True if the surface can ask the user.
    pub can_ask: bool,
    /// Approvals for the conversation.
    pub standing: Vec<StandingApproval>,
    /// Time that an aborted action has to confirm its end, in milliseconds.
    pub grace_ms: u32,
    /// Longest delay before a retry, in milliseconds.
    pub retry_delay_ms: u32,
    /// Retries by decision, per action.
    pub decisions: u8,
    /// Bytes of an output that are stored.
    pub output_bytes: usize,
    /// Transitions that are kept.
    pub transitions: usize,
}

/// Reason that nothing starts any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The user or a parent cancelled it.
    Canceled,
    /// An action with the policy `abort` failed, or a decision aborted the graph.
    Aborted,
    /// Its time is over.
    Deadline,
    /// Its budget is used up: running actions may end.
    Budget,
}

impl StopReason {
    /// The code that canceled actions carry.
    pub fn code(self) -> Code {
        match self {
            Self::Canceled | Self::Aborted => Code::Canceled,
            Self::Deadline => Code::Deadline,
            Self::Budget => Code::BudgetExhausted,
        }
    }
}

/// One change of an action's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Its number, dense from 1.
    pub seq: u64,
    /// Time of the change.
    pub at: Millis,
    pub id: ActionId,
    pub attempt: u32,
    pub from: NodeState,
    pub to: NodeState,
    /// Reason of the change, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Code>,
}

/// Positions of ids and edges, rebuilt whenever the list of nodes changes.
#[derive(Clone, Debug, Default, PartialEq)]
struct Links {
    index: HashMap<ActionId, usize>,
    edges: Vec<Edges>,
}

/// The edges of a node, as positions in the list.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Edges {
    /// Must be satisfying.
    pub(crate) needs: Vec<usize>,
    /// Must be settled.
    pub(crate) settles: Vec<usize>,
    /// The fan-out that it belongs to.
    pub(crate) parent: Option<usize>,
}

impl Graph {
    /// The graph of an accepted declaration. An intent other than execute and plan makes an empty graph.
    pub fn new(
        id: GraphId,
        accepted: AcceptedDeclaration,
        rules: &AgentRules,
        facts: &KnownFacts,
        standing: Vec<StandingApproval>,
    ) -> Self {
        let declaration = accepted.declaration;
        let (actions, report) = match declaration.payload {
            Payload::ActionGraph { actions, report } => (actions, report),
            Payload::FinalReportSpec(report) => (Vec::new(), Some(report)),
            _ => (Vec::new(), None),
        };
        let limits = &rules.limits;
        let parallel = match declaration.execution.strategy {
            Strategy::Sequential => 1,
            Strategy::Dag => {
                let requested = declaration
                    .execution
                    .max_parallel
                    .unwrap_or(limits.parallel);
                // A declaration can only lower the operator's limit.
                requested.clamp(1, limits.parallel.max(1))
            }
        };
        let mut graph = Self {
            id,
            generation: 1,
            info: Info {
                title: declaration.title,
                note: declaration.note,
                goal: facts.goal.clone(),
                intent: declaration.intent,
                origin: declaration.source.origin,
                execution: declaration.execution,
                response_policy: declaration.response_policy,
                report,
                policies: declaration.policies,
                raw_sha256: declaration.source.raw_sha256,
                accepted_sha256: declaration.source.accepted_sha256,
                semantic_sha256: declaration.source.semantic_sha256,
            },
            nodes: actions.into_iter().map(Node::new).collect(),
            constants: accepted.constants,
            settings: RunSettings {
                parallel,
                agents: limits.agents,
                can_ask: facts.can_ask,
                standing,
                grace_ms: limits.grace_ms,
                retry_delay_ms: limits.retry_delay_ms,
                decisions: limits.decisions,
                output_bytes: limits.stored_output_bytes,
                transitions: limits.transitions,
            },
            begun: false,
            stop: None,
            seq: 0,
            transitions: VecDeque::new(),
            // Links are built once the nodes have their positions.
            links: Links::default(),
        };
        graph.relink();
        graph
    }

    /// True if its state is stored.
    pub fn is_durable(&self) -> bool {
        self.info.execution.mode == Durability::Durable
    }

    /// The node of this id.
    pub fn node(&self, id: &ActionId) -> Option<&Node> {
        self.position(id).map(|position| &self.nodes[position])
    }

    /// The declared actions, without instances of a fan-out.
    pub fn declared(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.parent.is_none())
    }

    /// The instances of a fan-out, in the order of their items.
    pub fn instances<'a>(&'a self, id: &'a ActionId) -> impl Iterator<Item = &'a Node> {
        self.nodes
            .iter()
            .filter(move |node| node.parent.as_ref() == Some(id))
    }

    /// Open attempts (started, without a known end), for reconciliation after a take-over.
    pub fn open_attempts(&self) -> impl Iterator<Item = (&ActionId, u32)> {
        let open = self.nodes.iter().filter(|node| node.has_open_attempt());
        open.map(|node| (&node.action.id, node.attempt))
    }

    /// The aggregate of a protocol turn: completed, blocked or failed (DSL-33).
    pub fn aggregate(&self) -> GraphStatus {
        let mut nodes = self.declared();
        // A stop decides first: attempts that still end would read as blocked.
        if matches!(self.stop, Some(StopReason::Canceled | StopReason::Aborted)) {
            return GraphStatus::Failed;
            // Uncertain effects block: neither success nor failure may be reported for them.
        }
        if nodes.any(|node| !node.is_settled()) || self.has_uncertain() {
            return GraphStatus::Blocked;
        }
        if self
            .declared()
            .any(|node| node.state == NodeState::Failed && !node.satisfying)
        {
            return GraphStatus::Failed;
        }
        let is_blocked = |node: &Node| matches!(node.state, NodeState::Blocked(_)) && !node.waived;
        // Waived actions were decided about, so they block nothing.
        if self.declared().any(is_blocked) || self.stop.is_some() {
            return GraphStatus::Blocked;
        }
        GraphStatus::Completed
    }

    fn has_uncertain(&self) -> bool {
        self.nodes
            .iter()
            .any(|node| node.state == NodeState::Uncertain)
    }

    /// The status of the graph for users.
    pub fn status(&self) -> GraphStatus {
        let is_running =
            |node: &Node| matches!(node.state, NodeState::Running) || node.state.is_timed();
        if !self.begun {
            return GraphStatus::Pending;
        }
        // Running attempts precede a stop: a stopped graph still waits for their end.
        if self.nodes.iter().any(is_running) {
            return GraphStatus::Running;
        }
        match self.stop {
            Some(StopReason::Canceled) => return GraphStatus::Canceled,
            Some(StopReason::Aborted | StopReason::Deadline | StopReason::Budget) => {
                return GraphStatus::Failed;
            }
            None => {}
        }
        // Before the waits: an uncertain effect needs a person first.
        if self.has_uncertain() {
            return GraphStatus::Blocked;
        }
        let is_waiting = |node: &Node| matches!(node.state, NodeState::Waiting(_));
        if self.nodes.iter().any(is_waiting) {
            return GraphStatus::Waiting;
        }
        if self.nodes.iter().any(|node| !node.is_settled()) {
            return GraphStatus::Running;
        }
        self.aggregate()
    }

    /// The same without values and transitions, for the stored form.
    // Bodies hold the values; transitions were reported as notes before.
    pub(crate) fn without_values(&self) -> Self {
        Self {
            id: self.id.clone(),
            generation: self.generation,
            info: self.info.clone(),
            nodes: self.nodes.iter().map(Node::without_values).collect(),
            constants: BTreeMap::new(),
            settings: self.settings.clone(),
            begun: self.begun,
            stop: self.stop,
            seq: self.seq,
            transitions: VecDeque::new(),
            links: Links::default(),
        }
    }

    pub(crate) fn position(&self, id: &ActionId) -> Option<usize> {
        // The index is stale after a restore until `relink`; the search is the fallback.
        if self.links.edges.len() == self.nodes.len() {
            self.links.index.get(id).copied()
        } else {
            self.nodes.iter().position(|node| node.action.id == *id)
        }
    }

    pub(crate) fn edges(&self, position: usize) -> &Edges {
        &self.links.edges[position]
    }

    /// Rebuilds places and edges after a restore or a change of the list.
    pub(crate) fn relink(&mut self) {
        let ids = self.nodes.iter().enumerate();
        let index: HashMap<_, _> = ids.map(|(at, node)| (node.action.id.clone(), at)).collect();
        let positions = |ids: &[ActionId]| -> Vec<usize> {
            ids.iter().filter_map(|id| index.get(id).copied()).collect()
        };
        let edges = self.nodes.iter().map(|node| Edges {
            needs: positions(&node.action.depends_on),
            settles: node
                .action
                .resolved
                .as_ref()
                .map_or_else(Vec::new, |one| positions(&one.settles)),
            parent: node.parent.as_ref().and_then(|id| index.get(id).copied()),
        });
        let edges = edges.collect();
        self.links = Links { index, edges };
    }

    pub(crate) fn is_linked(&self) -> bool {
        self.links.edges.len() == self.nodes.len()
    }
}
