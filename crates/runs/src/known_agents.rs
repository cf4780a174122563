//! What is made of an agent and its runner's manifest, made once for as long as both stay as they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::authorization::{Catalog, Considered, EventScope, Granted, Subject};
use domain::canonical::canonical_json;
use protocol::admin::AgentSpec;
use protocol::id::AgentId;
use protocol::manifest::AgentRunnerManifest;
use protocol::resources::{AgentResource, SkillResource};
use store::{Candidate, RunnerRecord, SharedParts};

/// More are forgotten, all at once.
const MOST: usize = 1024;

/// An agent with its runner's manifest.
#[derive(Debug)]
pub(crate) struct KnownAgent {
    /// What it was made from. Not its version: a change that is taken back leaves its number to another.
    spec: AgentSpec,
    manifest_sha256: String,
    pub(crate) manifest: AgentRunnerManifest,
    /// Its specification with the defaults of the manifest.
    pub(crate) frozen: Arc<AgentSpec>,
    /// The same as canonical JSON.
    pub(crate) frozen_json: Arc<str>,
    /// What its runs were granted of late.
    granted: Mutex<LastGranted>,
}

/// What was granted of one catalog, by all else that it hangs on.
#[derive(Debug, Default)]
struct LastGranted {
    catalog: Option<Arc<Catalog>>,
    registered: Vec<SkillResource>,
    peers: Vec<AgentResource>,
    by_scope: HashMap<EventScope, (Arc<Granted>, SharedParts)>,
}

impl KnownAgent {
    /// The grants of a run of this agent, and the parts that its runs share.
    pub(crate) fn grant(
        &self,
        catalog: &Arc<Catalog>,
        subject: &Subject<'_>,
    ) -> (Arc<Granted>, SharedParts) {
        let event = EventScope::of(subject);
        let (registered, peers) = (subject.registered_skills, subject.peers);
        let considered = Considered {
            catalog,
            registered_skills: registered,
            peers,
            parent: subject.parent,
        };
        // By the configuration as the run is told it: what its form says by default is said.
        let make = || {
            let granted = Granted::to(considered, &self.manifest, &self.frozen, event);
            let shared = self.shared(&granted);
            (Arc::new(granted), shared)
        };
        // Grants of child runs depend on their parent: they are not shared.
        if subject.parent.is_some() {
            return make();
        }
        // Whole after any panic: it is emptied before it is filled.
        let mut last = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_same = last
            .catalog
            .as_ref()
            .is_some_and(|one| Arc::ptr_eq(one, catalog));
        if !is_same || last.registered != registered || last.peers != peers {
            *last = LastGranted {
                catalog: Some(Arc::clone(catalog)),
                registered: registered.to_vec(),
                peers: peers.to_vec(),
                by_scope: HashMap::new(),
            };
        }
        last.by_scope.entry(event).or_insert_with(make).clone()
    }

    fn shared(&self, granted: &Granted) -> SharedParts {
        let config = serde_json::to_string(&self.frozen.config).unwrap_or_default();
        let texts = granted.shared_texts().into_iter();
        SharedParts::of(texts.chain([self.frozen_json.to_string(), config]))
    }
}

/// Those that had an event of late.
#[derive(Default)]
pub(crate) struct KnownAgents(Mutex<HashMap<AgentId, Arc<KnownAgent>>>);

impl KnownAgents {
    /// `None`: the manifest cannot be read.
    pub(crate) fn know(
        &self,
        candidate: &Candidate,
        runner: &RunnerRecord,
    ) -> Option<Arc<KnownAgent>> {
        let agent = &candidate.agent;
        // A map of plain values is whole after any panic.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.get(&agent.id)
            && known.spec == agent.spec
            && known.manifest_sha256 == runner.manifest_sha256
        {
            return Some(Arc::clone(known));
        }
        let made = Arc::new(make(&agent.spec, runner)?);
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(agent.id, Arc::clone(&made));
        Some(made)
    }
}

fn make(spec: &AgentSpec, runner: &RunnerRecord) -> Option<KnownAgent> {
    let manifest: AgentRunnerManifest = serde_json::from_str(&runner.manifest).ok()?;
    let mut frozen = spec.clone();
    frozen.config = domain::form::with_defaults(&manifest.config_schema, &spec.config);
    Some(KnownAgent {
        spec: spec.clone(),
        manifest_sha256: runner.manifest_sha256.clone(),
        frozen_json: canonical_json(&frozen).into(),
        manifest,
        frozen: Arc::new(frozen),
        granted: Mutex::default(),
    })
}
