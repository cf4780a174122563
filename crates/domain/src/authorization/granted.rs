//! Grants of an agent, computed once and shared by all its runs with the same event scope.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use protocol::admin::AgentSpec;
use protocol::context::AvailableApis;
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::{
    AgentResource, AgentResources, SkillResource, StateScope, StorageResource,
};
use serde::Serialize;

use super::layers::LayerEvaluation;
use super::{
    AuthorizationSnapshot, Decision, FrozenConversation, ParentGrant, ResourceCatalog,
    SNAPSHOT_VERSION, Subject,
};
use crate::canonical::canonical_json;
use crate::state::scope_identity;

/// Properties of an event that affect authorization. Other properties have no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "six facts, of which each may hold without the others"
)]
pub struct EventScope {
    pub has_conversation: bool,
    /// True if the event has an actor id.
    pub has_actor: bool,
    /// True if the event has a subject id.
    pub has_subject: bool,
    pub has_prompt: bool,
    pub shows_interactions: bool,
    /// True if the event has files that are artifacts.
    pub has_artifacts: bool,
}

impl EventScope {
    pub fn of(subject: &Subject<'_>) -> Self {
        let owner = &subject.owner;
        Self {
            has_conversation: owner.conversation.is_some(),
            has_actor: owner.actor.is_some_and(|actor| actor.actor_id.is_some()),
            has_subject: owner
                .subject
                .is_some_and(|subject| subject.subject_id.is_some()),
            has_prompt: subject.has_prompt,
            shows_interactions: subject.shows_interactions,
            has_artifacts: subject.has_artifacts,
        }
    }

    /// Returns true if the event identifies the owner of a state scope.
    pub(super) fn names(self, scope: StateScope) -> bool {
        match scope {
            StateScope::Conversation => self.has_conversation,
            StateScope::Actor => self.has_actor,
            StateScope::Subject => self.has_subject,
            StateScope::Runner | StateScope::Binding => true,
        }
    }
}

/// Resources that a run can be granted.
#[derive(Clone, Copy, Debug)]
pub struct GrantCandidates<'a> {
    pub catalog: &'a ResourceCatalog,
    /// Skills that runs of the same agent registered.
    pub registered_skills: &'a [SkillResource],
    /// Agents that the agent's policy lists.
    pub peers: &'a [AgentResource],
    /// Grant of the parent, for a child run.
    pub parent: Option<&'a ParentGrant<'a>>,
}

/// The part of an authorization that does not depend on the single run.
#[derive(Clone, Debug)]
pub struct SharedGrants {
    resources: Arc<AgentResources>,
    available_apis: AvailableApis,
    operations: Arc<BTreeSet<String>>,
    state: Vec<StateScope>,
    decisions: Arc<[Decision]>,
    texts: Texts,
}

/// The grants as canonical JSON, member by member.
#[derive(Clone, Debug)]
struct Texts {
    resources: String,
    available_apis: String,
    operations: String,
    decisions: String,
}

impl SharedGrants {
    /// Passes every catalog entry through the four layers, and the parent for a child run.
    pub fn to(
        considered: GrantCandidates<'_>,
        manifest: &AgentRunnerManifest,
        agent: &AgentSpec,
        event: EventScope,
    ) -> Self {
        let GrantCandidates {
            catalog,
            registered_skills: registered,
            peers,
            parent,
        } = considered;
        let mut layers = LayerEvaluation::new(manifest, agent, parent);
        let models = layers.models(&catalog.models);
        let mut tools = layers.tools(&catalog.tools);
        let knowledge_bases = layers.knowledge_bases(&catalog.knowledge_bases);
        // Skills before their tools: the tools exist only for runs with a skill.
        let skills = layers.skills(&catalog.skills, registered);
        tools.extend(layers.skill_tools(&catalog.skill_tools, !skills.is_empty()));
        tools.extend(layers.register_skill(catalog.register_skill.as_ref()));
        let agents = layers.agents(peers);
        let files = layers.files(&catalog.files);
        let storage = layers.storage();
        let (history_page, history_search) = layers.history(event.has_conversation);
        let (event_get, event_page) = layers.events(event.has_conversation);
        let (artifact_metadata, artifact_read) = layers.artifacts();
        // Granted files are read by the artifact API, also without a permission for artifacts.
        let has_files = !files.is_empty() || event.has_artifacts;
        // A conversation may have files of its earlier events.
        if event.has_artifacts || event.has_conversation {
            layers.event_artifacts();
        }
        let run_list = layers.runs(event.has_conversation);
        let steering_pull = layers.steering(event.has_conversation);
        let state = layers.state(event);
        let prompt_get = event.has_prompt && layers.prompt();
        layers.interactions(event.shows_interactions);
        layers.unknown_effects();
        let platform_capabilities = layers.platform_actions();
        layers.schedules();
        let resources = AgentResources {
            models,
            tools,
            knowledge_bases,
            skills,
            agents,
            files,
            storage,
            platform_capabilities,
        };
        let available_apis = AvailableApis {
            prompt_get,
            history_page,
            history_search,
            event_get,
            event_page,
            artifact_metadata: artifact_metadata || has_files,
            artifact_read: artifact_read || has_files,
            state: !state.is_empty(),
            storage: storage != StorageResource::default(),
            steering_pull,
            run_get: true,
            run_list,
            run_events_page: true,
            run_cancel: true,
            child_runs: !resources.agents.is_empty(),
            ..AvailableApis::default()
        };
        Self {
            // Serialized once for all runs: these texts make up most of a snapshot.
            texts: Texts {
                resources: canonical_json(&resources),
                available_apis: canonical_json(&available_apis),
                operations: canonical_json(&layers.operations),
                decisions: canonical_json(&layers.decisions),
            },
            resources: Arc::new(resources),
            available_apis,
            operations: Arc::new(layers.operations),
            state,
            decisions: layers.decisions.into(),
        }
    }

