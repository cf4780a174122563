//! Runner endpoints: registering, discovering, opening (protocol §1, §2).

mod keep;
mod preview;
mod probe;
mod register;

use std::collections::BTreeMap;

use domain::manifest::{Discovered, judge_list};
use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::admin::{AcceptedRunner, DeltaMode, EndpointMode, Fault, IncompatibleRunner};
use protocol::id::{EndpointId, RunnerId, WorkspaceId};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use store::{EndpointAddress, EndpointRecord, FoundRunner, SaveDiscovery, SaveFailure, StoreError};

use crate::Runs;
use crate::gauges::endpoint_label;
use base::seal::MasterKey;
use egress::outgoing_header_name;
use runner_client::signature::SigningSecret;
use runner_client::{Endpoint, ListError};
use telemetry::metrics;

pub use probe::list_of;
pub use register::{AskedEndpoint, RegisterError, Registered};

const SECRET_PURPOSE: &str = "runner_endpoints.secret";
const HEADERS_PURPOSE: &str = "runner_endpoints.headers";

/// A stored endpoint that cannot be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the endpoint's secrets cannot be opened with this master key")]
pub struct Unopenable;

/// An endpoint that has not been heard for this long since it was registered is not the one that somebody waits for.
const NEW_FOR_MS: i64 = 15 * 60 * 1000;

/// Which ids an endpoint gets of those that it lists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claims {
    /// Those that no agent waits for.
    Free,
    /// Those that no other endpoint has.
    All,
    /// Those of this endpoint, too.
    Replacing(EndpointId),
}

impl Claims {
    fn replaces(self) -> Option<EndpointId> {
        match self {
            Self::Free | Self::All => None,
            Self::Replacing(endpoint) => Some(endpoint),
        }
    }
}

/// What asking an endpoint once came to.
struct Discovery {
    outcome: Outcome,
    asked_at: i64,
    /// `None`: nobody was asked.
    latency_ms: Option<i64>,
}

enum Outcome {
    Found(Discovered),
    /// No list: what it listed before stays.
    Failed {
        health: &'static str,
        reason: String,
        /// What the log alone says.
        cause: Option<String>,
    },
}

/// One reason for every way not to be reached: who may register endpoints shall not scan a network by them.
const UNREACHABLE: &str = "the endpoint cannot be reached; the gateway's log says why";

impl Outcome {
    /// An answer came, and it is no list of runners.
    fn unhealthy(reason: impl Into<String>) -> Self {
        Self::Failed {
            health: "unhealthy",
            reason: reason.into(),
            cause: None,
        }
    }

    fn of(answer: Result<Value, ListError>) -> Self {
        match answer {
            Ok(answer) => match answer.get("runners").and_then(Value::as_array) {
                Some(runners) => Self::Found(judge_list(runners)),
                None => Self::unhealthy("the endpoint's answer has no list `runners`"),
            },
            Err(ListError::Egress(error)) => Self::Failed {
                health: "unreachable",
                reason: UNREACHABLE.to_owned(),
                cause: Some(error.to_string()),
            },
            Err(error) => Self::unhealthy(error.to_string()),
        }
    }

    fn health(&self) -> &'static str {
        match self {
            Self::Found(_) => "ok",
            Self::Failed { health, .. } => health,
        }
    }

    fn found(&self) -> Vec<FoundRunner> {
        match self {
            Self::Found(discovered) => FoundRunner::of(discovered),
            Self::Failed { .. } => Vec::new(),
        }
    }
}

