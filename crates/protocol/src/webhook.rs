//! Webhooks: messages about runs to a URL, and their deliveries (`docs/webhooks.md`).

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, EndpointId, RunId, WebhookId};
use crate::principal::Principal;
use crate::run::AgentRun;

/// Type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum WebhookEventType {
    /// A run ended as completed.
    #[serde(rename = "run.completed")]
    RunCompleted,
    /// A run ended as failed or by its timeout.
    #[serde(rename = "run.failed")]
    RunFailed,
    /// A run ended as cancelled.
    #[serde(rename = "run.cancelled")]
    RunCancelled,
    /// A run waits for the answer to a question.
    #[serde(rename = "run.waiting")]
    RunWaiting,
    /// A run asks a question.
    #[serde(rename = "interaction.requested")]
    InteractionRequested,
    /// A platform action can be claimed.
    #[serde(rename = "action.requested")]
    ActionRequested,
    /// A budget refused a call: once for each subject and window.
    #[serde(rename = "budget.reached")]
    BudgetReached,
    /// A runner endpoint became unreachable or unhealthy.
    #[serde(rename = "endpoint.unhealthy")]
    EndpointUnhealthy,
    /// A test call. No webhook selects it.
    #[serde(rename = "webhook.test")]
    Test,
}

impl WebhookEventType {
    /// The types that a webhook may select.
    pub const ALL: [Self; 8] = [
        Self::RunCompleted,
        Self::RunFailed,
        Self::RunCancelled,
        Self::RunWaiting,
        Self::InteractionRequested,
        Self::ActionRequested,
        Self::BudgetReached,
        Self::EndpointUnhealthy,
    ];

    /// Returns the name used on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RunCompleted => "run.completed",
            Self::RunFailed => "run.failed",
            Self::RunCancelled => "run.cancelled",
            Self::RunWaiting => "run.waiting",
            Self::InteractionRequested => "interaction.requested",
            Self::ActionRequested => "action.requested",
            Self::BudgetReached => "budget.reached",
            Self::EndpointUnhealthy => "endpoint.unhealthy",
            Self::Test => "webhook.test",
        }
    }

    /// Parses the name of a type that a webhook may select.
    pub fn parse(text: &str) -> Option<Self> {
        // Test messages are sent on request only, so `ALL` has none.
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Content of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum WebhookPayload {
    /// Type, time and ids.
    #[default]
    Thin,
    /// Also the run with its output, as it is at the time of the delivery.
    Full,
}

impl WebhookPayload {
    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Thin => "thin",
            Self::Full => "full",
        }
    }
}

/// Body of `POST /v1/webhooks` and `PUT /v1/webhooks/{webhook_id}`, with the keys of `[[webhooks]]`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct WebhookSpec {
    /// 1 to 128 bytes, unique in the workspace.
    pub name: String,
    /// Address of the receiver. Absent: the messages are in the feed only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Types of the messages, at least one.
    pub events: Vec<WebhookEventType>,
    /// Ids or names of 1 to 16 agents. Absent: all agents, and messages without an agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<String>>,
    /// `thin` (default) or `full`.
    #[serde(default)]
    pub payload: WebhookPayload,
    /// Default: true. False: no new messages, and no deliveries.
    #[serde(default = "enabled")]
    #[cfg_attr(feature = "openapi", schema(default = true))]
    pub enabled: bool,
    /// Signing secret, `whsec_` and the base64 of 24 to 64 bytes. Only for `POST`. Default: a generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

fn enabled() -> bool {
    true
}

/// Shows no URL and no secret: both give access to the receiver.
impl std::fmt::Debug for WebhookSpec {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("WebhookSpec")
            .field("name", &self.name)
            .field("events", &self.events)
            .field("agents", &self.agents)
            .field("payload", &self.payload)
            .field("enabled", &self.enabled)
            .finish_non_exhaustive()
    }
}

