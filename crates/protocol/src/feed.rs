//! The feed of a workspace: what changed, by id.

use serde::{Deserialize, Serialize};

use crate::id::{AgentId, RunId};

/// Kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum FeedEventType {
    /// A run was created, has another status, or has a request to end.
    Run,
    /// A question of the run was opened or answered.
    Interaction,
    /// A platform action of the run was opened or changed.
    Action,
    /// Changes may be missing: read the lists again.
    Reset,
}

impl FeedEventType {
    /// Returns the name on the wire, which is also the name of the server-sent event.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Interaction => "interaction",
            Self::Action => "action",
            Self::Reset => "reset",
        }
    }
}

/// A change in the workspace. It has ids only: read the object for its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FeedEvent {
    #[serde(rename = "type")]
    pub kind: FeedEventType,
    /// The changed run, or the run of the question or action. Absent in a `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The agent of the run. Absent in a `reset`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
}
