//! Platform actions: a run asks the program that operates its chat platform for an act, for example to edit a message
//! (`docs/protocol.md`, section Platform actions).

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::id::{AgentId, RunId};

/// Maximum bytes of `target` and `payload` together, as JSON.
pub const ACTION_REQUEST_BYTES: usize = 64 * 1024;
/// Maximum bytes of `output` or `error`, as JSON.
pub const ACTION_RESULT_BYTES: usize = 64 * 1024;
/// Maximum requested actions of a run by each of the two ways, host call and result.
pub const MAX_RUN_ACTIONS: usize = 100;
/// Default and maximum of `timeout_seconds`.
pub const DEFAULT_ACTION_SECONDS: u64 = 5 * 60;
pub const MAX_ACTION_SECONDS: u64 = 24 * 60 * 60;
/// Default and maximum of `lease_seconds`.
pub const DEFAULT_CLAIM_SECONDS: u64 = 60;
pub const MAX_CLAIM_SECONDS: u64 = 60 * 60;
/// Maximum characters of an idempotency key.
pub const ACTION_KEY_CHARS: usize = 255;

/// Approval that an agent's policy sets for an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ActionApproval {
    /// Open at once.
    Auto,
    /// Open after a person approves it, by an interaction.
    Ask,
}

impl ActionApproval {
    /// Returns the name used on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Ask => "ask",
        }
    }
}

/// Body of `POST /host/v1/platform/actions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PlatformActionRequest {
    /// Name of an action of the catalogue, for example `message.edit`.
    pub action: String,
    /// The object that the action concerns, within the conversation of the event.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub target: JsonObject,
    /// Arguments of the action.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub payload: JsonObject,
    /// 1–255 characters. A repeated request of the run with the same key returns the same action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 255))]
    pub idempotency_key: Option<String>,
    /// Seconds in which a program must claim the open action: 1–86,400, default 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86400))]
    pub timeout_seconds: Option<u64>,
}

/// Status of a platform action. All but `awaiting_approval`, `open` and `claimed` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlatformActionStatus {
    /// A person has to approve it.
    AwaitingApproval,
    /// A program can claim it.
    Open,
    /// A program performs it.
    Claimed,
    /// It was performed.
    Done,
    /// The platform refused it, or the program could not perform it.
    Failed,
    /// A person declined it.
    Declined,
    /// It was not approved or claimed in time, or its claim ended without a result: `claimed_at` shows which.
    Expired,
    /// Its run was cancelled before a claim.
    Cancelled,
}

impl PlatformActionStatus {
    pub const ALL: [Self; 8] = [
        Self::AwaitingApproval,
        Self::Open,
        Self::Claimed,
        Self::Done,
        Self::Failed,
        Self::Declined,
        Self::Expired,
        Self::Cancelled,
    ];

    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AwaitingApproval => "awaiting_approval",
            Self::Open => "open",
            Self::Claimed => "claimed",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Declined => "declined",
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
        }
    }

    /// Parses the name of a status.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Returns true if the status never changes again.
    pub fn is_final(self) -> bool {
        // A claimed action can still be reported, or expire.
        !matches!(self, Self::AwaitingApproval | Self::Open | Self::Claimed)
    }
}

/// A platform action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PlatformAction {
    pub id: String,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub run_id: RunId,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent_id: AgentId,
    pub action: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub target: JsonObject,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub payload: JsonObject,
    pub status: PlatformActionStatus,
    /// Epoch seconds.
    pub created_at: i64,
    /// End of the approval, of the time to claim it, or of the claim, in epoch seconds.
    pub expires_at: i64,
    /// Sequence of its event in the stream of the run. Absent until that event is committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// The interaction that asks for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interaction_id: Option<String>,
    /// Epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimed_at: Option<i64>,
    /// Epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<i64>,
    /// For `done`: what the platform returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub output: Option<JsonObject>,
    /// For `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<PlatformActionError>,
    /// The target conversation: `event_id`, `conversation` and `delivery` of the event. Absent in the host API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub event: Option<JsonObject>,
}