/// Opens the address of a stored endpoint for calling.
pub(crate) fn open_endpoint(
    key: &MasterKey,
    record: &EndpointAddress,
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
    /// Discovers an endpoint again, for somebody who wants it to serve what it lists. Ids that another endpoint serves
    /// are left out and reported; who gives no list keeps the runners that it listed last.
    pub async fn refresh_endpoint(&self, record: &EndpointRecord) -> Result<(), StoreError> {
        let discovery = self.discover(record).await;
        self.save_discovery(record, discovery, Claims::All).await
    }

    /// The same because it is time to, and nobody wants anything: ids that agents are bound to and nobody serves are
    /// left out as well, unless the endpoint was registered just now and has not been heard, or stands in the configuration
    /// as they may.
    async fn ask_by_itself(&self, record: &EndpointRecord) -> Result<(), StoreError> {
        let discovery = self.discover(record).await;
        let age = self.0.clock.now_ms() - record.created_at;
        let is_new = record.discovered_at.is_none() && age < NEW_FOR_MS;
        let is_wanted = is_new || record.origin == "config";
        let claims = if is_wanted { Claims::All } else { Claims::Free };
        self.save_discovery(record, discovery, claims).await
    }

    /// The names of an endpoint's static headers; their values are never shown.
    pub fn header_names(&self, record: &EndpointRecord) -> Vec<String> {
        let endpoint = open_endpoint(&self.0.master_key, &record.address());
        let names = |endpoint: Endpoint| endpoint.headers.keys().map(ToString::to_string).collect();
        endpoint.map(names).unwrap_or_default()
    }

    async fn discover(&self, record: &EndpointRecord) -> Discovery {
        let asked_at = self.0.clock.now_ms();
        let (outcome, latency_ms) = if let Some(manifests) = &record.manifests {
            (Outcome::Found(judge_list(manifests)), None)
        } else {
            let outcome = self.ask(record).await;
            let label = endpoint_label(&record.workspace, &record.name);
            metrics::discovered(&label, outcome.health());
            (outcome, Some(self.0.clock.now_ms() - asked_at))
        };
        Discovery {
            outcome,
            asked_at,
            latency_ms,
        }
    }

    async fn ask(&self, record: &EndpointRecord) -> Outcome {
        match open_endpoint(&self.0.master_key, &record.address()) {
            Ok(endpoint) => Outcome::of(self.0.client.list_runners(&endpoint).await),
            Err(error) => Outcome::unhealthy(error.to_string()),
        }
    }

    async fn save_discovery(
        &self,
        record: &EndpointRecord,
        discovery: Discovery,
        claims: Claims,
    ) -> Result<(), StoreError> {
        let at = self.0.clock.now_ms();
        let next_check_at = self.next_check(record, &discovery.outcome, at);
        let (asked_at, latency_ms) = (discovery.asked_at, discovery.latency_ms);
        let mut found = discovery.outcome.found();
        let discovered = match discovery.outcome {
            Outcome::Found(discovered) => discovered,
            Outcome::Failed {
                health,
                reason,
                cause,
            } => {
                report_failure(record, health, &reason, cause.as_deref());
                let failure = SaveFailure {
                    endpoint_id: record.id,
                    version: record.version,
                    health: health.to_owned(),
                    reason,
                    asked_at,
                    latency_ms,
                    next_check_at,
                    at,
                };
                return self.0.store.write(failure).await;
            }
        };
        let mut findings = findings(&discovered);
        loop {
            let save = SaveDiscovery {
                workspace: record.workspace.clone(),
                endpoint_id: record.id,
                version: record.version,
                replaces: claims.replaces(),
                may_claim: claims != Claims::Free,
                found: found.clone(),
                rejected: findings.rejected.len() as u64,
                findings: json!(findings),
                asked_at,
                latency_ms,
                next_check_at,
                at,
            };
            let conflicts = self.0.store.write(save).await?;
            if conflicts.is_empty() {
                break;
            }
            // Left out one by one: the neighbours of a taken id are still good.
            found.retain(|one| conflicts.iter().all(|(taken, _)| *taken != one.id));
            for (taken, endpoint) in &conflicts {
                let why = match endpoint {
                    Some(holder) => {
                        let holder = self.endpoint_name(&record.workspace, *holder).await?;
                        format!("{taken} is served by endpoint {holder}; name that in `replaces`")
                    }
                    None => format!(
                        "agents are bound to {taken}, and this endpoint has not served it; refresh the endpoint if it shall"
                    ),
                };
                findings.leave_out(taken, discovered.place_of(taken), why);
            }
        }
        if record.health != "healthy" || record.findings != json!(findings) {
            report(record, &findings);
        }
        Ok(())
    }

    async fn endpoint_name(
        &self,
        workspace: &WorkspaceId,
        id: EndpointId,
    ) -> Result<String, StoreError> {
        let endpoint = self
            .0
            .store
            .endpoints()
            .find_endpoint(workspace, id)
            .await?;
        Ok(endpoint.map(|endpoint| endpoint.name).unwrap_or_default())
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
    fn leave_out(&mut self, taken: &RunnerId, place: String, why: String) {
        self.accepted.retain(|runner| runner.id != *taken);
        self.incompatible.retain(|runner| runner.id != *taken);
        self.rejected.push(Fault::new(place, why));
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

/// Said once, not at every look.
fn report_failure(record: &EndpointRecord, health: &str, reason: &str, cause: Option<&str>) {
    if record.health != health || record.health_reason.as_deref() != Some(reason) {
        let reason = cause.unwrap_or(reason);
        tracing::warn!(
            endpoint.name = record.name,
            "endpoint {} is {health}: {reason}",
            record.name
        );
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
