//! Runner endpoints: registering, discovering, opening (protocol §1, §2).

use std::collections::BTreeMap;

use domain::manifest::{Discovered, judge_answer, judge_list};
use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::admin::{
    AcceptedRunner, DeltaMode, EndpointMode, EndpointSpec, Fault, IncompatibleRunner,
};
use protocol::id::{EndpointId, RunnerId, WorkspaceId};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use store::{EndpointRecord, FoundRunner, SaveDiscovery, SaveEndpoint, StoreError};
use uuid::Uuid;

use crate::config::outgoing_header_name;
use crate::outbound::runner::Endpoint;
use crate::outbound::signature::SigningSecret;
use crate::runs::Runs;
use crate::seal::MasterKey;

const SECRET_PURPOSE: &str = "runner_endpoints.secret";
const HEADERS_PURPOSE: &str = "runner_endpoints.headers";
const MOST_HEADERS: usize = 32;

/// A stored endpoint that cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the endpoint's secrets cannot be opened with this master key")]
pub struct Unopenable;

/// Why an endpoint was not registered. Nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("the registration has faults")]
    Faults(Vec<Fault>),
    #[error("an endpoint of this name exists")]
    NameTaken,
    /// Runner ids that other endpoints serve, with the names of those.
    #[error("runner ids are served by other endpoints")]
    Conflict(Vec<(RunnerId, String)>),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A registered endpoint, and the secret when one was made for it.
#[derive(Debug)]
pub struct Registered {
    pub record: EndpointRecord,
    pub made_secret: Option<String>,
}

/// What one discovery came to.
enum Discovery {
    Found(Discovered),
    Unreachable(String),
}

impl Discovery {
    fn found(&self) -> Vec<FoundRunner> {
        match self {
            Self::Found(discovered) => FoundRunner::of(discovered),
            Self::Unreachable(_) => Vec::new(),
        }
    }
}

/// Opens a stored endpoint for calling.
pub(crate) fn open_endpoint(
    key: &MasterKey,
    record: &EndpointRecord,
) -> Result<Endpoint, Unopenable> {
    let text = |purpose, sealed| {
        let plain = key.open(purpose, sealed).map_err(|_| Unopenable)?;
        String::from_utf8(plain)
            .map(SecretString::from)
            .map_err(|_| Unopenable)
    };
    let secret = text(SECRET_PURPOSE, &record.secret)?;
    let headers = text(HEADERS_PURPOSE, &record.headers)?;
    let headers: BTreeMap<String, String> =
        serde_json::from_str(headers.expose_secret()).map_err(|_| Unopenable)?;
    Ok(Endpoint {
        base_url: record.base_url.parse().map_err(|_| Unopenable)?,
        mode: record.mode,
        secret: SigningSecret::parse(&secret).map_err(|_| Unopenable)?,
        headers: header_map(&headers).map_err(|_| Unopenable)?,
    })
}

fn header_map(headers: &BTreeMap<String, String>) -> Result<HeaderMap, Fault> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let pointer = format!("/headers/{}", domain::form::escape_pointer(name));
        let name: HeaderName = outgoing_header_name(name)
            .map_err(|error| Fault::new(pointer.clone(), error.to_string()))?;
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| Fault::new(pointer, "has characters that no header may have"))?;
        value.set_sensitive(true);
        map.insert(name, value);
    }
    Ok(map)
}

impl Runs {
    /// Registers an endpoint over the API, and discovers it.
    pub async fn register_endpoint(
        &self,
        workspace: &WorkspaceId,
        spec: EndpointSpec,
    ) -> Result<Registered, RegisterError> {
        let made_secret = spec.secret.is_none().then(SigningSecret::generate);
        let mut record = self.endpoint_record(workspace, &spec, made_secret.as_deref(), "api")?;
        let replaces = match &spec.replaces {
            None => None,
            Some(name) => {
                let replaced = self.0.store.find_endpoint_by_name(workspace, name).await?;
                let fault = || {
                    vec![Fault::new(
                        "/replaces",
                        "names no endpoint of this workspace",
                    )]
                };
                Some(replaced.ok_or_else(|| RegisterError::Faults(fault()))?.id)
            }
        };
        if self
            .0
            .store
            .find_endpoint_by_name(workspace, &spec.name)
            .await?
            .is_some()
        {
            return Err(RegisterError::NameTaken);
        }
        let discovery = self.discover(&record).await;
        self.refuse_conflicts(workspace, &discovery, replaces)
            .await?;
        let created = self
            .0
            .store
            .write(SaveEndpoint::Create(Box::new(record.clone())))
            .await;
        created.map_err(|error| match error {
            StoreError::Taken => RegisterError::NameTaken,
            error => RegisterError::Store(error),
        })?;
        self.save_discovery(&record, discovery, replaces).await?;
        if let Some(saved) = self.0.store.find_endpoint(workspace, record.id).await? {
            record = saved;
        }
        Ok(Registered {
            record,
            made_secret,
        })
    }

