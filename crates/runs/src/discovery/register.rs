//! Registration of endpoints, by the API or the configuration.

use std::sync::Arc;

use domain::agent::is_name;
use protocol::admin::{EndpointSpec, Fault};
use protocol::id::{EndpointId, RunnerId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::principal::PrincipalKind;
use secrecy::SecretString;
use serde_json::json;
use store::{ChangeStamp, EndpointRecord, SaveEndpoint, StoreError};
use uuid::Uuid;

use super::Endpoints;
use super::outcome::{DiscoveryResult, IdClaims, ListOutcome};
use crate::endpoint::{HEADERS_PURPOSE, SECRET_PURPOSE, header_map};
use secrets::signature::SigningSecret;

const MAX_HEADERS: usize = 32;
const MAX_RUNS: u64 = 1_000_000;

/// Cause of a refused registration. None of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("the registration is invalid")]
    Faults(Vec<Fault>),
    #[error("an endpoint of this name exists")]
    NameTaken,
    /// Runner ids that other endpoints serve, with their names.
    #[error("runner ids are served by other endpoints")]
    Conflict(Vec<(RunnerId, String)>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A registered endpoint, and its secret if one was generated.
#[derive(Debug)]
pub struct Registered {
    pub record: EndpointRecord,
    pub made_secret: Option<String>,
}

/// A configured endpoint with its discovered list, not stored yet.
pub struct DiscoveredEndpoint {
    record: EndpointRecord,
    discovery: DiscoveryResult,
}

impl DiscoveredEndpoint {
    pub fn name(&self) -> &str {
        &self.record.name
    }

    /// The listed runners; `None`: there is no list.
    pub fn listed(&self) -> Option<impl Iterator<Item = &AgentRunnerManifest>> {
        match &self.discovery.outcome {
            ListOutcome::Found(found) => Some(found.accepted.iter().map(|one| &one.manifest)),
            ListOutcome::Failed { .. } => None,
        }
    }
}

impl Endpoints {
    /// Registers an endpoint for the API, and discovers it.
    pub async fn register_endpoint(
        &self,
        workspace: &WorkspaceId,
        spec: EndpointSpec,
        stamp: ChangeStamp,
    ) -> Result<Registered, RegisterError> {
        let made_secret = spec.secret.is_none().then(SigningSecret::generate);
        let mut record = self.endpoint_record(workspace, &spec, made_secret.as_deref(), "api")?;
        let replaces = self.check_registration(workspace, &spec).await?;
        let discovery = self.discover(&record).await;
        // Before the row: a refused registration stores nothing.
        self.refuse_conflicts(&record, &discovery, spec.replaces.as_deref())
            .await?;
        let create = SaveEndpoint::Create(Box::new(record.clone()));
        let created = self.deps.store.change(stamp, create).await;
        // Another request may have taken the name since the check.
        created.map_err(|error| match error {
            StoreError::Taken => RegisterError::NameTaken,
            error => RegisterError::Store(error),
        })?;
        let claims = replaces.map_or(IdClaims::All, IdClaims::Replacing);
        self.save_discovery(&record, discovery, claims).await?;
        if let Some(saved) = self
            .deps
            .store
            .endpoints()
            .find_endpoint(workspace, record.id)
            .await?
        {
            record = saved;
        }
        Ok(Registered {
            record,
            made_secret,
        })
    }

    /// The endpoint that a registration replaces. It refuses an unknown one, and a name that is taken.
    pub(super) async fn check_registration(
        &self,
        workspace: &WorkspaceId,
        spec: &EndpointSpec,
    ) -> Result<Option<EndpointId>, RegisterError> {
        let store = &self.deps.store;
        let replaces = match &spec.replaces {
            None => None,
            Some(name) => {
                let replaced = store
                    .endpoints()
                    .find_endpoint_by_name(workspace, name)
                    .await?;
                let fault = || Fault::new("/replaces", "names no endpoint of this workspace");
                let replaced = replaced.ok_or_else(|| RegisterError::Faults(vec![fault()]))?;
                Some(replaced.id)
            }
        };
        let same_name = store
            .endpoints()
            .find_endpoint_by_name(workspace, &spec.name)
            .await?;
        match same_name {
            Some(_) => Err(RegisterError::NameTaken),
            None => Ok(replaces),
        }
    }

    /// Requests the list of a configured endpoint, without storing anything.
    pub async fn ask_endpoint(
        &self,
        workspace: &WorkspaceId,
        spec: &EndpointSpec,
    ) -> Result<DiscoveredEndpoint, RegisterError> {
        let record = self.endpoint_record(workspace, spec, None, "config")?;
        let discovery = self.discover(&record).await;
        Ok(DiscoveredEndpoint { record, discovery })
    }

    /// Stores a configured endpoint with its list. An endpoint without a list is stored as well; the schedule discovers
    /// it again.
    pub async fn configure_endpoint(
        &self,
        discovered: DiscoveredEndpoint,
    ) -> Result<(), RegisterError> {
        let DiscoveredEndpoint { record, discovery } = discovered;
        let configure = Arc::new(SaveEndpoint::Configure(Box::new(record)));
        let stamp = || self.deps.stamp(PrincipalKind::Config);
        let store = &self.deps.store;
        let mut saved = store.change(stamp(), Arc::clone(&configure)).await;
        if matches!(saved, Err(StoreError::Taken)) {
            // Another replica has stored it at the same time, so this finds its row.
            saved = store.change(stamp(), configure).await;
        }
        let saved = saved?;
        if let Some(saved) = saved {
            self.save_discovery(&saved, discovery, IdClaims::All)
                .await?;
        }
        Ok(())
    }

    pub(super) fn endpoint_record(
        &self,
        workspace: &WorkspaceId,
        spec: &EndpointSpec,
        made_secret: Option<&str>,
        origin: &str,
    ) -> Result<EndpointRecord, RegisterError> {
        let mut faults = Vec::new();
        if !is_name(&spec.name) {
            faults.push(Fault::new(
                "/name",
                "must have 1 to 128 bytes and no control characters",
            ));
        }
        if let Err(error) = self.deps.egress.check_url(&spec.base_url) {
            faults.push(Fault::new("/base_url", error.to_string()));
        }
        let secret = spec.secret.as_deref().or(made_secret).unwrap_or_default();
        if SigningSecret::parse(&SecretString::from(secret)).is_err() {
            let message =
                "must be whsec_ and the base64 of 24 to 64 bytes; leave it out to get one made";
            faults.push(Fault::new("/secret", message));
        }
        if spec.headers.len() > MAX_HEADERS {
            faults.push(Fault::new("/headers", "may name at most 32 headers"));
        }
        if let Err(fault) = header_map(&spec.headers) {
            faults.push(fault);
        }
        if spec.max_runs.is_some_and(|runs| runs > MAX_RUNS) {
            faults.push(Fault::new("/max_runs", "must be at most 1000000"));
        }
        if !faults.is_empty() {
            return Err(RegisterError::Faults(faults));
        }
        let headers = json!(spec.headers).to_string();
        let key = &self.deps.master_key;
        Ok(EndpointRecord {
            id: EndpointId(Uuid::now_v7()),
            workspace: workspace.clone(),
            name: spec.name.clone(),
            origin: origin.to_owned(),
            enabled: true,
            base_url: spec.base_url.clone(),
            mode: spec.mode,
            delta_mode: spec.delta_mode,
            // Sealed for a purpose: a copied column value cannot be opened as another one.
            secret: key.seal(SECRET_PURPOSE, secret.as_bytes()),
            headers: key.seal(HEADERS_PURPOSE, headers.as_bytes()),
            manifests: spec.manifests.clone(),
            max_runs: spec.max_runs.filter(|runs| *runs > 0),
            health: "unknown".to_owned(),
            health_reason: None,
            findings: json!({}),
            discovered_at: None,
            next_check_at: self.first_check(),
            version: 1,
            created_at: self.deps.clock.now_ms(),
        })
    }

    async fn refuse_conflicts(
        &self,
        record: &EndpointRecord,
        discovery: &DiscoveryResult,
        replaces: Option<&str>,
    ) -> Result<(), RegisterError> {
        let found = discovery.outcome.found();
        let listed: Vec<_> = found.into_iter().map(|found| found.id).collect();
        let elsewhere = self.elsewhere(record, &listed).await?;
        let conflicts: Vec<_> = elsewhere
            .into_iter()
            .filter(|(_, holder)| replaces != Some(holder.as_str()))
            .collect();
        if conflicts.is_empty() {
            Ok(())
        } else {
            Err(RegisterError::Conflict(conflicts))
        }
    }
}