/// Reason for which an action was not performed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PlatformActionError {
    /// Code of the platform or of the program, 1–128 characters; `unsupported` if the platform has no such action.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 128))]
    pub code: String,
    /// 1–2,000 characters.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 2000))]
    pub message: String,
}

/// Body of `POST /v1/actions/{action_id}/claim`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ClaimActionRequest {
    /// Seconds in which the result must arrive: 1–3,600, default 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 3600))]
    pub lease_seconds: Option<u64>,
    /// The token of an earlier response, to extend that claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_token: Option<String>,
}

impl ClaimActionRequest {
    /// Returns the JSON pointer of the first invalid member and the error message.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let seconds = self.lease_seconds?;
        let is_valid = (1..=MAX_CLAIM_SECONDS).contains(&seconds);
        (!is_valid).then_some(("/lease_seconds", "must be 1 to 3600"))
    }
}

/// A claimed action, with the token for its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ClaimedAction {
    pub action: PlatformAction,
    /// Secret that the result must name. Shown only here.
    pub claim_token: String,
}

/// Body of `POST /v1/actions/{action_id}/result`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ActionResultRequest {
    pub claim_token: String,
    pub status: ActionResultStatus,
    /// With `done`: what the platform returned, for example `{"message_id": "…"}`. At most 64 KiB as JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub output: Option<JsonObject>,
    /// With `failed`, which needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<PlatformActionError>,
}

/// Outcome of a performed action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ActionResultStatus {
    Done,
    Failed,
}

impl ActionResultRequest {
    /// Returns the JSON pointer of the first invalid member and the error message.
    pub fn fault(&self) -> Option<(&'static str, &'static str)> {
        let error = match (self.status, &self.error) {
            // The run decides by the reason what to do next.
            (ActionResultStatus::Failed, None) => {
                return Some(("/error", "is required for failed"));
            }
            // Ambiguous: the action may have been performed in part.
            (ActionResultStatus::Done, Some(_)) => return Some(("/error", "is for failed only")),
            (ActionResultStatus::Failed, _) if self.output.is_some() => {
                return Some(("/output", "is for done only"));
            }
            (_, error) => error.as_ref()?,
        };
        // The limits count characters, so that they are the same in each script.
        let has = |text: &str, max: usize| (1..=max).contains(&text.chars().count());
        if !has(&error.code, 128) {
            return Some(("/error/code", "must have 1 to 128 characters"));
        }
        (!has(&error.message, 2_000))
            .then_some(("/error/message", "must have 1 to 2,000 characters"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn results_need_the_members_of_their_status() {
        let fault = |body: &Value| {
            let result: ActionResultRequest = serde_json::from_value(body.clone()).unwrap();
            result.fault().map(|(pointer, _)| pointer)
        };
        let error = json!({"code": "c", "message": "m"});
        for (body, expected) in [
            (json!({"claim_token": "t", "status": "done"}), None),
            (
                json!({"claim_token": "t", "status": "failed", "error": error}),
                None,
            ),
            (
                json!({"claim_token": "t", "status": "failed"}),
                Some("/error"),
            ),
            (
                json!({"claim_token": "t", "status": "done", "error": error}),
                Some("/error"),
            ),
            (
                json!({"claim_token": "t", "status": "failed", "error": error, "output": {}}),
                Some("/output"),
            ),
            (
                json!({"claim_token": "t", "status": "failed", "error": {"code": "", "message": "m"}}),
                Some("/error/code"),
            ),
            (
                json!({"claim_token": "t", "status": "failed", "error": {"code": "c", "message": ""}}),
                Some("/error/message"),
            ),
        ] {
            assert_eq!(fault(&body), expected, "{body}");
        }
    }

    #[test]
    fn status_names_round_trip() {
        for status in PlatformActionStatus::ALL {
            assert_eq!(PlatformActionStatus::parse(status.as_str()), Some(status));
            assert_eq!(json!(status), status.as_str());
        }
    }

    #[test]
    fn bounds_leases_of_claims() {
        let fault = |lease_seconds| {
            let request = ClaimActionRequest {
                lease_seconds,
                claim_token: None,
            };
            request.fault().is_some()
        };
        assert!(!fault(None) && !fault(Some(1)) && !fault(Some(3600)));
        assert!(fault(Some(0)) && fault(Some(3601)));
    }
}
