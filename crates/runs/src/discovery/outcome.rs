//! Outcome of one discovery.

use domain::manifest::{Discovered, validate_manifests};
use protocol::id::EndpointId;
use serde_json::Value;
use store::FoundRunner;

use runner_client::ListError;

/// Runner ids that an endpoint may claim from its list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum IdClaims {
    /// Ids that no agent is bound to.
    Free,
    /// Ids that no other endpoint serves.
    All,
    /// Also the ids of this endpoint.
    Replacing(EndpointId),
}

impl IdClaims {
    pub(super) fn replaces(self) -> Option<EndpointId> {
        match self {
            Self::Free | Self::All => None,
            Self::Replacing(endpoint) => Some(endpoint),
        }
    }
}

/// Result of one discovery.
pub(super) struct DiscoveryResult {
    pub(super) outcome: ListOutcome,
    pub(super) requested_at: i64,
    /// `None`: static manifests, without a request.
    pub(super) latency_ms: Option<i64>,
}

impl DiscoveryResult {
    /// True when the endpoint itself has listed its runners.
    pub(super) fn has_answer(&self) -> bool {
        self.latency_ms.is_some() && matches!(self.outcome, ListOutcome::Found(_))
    }
}

pub(super) enum ListOutcome {
    Found(Discovered),
    /// No list: the runners of the last list stay.
    Failed {
        health: &'static str,
        reason: String,
        /// For the log only.
        cause: Option<String>,
    },
}

/// One reason for all connection errors, so that registrations cannot scan a network.
const UNREACHABLE: &str = "the endpoint cannot be reached; the gateway's log has the cause";

impl ListOutcome {
    /// The endpoint has answered without a list of runners.
    pub(super) fn unhealthy(reason: impl Into<String>) -> Self {
        Self::Failed {
            health: "unhealthy",
            reason: reason.into(),
            cause: None,
        }
    }

    pub(super) fn of(answer: Result<Value, ListError>) -> Self {
        match answer {
            Ok(answer) => match answer.get("runners").and_then(Value::as_array) {
                Some(runners) => Self::Found(validate_manifests(runners)),
                None => Self::unhealthy("the endpoint's answer has no list `runners`"),
            },
            Err(ListError::Egress(error)) => Self::Failed {
                health: "unreachable",
                reason: UNREACHABLE.to_owned(),
                // Refused, closed and filtered ports must look alike to the caller, not to the operator.
                cause: Some(error.in_words()),
            },
            Err(error) => Self::unhealthy(error.to_string()),
        }
    }

    pub(super) fn health(&self) -> &'static str {
        match self {
            Self::Found(_) => "ok",
            Self::Failed { health, .. } => health,
        }
    }

    pub(super) fn found(&self) -> Vec<FoundRunner> {
        match self {
            Self::Found(discovered) => FoundRunner::of(discovered),
            Self::Failed { .. } => Vec::new(),
        }
    }
}
