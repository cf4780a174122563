//! Findings of a discovery, and their log lines.

use domain::manifest::{Discovered, mistyped_words};
use protocol::admin::{AcceptedRunner, Fault, IncompatibleRunner};
use protocol::id::RunnerId;
use store::EndpointRecord;

/// Accepted and rejected manifests of a discovery, as the API shows them.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct DiscoveryFindings {
    pub accepted: Vec<AcceptedRunner>,
    pub incompatible: Vec<IncompatibleRunner>,
    pub rejected: Vec<Fault>,
}

impl DiscoveryFindings {
    pub(super) fn leave_out(&mut self, taken: &RunnerId, pointer: String, why: String) {
        self.accepted.retain(|runner| runner.id != *taken);
        self.incompatible.retain(|runner| runner.id != *taken);
        self.rejected.push(Fault::new(pointer, why));
    }
}

pub(super) fn findings(discovered: &Discovered) -> DiscoveryFindings {
    DiscoveryFindings {
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

/// Logged when the state changes.
pub(super) fn report_failure(
    record: &EndpointRecord,
    health: &str,
    reason: &str,
    cause: Option<&str>,
) {
    // record || Discovery repeats every few minutes; an unchanged failure is not logged again.
    if record.health != health || record.health_reason.as_deref() != Some(reason) {
        let reason = cause.unwrap_or(reason);
        tracing::warn!(
            endpoint.name = record.name,
            "endpoint {} is {health}: {reason}",
            record.name
        );
    }
}

pub(super) fn report(record: &EndpointRecord, findings: &DiscoveryFindings) {
    tracing::info!(
        endpoint.name = record.name,
        accepted = findings.accepted.len(),
        incompatible = findings.incompatible.len(),
        rejected = findings.rejected.len(),
        "endpoint {} was discovered",
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
    for runner in &findings.accepted {
        for fault in mistyped_words(&runner.warnings) {
            tracing::warn!(
                endpoint.name = record.name,
                "manifest of {}: {}: {}",
                runner.id,
                fault.pointer,
                fault.message
            );
        }
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