    /// Returns the authorization of one run whose event has this scope.
    pub fn snapshot(&self, subject: &Subject<'_>) -> AuthorizationSnapshot {
        let owner = &subject.owner;
        // The scope was granted because the event has this party, so no identity is missing.
        let identity_of = |scope| Some((scope, scope_identity(scope, owner)?));
        let state: BTreeMap<_, _> = self.state.iter().copied().filter_map(identity_of).collect();
        AuthorizationSnapshot {
            v: SNAPSHOT_VERSION,
            run_id: subject.run_id,
            workspace_id: owner.workspace.clone(),
            agent_id: owner.agent,
            agent_version: subject.agent_version,
            ancestors: subject.parent.map(ParentGrant::lineage).unwrap_or_default(),
            runner_id: owner.runner.clone(),
            endpoint_id: subject.endpoint_id,
            event_id: subject.event_id.to_owned(),
            generation: owner.generation,
            conversation: owner.conversation.map(FrozenConversation::from),
            resources: Arc::clone(&self.resources),
            available_apis: self.available_apis,
            operations: Arc::clone(&self.operations),
            state,
            token_limits: subject.token_limits(),
            decisions: Arc::clone(&self.decisions),
        }
    }

    /// Returns the granted resources.
    pub fn resources(&self) -> &AgentResources {
        &self.resources
    }

    /// Returns the texts that snapshots and contexts of all runs share.
    pub fn shared_texts(&self) -> [String; 5] {
        let texts = &self.texts;
        let mut granted = String::from("{");
        member(&mut granted, "operations", &texts.operations);
        member(&mut granted, "resources", &texts.resources);
        // Adjacent, as in a snapshot. The piece begins after the brace.
        let granted = granted.split_off(1);
        let resources = canonical(&*self.resources);
        let available_apis = canonical(&self.available_apis);
        [
            granted,
            texts.decisions.clone(),
            texts.available_apis.clone(),
            resources,
            available_apis,
        ]
    }

    /// Returns the canonical JSON of a snapshot built from these grants.
    pub fn text_of(&self, snapshot: &AuthorizationSnapshot) -> String {
        let texts = &self.texts;
        // 2 KiB for the members of the single run.
        let shared = texts.resources.len() + texts.operations.len() + texts.decisions.len();
        let mut text = String::with_capacity(shared + 2048);
        text.push('{');
        // In the order of the names, which is the canonical order of keys.
        member(&mut text, "agent_id", &canonical(&snapshot.agent_id));
        member(
            &mut text,
            "agent_version",
            &canonical(&snapshot.agent_version),
        );
        // Absent, not empty, for runs of events: the field is skipped in their snapshots as well.
        if !snapshot.ancestors.is_empty() {
            member(&mut text, "ancestors", &canonical_json(&snapshot.ancestors));
        }
        member(&mut text, "available_apis", &texts.available_apis);
        member(
            &mut text,
            "conversation",
            &canonical(&snapshot.conversation),
        );
        member(&mut text, "decisions", &texts.decisions);
        member(&mut text, "endpoint_id", &canonical(&snapshot.endpoint_id));
        member(&mut text, "event_id", &canonical(&snapshot.event_id));
        if let Some(generation) = &snapshot.generation {
            member(&mut text, "generation", &canonical(generation));
        }
        member(&mut text, "operations", &texts.operations);
        member(&mut text, "resources", &texts.resources);
        member(&mut text, "run_id", &canonical(&snapshot.run_id));
        member(&mut text, "runner_id", &canonical(&snapshot.runner_id));
        member(&mut text, "state", &canonical_json(&snapshot.state));
        if !snapshot.token_limits.is_empty() {
            let limits = canonical_json(&snapshot.token_limits);
            member(&mut text, "token_limits", &limits);
        }
        member(&mut text, "v", &canonical(&snapshot.v));
        member(
            &mut text,
            "workspace_id",
            &canonical(&snapshot.workspace_id),
        );
        text.push('}');
        text
    }
}

/// JSON in field order. This is canonical for values whose fields are in name order.
fn canonical<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("our own types have string keys only")
}

fn member(text: &mut String, name: &str, value: &str) {
    // The text begins with a brace.
    let comma = if text.len() > 1 { "," } else { "" };
    write!(text, "{comma}\"{name}\":{value}").expect("a string takes all that is written");
}
