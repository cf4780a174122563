//! Approvals of tool calls (`docs/approvals.md`): a person's decision that calls of a pattern need no further question.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

use crate::id::{AgentId, ApprovalId, RunId};
use crate::principal::Principal;

/// Rules for the arguments of a call, by JSON pointer. `""` is the complete object of arguments. Each argument needs a
/// rule, for itself or for an object or list that contains it.
pub type ArgumentRules = BTreeMap<String, ArgumentRule>;

/// Rule for one argument. Comparisons are exact: no Unicode normalization, and `1`, `1.0` and `"1"` differ.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ArgumentRule {
    /// This value, of any type.
    Equals(Value),
    /// A text that begins so. After it, letters, digits, spaces and `_-./=:,+@` only, and no part `..`.
    Prefix(String),
    /// One of these values.
    OneOf(Vec<Value>),
    /// A number within bounds.
    Range(NumberBounds),
    /// Any value, or none. Always `true`.
    Any(bool),
}

/// Bounds of a number, both inclusive. At least one is present.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct NumberBounds {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub min: Option<Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub max: Option<Number>,
}

/// Body of `POST /v1/approvals`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ApprovalSpec {
    /// Name of a tool, or a pattern with one `*`.
    pub tool: String,
    /// Rules by JSON pointer, at most 50. Empty: calls without arguments.
    #[serde(default)]
    pub arguments: ArgumentRules,
    /// Maximum number of calls. Absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub count: Option<u64>,
    /// Expiry in epoch seconds, at most 366 days ahead. Default: 30 days.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
    /// Name or id of the agent whose runs it covers. Exactly one of `agent` and `run_id` is present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// A run: covers the runs of its agent in its conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_id: Option<RunId>,
}

/// Runs that an approval covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// The run `run_id`.
    Run,
    /// The runs of the agent in the conversation of `run_id`.
    Conversation,
    /// The runs of the agent.
    Agent,
}

impl ApprovalScope {
    /// Returns the name on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Conversation => "conversation",
            Self::Agent => "agent",
        }
    }

    /// Parses a name.
    pub fn parse(text: &str) -> Option<Self> {
        // An unknown scope covers an unknown set of runs, so it is none of these.
        let mut all = [Self::Run, Self::Conversation, Self::Agent].into_iter();
        all.find(|scope| scope.as_str() == text)
    }
}

/// State of an approval. Only an active one covers calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ApprovalStatus {
    Active,
    /// All calls of its count are used.
    Used,
    Expired,
    Revoked,
}

/// An approval of tool calls. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Approval {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ApprovalId,
    pub status: ApprovalStatus,
    pub scope: ApprovalScope,
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub agent_id: AgentId,
    /// The run of scope `run`, or a run of the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub run_id: Option<RunId>,
    /// Name of a tool, or a pattern with one `*`.
    pub tool: String,
    /// True if it amends the grant of its run: it also opens the tool, as far as its definition stays the same.
    #[serde(default)]
    pub amendment: bool,
    /// Rules by JSON pointer. Absent for an approval of one exact call, which its question shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<ArgumentRules>,
    /// Maximum number of calls. Absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Calls that began by it.
    pub used: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at: Option<i64>,
    /// The answered question that created it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interaction_id: Option<String>,
    pub created_at: i64,
    pub created_by: Principal,
    pub expires_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked_by: Option<Principal>,
}
