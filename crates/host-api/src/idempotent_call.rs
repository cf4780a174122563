//! Tool calls with an idempotency key: the first call runs, later ones get the stored result.

use std::sync::Arc;

use domain::canonical::canonical_json;
use domain::tool_call::RepeatedCallDecision;
use protocol::JsonObject;
use protocol::resources::ToolResource;
use serde_json::{Value, json};
use store::{
    BeginToolCall, FinishToolCall, GoesOn, KeyOf, StoreError, ToolCallBegun, ToolCallEnd,
    sha256_hex,
};
use uuid::Uuid;

use crate::result_offload::offload;
use egress::upstream::UpstreamError;
use runs::Runs;
use tools::{AvailableTool, CallOrigin, SkillsOfRun};
use web::auth::RunCaller;
use web::calls_in_progress::CallsInProgress;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;

/// A tool call with an idempotency key.
pub(super) struct IdempotentCall<'a> {
    pub(super) caller: &'a RunCaller,
    pub(super) state: &'a ApiState,
    pub(super) tool: &'a AvailableTool,
    pub(super) granted: &'a ToolResource,
    pub(super) skills: &'a SkillsOfRun<'a>,
    pub(super) key: &'a str,
    pub(super) key_of: KeyOf,
}

impl IdempotentCall<'_> {
    /// Returns the result of this call or of the earlier one.
    pub(super) async fn call(&self, parameters: &JsonObject) -> ApiResult<Value> {
        let id = Uuid::now_v7();
        // Registered before the row is written, so that a repeated call sees this one in progress.
        let mut in_progress = CallInProgress::enter(self, id);
        let begun = self.begin(id, parameters).await?;
        // The row exists only for `Call`, which sets its outcome below.
        in_progress.finish = None;
        match begun {
            ToolCallBegun::Call => in_progress.call(self, parameters).await,
            ToolCallBegun::Stored(result) => {
                let corrupt = StoreError::Corrupt {
                    column: "tool_calls.result",
                    row: self.key.to_owned(),
                };
                Ok(serde_json::from_str(&result).map_err(|_| corrupt)?)
            }
            ToolCallBegun::Refused(decision) => Err(refusal(decision)),
            ToolCallBegun::TooMany => Err(ApiError::conflict(
                "too_many_keys",
                "1000 idempotency keys are used in this scope; call without one",
            )),
            ToolCallBegun::RunEnded => Err(ApiError::unauthenticated()),
        }
    }

    async fn begin(&self, id: Uuid, parameters: &JsonObject) -> ApiResult<ToolCallBegun> {
        let request = json!({"tool": self.granted.tool_name, "parameters": parameters});
        let calls = self.state.calls_in_progress().clone();
        let goes_on: GoesOn = Arc::new(move |call| calls.contains(call));
        let at = self.state.runs.clock().now_ms();
        let longest = i64::try_from(self.tool.timeout().as_millis()).unwrap_or(i64::MAX);
        let begin = BeginToolCall {
            run_id: self.caller.grant.run.id,
            key_of: self.key_of.clone(),
            key: self.key.to_owned(),
            call_id: id,
            request_sha256: sha256_hex(canonical_json(&request).as_bytes()),
            effect: self.granted.effect,
            owner: self.state.runs.owner().to_owned(),
            goes_on,
            at,
            // Allow for clock skew between replicas.
            expires_at: at.saturating_add(longest).saturating_add(5_000),
        };
        Ok(self.state.runs.store().write(begin).await?)
    }
}

/// A call in progress. If it is dropped before its end (the runner disconnected, the run ended), its outcome is
/// unknown.
struct CallInProgress {
    runs: Runs,
    calls: CallsInProgress,
    finish: Option<FinishToolCall>,
    id: Uuid,
}

impl CallInProgress {
    fn enter(call: &IdempotentCall<'_>, id: Uuid) -> Self {
        let calls = call.state.calls_in_progress().clone();
        calls.insert(id);
        Self {
            runs: call.state.runs.clone(),
            calls,
            // Dropped before the tool was called: undo the record.
            finish: Some(finish(call, id, ToolCallEnd::Undone)),
            id,
        }
    }

    async fn call(
        mut self,
        call: &IdempotentCall<'_>,
        parameters: &JsonObject,
    ) -> ApiResult<Value> {
        // From here on, a drop leaves the outcome unknown: the tool may have received the call.
        self.finish = Some(finish(call, self.id, ToolCallEnd::Unknown));
        let key = call.key_of.unique_key(call.caller.grant.run.id, call.key);
        let origin = CallOrigin {
            endpoint: call.caller.grant.run.endpoint_id,
            skills: call.skills,
            key: Some(&key),
        };
        let called = call.state.tools.call(call.tool, parameters, origin);
        let called = called.await;
        let called = match called {
            Ok(result) => Ok(offload(call.caller, call.state, call.tool, result).await),
            Err(error) => Err(error),
        };
        let end = match &called {
            Ok(result) => ToolCallEnd::Done(result.to_string()),
            Err(error) if error.had_no_effect() => ToolCallEnd::Undone,
            Err(_) => ToolCallEnd::Unknown,
        };
        let finish = finish(call, self.id, end);
        // From here on the outcome is stored even if the caller is dropped.
        self.finish = Some(finish.clone());
        self.runs.store().write(finish).await?;
        self.finish = None;
        called.map_err(UpstreamError::into)
    }
}

impl Drop for CallInProgress {
    fn drop(&mut self) {
        match self.finish.take() {
            Some(finish) => {
                let (calls, id) = (self.calls.clone(), self.id);
                self.runs.usage.finish_later(finish, move || {
                    calls.remove(id);
                });
            }
            None => {
                self.calls.remove(self.id);
            }
        }
    }
}

fn finish(call: &IdempotentCall<'_>, id: Uuid, end: ToolCallEnd) -> FinishToolCall {
    FinishToolCall {
        run_id: call.caller.grant.run.id,
        key_of: call.key_of.clone(),
        key: call.key.to_owned(),
        call_id: id,
        end,
    }
}

fn refusal(decision: RepeatedCallDecision) -> ApiError {
    match decision {
        RepeatedCallDecision::Mismatch => ApiError::conflict(
            "idempotency_mismatch",
            "this key was used for another call; use a new one",
        ),
        RepeatedCallDecision::InProgress => ApiError::conflict(
            "in_progress",
            "the first call with this key is in progress; retry when it has ended",
        ),
        RepeatedCallDecision::OutcomeUnknown
        | RepeatedCallDecision::Call
        | RepeatedCallDecision::Answer => ApiError::conflict(
            "outcome_unknown",
            "the outcome of the first call under this key is unknown; check its effect before you call again under a \
                        new key",
        ),
    }
}
