//! Child runs: a run starts a run of another agent and follows it (`/host/v1/child-runs`).

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::context::AgentInput;
use crate::id::{AgentId, RunId};
use crate::lists;
use crate::raw::RawJson;
use crate::result::RunOutcome;
use crate::run::RunStatus;

/// The `finish_reason` of a parent that leaves its child runs running: a later run of the conversation follows them.
pub const WAITING_CHILD: &str = "waiting_child";

/// Child runs that one run may start.
pub const MOST_CHILDREN: u32 = 16;

/// Levels of child runs below a run that an event started.
pub const MOST_DEPTH: u32 = 3;

/// Seconds that `GET /host/v1/child-runs/{run_id}` waits at most.
pub const MOST_WAIT_SECONDS: u64 = 30;

/// Characters of an `idempotency_key` at most.
pub const KEY_CHARS: usize = 200;

/// The body of `POST /host/v1/child-runs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ChildRunRequest {
    /// The id or the name of an agent in `ctx.resources.agents`.
    pub agent_id: String,
    /// Input of the child run. It takes no `interaction`.
    pub input: AgentInput,
    /// Facts for the child, in its `event.data.context`. At most 64 KiB of JSON.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub context: JsonObject,
    /// Narrows what the child may use. Absent: all that the child's agent and this run both may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<ChildGrants>,
    /// Seconds until the child's deadline, at least 1. Never later than the deadline of this run. Absent: that of the
    /// child's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub deadline_seconds: Option<u64>,
    /// 1 to 200 characters. The same key in the same run answers with the same child run.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub idempotency_key: String,
}

/// Upper bound of a child run's grant. An absent list narrows nothing, an empty one grants nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ChildGrants {
    /// Ids of models.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub models: Option<Vec<String>>,
    /// Names of tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub tools: Option<Vec<String>>,
    /// Ids of knowledge bases.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub knowledge_bases: Option<Vec<String>>,
    /// Names of skills.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub skills: Option<Vec<String>>,
    /// Ids or names of agents that the child may start itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub agents: Option<Vec<String>>,
}

/// A child run, as its parent sees it. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChildRun {
    pub run_id: RunId,
    pub parent_run_id: RunId,
    pub agent_id: AgentId,
    pub status: RunStatus,
    /// Why it has this status; `parent_ended` where the end of the parent cancelled it.
    pub status_reason: Option<String>,
    pub created_at: i64,
    pub finished_at: Option<i64>,
    pub deadline_at: i64,
    /// Of a completed run: why there is no more.
    pub finish_reason: Option<String>,
    /// Of a completed run: whether the task is done. Absent: `ok`.
    pub outcome: Option<RunOutcome>,
    /// The last message of the run.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub output: Option<RawJson>,
    /// `{code, message, retryable}` of a run that did not complete.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub error: Option<RawJson>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub usage: Option<RawJson>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_grants_differ_from_empty_ones() {
        let request: ChildRunRequest = serde_json::from_value(json!({
            "agent_id": "writer", "input": {"text": "hi"}, "idempotency_key": "a",
            "grants": {"tools": []},
        }))
        .unwrap();
        let grants = request.grants.unwrap();
        assert_eq!(grants.tools, Some(Vec::new()));
        assert_eq!(grants.models, None);
        assert_eq!(
            serde_json::to_value(grants).unwrap(),
            json!({"tools": []}),
            "an absent list stays absent"
        );
    }

    #[test]
    fn unknown_request_members_are_refused() {
        for body in [
            json!({"agent_id": "a", "input": {}, "idempotency_key": "k", "deadline": 1}),
            json!({"agent_id": "a", "input": {}, "idempotency_key": "k", "grants": {"files": []}}),
            json!({"agent_id": "a", "input": {}}),
        ] {
            assert!(serde_json::from_value::<ChildRunRequest>(body).is_err());
        }
    }
}
