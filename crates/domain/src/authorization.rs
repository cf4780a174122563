//! Authorization of a run: four layers in order, one frozen snapshot (`docs/protocol.md`, Resources).
//!
//! Grants = manifest permissions ∩ agent policy ∩ config selectors ∩ scope of the event. The snapshot is stored
//! with the run. `ctx.resources`, `available_apis` and the token's claims derive from it, and the host API
//! checks nothing else.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use protocol::JsonObject;
use protocol::admin::{AgentSpec, IdList};
use protocol::context::AvailableApis;
use protocol::id::{AgentId, ApiKeyId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::{
    AgentOperation, AgentResource, AgentResources, ArtifactOperation, FileResource,
    HistoryOperation, KnowledgeBaseResource, ModelOperation, ModelResource, SkillResource,
    StateScope, StorageArea, ToolResource,
};
use serde::{Deserialize, Serialize};

use crate::event::ConversationIdentity;
use crate::generation::ConversationGeneration;
use crate::state::StateOwner;

pub use granted::{EventScope, GrantCandidates, SharedGrants};
pub use parent::{Ancestor, ParentGrant};
pub use questions::{
    ActionNotGranted, amendable_tool, granted_action, granted_wake, has_amendable_tools,
    has_granted_actions, needs_approval,
};

pub mod advice;
mod audited;
pub mod denials;
mod granted;
mod layers;
#[cfg(test)]
mod monotonicity;
mod named;
mod parent;
mod questions;

/// Version of snapshots that this binary writes and reads. A snapshot of another version grants nothing.
pub const SNAPSHOT_VERSION: u32 = 1;

/// Operation that opens the transcripts of all conversations of the workspace.
const ALL_HISTORY: &str = "history:workspace";

/// Resources that the operator declares: the upper bound of all agents.
#[derive(Clone, Debug, Default)]
pub struct ResourceCatalog {
    /// `operations`: the capabilities of the model.
    pub models: Vec<ModelResource>,
    pub tools: Vec<ToolResource>,
    pub knowledge_bases: Vec<KnowledgeBaseResource>,
    pub skills: Vec<SkillResource>,
    /// Tools of every run with a granted skill.
    pub skill_tools: Vec<ToolResource>,
    /// The tool that registers a skill for later runs. Granted only to agents whose policy lists it by name.
    pub register_skill: Option<ToolResource>,
    pub files: Vec<FileResource>,
    /// Token limits of models, by model id.
    pub model_limits: BTreeMap<String, ModelLimits>,
}

/// Token limits of a model, if configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLimits {
    pub context_window_tokens: Option<u64>,
    pub max_output_tokens: Option<u64>,
}

impl ResourceCatalog {
    /// Returns the limits of the run's first model with `invoke` or `stream`.
    pub fn first_limits(&self, resources: &AgentResources) -> ModelLimits {
        let answers = |model: &&ModelResource| {
            let kinds = [ModelOperation::Invoke, ModelOperation::Stream];
            kinds.iter().any(|kind| model.operations.contains(kind))
        };
        let first = resources.models.iter().find(answers);
        let limits = first.and_then(|first| self.model_limits.get(&first.model_id));
        limits.copied().unwrap_or_default()
    }
}

/// The run of a snapshot.
#[derive(Clone, Debug)]
pub struct Subject<'a> {
    pub run_id: RunId,
    pub agent_version: i64,
    pub endpoint_id: EndpointId,
    pub event_id: &'a str,
    /// True if the event source supplied an effective prompt.
    pub has_prompt: bool,
    /// True if the surface of the event can show questions.
    pub shows_interactions: bool,
    /// True if the event has files that are artifacts.
    pub has_artifacts: bool,
    /// Skills that runs of the same agent registered.
    pub registered_skills: &'a [SkillResource],
    /// Agents that the agent's policy lists, see [`peers`].
    pub peers: &'a [AgentResource],
    /// Grant of the parent, for a child run.
    pub parent: Option<&'a ParentGrant<'a>>,
    /// Limits of the agent, and of the key that starts the run.
    pub token_limits: &'a [TokenLimit],
    pub owner: StateOwner<'a>,
}

impl Subject<'_> {
    /// Returns the limits of the run's model calls. Those of a key hold for child runs too: otherwise an agent could
    /// evade them.
    fn token_limits(&self) -> Vec<TokenLimit> {
        let of_parent = self.parent.map(|parent| &parent.snapshot.token_limits);
        let of_key = of_parent.into_iter().flatten();
        let of_key = of_key.filter(|limit| matches!(limit.of, LimitedId::ApiKey(_)));
        self.token_limits.iter().chain(of_key).copied().collect()
    }
}

