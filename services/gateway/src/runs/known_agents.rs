//! What is made of an agent and its runner's manifest, made once for as long as both stay as they are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use domain::canonical::canonical_json;
use protocol::admin::AgentSpec;
use protocol::id::AgentId;
use protocol::manifest::AgentRunnerManifest;
use store::{Candidate, RunnerRecord};

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
    })
}
