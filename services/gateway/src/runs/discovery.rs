//! Runner endpoints: registering, discovering, opening (protocol §1, §2).

mod register;

use std::collections::BTreeMap;
use std::time::Duration;

use domain::manifest::{Discovered, judge_answer, judge_list};
use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::admin::{AcceptedRunner, DeltaMode, EndpointMode, Fault, IncompatibleRunner};
use protocol::id::{EndpointId, RunnerId};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use store::{EndpointRecord, FoundRunner, SaveDiscovery, StoreError};

use crate::config::outgoing_header_name;
use crate::outbound::runner::Endpoint;
use crate::outbound::signature::SigningSecret;
use crate::runs::Runs;
use crate::seal::MasterKey;

pub use register::{RegisterError, Registered};

const SECRET_PURPOSE: &str = "runner_endpoints.secret";
const HEADERS_PURPOSE: &str = "runner_endpoints.headers";
/// How often endpoints that have not answered are asked again, and how many of them at a time.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(10);
const DISCOVERY_BATCH: u64 = 100;

/// A stored endpoint that cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the endpoint's secrets cannot be opened with this master key")]
pub struct Unopenable;

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
    /// Discovers an endpoint again. Ids that another endpoint serves are left out and reported.
    pub async fn refresh_endpoint(&self, record: &EndpointRecord) -> Result<(), StoreError> {
        let discovery = self.discover(record).await;
        self.save_discovery(record, discovery, None).await
    }

    /// Asks endpoints that have not answered yet, again and again, until the process stops.
    pub async fn keep_discovering(&self) {
        let asking = async {
            loop {
                tokio::time::sleep(DISCOVERY_PAUSE).await;
                self.discover_unhealthy().await;
            }
        };
        tokio::select! {
            () = self.0.stopping.cancelled() => {}
            () = asking => {}
        }
    }

    async fn discover_unhealthy(&self) {
        let Ok(endpoints) = self.0.store.unhealthy_endpoints(DISCOVERY_BATCH).await else {
            return;
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

    /// The names of an endpoint's static headers; their values are never shown.
    pub fn header_names(&self, record: &EndpointRecord) -> Vec<String> {
        let endpoint = open_endpoint(&self.0.master_key, record);
        let names = |endpoint: Endpoint| endpoint.headers.keys().map(ToString::to_string).collect();
        endpoint.map(names).unwrap_or_default()
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
                let holder = self
                    .0
                    .store
                    .find_endpoint(&record.workspace, *endpoint)
                    .await?;
                let holder = holder.map(|holder| holder.name).unwrap_or_default();
                findings.leave_out(taken, discovered.place_of(taken), &holder);
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
    fn leave_out(&mut self, taken: &RunnerId, place: String, endpoint: &str) {
        self.accepted.retain(|runner| runner.id != *taken);
        self.incompatible.retain(|runner| runner.id != *taken);
        let message = format!("{taken} is served by endpoint {endpoint}; name that in `replaces`");
        self.rejected.push(Fault::new(place, message));
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