/// Frozen authorization of one run. Its canonical JSON is hashed and stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuthorizationSnapshot {
    pub v: u32,
    pub run_id: RunId,
    pub workspace_id: WorkspaceId,
    pub agent_id: AgentId,
    pub agent_version: i64,
    /// Ancestors of a child run, parent first. Empty for a run that an event started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ancestors: Vec<Ancestor>,
    pub runner_id: RunnerId,
    pub endpoint_id: EndpointId,
    pub event_id: String,
    /// Generation of the conversation, after the first. The run reads nothing of earlier ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<ConversationGeneration>,
    /// The conversation whose history is readable: `bot_id`, `conversation_id`, `thread_id`.
    pub conversation: Option<FrozenConversation>,
    pub resources: Arc<AgentResources>,
    pub available_apis: AvailableApis,
    /// Granted operations, as the token's `scope` lists them.
    pub operations: Arc<BTreeSet<String>>,
    /// Canonical owner of each granted state scope.
    pub state: BTreeMap<StateScope, String>,
    /// Limits of the model calls of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_limits: Vec<TokenLimit>,
    pub decisions: Arc<[Decision]>,
}

/// Limit of model tokens in a minute, shared by all runs of a key or an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenLimit {
    pub of: LimitedId,
    pub per_minute: NonZeroU32,
}

/// A key or an agent with limits of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitedId {
    ApiKey(ApiKeyId),
    Agent(AgentId),
}

/// The conversation of a run. Absent parts are `''`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrozenConversation {
    pub bot_id: String,
    pub conversation_id: String,
    pub thread_id: String,
}

impl From<&ConversationIdentity> for FrozenConversation {
    fn from(identity: &ConversationIdentity) -> Self {
        Self {
            bot_id: identity.bot_id.clone(),
            conversation_id: identity.conversation_id.clone(),
            thread_id: identity.thread_id.clone(),
        }
    }
}

/// Decision on one operation: granted, or denied by a layer and rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    pub kind: Cow<'static, str>,
    pub id: String,
    pub operation: Cow<'static, str>,
    pub granted: bool,
    /// The layer that denied the operation, or the last layer if it is granted.
    pub layer: Layer,
    pub rule: Cow<'static, str>,
}

/// The four layers in order, then the parent of a child run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    Manifest,
    AgentPolicy,
    ConfigSelector,
    EventScope,
    /// Snapshot of the parent run, and `grants` of its request.
    Parent,
}

/// An operation that the snapshot does not grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this run was not granted {operation}")]
pub struct NotGranted {
    pub operation: &'static str,
}

/// A model that the snapshot does not grant for an operation, with those that it does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this run was not granted {operation} of the model `{model}`; {}", granted_models(.granted))]
pub struct ModelNotGranted {
    pub operation: &'static str,
    pub model: String,
    pub granted: Vec<String>,
}

fn granted_models(granted: &[String]) -> String {
    if granted.is_empty() {
        // Names the setting, because the runner's author often cannot see the agent's policy.
        return "it was granted no model for it: name one in resource_policy.models".to_owned();
    }
    format!("granted: {}", granted.join(", "))
}

impl AuthorizationSnapshot {
    /// Returns the sequence that the readable part of the transcript follows.
    pub fn transcript_after(&self) -> i64 {
        self.generation
            .map_or(0, |generation| generation.transcript_after)
    }

    /// Returns the owner of a state scope.
    pub fn state_scope(&self, scope: StateScope) -> Result<&str, NotGranted> {
        let operation = match scope {
            StateScope::Conversation => "state:conversation",
            StateScope::Actor => "state:actor",
            StateScope::Subject => "state:subject",
            StateScope::Runner => "state:runner",
            StateScope::Binding => "state:binding",
        };
        self.state
            .get(&scope)
            .map(String::as_str)
            .ok_or(NotGranted { operation })
    }

    /// Checks access to the checkpoint of the run, which any state scope grants.
    pub fn checkpoint(&self) -> Result<(), NotGranted> {
        let has_state = !self.state.is_empty();
        let operation = "state";
        has_state.then_some(()).ok_or(NotGranted { operation })
    }

    /// Returns the conversation whose transcript the run may page or search. `None`: the operation is granted,
    /// but the event has no conversation.
    pub fn history(
        &self,
        operation: HistoryOperation,
    ) -> Result<Option<&FrozenConversation>, NotGranted> {
        let name = match operation {
            HistoryOperation::Page => "history:page",
            HistoryOperation::Search => "history:search",
            HistoryOperation::Workspace => ALL_HISTORY,
        };
        // The history of the workspace includes the run's own conversation.
        if self.operations.contains(name) || self.operations.contains(ALL_HISTORY) {
            return Ok(self.conversation.as_ref());
        }
        // The layers before the event allow it: the event has no conversation, so its history is empty, not forbidden.
        let lacks_only_a_conversation = |decision: &Decision| {
            decision.kind == "history"
                && decision.operation == operation.as_str()
                && decision.layer == Layer::EventScope
        };
        match self.conversation {
            None if self.decisions.iter().any(lacks_only_a_conversation) => Ok(None),
            _ => Err(NotGranted { operation: name }),
        }
    }