/// A webhook. Times are epoch seconds.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Webhook {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: WebhookId,
    pub name: String,
    /// `config` or `api`.
    pub origin: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub events: Vec<WebhookEventType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<AgentId>>,
    pub payload: WebhookPayload,
    pub enabled: bool,
    /// `gone`: the receiver answered 410. `configuration`: it is gone from the configuration file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disabled_reason: Option<String>,
    /// Only in the response that creates or rotates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// End of the time in which the secret before the last rotation signs, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_secret_until: Option<i64>,
    pub circuit: WebhookCircuit,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub updated_by: Principal,
}

/// Failures of a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookCircuit {
    /// Failed tries since the last delivery. From five on, only one delivery is tried at a time.
    pub failures: u64,
    /// No try begins before this time. Absent: no wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<i64>,
}

/// All webhooks of the workspace, by name.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookList {
    pub items: Vec<Webhook>,
}

/// Body of `POST /v1/webhooks/{webhook_id}/rotate-secret`.
#[derive(Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RotateSecretRequest {
    /// The new signing secret. Default: a generated one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// A message. A message of a webhook with `payload = "full"` also has `run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookMessage {
    /// Equal in all deliveries of the message; also header `webhook-id`.
    pub id: String,
    #[serde(rename = "type")]
    pub kind: WebhookEventType,
    /// Epoch seconds.
    pub created_at: i64,
    pub workspace_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The question, for `interaction.requested` and `run.waiting`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interaction_id: Option<String>,
    /// The platform action, for `action.requested`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action_id: Option<String>,
    /// Name of the budget, for `budget.reached`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// The endpoint, for `endpoint.unhealthy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint_id: Option<EndpointId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Box<AgentRun>>,
}

/// Status of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeliveryStatus {
    /// Waits for a try, or is being tried.
    Pending,
    /// The receiver answered with a status of 200 to 299.
    Delivered,
    /// All tries failed, or a day has passed.
    Dead,
}

impl DeliveryStatus {
    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }

    /// Parses the name of a status.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Pending, Self::Delivered, Self::Dead]
            .into_iter()
            .find(|status| status.as_str() == text)
    }
}

/// Delivery of a message to one webhook. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookDelivery {
    pub message_id: String,
    #[serde(rename = "type")]
    pub kind: WebhookEventType,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    pub status: DeliveryStatus,
    /// Tries so far, of at most 12.
    pub tries: u64,
    /// Time of the next try. Absent unless pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_try_at: Option<i64>,
    /// HTTP status of the last response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_status: Option<u16>,
    /// Cause of the last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Time of the message.
    pub created_at: i64,
    /// Time of the delivery, or of the last failure of a dead one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
}

/// Body of `POST /v1/webhooks/{webhook_id}/redeliver`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RedeliverRequest {
    /// Messages from this time on, in epoch seconds.
    pub since: i64,
    /// `delivered` or `dead`. Absent: both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DeliveryStatus>,
}

/// Response to a redelivery.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Redelivered {
    /// Deliveries that are pending again.
    pub count: u64,
    /// True after 100,000 deliveries: later ones are unchanged.
    pub has_more: bool,
}

/// Result of a test call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookTestResult {
    /// True for a status of 200 to 299.
    pub delivered: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub duration_ms: u64,
}

/// Messages of the feed, oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessagePage {
    pub items: Vec<WebhookMessage>,
    /// The `after` of the next request. It stays valid as long as its messages, 30 days.
    pub next_after: u64,
    /// True: further messages exist, also if this page is empty.
    pub has_more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_equal_stored_names() {
        for kind in WebhookEventType::ALL {
            let name = serde_json::to_value(kind).unwrap();
            assert_eq!(name, kind.as_str());
            assert_eq!(WebhookEventType::parse(kind.as_str()), Some(kind));
        }
        assert_eq!(WebhookEventType::parse("webhook.test"), None);
    }

    #[test]
    fn debug_output_of_a_specification_holds_no_secret() {
        let spec: WebhookSpec = serde_json::from_str(
            r#"{"name": "n", "url": "https://h.example/hunter2", "events": ["run.completed"], "secret": "hunter2"}"#,
        )
        .unwrap();
        assert!(spec.enabled);
        assert!(!format!("{spec:?}").contains("hunter2"));
    }
}
