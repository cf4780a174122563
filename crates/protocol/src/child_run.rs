//! Child runs: a run starts a run of another agent and follows it (`/host/v1/child-runs`).

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::context::AgentInput;
use crate::id::{AgentId, RunId};
use crate::lists;
use crate::raw::RawJson;
use crate::result::RunOutcome;
use crate::run::RunStatus;

/// `finish_reason` of a parent that ends while its child runs continue. A later run of the conversation follows
/// them.
pub const WAITING_CHILD: &str = "waiting_child";

/// Maximum number of child runs of one run.
pub const MAX_CHILD_RUNS: u32 = 16;

/// Maximum depth of child runs below a run that an event started.
pub const MAX_CHILD_DEPTH: u32 = 3;

/// Maximum long-poll time of `GET /host/v1/child-runs/{run_id}`, in seconds.
pub const MAX_WAIT_SECONDS: u64 = 30;

/// Maximum characters of an `idempotency_key`.
pub const KEY_CHARS: usize = 200;

/// Maximum characters of a `summary`.
pub const SUMMARY_CHARS: usize = 200;

/// Body of `POST /host/v1/child-runs`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ChildRunRequest {
    /// Id or name of an agent in `ctx.resources.agents`.
    pub agent_id: String,
    /// Input of the child run, without `interaction`.
    pub input: AgentInput,
    /// Data for the child, available in its `event.data.context`. At most 64 KiB of JSON.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub context: JsonObject,
    /// The task for lists of runs, 1 to 200 characters: `input_preview` of the child run, and `event.data.summary`.
    /// Absent: the begin of the input's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub summary: Option<String>,
    /// Restricts the grants of the child. Absent: everything granted to both this run and the child's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grants: Option<ChildGrants>,
    /// Seconds until the child's deadline, at least 1. The deadline of this run is the upper bound. Absent: the
    /// timeout of the child's agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub deadline_seconds: Option<u64>,
    /// Idempotency key, 1 to 200 characters. Repeating a key in the same run returns the same child run.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 200))]
    pub idempotency_key: String,
}

/// Upper bound of a child run's grants. An absent list restricts nothing; an empty list grants nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ChildGrants {
    /// Model ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub models: Option<Vec<String>>,
    /// Tool names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub tools: Option<Vec<String>>,
    /// Knowledge base ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub knowledge_bases: Option<Vec<String>>,
    /// Skill names.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    pub skills: Option<Vec<String>>,
    /// Ids or names of agents of which the child may start child runs.
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
    /// Reason of the status. `parent_ended`: the end of the parent cancelled the run.
    pub status_reason: Option<String>,
    pub created_at: i64,
    pub finished_at: Option<i64>,
    pub deadline_at: i64,
    /// Finish reason of a completed run.
    pub finish_reason: Option<String>,
    /// Task result of a completed run. Absent: `ok`.
    pub outcome: Option<RunOutcome>,
    /// Last message of the run.
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
    fn rejects_unknown_request_members() {
        for body in [
            json!({"agent_id": "a", "input": {}, "idempotency_key": "k", "deadline": 1}),
            json!({"agent_id": "a", "input": {}, "idempotency_key": "k", "grants": {"files": []}}),
            json!({"agent_id": "a", "input": {}}),
        ] {
            assert!(serde_json::from_value::<ChildRunRequest>(body).is_err());
        }
    }
}
