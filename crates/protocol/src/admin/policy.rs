//! Event filters of an agent, and the resources that its runs may use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lists;
use crate::resources::{
    ArtifactOperation, EventOperation, HistoryOperation, ScheduleOperation, StateScope, StorageArea,
};

/// Filters by exact values. An event must match every filter that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AgentFilters {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub source: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub bot_id: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub actor_id: Option<Vec<String>>,
    /// Pipelines whose queries match. Events without a pipeline do not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub pipeline_id: Option<Vec<String>>,
}

/// Resources that the agent's runs may use: layer `agent_policy` of the authorization. Empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ResourcePolicy {
    pub models: IdList,
    pub tools: ToolPolicy,
    pub knowledge_bases: IdList,
    pub skills: IdList,
    #[serde(deserialize_with = "lists::each_once")]
    pub storage: Vec<StorageArea>,
    #[serde(deserialize_with = "lists::each_once")]
    pub history: Vec<HistoryOperation>,
    /// Ids of other conversations that the runs may page and search. The manifest must request
    /// `history: ["workspace"]`, as for `workspace` in `history`, which opens all conversations.
    #[serde(
        deserialize_with = "lists::bounded",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub history_conversations: Vec<String>,
    #[serde(deserialize_with = "lists::each_once")]
    pub events: Vec<EventOperation>,
    #[serde(deserialize_with = "lists::each_once")]
    pub artifacts: Vec<ArtifactOperation>,
    /// Names of `[[files]]`.
    pub files: IdList,
    /// Names or ids of agents of which the runs may start child runs. `"*"`: every other enabled agent of the
    /// workspace. Omitted when empty, for gateways without child runs.
    #[serde(skip_serializing_if = "IdList::is_empty")]
    pub agents: IdList,
    /// `wake`: the runs may wake the agent later. Omitted when empty, for gateways without schedules.
    #[serde(
        deserialize_with = "lists::each_once",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub schedules: Vec<ScheduleOperation>,
    /// Handling of a tool call that may have had its effect. Omitted when `fail`, for gateways without the setting.
    #[serde(skip_serializing_if = "OnUnknownEffect::is_fail")]
    pub on_unknown_effect: OnUnknownEffect,
    /// Handling of a call of a tool that the run was not granted. Omitted when `deny`, for gateways without the setting.
    #[serde(skip_serializing_if = "OnDenied::is_deny")]
    pub on_denied: OnDenied,
}

/// Handling of a call of a tool that the run was not granted (`docs/approvals.md`, Amendments).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnDenied {
    /// The call fails with 403.
    #[default]
    Deny,
    /// The call waits for a person, who may amend the grant of the run. Tools that a rule denies, the manifest excludes
    /// or the parent run was not granted fail with 403.
    Ask,
}

impl OnDenied {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_deny(&self) -> bool {
        // Earlier gateways refuse a policy with the member.
        *self == Self::Deny
    }
}

/// Handling of a tool call whose outcome is unknown, if the tool names no `reconcile` call or it does not know either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnUnknownEffect {
    /// The call fails with 409 `outcome_unknown`.
    #[default]
    Fail,
    /// The call waits for a person, who answers an interaction of the run. The calls of child runs fail.
    Ask,
}

impl OnUnknownEffect {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_fail(&self) -> bool {
        *self == Self::Fail
    }
}

/// Ids of catalog entries, or `"*"` for all entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "must be \"*\" or a list of names")]
pub enum IdList {
    #[serde(deserialize_with = "lists::bounded")]
    Ids(Vec<String>),
    All(Star),
}

impl Default for IdList {
    fn default() -> Self {
        // Nothing is granted by default: an agent without a policy reaches no resource.
        Self::Ids(Vec::new())
    }
}

impl IdList {
    /// Returns true if the list has no ids.
    pub fn is_empty(&self) -> bool {
        // `"*"` is never empty, even if the catalog is.
        matches!(self, Self::Ids(ids) if ids.is_empty())
    }

    /// Returns true if the list contains `id` or is `"*"`.
    pub fn names(&self, id: &str) -> bool {
        match self {
            Self::All(_) => true,
            // Exact match: prefixes or patterns would grant resources that the operator adds later.
            Self::Ids(ids) => ids.iter().any(|listed| listed == id),
        }
    }
}

/// Tools that the runs may call: a list of names or `"*"`, all allowed, or an object of names and patterns with a rule
/// each, such as `{"github_*": "allow", "mail_send": "ask", "shell_rm": "deny"}`. A pattern has one `*`, for any text.
///
/// Of the entries that match a tool, those count that no narrower entry replaces: an entry is narrower if it matches a
/// part of what the other matches. Of those, `deny` wins over `ask`, and `ask` over `allow`. Without an entry: `deny`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(
    untagged,
    expecting = "must be \"*\", a list of names, or an object of names with allow, ask or deny"
)]
pub enum ToolPolicy {
    List(IdList),
    Rules(BTreeMap<String, ToolRule>),
}

impl Default for ToolPolicy {
    fn default() -> Self {
        // As for all lists: nothing is granted by default.
        Self::List(IdList::default())
    }
}

/// Rule for the calls of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolRule {
    Allow,
    /// Each call needs an approval: an existing one that covers it, or the answer to a question.
    Ask,
    Deny,
}

/// The text `*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Star {
    #[serde(rename = "*")]
    Star,
}

/// State scopes that a run may use, as far as its runner's manifest requests them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct StatePolicy {
    pub enabled: bool,
    #[serde(deserialize_with = "lists::each_once")]
    pub scopes: Vec<StateScope>,
}

impl Default for StatePolicy {
    fn default() -> Self {
        Self {
            // The scopes that most runners use. Others are shared by several users, so agents name them explicitly.
            enabled: true,
            scopes: vec![StateScope::Conversation, StateScope::Actor],
        }
    }
}

/// A changed policy, checked against past calls by `POST /v1/agents/{agent_id}/policy-check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PolicyCheck {
    pub resource_policy: ResourcePolicy,
    /// Default: the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_policy: Option<StatePolicy>,
    /// Runs created at this time or later count, in epoch seconds. Default: 30 days ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}
