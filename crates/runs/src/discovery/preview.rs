//! Preview of a discovery: requests the endpoint's list and stores nothing.

use std::collections::BTreeMap;

use domain::discovery::{
    RegisteredRunner, RegisteredState, affected_agents, affected_runners, compare, manifest_value,
};
use protocol::admin::EndpointSpec;
use protocol::discovery::DiscoveryDiff;
use protocol::id::{RunnerId, WorkspaceId};
use store::{EndpointRecord, RunnerStatus, StoreError};

use super::Endpoints;
use super::outcome::{DiscoveryResult, ListOutcome};
use super::register::RegisterError;
use secrets::signature::SigningSecret;

/// Maximum number of reported agents.
const MAX_AGENTS: u64 = 1000;

impl Endpoints {
    /// Previews the registration of this endpoint.
    pub async fn preview_registration(
        &self,
        workspace: &WorkspaceId,
        spec: &EndpointSpec,
    ) -> Result<DiscoveryDiff, RegisterError> {
        // Only for the signature of this request; the registration makes another.
        let made_secret = spec.secret.is_none().then(SigningSecret::generate);
        let record = self.endpoint_record(workspace, spec, made_secret.as_deref(), "api")?;
        self.check_registration(workspace, spec).await?;
        let discovery = self.discover(&record).await;
        Ok(self.diff(&record, discovery, spec.replaces.clone()).await?)
    }

    /// Previews the refresh of this endpoint.
    pub async fn preview_refresh(
        &self,
        record: &EndpointRecord,
    ) -> Result<DiscoveryDiff, StoreError> {
        let discovery = self.discover(record).await;
        self.diff(record, discovery, None).await
    }

    async fn diff(
        &self,
        record: &EndpointRecord,
        discovery: DiscoveryResult,
        replaces: Option<String>,
    ) -> Result<DiscoveryDiff, StoreError> {
        let registered = self.registered_runners(record).await?;
        let shown = |health: &str, health_reason, diff| DiscoveryDiff {
            endpoint: record.name.clone(),
            health: health.to_owned(),
            health_reason,
            latency_ms: discovery.latency_ms,
            ..diff
        };
        let found = match discovery.outcome {
            ListOutcome::Found(found) => found,
            ListOutcome::Failed { health, reason, .. } => {
                let retained = registered.into_iter().filter(|one| one.listed);
                let diff = DiscoveryDiff {
                    unchanged: retained.map(|one| one.id).collect(),
                    ..DiscoveryDiff::default()
                };
                return Ok(shown(health, Some(reason), diff));
            }
        };
        let listed = found.accepted.iter().map(|one| one.manifest.id.clone());
        let listed: Vec<_> = listed
            .chain(found.incompatible.iter().map(|one| one.id.clone()))
            .collect();
        let before = RegisteredState {
            registered,
            elsewhere: self.elsewhere(record, &listed).await?,
            replaces,
        };
        let mut diff = compare(&before, &found);
        let agents = self
            .deps
            .store
            .agents()
            .agents_of_runners(&record.workspace, &affected_runners(&diff), MAX_AGENTS)
            .await?;
        let agents = agents.iter().map(|agent| (agent.id, &agent.spec));
        diff.agents = affected_agents(&diff, &found, agents);
        Ok(shown("healthy", None, diff))
    }

    async fn registered_runners(
        &self,
        record: &EndpointRecord,
    ) -> Result<Vec<RegisteredRunner>, StoreError> {
        let store = &self.deps.store;
        let runners = store
            .endpoints()
            .runners_of(&record.workspace, record.id)
            .await?;
        let registered = runners.into_iter().map(|runner| RegisteredRunner {
            bindable: runner.is_bindable(),
            listed: runner.status != RunnerStatus::Absent,
            manifest: manifest_value(&runner.manifest),
            id: runner.id,
        });
        Ok(registered.collect())
    }

    /// Runners of this list that other endpoints serve, with the names of those endpoints.
    pub(super) async fn elsewhere(
        &self,
        record: &EndpointRecord,
        listed: &[RunnerId],
    ) -> Result<BTreeMap<RunnerId, String>, StoreError> {
        let store = &self.deps.store;
        let runners = store
            .endpoints()
            .runners_elsewhere(&record.workspace, record.id, listed)
            .await?;
        let mut names = BTreeMap::new();
        for runner in runners {
            let holder = self.endpoint_name(&record.workspace, runner.endpoint_id);
            names.insert(runner.id, holder.await?);
        }
        Ok(names)
    }
}
