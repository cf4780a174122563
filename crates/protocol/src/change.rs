//! Administrative changes: the rows of `GET /v1/changes`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::ChangeId;
use crate::principal::Principal;

/// Maximum characters of a request id.
pub const REQUEST_ID_CHARS: usize = 128;

/// Kind of an administered object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    Agent,
    RunnerEndpoint,
    ApiKey,
    /// A budget of the API; its id is its name.
    Budget,
    Webhook,
    Source,
    Schedule,
    /// A document of a knowledge base, without its content; its id is `{kb_id}/{document_id}`.
    Document,
    /// A pause; its id is `all`, `workspace:{id}` or `agent:{id}`.
    Pause,
    /// A skill that runs register; its id is `{agent_id}/{skill_name}`.
    Skill,
    Workspace,
    /// An approval of tool calls over the API; those of answers are in the ledger.
    Approval,
}

impl ObjectKind {
    /// All kinds.
    pub const ALL: [Self; 12] = [
        Self::Agent,
        Self::RunnerEndpoint,
        Self::ApiKey,
        Self::Budget,
        Self::Webhook,
        Self::Source,
        Self::Schedule,
        Self::Document,
        Self::Pause,
        Self::Skill,
        Self::Workspace,
        Self::Approval,
    ];

    /// Returns the name used on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        // Rows have these names, so they never change.
        match self {
            Self::Agent => "agent",
            Self::RunnerEndpoint => "runner_endpoint",
            Self::ApiKey => "api_key",
            Self::Budget => "budget",
            Self::Webhook => "webhook",
            Self::Source => "source",
            Self::Schedule => "schedule",
            Self::Document => "document",
            Self::Pause => "pause",
            Self::Skill => "skill",
            Self::Workspace => "workspace",
            Self::Approval => "approval",
        }
    }

    /// Parses the name of a kind.
    pub fn parse(text: &str) -> Option<Self> {
        // Read from the names that are written, so that both agree.
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

/// Effect of a change on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeAction {
    Created,
    Changed,
    Deleted,
}

impl ChangeAction {
    /// All actions.
    pub const ALL: [Self; 3] = [Self::Created, Self::Changed, Self::Deleted];

    /// Returns the name used on the wire and in the database.
    pub const fn as_str(self) -> &'static str {
        // An object that the configuration file no longer has is disabled, and so changed.
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Deleted => "deleted",
        }
    }

    /// Parses the name of an action.
    pub fn parse(text: &str) -> Option<Self> {
        // A newer gateway may have stored an action that this one lacks.
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

/// Order of a list of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ChangeOrder {
    #[default]
    Newest,
    Oldest,
}

/// An administrative change of one object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AdminChange {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: ChangeId,
    /// Epoch seconds.
    pub at: i64,
    pub action: ChangeAction,
    pub kind: ObjectKind,
    pub object_id: String,
    /// Name of the object after the change; of a deleted one, before it.
    pub object_name: String,
    /// The API key, the configuration file, or a command. For a registered skill, the run.
    pub changed_by: Principal,
    /// Header `X-Request-Id` of the request. Absent without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The change as a JSON patch (RFC 6902). A `test` with the old value precedes each `replace` and `remove`. Secrets
    /// are `hash:` and an HMAC that only this installation can compute.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub patch: Vec<Value>,
    /// Version of the agent after the change, for `If-Match`. Absent for other objects and deleted agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
}

/// Body of `POST /v1/agents/{agent_id}/restore`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RestoreAgentRequest {
    /// A change of this agent, after which it had the settings to restore.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = Uuid))]
    pub change_id: ChangeId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_and_actions_read_back() {
        for kind in ObjectKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert_eq!(ObjectKind::parse(kind.as_str()), Some(kind));
        }
        for action in ChangeAction::ALL {
            assert_eq!(serde_json::to_value(action).unwrap(), action.as_str());
            assert_eq!(ChangeAction::parse(action.as_str()), Some(action));
        }
        assert_eq!(ObjectKind::parse("run"), None);
    }
}
