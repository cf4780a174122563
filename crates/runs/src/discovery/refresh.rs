//! Discovery of an endpoint: requests its runners and stores the list.

use domain::manifest::validate_manifests;
use protocol::id::{EndpointId, WorkspaceId};
use serde_json::json;
use store::{EndpointRecord, SaveDiscovery, SaveFailure, StoreError};

use super::Endpoints;
use super::findings::{findings, report, report_failure};
use super::outcome::{DiscoveryResult, IdClaims, ListOutcome};
use crate::endpoint::{endpoint_label, open_endpoint};
use runner_client::Endpoint;
use telemetry::metrics;

/// Age up to which an endpoint without an answer counts as newly registered.
const NEW_FOR_MS: i64 = 15 * 60 * 1000;

impl Endpoints {
    /// Discovers an endpoint again, on request. Ids that another endpoint serves are left out and reported.
    /// Without a list, the runners of the last list stay.
    pub async fn refresh_endpoint(&self, record: &EndpointRecord) -> Result<(), StoreError> {
        let discovery = self.discover(record).await;
        // Requested by an operator, so runs may be posted at once, without waiting for the breaker.
        if discovery.has_answer() {
            self.deps.breakers.allow_probe(record.id);
        }
        self.save_discovery(record, discovery, IdClaims::All).await
    }

    /// Discovers an endpoint again, on schedule. Ids that agents are bound to and no endpoint serves are left
    /// out as well. New endpoints without an answer so far and configured endpoints may claim them.
    pub(super) async fn refresh_when_due(&self, record: &EndpointRecord) -> Result<(), StoreError> {
        let discovery = self.discover(record).await;
        // The list of a healthy endpoint proves nothing: it may work while runs fail.
        if discovery.has_answer() && record.health != "healthy" {
            self.deps.breakers.allow_probe(record.id);
        }
        let age = self.deps.clock.now_ms() - record.created_at;
        let is_new = record.discovered_at.is_none() && age < NEW_FOR_MS;
        let is_wanted = is_new || record.origin == "config";
        // A compromised endpoint must not take over the agents of a removed one by listing its ids.
        let claims = if is_wanted {
            IdClaims::All
        } else {
            IdClaims::Free
        };
        self.save_discovery(record, discovery, claims).await
    }

    /// Names of an endpoint's static headers. The values are never shown.
    pub fn header_names(&self, record: &EndpointRecord) -> Vec<String> {
        let endpoint = open_endpoint(&self.deps.master_key, &record.address());
        let names = |endpoint: Endpoint| endpoint.headers.keys().map(ToString::to_string).collect();
        endpoint.map(names).unwrap_or_default()
    }

    pub(super) async fn discover(&self, record: &EndpointRecord) -> DiscoveryResult {
        let requested_at = self.deps.clock.now_ms();
        let (outcome, latency_ms) = if let Some(manifests) = &record.manifests {
            (ListOutcome::Found(validate_manifests(manifests)), None)
        } else {
            let outcome = self.ask(record).await;
            let label = endpoint_label(&record.workspace, &record.name);
            metrics::discovered(&label, outcome.health());
            (outcome, Some(self.deps.clock.now_ms() - requested_at))
        };
        DiscoveryResult {
            outcome,
            requested_at,
            latency_ms,
        }
    }

    async fn ask(&self, record: &EndpointRecord) -> ListOutcome {
        match open_endpoint(&self.deps.master_key, &record.address()) {
            Ok(endpoint) => ListOutcome::of(self.deps.client.list_runners(&endpoint).await),
            Err(error) => ListOutcome::unhealthy(error.to_string()),
        }
    }

    pub(super) async fn save_discovery(
        &self,
        record: &EndpointRecord,
        discovery: DiscoveryResult,
        claims: IdClaims,
    ) -> Result<(), StoreError> {
        let at = self.deps.clock.now_ms();
        let next_check_at = self.next_check(record, &discovery.outcome, at);
        let (requested_at, latency_ms) = (discovery.requested_at, discovery.latency_ms);
        let mut found = discovery.outcome.found();
        let discovered = match discovery.outcome {
            ListOutcome::Found(discovered) => discovered,
            ListOutcome::Failed {
                health,
                reason,
                cause,
            } => {
                // The operator chose the address, so its cause scans no network.
                let reason = match cause {
                    Some(ref cause) if record.origin == "config" => {
                        format!(
                            "the endpoint cannot be reached: {cause} ({})",
                            record.base_url
                        )
                    }
                    _ => reason,
                };
                report_failure(record, health, &reason, cause.as_deref());
                let failure = SaveFailure {
                    endpoint_id: record.id,
                    version: record.version,
                    health: health.to_owned(),
                    reason,
                    asked_at: requested_at,
                    latency_ms,
                    next_check_at,
                    at,
                };
                return self.deps.store.write(failure).await;
            }
        };
        let mut findings = findings(&discovered);
        loop {
            let save = SaveDiscovery {
                workspace: record.workspace.clone(),
                endpoint_id: record.id,
                version: record.version,
                replaces: claims.replaces(),
                may_claim: claims != IdClaims::Free,
                found: found.clone(),
                rejected: findings.rejected.len() as u64,
                findings: json!(findings),
                asked_at: requested_at,
                latency_ms,
                next_check_at,
                at,
            };
            let conflicts = self.deps.store.write(save).await?;
            if conflicts.is_empty() {
                break;
            }
            // Left out one by one: other ids of the list are still valid.
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
                findings.leave_out(taken, discovered.pointer_of(taken), why);
            }
        }
        if record.health != "healthy" || record.findings != json!(findings) {
            report(record, &findings);
        }
        Ok(())
    }

    pub(super) async fn endpoint_name(
        &self,
        workspace: &WorkspaceId,
        id: EndpointId,
    ) -> Result<String, StoreError> {
        let endpoint = self
            .deps
            .store
            .endpoints()
            .find_endpoint(workspace, id)
            .await?;
        Ok(endpoint.map(|endpoint| endpoint.name).unwrap_or_default())
    }
}