    /// Checks access to the transcript of a conversation that is not the run's own.
    pub fn other_history(&self, conversation_id: &str) -> Result<(), NotGranted> {
        // Conversations of the policy are decisions, not operations: the claim of the token would grow with each.
        let names = |one: &Decision| {
            one.granted
                && one.kind == "history"
                && one.operation == "conversation"
                && one.id == conversation_id
        };
        if self.decisions.iter().any(names) {
            return Ok(());
        }
        self.granted(ALL_HISTORY)
    }

    /// Checks an operation on artifacts of the run's own scope.
    pub fn artifacts(&self, operation: ArtifactOperation) -> Result<(), NotGranted> {
        self.granted(match operation {
            ArtifactOperation::Metadata => "artifacts:metadata",
            ArtifactOperation::Read => "artifacts:read",
            ArtifactOperation::Create => "artifacts:create",
        })
    }

    /// Checks read access to event files: those of the run's own event, and of events of earlier runs of its
    /// agent and conversation.
    pub fn event_artifacts(&self) -> Result<(), NotGranted> {
        // The token's scope lists grants only. This right comes from the event.
        let is_it = |one: &Decision| one.kind == "event_artifact" && one.granted;
        let operation = "event_artifacts:read";
        let found = self.decisions.iter().any(is_it);
        found.then_some(()).ok_or(NotGranted { operation })
    }

    /// Returns a granted file of the operator. The grant includes reading, independent of artifact operations.
    pub fn file(&self, artifact_id: &str) -> Option<FileResource> {
        let is_it = |file: &&JsonObject| file.get("id").is_some_and(|id| id == artifact_id);
        let found = self.resources.files.iter().find(is_it)?;
        // A file of a newer format is treated as not granted.
        serde_json::from_value(found.clone().into()).ok()
    }

    /// Returns the owner of a storage area: the plugin, the agent, or `''` for the workspace.
    pub fn storage_area(&self, area: StorageArea) -> Result<String, NotGranted> {
        let (operation, owner) = match area {
            // Storage of the plugin is shared by all runners of that plugin.
            StorageArea::Plugin => ("storage:plugin", self.runner_id.plugin()),
            StorageArea::Workspace => ("storage:workspace", String::new()),
            StorageArea::Binding => ("storage:binding", self.agent_id.to_string()),
        };
        self.granted(operation).map(|()| owner)
    }

    /// Checks access to single events of the run's own scope.
    pub fn event_get(&self) -> Result<(), NotGranted> {
        self.granted("events:get")
    }

    /// Returns the conversation whose events the run may page.
    pub fn event_page(&self) -> Result<&FrozenConversation, NotGranted> {
        self.granted("events:page")?;
        // A snapshot grants pages only with a conversation, so this guards against a corrupt snapshot.
        self.conversation.as_ref().ok_or(NotGranted {
            operation: "events:page",
        })
    }

    fn granted(&self, operation: &'static str) -> Result<(), NotGranted> {
        let granted = self.operations.contains(operation);
        granted.then_some(()).ok_or(NotGranted { operation })
    }

    /// Returns the conversation whose runs of the same runner the run may list.
    pub fn run_list(&self) -> Result<&FrozenConversation, NotGranted> {
        let listed = self.granted("runs:list");
        listed.and(self.conversation.as_ref().ok_or(NotGranted {
            operation: "runs:list",
        }))
    }

    /// Checks access to the effective prompt.
    pub fn prompt_get(&self) -> Result<(), NotGranted> {
        self.granted("prompt:get")
    }

    /// Checks access to steering events.
    pub fn steering_pull(&self) -> Result<(), NotGranted> {
        self.granted("steering:pull")
    }