    /// Enters an endpoint of the config file, and discovers it. One that does not answer stays, and
    /// is asked again until it does.
    pub async fn configure_endpoint(
        &self,
        workspace: &WorkspaceId,
        spec: &EndpointSpec,
    ) -> Result<(), RegisterError> {
        let record = self.endpoint_record(workspace, spec, None, "config")?;
        let saved = self
            .0
            .store
            .write(SaveEndpoint::Configure(Box::new(record)))
            .await?;
        if let Some(saved) = saved {
            self.refresh_endpoint(&saved).await?;
        }
        Ok(())
    }

    /// Discovers an endpoint again. Ids that another endpoint serves are left out and reported.
    pub async fn refresh_endpoint(&self, record: &EndpointRecord) -> Result<(), StoreError> {
        let discovery = self.discover(record).await;
        self.save_discovery(record, discovery, None).await
    }

    /// Asks endpoints that have not answered yet, again and again, until the process stops.
    pub async fn keep_discovering(&self) {
        const PAUSE: std::time::Duration = std::time::Duration::from_secs(10);
        const BATCH: u64 = 100;
        loop {
            tokio::select! {
                () = self.0.stopping.cancelled() => return,
                () = tokio::time::sleep(PAUSE) => {}
            }
            let Ok(endpoints) = self.0.store.unhealthy_endpoints(BATCH).await else {
                continue;
            };
            for endpoint in endpoints {
                if let Err(error) = self.refresh_endpoint(&endpoint).await {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "endpoint {} could not be refreshed",
                        endpoint.name
                    );
                }
            }
        }
    }

    /// The names of an endpoint's static headers; their values are never shown.
    pub fn header_names(&self, record: &EndpointRecord) -> Vec<String> {
        let endpoint = open_endpoint(&self.0.master_key, record);
        let names = |endpoint: Endpoint| endpoint.headers.keys().map(ToString::to_string).collect();
        endpoint.map(names).unwrap_or_default()
    }

    fn endpoint_record(
        &self,
        workspace: &WorkspaceId,
        spec: &EndpointSpec,
        made_secret: Option<&str>,
        origin: &str,
    ) -> Result<EndpointRecord, RegisterError> {
        let mut faults = Vec::new();
        if spec.name.is_empty() || spec.name.len() > 128 {
            faults.push(Fault::new("/name", "must have 1 to 128 bytes"));
        }
        if let Err(error) = self.0.egress.check_url(&spec.base_url) {
            faults.push(Fault::new("/base_url", error.to_string()));
        }
        let secret = spec.secret.as_deref().or(made_secret).unwrap_or_default();
        if SigningSecret::parse(&SecretString::from(secret)).is_err() {
            let message =
                "must be whsec_ and the base64 of 24 to 64 bytes; leave it out to get one made";
            faults.push(Fault::new("/secret", message));
        }
        if spec.headers.len() > MOST_HEADERS {
            faults.push(Fault::new("/headers", "may name at most 32 headers"));
        }
        if let Err(fault) = header_map(&spec.headers) {
            faults.push(fault);
        }
        if !faults.is_empty() {
            return Err(RegisterError::Faults(faults));
        }
        let headers = json!(spec.headers).to_string();
        let key = &self.0.master_key;
        Ok(EndpointRecord {
            id: EndpointId(Uuid::now_v7()),
            workspace: workspace.clone(),
            name: spec.name.clone(),
            origin: origin.to_owned(),
            enabled: true,
            base_url: spec.base_url.clone(),
            mode: spec.mode,
            delta_mode: spec.delta_mode,
            secret: key.seal(SECRET_PURPOSE, secret.as_bytes()),
            headers: key.seal(HEADERS_PURPOSE, headers.as_bytes()),
            manifests: spec.manifests.clone(),
            health: "unknown".to_owned(),
            health_reason: None,
            findings: json!({}),
            discovered_at: None,
            version: 1,
            created_at: self.0.clock.now_ms(),
        })
    }

    async fn discover(&self, record: &EndpointRecord) -> Discovery {
        if let Some(manifests) = &record.manifests {
            return Discovery::Found(judge_list(manifests));
        }
        let Ok(endpoint) = open_endpoint(&self.0.master_key, record) else {
            return Discovery::Unreachable(Unopenable.to_string());
        };
        match self.0.client.list_runners(&endpoint).await {
            Ok(answer) => Discovery::Found(judge_answer(&answer)),
            Err(error) => Discovery::Unreachable(error.to_string()),
        }
    }

    async fn refuse_conflicts(
        &self,
        workspace: &WorkspaceId,
        discovery: &Discovery,
        replaces: Option<EndpointId>,
    ) -> Result<(), RegisterError> {
        let mut conflicts = Vec::new();
        for found in discovery.found() {
            if let Some(known) = self.0.store.find_runner(workspace, &found.id).await?
                && replaces != Some(known.endpoint_id)
            {
                conflicts.push((found.id, known.endpoint_id));
            }
        }
        if conflicts.is_empty() {
            return Ok(());
        }
        let mut named = Vec::new();
        for (runner, endpoint) in conflicts {
            let endpoint = self.0.store.find_endpoint(workspace, endpoint).await?;
            named.push((
                runner,
                endpoint.map(|record| record.name).unwrap_or_default(),
            ));
        }
        Err(RegisterError::Conflict(named))
    }

    async fn save_discovery(
        &self,
        record: &EndpointRecord,
        discovery: Discovery,
        replaces: Option<EndpointId>,
    ) -> Result<(), StoreError> {
        let mut found = discovery.found();
        let discovered = match discovery {
            Discovery::Found(discovered) => discovered,
            Discovery::Unreachable(reason) => {
                tracing::warn!(
                    endpoint.name = record.name,
                    "endpoint {}: {reason}",
                    record.name
                );
                return self.0.store.mark_unreachable(record.id, &reason).await;
            }
        };
        let mut findings = findings(&discovered);
        loop {
            let save = SaveDiscovery {
                workspace: record.workspace.clone(),
                endpoint_id: record.id,
                replaces,
                found: found.clone(),
                health: "healthy".to_owned(),
                health_reason: None,
                findings: json!(findings),
                at: self.0.clock.now_ms(),
            };
            let conflicts = self.0.store.write(save).await?;
            if conflicts.is_empty() {
                break;
            }
            // Left out one by one: the neighbours of a taken id are still good.
            found.retain(|one| conflicts.iter().all(|(taken, _)| *taken != one.id));
            for (taken, endpoint) in &conflicts {
                findings.leave_out(taken, *endpoint);
            }
        }
        report(record, &findings);
        Ok(())
    }
}

