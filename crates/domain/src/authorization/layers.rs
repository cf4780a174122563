//! Evaluates the four layers in order for each operation of each resource.

use std::borrow::Cow;
use std::collections::BTreeSet;

use protocol::admin::{AgentSpec, Concurrency, ToolPolicy, ToolRule};
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::{
    EventOperation, KnowledgeBaseResource, ModelResource, StateScope, StorageArea, StorageResource,
    ToolApproval, ToolResource,
};

use super::{Decision, EventScope, Layer, ParentGrant};
use crate::form::{SelectorValues, selected};
use crate::tool_policy::matching_rule;

mod agents;
mod amendments;
mod artifacts;
mod history;
mod interactions;
mod platform_actions;
mod schedules;
mod skills;

/// Initial capacity: the number of decisions of a run with few grants.
const DECISIONS: usize = 32;

/// Decisions so far.
pub(super) struct LayerEvaluation<'a> {
    manifest: &'a AgentRunnerManifest,
    agent: &'a AgentSpec,
    parent: Option<&'a ParentGrant<'a>>,
    selected: SelectorValues,
    pub(super) decisions: Vec<Decision>,
    pub(super) operations: BTreeSet<String>,
}

/// Verdict of a layer: the layer, whether it passes, and the denying rule.
type LayerVerdict = (Layer, bool, &'static str);

impl<'a> LayerEvaluation<'a> {
    pub(super) fn new(
        manifest: &'a AgentRunnerManifest,
        agent: &'a AgentSpec,
        parent: Option<&'a ParentGrant<'a>>,
    ) -> Self {
        Self {
            manifest,
            agent,
            parent,
            selected: selected(&manifest.config_schema, &agent.config),
            decisions: Vec::with_capacity(DECISIONS),
            operations: BTreeSet::new(),
        }
    }

    /// Evaluates the layers in order and records the decision.
    fn decide(
        &mut self,
        kind: &'static str,
        id: &str,
        operation: &'static str,
        checks: &[LayerVerdict],
    ) -> bool {
        // The first layer that denies is the reason that operators see.
        let trimmed = checks.iter().find(|(_, passes, _)| !passes).copied();
        // The parent is the last layer: a child run gets the rule of its own agent first.
        let trimmed = trimmed.or_else(|| {
            let rule = self.parent?.refusal(kind, id, operation)?;
            Some((Layer::Parent, false, rule))
        });
        // Recorded also if granted: the snapshot explains both.
        let granted = trimmed.is_none();
        let (layer, rule) = match trimmed {
            // An empty rule is the common case of the manifest, whose text needs the kind.
            Some((Layer::Manifest, _, "")) => (
                Layer::Manifest,
                format!("permissions.{kind} lacks {operation}").into(),
            ),
            Some((layer, _, rule)) => (layer, Cow::from(rule)),
            None => (Layer::EventScope, allowing_rule(checks)),
        };
        self.decisions.push(Decision {
            kind: singular(kind).into(),
            id: id.to_owned(),
            operation: operation.into(),
            granted,
            layer,
            rule,
        });
        // Operations of denied resources must not open the API as such.
        if granted {
            self.operations.insert(format!("{kind}:{operation}"));
        }
        granted
    }

    pub(super) fn models(&mut self, models: &[ModelResource]) -> Vec<ModelResource> {
        let mut granted = Vec::new();
        for model in models {
            let mut operations = Vec::new();
            for &operation in &model.operations {
                // A form without selectors restricts nothing.
                let picked = self.selected.models.as_ref().is_none_or(|models| {
                    models.iter().any(|one| {
                        one.model_id == model.model_id && one.operations.contains(&operation)
                    })
                });
                let checks = [
                    (
                        Layer::Manifest,
                        self.manifest.permissions.models.contains(&operation),
                        "",
                    ),
                    (
                        Layer::AgentPolicy,
                        self.agent.resource_policy.models.names(&model.model_id),
                        "resource_policy.models does not name it",
                    ),
                    (
                        Layer::ConfigSelector,
                        picked,
                        "no model selector of the config picked it",
                    ),
                ];
                if self.decide("models", &model.model_id, operation.as_str(), &checks) {
                    operations.push(operation);
                }
            }
            // A model without operations is invisible to the run.
            if !operations.is_empty() {
                granted.push(ModelResource {
                    operations,
                    ..model.clone()
                });
            }
        }
        granted
    }

    pub(super) fn tools(&mut self, tools: &[ToolResource]) -> Vec<ToolResource> {
        let mut granted = Vec::new();
        for tool in tools {
            let entry = matching_rule(&self.agent.resource_policy.tools, &tool.tool_name);
            let rule = entry.unwrap_or(ToolRule::Deny);
            let is_denied = rule == ToolRule::Deny;
            let mut operations = Vec::new();
            for &operation in &tool.operations {
                let picked = self
                    .selected
                    .tools
                    .as_ref()
                    .is_none_or(|names| names.contains(&tool.tool_name));
                let checks = [
                    (
                        Layer::Manifest,
                        self.manifest.permissions.tools.contains(&operation),
                        "",
                    ),
                    (
                        Layer::AgentPolicy,
                        !is_denied,
                        denying_rule(&self.agent.resource_policy.tools),
                    ),
                    (
                        Layer::ConfigSelector,
                        picked,
                        "the config's tools do not name it",
                    ),
                ];
                if self.decide("tools", &tool.tool_name, operation.as_str(), &checks) {
                    operations.push(operation);
                }
            }
            self.amendment(tool, entry, &operations);
            if !operations.is_empty() {
                let approval = self.approval_of(tool, rule);
                granted.push(ToolResource {
                    operations,
                    approval,
                    ..tool.clone()
                });
            }
        }
        granted
    }

    /// Approval that the calls of a granted tool need. A child run needs each approval that its parent needs.
    fn approval_of(&mut self, tool: &ToolResource, rule: ToolRule) -> Option<ToolApproval> {
        let of_parent = self
            .parent
            .and_then(|parent| parent.approval_of(&tool.tool_name));
        let (layer, rule) = match (rule, of_parent) {
            (ToolRule::Ask, _) => (
                Layer::AgentPolicy,
                "resource_policy.tools asks before each call",
            ),
            (_, Some(_)) => (Layer::Parent, "the parent run asks before each call"),
            _ => return None,
        };
        self.decisions.push(Decision {
            kind: "tool".into(),
            id: tool.tool_name.clone(),
            operation: "ask".into(),
            granted: true,
            layer,
            rule: rule.into(),
        });
        Some(ToolApproval::Ask)
    }

    pub(super) fn knowledge_bases(
        &mut self,
        bases: &[KnowledgeBaseResource],
    ) -> Vec<KnowledgeBaseResource> {
        let mut granted = Vec::new();
        for base in bases {
            let mut operations = Vec::new();
            for &operation in &base.operations {
                let allowed = self
                    .manifest
                    .permissions
                    .knowledge_bases
                    .contains(&operation);
                let picked = self
                    .selected
                    .knowledge_bases
                    .as_ref()
                    .is_none_or(|ids| ids.contains(&base.kb_id));
                let checks = [
                    (Layer::Manifest, allowed, ""),
                    (
                        Layer::AgentPolicy,
                        self.agent
                            .resource_policy
                            .knowledge_bases
                            .names(&base.kb_id),
                        "resource_policy.knowledge_bases does not name it",
                    ),
                    (
                        Layer::ConfigSelector,
                        picked,
                        "no selector of the config picked it",
                    ),
                ];
                if self.decide("knowledge_bases", &base.kb_id, operation.as_str(), &checks) {
                    operations.push(operation);
                }
            }
            if !operations.is_empty() {
                granted.push(KnowledgeBaseResource {
                    operations,
                    ..base.clone()
                });
            }
        }
        granted
    }

    pub(super) fn storage(&mut self) -> StorageResource {
        let mut granted = StorageResource::default();
        for &area in StorageArea::ALL {
            let checks = [
                (
                    Layer::Manifest,
                    self.manifest.permissions.storage.contains(&area),
                    "",
                ),
                (
                    Layer::AgentPolicy,
                    self.agent.resource_policy.storage.contains(&area),
                    "resource_policy.storage does not name it",
                ),
            ];
            // The area is its own id: each exists once per owner.
            let is_open = self.decide("storage", area.as_str(), area.as_str(), &checks);
            match area {
                StorageArea::Plugin => granted.plugin_storage = is_open,
                StorageArea::Workspace => granted.workspace_storage = is_open,
                StorageArea::Binding => granted.binding_storage = is_open,
            }
        }
        granted
    }

    /// Decides `get` and `page`, in this order.
    pub(super) fn events(&mut self, has_conversation: bool) -> (bool, bool) {
        let mut granted = (false, false);
        for &operation in EventOperation::ALL {
            // An event can be read by its id without a conversation; pages need one.
            let pages = operation == EventOperation::Page;
            let checks = [
                (
                    Layer::Manifest,
                    self.manifest.permissions.events.contains(&operation),
                    "",
                ),
                (
                    Layer::AgentPolicy,
                    self.agent.resource_policy.events.contains(&operation),
                    "resource_policy.events does not name it",
                ),
                (
                    Layer::EventScope,
                    has_conversation || !pages,
                    "the event has no conversation",
                ),
            ];
            let decided = self.decide("events", "conversation", operation.as_str(), &checks);
            if pages {
                granted.1 = decided;
            } else {
                granted.0 = decided;
            }
        }
        granted
    }

    /// Decides the list of runs of the same runner and conversation. Each run can always read itself.
    pub(super) fn runs(&mut self, has_conversation: bool) -> bool {
        let checks = [(
            Layer::EventScope,
            has_conversation,
            "the event has no conversation",
        )];
        self.decide("runs", "conversation", "list", &checks)
    }

    pub(super) fn steering(&mut self, has_conversation: bool) -> bool {
        let checks = [
            (
                Layer::Manifest,
                self.manifest.capabilities.steering,
                "capabilities.steering is false",
            ),
            (
                Layer::AgentPolicy,
                self.agent.concurrency == Concurrency::Steer,
                "concurrency is not steer",
            ),
            (
                Layer::EventScope,
                has_conversation,
                "the event has no conversation",
            ),
        ];
        self.decide("steering", "conversation", "pull", &checks)
    }

    /// Decides the effective prompt. It belongs to the event, like its input.
    // No layer but the parent applies.
    pub(super) fn prompt(&mut self) -> bool {
        self.decide("prompt", "effective", "get", &[])
    }

    pub(super) fn state(&mut self, event: EventScope) -> Vec<StateScope> {
        let policy = &self.agent.state_policy;
        let permissions = &self.manifest.permissions;
        let mut granted = Vec::new();
        // All scopes are decided, so that the snapshot explains each missing one.
        for &scope in StateScope::ALL {
            let checks = [
                (
                    Layer::Manifest,
                    permissions.state.contains(&scope) || !permissions.storage.is_empty(),
                    "permissions.state lacks it, and permissions.storage is empty",
                ),
                (
                    Layer::AgentPolicy,
                    policy.enabled,
                    "state_policy.enabled is false",
                ),
                (
                    Layer::AgentPolicy,
                    policy.scopes.contains(&scope),
                    "state_policy.scopes does not name it",
                ),
                (Layer::EventScope, event.names(scope), missing_party(scope)),
            ];
            if self.decide("state", scope.as_str(), scope.as_str(), &checks) {
                granted.push(scope);
            }
        }
        granted
    }
}

/// Rule of a granted operation: the setting of the agent's policy that allows it, with which rules of a policy begin.
fn allowing_rule(checks: &[LayerVerdict]) -> Cow<'static, str> {
    let mut policies = checks.iter().rev();
    let policy = policies.find(|(layer, ..)| *layer == Layer::AgentPolicy);
    match policy.and_then(|(_, _, denial)| denial.split_once(' ')) {
        Some((setting, _)) => format!("{setting} allows it").into(),
        None => "every layer allows it".into(),
    }
}

/// Rule of a tool that the policy denies.
fn denying_rule(policy: &ToolPolicy) -> &'static str {
    match policy {
        ToolPolicy::List(_) => "resource_policy.tools does not name it",
        ToolPolicy::Rules(_) => "resource_policy.tools denies it",
    }
}

/// The rule of a scope whose party the event lacks.
fn missing_party(scope: StateScope) -> &'static str {
    match scope {
        StateScope::Conversation => "the event has no conversation",
        StateScope::Actor => "the event has no actor",
        StateScope::Subject => "the event has no subject",
        StateScope::Runner | StateScope::Binding => "every event has it",
    }
}

fn singular(kind: &'static str) -> &'static str {
    match kind {
        "knowledge_bases" => "knowledge_base",
        "models" | "tools" | "skills" | "agents" | "runs" | "artifacts" | "files" => {
            &kind[..kind.len() - 1]
        }
        other => other,
    }
}