    /// Returns the token's `scope` claim.
    pub fn scope_claim(&self) -> String {
        self.operations
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Authorizes a run: passes every catalog entry through the layers and records each decision.
pub fn authorize(
    catalog: &ResourceCatalog,
    manifest: &AgentRunnerManifest,
    agent: &AgentSpec,
    subject: &Subject<'_>,
) -> AuthorizationSnapshot {
    let considered = GrantCandidates {
        catalog,
        registered_skills: subject.registered_skills,
        peers: subject.peers,
        parent: subject.parent,
    };
    SharedGrants::to(considered, manifest, agent, EventScope::of(subject)).snapshot(subject)
}

/// Returns the agents that the policy of `own` lists by id or name, sorted by name. `"*"` lists all agents
/// except `own`.
pub fn peers<'a>(
    own_id: AgentId,
    own: &AgentSpec,
    agents: impl IntoIterator<Item = (AgentId, &'a AgentSpec)>,
) -> Vec<AgentResource> {
    let policy = &own.resource_policy.agents;
    if policy.is_empty() {
        // Spares most agents the comparison with all others.
        return Vec::new();
    }
    let is_named = |id: AgentId, agent: &AgentSpec| match policy {
        // An agent that calls itself could recurse without an explicit choice.
        IdList::All(_) => id != own_id,
        IdList::Ids(_) => policy.names(&id.to_string()) || policy.names(&agent.name),
    };
    let named = agents
        .into_iter()
        .filter(|(id, agent)| is_named(*id, agent));
    let mut peers: Vec<_> = named
        .map(|(id, agent)| AgentResource {
            agent_id: id.to_string(),
            display_name: Some(agent.name.clone()),
            description: agent.description.clone(),
            operations: AgentOperation::ALL.to_vec(),
        })
        .collect();
    // Sorted, since the snapshot is hashed.
    peers.sort_by(|one, other| one.display_name.cmp(&other.display_name));
    peers
}

#[cfg(test)]
mod tests {
    use protocol::platform_action::ActionApproval;
    use protocol::resources::ToolOperation;
    use serde_json::json;

    use super::*;

    pub(super) fn catalog() -> ResourceCatalog {
        ResourceCatalog {
            models: serde_json::from_value(json!([
                {"model_id": "m1", "operations": ["invoke", "stream"]},
                {"model_id": "m2", "operations": ["invoke"]},
            ]))
            .unwrap(),
            tools: serde_json::from_value(
                json!([{"tool_name": "search", "operations": ["detail", "call"]}]),
            )
            .unwrap(),
            knowledge_bases: serde_json::from_value(
                json!([{"kb_id": "k", "operations": ["list", "retrieve"]}]),
            )
            .unwrap(),
            skills: serde_json::from_value(json!([{"skill_name": "s"}])).unwrap(),
            skill_tools: serde_json::from_value(
                json!([{"tool_name": "activate", "operations": ["detail", "call"]}]),
            )
            .unwrap(),
            register_skill: serde_json::from_value(
                json!({"tool_name": "register_skill", "operations": ["call"]}),
            )
            .unwrap(),
            model_limits: BTreeMap::from([(
                "m1".to_owned(),
                ModelLimits {
                    context_window_tokens: Some(128_000),
                    max_output_tokens: None,
                },
            )]),
            files: serde_json::from_value(json!([
                {"id": "f1", "name": "rules", "kind": "config", "mime_type": "text/plain", "size": 3, "sha256": "00"},
                {"id": "f2", "name": "book", "kind": "knowledge", "mime_type": "text/plain", "size": 3, "sha256": "00"},
            ]))
            .unwrap(),
        }
    }

    /// One skill with a name of its own, and one with a name that the operator uses.
    pub(super) fn registered_skills() -> Vec<SkillResource> {
        let registered =
            json!({"run_id": uuid::Uuid::nil(), "version": 1, "sha256": "00", "registered_at": 0});
        let named = |name| json!({"skill_name": name, "registered": registered});
        serde_json::from_value(json!([named("s"), named("own")])).unwrap()
    }

    fn manifest(permissions: &serde_json::Value) -> AgentRunnerManifest {
        serde_json::from_value(json!({
            "id": "plugin:a/b/c", "name": "c", "label": {}, "permissions": permissions,
            "config_schema": [{"type": "llm-model-selector", "name": "model"}],
        }))
        .unwrap()
    }

    fn agent(policy: &serde_json::Value, config: &serde_json::Value) -> AgentSpec {
        serde_json::from_value(json!({
            "name": "a", "event_types": ["*"], "runner_id": "plugin:a/b/c",
            "resource_policy": policy, "config": config,
        }))
        .unwrap()
    }

    fn snapshot(
        permissions: &serde_json::Value,
        policy: &serde_json::Value,
        config: &serde_json::Value,
        conversation: Option<&ConversationIdentity>,
    ) -> AuthorizationSnapshot {
        snapshot_of(&manifest(permissions), policy, config, conversation)
    }

    fn snapshot_of(
        manifest: &AgentRunnerManifest,
        policy: &serde_json::Value,
        config: &serde_json::Value,
        conversation: Option<&ConversationIdentity>,
    ) -> AuthorizationSnapshot {
        snapshot_for(manifest, &agent(policy, config), conversation)
    }

    fn snapshot_for(
        manifest: &AgentRunnerManifest,
        agent: &AgentSpec,
        conversation: Option<&ConversationIdentity>,
    ) -> AuthorizationSnapshot {
        let workspace = WorkspaceId("default".to_owned());
        let owner = StateOwner {
            workspace: &workspace,
            runner: &manifest.id,
            agent: AgentId(uuid::Uuid::nil()),
            bot_id: None,
            generation: None,
            conversation,
            actor: None,
            subject: None,
        };
        let subject = Subject {
            run_id: RunId(uuid::Uuid::nil()),
            agent_version: 1,
            endpoint_id: EndpointId(uuid::Uuid::nil()),
            event_id: "e",
            has_prompt: false,
            shows_interactions: false,
            has_artifacts: false,
            registered_skills: &registered_skills(),
            peers: &[],
            parent: None,
            token_limits: &[],
            owner,
        };
        authorize(&catalog(), manifest, agent, &subject)
    }

    #[test]
    fn ignores_manifest_metadata_in_authorization() {
        let plain = manifest(&json!({"history": ["page"]}));
        let mut boasting = plain.clone();
        let claims = json!({"permissions": everything(), "capabilities": {"steering": true}});
        boasting.metadata = claims.as_object().cloned().unwrap();
        let granted = |manifest| snapshot_of(manifest, &all_named(), &json!({"model": "m1"}), None);
        assert_eq!(granted(&boasting), granted(&plain));
    }

    #[test]
    fn grants_prompt_only_if_event_supplies_one() {
        let (manifest, agent) = (manifest(&json!({})), agent(&json!({}), &json!({})));
        let workspace = WorkspaceId("default".to_owned());
        let with = |has_prompt| {
            let owner = StateOwner {
                workspace: &workspace,
                runner: &manifest.id,
                agent: AgentId(uuid::Uuid::nil()),
                bot_id: None,
                generation: None,
                conversation: None,
                actor: None,
                subject: None,
            };
            let subject = Subject {
                run_id: RunId(uuid::Uuid::nil()),
                agent_version: 1,
                endpoint_id: EndpointId(uuid::Uuid::nil()),
                event_id: "e",
                has_prompt,
                shows_interactions: false,
                has_artifacts: false,
                registered_skills: &[],
                peers: &[],
                parent: None,
                token_limits: &[],
                owner,
            };
            authorize(&catalog(), &manifest, &agent, &subject)
        };
        let open = with(true);
        assert!(open.available_apis.prompt_get && open.prompt_get().is_ok());
        assert!(open.scope_claim().contains("prompt:get"));
        let closed = with(false);
        assert!(!closed.available_apis.prompt_get && closed.prompt_get().is_err());
    }

    fn everything() -> serde_json::Value {
        json!({"models": ["invoke", "stream"], "tools": ["detail", "call"], "knowledge_bases": ["list", "retrieve"], "history": ["page"],
            "state": ["conversation", "actor", "subject", "runner"]})
    }

    fn all_named() -> serde_json::Value {
        json!({"models": "*", "tools": ["search"], "knowledge_bases": "*", "history": ["page"]})
    }

    #[test]
    fn state_needs_a_permission() {
        let conversation = ConversationIdentity {
            bot_id: String::new(),
            conversation_id: "c".to_owned(),
            thread_id: String::new(),
        };
        for (permissions, scopes) in [
            (json!({}), [false, false]),
            (json!({"history": ["page"]}), [false, false]),
            (json!({"state": ["conversation"]}), [true, false]),
            (json!({"state": ["runner"]}), [false, true]),
            // Early manifests request state by a permission for storage.
            (json!({"storage": ["plugin"]}), [true, true]),
        ] {
            let mut agent = agent(&json!({}), &json!({}));
            agent.state_policy.scopes = vec![StateScope::Conversation, StateScope::Runner];
            let snapshot = snapshot_for(&manifest(&permissions), &agent, Some(&conversation));
            for (scope, granted) in [StateScope::Conversation, StateScope::Runner]
                .into_iter()
                .zip(scopes)
            {
                assert_eq!(
                    snapshot.state_scope(scope).is_ok(),
                    granted,
                    "{permissions} {scope:?}"
                );
            }
            let rules = snapshot
                .decisions
                .iter()
                .filter(|one| one.kind == "state" && !one.granted);
            let lacks = rules.filter(|one| {
                one.layer == Layer::Manifest && one.rule.contains("permissions.state")
            });
            let denied = scopes.iter().filter(|granted| !**granted).count();
            assert!(lacks.count() >= denied, "{permissions}");
        }
    }

    #[test]
    fn records_denying_layer_and_rule() {
        let talk = ConversationIdentity {
            bot_id: String::new(),
            conversation_id: "c".to_owned(),
            thread_id: String::new(),
        };
        let full = snapshot(
            &everything(),
            &all_named(),
            &json!({"model": "m1"}),
            Some(&talk),
        );
        assert_eq!(
            full.scope_claim(),
            "history:page knowledge_bases:list knowledge_bases:retrieve models:invoke models:stream \
             runs:list state:conversation tools:call tools:detail"
        );
        let limits = catalog().first_limits(&full.resources);
        assert_eq!(limits.context_window_tokens, Some(128_000));
        let trimmed = |operation: &str, id: &str| {
            let found = full
                .decisions
                .iter()
                .find(|d| d.operation == operation && d.id == id);
            found.map(|decision| (decision.granted, decision.layer))
        };
        assert_eq!(trimmed("invoke", "m1"), Some((true, Layer::EventScope)));
        for (action, resource, operation, rule) in [
            (
                "models_invoke",
                "m1",
                "invoke",
                "resource_policy.models allows it",
            ),
            (
                "call_tool",
                "search",
                "call",
                "resource_policy.tools allows it",
            ),
            (
                "history_page",
                "conversation",
                "page",
                "resource_policy.history allows it",
            ),
            (
                "state_set",
                "conversation/a/b",
                "state",
                "state_policy.scopes allows it",
            ),
            ("run_list", "conversation", "list", "every layer allows it"),
            (
                "models_invoke",
                "m2",
                "invoke",
                "granted by the run's snapshot",
            ),
            ("run_get", "run", "get", "open to every run"),
        ] {
            let allowing = full.allowing_rule(action, resource, operation);
            assert_eq!(allowing, rule, "{action} {resource}");
        }
        assert_eq!(
            trimmed("invoke", "m2"),
            Some((false, Layer::ConfigSelector))
        );
        assert_eq!(trimmed("activate", "s"), Some((false, Layer::Manifest)));
        assert_eq!(
            trimmed("runner", "runner"),
            Some((false, Layer::AgentPolicy))
        );
        assert_eq!(trimmed("actor", "actor"), Some((false, Layer::EventScope)));
    }

    #[test]
    fn grants_history_per_operation_by_manifest_and_policy() {
        let talk = ConversationIdentity {
            bot_id: String::new(),
            conversation_id: "c".to_owned(),
            thread_id: String::new(),
        };
        for (wanted, allowed) in [("page", "page"), ("search", "search"), ("page", "search")] {
            let wants = json!({"history": [wanted]});
            let allows = json!({"history": [allowed]});
            for operation in [HistoryOperation::Page, HistoryOperation::Search] {
                let is_granted = operation.as_str() == wanted && wanted == allowed;
                let with = snapshot(&wants, &allows, &json!({}), Some(&talk));
                let opened = with.history(operation).ok().flatten();
                assert_eq!(opened.is_some(), is_granted, "{operation:?}");
                let apis = with.available_apis;
                let is_page = operation == HistoryOperation::Page;
                let flag = if is_page {
                    apis.history_page
                } else {
                    apis.history_search
                };
                assert_eq!(flag, is_granted, "{operation:?}");

                let without = snapshot(&wants, &allows, &json!({}), None);
                let opened = without.history(operation);
                assert_eq!(opened.is_ok_and(|talk| talk.is_none()), is_granted);
                let apis = without.available_apis;
                assert!(!apis.history_page && !apis.history_search);
            }
        }
    }

    #[test]
    fn platform_actions_need_manifest_policy_and_approval() {
        let both = json!(["message.edit", "shop.refund"]);
        for (requested, policy, expected) in [
            (json!([]), json!({}), Err("do not name it")),
            (both.clone(), json!({}), Err("delivery_policy")),
            (
                json!(["message.recall"]),
                json!({"message.edit": "auto"}),
                Err("permissions.platform_api does not name it"),
            ),
            (
                both.clone(),
                json!({"message.edit": "auto"}),
                Ok(ActionApproval::Auto),
            ),
            (
                both,
                json!({"message.edit": "ask", "message.recall": "auto"}),
                Ok(ActionApproval::Ask),
            ),
        ] {
            let mut agent = agent(&json!({}), &json!({}));
            agent.delivery_policy =
                serde_json::from_value(json!({"platform_actions": policy})).unwrap();
            let manifest = manifest(&json!({"platform_api": requested}));
            let snapshot = snapshot_for(&manifest, &agent, None);
            let found = granted_action(&snapshot, "message.edit");
            match expected {
                Ok(approval) => assert_eq!(found, Ok(approval), "{policy}"),
                Err(rule) => {
                    let denied = found.unwrap_err();
                    assert!(denied.rule.contains(rule), "{denied}");
                }
            }
            assert_eq!(has_granted_actions(&snapshot), expected.is_ok());
            let shown = &snapshot.resources.platform_capabilities;
            assert_eq!(shown.contains_key("message.edit"), expected.is_ok());
            assert!(granted_action(&snapshot, "shop.refund").is_err());
        }
    }

    #[test]
    fn operator_skills_take_precedence_over_registered_skills() {
        let mut manifest = manifest(&json!({}));
        manifest.capabilities.skill_authoring = true;
        for (named, granted) in [
            (json!("*"), vec![("s", false), ("own", true)]),
            (json!(["own"]), vec![("own", true)]),
            (json!(["s"]), vec![("s", false)]),
            (json!([]), vec![]),
        ] {
            let snapshot = snapshot_of(&manifest, &json!({"skills": named}), &json!({}), None);
            let skills = snapshot.resources.skills.iter();
            let skills: Vec<_> = skills
                .map(|skill| (skill.skill_name.as_str(), skill.registered.is_some()))
                .collect();
            assert_eq!(skills, granted, "{named}");
        }
    }

    #[test]
    fn grants_skill_registration_only_by_name() {
        for (authoring, policy, config, layer) in [
            (true, json!(["register_skill"]), json!({}), None),
            (
                false,
                json!(["register_skill"]),
                json!({}),
                Some(Layer::Manifest),
            ),
            (true, json!("*"), json!({}), Some(Layer::AgentPolicy)),
            (true, json!(["search"]), json!({}), Some(Layer::AgentPolicy)),
            (
                true,
                json!(["register_skill"]),
                json!({"enable-all-tools": false, "tools": ["search"]}),
                Some(Layer::ConfigSelector),
            ),
        ] {
            let mut manifest = manifest(&everything());
            manifest.capabilities.skill_authoring = authoring;
            manifest.config_schema =
                serde_json::from_value(json!([{"type": "array", "name": "tools"}])).unwrap();
            let policy = json!({"tools": policy, "skills": "*"});
            let snapshot = snapshot_of(&manifest, &policy, &config, None);
            let found = snapshot.tool("register_skill", ToolOperation::Call);
            assert_eq!(found.is_ok(), layer.is_none(), "{policy}");
            let decided = snapshot
                .decisions
                .iter()
                .find(|one| one.id == "register_skill");
            let decided = decided.unwrap();
            let trimmed = (!decided.granted).then_some(decided.layer);
            assert_eq!(trimmed, layer, "{policy}");
            assert_eq!(decided.kind, "tool");
        }
    }

    #[test]
    fn grants_skill_tools_with_any_skill() {
        let names = |skills: &serde_json::Value, authoring: bool| {
            let mut manifest = manifest(&json!({}));
            manifest.capabilities.skill_authoring = authoring;
            let granted = snapshot_of(&manifest, &json!({"skills": skills}), &json!({}), None);
            assert_eq!(
                granted.skill("s").is_ok(),
                !granted.resources.tools.is_empty()
            );
            granted.tool("activate", ToolOperation::Call).is_ok()
        };
        assert!(names(&json!("*"), true));
        assert!(!names(&json!("*"), false) && !names(&json!([]), true));
    }

    #[test]
    fn grants_artifacts_and_files_by_manifest_and_policy() {
        let wants = json!({"artifacts": ["metadata", "read"], "files": ["config"]});
        let allows = json!({"artifacts": ["read", "create"], "files": "*"});
        let both = snapshot(&wants, &allows, &json!({}), None);
        let open = |one: &AuthorizationSnapshot, operation| one.artifacts(operation).is_ok();
        assert!(open(&both, ArtifactOperation::Read));
        assert!(!open(&both, ArtifactOperation::Metadata));
        assert!(!open(&both, ArtifactOperation::Create));
        assert_eq!(both.file("f1").unwrap().name, "rules");
        assert!(both.file("f2").is_none() && both.file("f3").is_none());
        let apis = both.available_apis;
        assert!(apis.artifact_read && apis.artifact_metadata, "of its file");
        let none = snapshot(&wants, &json!({"files": ["book"]}), &json!({}), None);
        assert!(none.resources.files.is_empty());
        assert!(!none.available_apis.artifact_read && !none.available_apis.artifact_metadata);
    }

    #[test]
    fn event_artifacts_need_no_grant() {
        let talk = ConversationIdentity {
            bot_id: String::new(),
            conversation_id: "c".to_owned(),
            thread_id: String::new(),
        };
        let bare = |has_artifacts, conversation| {
            let (manifest, agent) = (manifest(&json!({})), agent(&json!({}), &json!({})));
            let workspace = WorkspaceId("default".to_owned());
            let subject = Subject {
                run_id: RunId(uuid::Uuid::nil()),
                agent_version: 1,
                endpoint_id: EndpointId(uuid::Uuid::nil()),
                event_id: "e",
                has_prompt: false,
                shows_interactions: false,
                has_artifacts,
                registered_skills: &[],
                peers: &[],
                parent: None,
                token_limits: &[],
                owner: StateOwner {
                    workspace: &workspace,
                    runner: &manifest.id,
                    agent: AgentId(uuid::Uuid::nil()),
                    bot_id: None,
                    generation: None,
                    conversation,
                    actor: None,
                    subject: None,
                },
            };
            authorize(&catalog(), &manifest, &agent, &subject)
        };
        for (has_artifacts, conversation, is_open) in [
            (true, None, true),
            (false, Some(&talk), true),
            (false, None, false),
        ] {
            let snapshot = bare(has_artifacts, conversation);
            assert_eq!(snapshot.event_artifacts().is_ok(), is_open);
            assert_eq!(snapshot.available_apis.artifact_read, has_artifacts);
            assert!(snapshot.artifacts(ArtifactOperation::Read).is_err());
            let decided = snapshot.decisions.iter().any(|one| {
                one.kind == "event_artifact" && one.granted && one.rule.contains("came with")
            });
            assert_eq!(decided, is_open);
        }
    }

    #[test]
    fn child_runs_count_for_the_limit_of_the_key() {
        let limit = |of| TokenLimit {
            of,
            per_minute: NonZeroU32::MIN,
        };
        let agent = |id| LimitedId::Agent(AgentId(uuid::Uuid::from_u128(id)));
        let key = limit(LimitedId::ApiKey(ApiKeyId(uuid::Uuid::nil())));
        let mut parent = snapshot(&json!({}), &json!({}), &json!({}), None);
        parent.token_limits = vec![limit(agent(1)), key];
        let workspace = WorkspaceId("default".to_owned());
        let subject = Subject {
            run_id: RunId(uuid::Uuid::nil()),
            agent_version: 1,
            endpoint_id: EndpointId(uuid::Uuid::nil()),
            event_id: "e",
            has_prompt: false,
            shows_interactions: false,
            has_artifacts: false,
            registered_skills: &[],
            peers: &[],
            parent: Some(&ParentGrant {
                snapshot: &parent,
                grants: None,
            }),
            token_limits: &[limit(agent(2))],
            owner: StateOwner {
                workspace: &workspace,
                runner: &parent.runner_id,
                agent: AgentId(uuid::Uuid::from_u128(2)),
                bot_id: None,
                generation: None,
                conversation: None,
                actor: None,
                subject: None,
            },
        };
        assert_eq!(subject.token_limits(), [limit(agent(2)), key]);
    }

    #[test]
    fn amendments_open_only_tools_without_an_entry() {
        let policy = |tools: serde_json::Value| json!({"tools": tools, "on_denied": "ask"});
        for (permissions, policy, may_amend) in [
            (everything(), policy(json!([])), true),
            (everything(), policy(json!({"other": "allow"})), true),
            (everything(), json!({"tools": []}), false),
            // Granted.
            (everything(), policy(json!(["search"])), false),
            (everything(), policy(json!({"search": "deny"})), false),
            (everything(), policy(json!({"se*": "deny"})), false),
            // The runner may call no tools, and describing one is no call.
            (json!({"tools": ["detail"]}), policy(json!([])), false),
        ] {
            let snapshot = snapshot(&permissions, &policy, &json!({}), None);
            assert_eq!(
                amendable_tool(&snapshot, "search").is_some(),
                may_amend,
                "{permissions} {policy}"
            );
            assert_eq!(has_amendable_tools(&snapshot), may_amend);
            assert_eq!(amendable_tool(&snapshot, "none"), None);
            // The grant itself stays the same.
            let calls = snapshot.tool("search", ToolOperation::Call);
            assert_eq!(calls.is_ok(), policy["tools"] == json!(["search"]));
        }
    }

    #[test]
    fn amendments_of_child_runs_stay_within_the_parent() {
        let (asks, all) = (json!({"tools": [], "on_denied": "ask"}), all_named());
        for (parent_policy, may_amend) in [(&asks, false), (&all, true)] {
            let parent = snapshot(&everything(), parent_policy, &json!({}), None);
            let parent = ParentGrant {
                snapshot: &parent,
                grants: None,
            };
            let manifest = manifest(&everything());
            let workspace = WorkspaceId("default".to_owned());
            let subject = Subject {
                run_id: RunId(uuid::Uuid::nil()),
                agent_version: 1,
                endpoint_id: EndpointId(uuid::Uuid::nil()),
                event_id: "e",
                has_prompt: false,
                shows_interactions: false,
                has_artifacts: false,
                registered_skills: &[],
                peers: &[],
                parent: Some(&parent),
                token_limits: &[],
                owner: StateOwner {
                    workspace: &workspace,
                    runner: &manifest.id,
                    agent: AgentId(uuid::Uuid::nil()),
                    bot_id: None,
                    generation: None,
                    conversation: None,
                    actor: None,
                    subject: None,
                },
            };
            let child = authorize(&catalog(), &manifest, &agent(&asks, &json!({})), &subject);
            assert_eq!(amendable_tool(&child, "search").is_some(), may_amend);
        }
    }

    #[test]
    fn empty_policy_grants_no_resources() {
        let snapshot = snapshot(&everything(), &json!({}), &json!({"model": "m1"}), None);
        assert_eq!(*snapshot.resources, AgentResources::default());
        for &operation in HistoryOperation::ALL {
            assert!(snapshot.history(operation).is_err());
        }
        assert!(snapshot.state_scope(StateScope::Conversation).is_err());
    }
}