/// What a discovery accepted and rejected, as the API shows it.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Findings {
    pub accepted: Vec<AcceptedRunner>,
    pub incompatible: Vec<IncompatibleRunner>,
    pub rejected: Vec<Fault>,
}

impl Findings {
    fn leave_out(&mut self, taken: &RunnerId, endpoint: EndpointId) {
        self.accepted.retain(|runner| runner.id != *taken);
        self.incompatible.retain(|runner| runner.id != *taken);
        let message = format!("{taken} is served by endpoint {endpoint}; replace that one first");
        self.rejected.push(Fault::new("/runners", message));
    }
}

fn findings(discovered: &Discovered) -> Findings {
    Findings {
        accepted: discovered
            .accepted
            .iter()
            .map(|found| AcceptedRunner {
                id: found.manifest.id.clone(),
                warnings: found.warnings.clone(),
            })
            .collect(),
        incompatible: discovered
            .incompatible
            .iter()
            .map(|found| IncompatibleRunner {
                id: found.id.clone(),
                reason: found.reason.clone(),
            })
            .collect(),
        rejected: discovered.rejected.clone(),
    }
}

fn report(record: &EndpointRecord, findings: &Findings) {
    tracing::info!(
        endpoint.name = record.name,
        accepted = findings.accepted.len(),
        incompatible = findings.incompatible.len(),
        rejected = findings.rejected.len(),
        "endpoint {} is discovered",
        record.name
    );
    for fault in &findings.rejected {
        tracing::warn!(
            endpoint.name = record.name,
            "manifest {}: {}",
            fault.pointer,
            fault.message
        );
    }
    for runner in &findings.incompatible {
        tracing::warn!(
            endpoint.name = record.name,
            "runner {}: {}",
            runner.id,
            runner.reason
        );
    }
}

/// The mode and delta mode of a config entry.
pub fn modes(mode: &str, delta_mode: &str) -> (EndpointMode, DeltaMode) {
    let mode = if mode == "single_url" {
        EndpointMode::SingleUrl
    } else {
        EndpointMode::Standard
    };
    let delta_mode = if delta_mode == "snapshot" {
        DeltaMode::Snapshot
    } else {
        DeltaMode::Increment
    };
    (mode, delta_mode)
}

/// The manifests of a config entry: a list, or an answer that holds one.
pub fn manifest_list(manifests: Value) -> Option<Vec<Value>> {
    match manifests {
        Value::Array(list) => Some(list),
        Value::Object(mut answer) => match answer.remove("runners") {
            Some(Value::Array(list)) => Some(list),
            _ => Some(vec![Value::Object(answer)]),
        },
        _ => None,
    }
}
