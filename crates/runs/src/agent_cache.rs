//! Cache of agents with their runners' parsed manifests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::authorization::{EventScope, GrantCandidates, ResourceCatalog, SharedGrants, Subject};
use domain::canonical::canonical_json;
use protocol::JsonObject;
use protocol::admin::AgentSpec;
use protocol::id::AgentId;
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::{AgentResource, SkillResource};
use store::{Candidate, RunnerRecord, SharedParts};

use crate::context::static_refs;
use crate::limits::{RunLimits, context_limits};

/// Maximum number of agents. A full cache is emptied.
const MAX_AGENTS: usize = 1024;

/// An agent with its runner's manifest.
#[derive(Debug)]
pub(crate) struct CachedAgent {
    /// Source of the entry. The version is no key: after a rollback, another change gets the same number.
    spec: AgentSpec,
    manifest_sha256: String,
    pub(crate) manifest: AgentRunnerManifest,
    /// Specification with the defaults of the manifest.
    pub(crate) frozen: Arc<AgentSpec>,
    /// The same as canonical JSON.
    pub(crate) frozen_json: Arc<str>,
    /// Limits of runs as JSON, as in each context.
    limits: Arc<str>,
    /// Recent grants of its runs.
    granted: Mutex<CachedGrants>,
}

/// Grants from one catalog, by the other inputs of the authorization.
#[derive(Debug, Default)]
struct CachedGrants {
    catalog: Option<Arc<ResourceCatalog>>,
    registered: Vec<SkillResource>,
    peers: Vec<AgentResource>,
    by_scope: HashMap<EventScope, Arc<AgentGrants>>,
}

/// Grants of runs whose events have the same scope.
#[derive(Debug)]
pub(crate) struct AgentGrants {
    pub(crate) granted: SharedGrants,
    /// Parts that these runs share.
    pub(crate) shared: SharedParts,
    /// Hashes for contexts without a prompt of the event.
    pub(crate) static_refs: JsonObject,
}

impl CachedAgent {
    /// The grants of a run of this agent.
    pub(crate) fn grant(
        &self,
        catalog: &Arc<ResourceCatalog>,
        subject: &Subject<'_>,
    ) -> Arc<AgentGrants> {
        let event = EventScope::of(subject);
        let (registered, peers) = (subject.registered_skills, subject.peers);
        let considered = GrantCandidates {
            catalog,
            registered_skills: registered,
            peers,
            parent: subject.parent,
        };
        // The frozen configuration includes the defaults of the form, as the run's context does.
        let make = || {
            let granted = SharedGrants::to(considered, &self.manifest, &self.frozen, event);
            let static_refs = static_refs(&self.frozen, granted.resources(), None);
            Arc::new(AgentGrants {
                shared: self.shared(&granted, &static_refs),
                static_refs,
                granted,
            })
        };
        // Grants of child runs depend on their parent, so they are not cached.
        if subject.parent.is_some() {
            return make();
        }
        // Consistent after a panic: the map is emptied before it is filled.
        let mut last = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = last
            .catalog
            .as_ref()
            .is_some_and(|one| Arc::ptr_eq(one, catalog));
        if !is_same || last.registered != registered || last.peers != peers {
            *last = CachedGrants {
                catalog: Some(Arc::clone(catalog)),
                registered: registered.to_vec(),
                peers: peers.to_vec(),
                by_scope: HashMap::new(),
            };
        }
        // Bounded by the scopes that an event can have, not by the number of events.
        last.by_scope.entry(event).or_insert_with(make).clone()
    }

    fn shared(&self, granted: &SharedGrants, static_refs: &JsonObject) -> SharedParts {
        let config = serde_json::to_string(&self.frozen.config).unwrap_or_default();
        let static_refs = serde_json::to_string(static_refs).unwrap_or_default();
        let limits = self.limits.to_string();
        let texts = granted.shared_texts().into_iter();
        SharedParts::of(texts.chain([self.frozen_json.to_string(), config, static_refs, limits]))
    }
}

/// Agents by id, at most [`MAX_AGENTS`].
pub(crate) struct AgentCache {
    agents: Mutex<HashMap<AgentId, Arc<CachedAgent>>>,
    limits: Arc<str>,
}

impl AgentCache {
    pub(crate) fn new(limits: &RunLimits) -> Self {
        let limits = serde_json::to_string(&context_limits(limits));
        Self {
            agents: Mutex::default(),
            limits: limits.unwrap_or_default().into(),
        }
    }

    /// Returns the entry, and replaces it if the agent or its manifest has changed. `None`: the manifest cannot
    /// be read.
    pub(crate) fn get(
        &self,
        candidate: &Candidate,
        runner: &RunnerRecord,
    ) -> Option<Arc<CachedAgent>> {
        let agent = &candidate.agent;
        // A map of plain values stays consistent after a panic.
        let mut cached = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cached.get(&agent.id)
            // Compared in full: the version is no key, because a rollback reuses its number.
            && cached.spec == agent.spec
            && cached.manifest_sha256 == runner.manifest_sha256
        {
            return Some(Arc::clone(cached));
        }
        let made = Arc::new(make(&agent.spec, runner, Arc::clone(&self.limits))?);
        // Emptied instead of an LRU: a miss costs one parse of the manifest.
        if cached.len() >= MAX_AGENTS {
            cached.clear();
        }
        cached.insert(agent.id, Arc::clone(&made));
        Some(made)
    }
}

fn make(spec: &AgentSpec, runner: &RunnerRecord, limits: Arc<str>) -> Option<CachedAgent> {
    let manifest: AgentRunnerManifest = serde_json::from_str(&runner.manifest).ok()?;
    let mut frozen = spec.clone();
    frozen.config = domain::form::with_defaults(&manifest.config_schema, &spec.config);
    Some(CachedAgent {
        spec: spec.clone(),
        manifest_sha256: runner.manifest_sha256.clone(),
        frozen_json: canonical_json(&frozen).into(),
        manifest,
        frozen: Arc::new(frozen),
        limits,
        granted: Mutex::default(),
    })
}
