//! Tool calls with a ticket: the first call runs, and a repeated one gets its outcome.

use std::sync::Arc;
use std::time::Duration;

use domain::approval::call_text;
use domain::tool_call::{CallEffect, RepeatedCallDecision};
use protocol::JsonObject;
use protocol::id::ApprovalId;
use protocol::resources::ToolResource;
use serde_json::{Value, json};
use store::{
    BeginToolCall, FinishToolCall, GoesOn, KeyOf, StoreError, TicketEffect, TicketKey,
    ToolCallBegun, ToolCallEnd, failpoint, sha256_hex,
};
use uuid::Uuid;

use crate::call_approval::approval_required;
use crate::hooks::{checked_result, withheld, withheld_by};
use crate::host_call::HostCall;
use crate::result_offload::offload;
use crate::unknown_effect::SettledEffect;
use runs::Runs;
use runs::hooks::HookRefused;
use tools::{AvailableTool, Behalf, CallOrigin, SkillsOfRun};
use web::auth::RunCaller;
use web::calls_in_progress::CallsInProgress;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;

/// Pause between two looks for the end of a call that another process makes.
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);

/// A tool call with a ticket.
pub(super) struct TicketedCall<'a> {
    pub(super) caller: &'a RunCaller,
    pub(super) state: &'a ApiState,
    pub(super) host_call: &'a HostCall,
    pub(super) tool: &'a AvailableTool,
    pub(super) granted: &'a ToolResource,
    pub(super) skills: &'a SkillsOfRun<'a>,
    pub(super) key: TicketKey,
    pub(super) key_of: KeyOf,
    /// Approvals that cover the call. `None`: it needs none.
    pub(super) approvals: Option<Vec<ApprovalId>>,
    /// The actor for whom the tool is called.
    pub(super) behalf: Option<Behalf<'a>>,
}

/// A call that may have been executed.
pub(super) struct UnknownOutcome {
    pub(super) call_id: Uuid,
    /// The idempotency key that the tool received.
    pub(super) ticket: String,
    /// Error of the call, if this request made it.
    pub(super) error: Option<ApiError>,
}

/// A call, or a look at an earlier one.
enum TriedCall {
    Answered(Value),
    Unknown(UnknownOutcome),
}

impl TicketedCall<'_> {
    /// Returns the result of this call or of the earlier one. Never repeats a call that may have been executed.
    pub(super) async fn call(&self, parameters: &JsonObject) -> ApiResult<Value> {
        let unknown = match self.try_call(parameters, None).await? {
            TriedCall::Answered(result) => return Ok(result),
            TriedCall::Unknown(unknown) => unknown,
        };
        match self.settle(&unknown, parameters).await? {
            SettledEffect::Done(result) => {
                let checked = self.checked(result).await?;
                self.finish(unknown.call_id, end_of(&checked)).await?;
                self.note(&unknown.ticket, CallEffect::Recorded);
                checked.map_err(withheld_error)
            }
            SettledEffect::NotDone => {
                let error = unknown.error.unwrap_or_else(declined);
                Err(self
                    .not_done(unknown.call_id, &unknown.ticket, error)
                    .await?)
            }
            SettledEffect::Declined => {
                let (call_id, ticket) = (unknown.call_id, &unknown.ticket);
                Err(self.not_done(call_id, ticket, declined()).await?)
            }
            SettledEffect::Repeat => {
                match self.try_call(parameters, Some(unknown.call_id)).await? {
                    TriedCall::Answered(result) => Ok(result),
                    TriedCall::Unknown(unknown) => Err(self.unknown_error(unknown).await?),
                }
            }
            SettledEffect::Unknown => Err(self.unknown_error(unknown).await?),
        }
    }

    /// Makes the call unless an earlier one has its ticket. `replaces`: the earlier call, if the tool did not execute
    /// it.
    async fn try_call(
        &self,
        parameters: &JsonObject,
        replaces: Option<Uuid>,
    ) -> ApiResult<TriedCall> {
        let id = Uuid::now_v7();
        failpoint::pass("tool_call.before_ticket").await?;
        // Registered before the row is written, so that a repeated call sees this one in progress.
        let mut in_progress = CallInProgress::enter(self, id);
        let begun = self.begin(id, parameters, replaces).await?;
        // The row exists only for `Call`, which sets its outcome below.
        in_progress.finish = None;
        match begun {
            ToolCallBegun::Call { key, approval } => {
                if let Some(approval) = approval {
                    self.host_call.note_approval(approval);
                }
                failpoint::pass("tool_call.after_ticket").await?;
                in_progress.call(self, &self.ticket(&key), parameters).await
            }
            ToolCallBegun::Stored { key, result } => {
                self.note(&self.ticket(&key), CallEffect::Recorded);
                Ok(TriedCall::Answered(stored_result(&result, &key)?))
            }
            ToolCallBegun::Unknown { key, call_id } => {
                let ticket = self.ticket(&key);
                self.note(&ticket, CallEffect::Unknown);
                Ok(TriedCall::Unknown(UnknownOutcome {
                    call_id,
                    ticket,
                    error: None,
                }))
            }
            ToolCallBegun::NeedsApproval => Err(approval_required()),
            ToolCallBegun::Refused(decision) => Err(refusal(decision)),
            ToolCallBegun::Elsewhere => Err(refusal(RepeatedCallDecision::InProgress)),
            ToolCallBegun::TooMany => Err(ApiError::conflict(
                "too_many_keys",
                "1000 tool calls are recorded in this scope; call without a key, or end the run",
            )),
            ToolCallBegun::RunEnded => Err(ApiError::unauthenticated()),
        }
    }

    /// Writes the ticket. Waits for a call of another process, which may be gone, at most until its deadline.
    async fn begin(
        &self,
        id: Uuid,
        parameters: &JsonObject,
        replaces: Option<Uuid>,
    ) -> ApiResult<ToolCallBegun> {
        loop {
            let begin = self.intent(id, parameters, replaces);
            match self.state.runs.store().write(begin).await? {
                ToolCallBegun::Elsewhere => tokio::time::sleep(BETWEEN_LOOKS).await,
                begun => return Ok(begun),
            }
        }
    }

    /// The result after its hooks, within the size limit.
    async fn checked(&self, result: Value) -> Result<Result<Value, HookRefused>, StoreError> {
        let name = &self.granted.tool_name;
        let checked = checked_result(self.caller, self.state, name, result).await?;
        Ok(match checked {
            Ok(result) => Ok(offload(self.caller, self.state, self.tool, result).await),
            Err(refused) => Err(refused),
        })
    }

    fn intent(&self, id: Uuid, parameters: &JsonObject, replaces: Option<Uuid>) -> BeginToolCall {
        let calls = self.state.calls_in_progress().clone();
        let goes_on: GoesOn = Arc::new(move |call| calls.contains(call));
        let at = self.state.runs.clock().now_ms();
        let longest = i64::try_from(self.tool.timeout().as_millis()).unwrap_or(i64::MAX);
        BeginToolCall {
            run_id: self.caller.grant.run.id,
            key_of: self.key_of.clone(),
            key: self.key.clone(),
            call_id: id,
            request_sha256: request_sha256(&self.granted.tool_name, parameters),
            effect: self.granted.effect,
            owner: self.state.runs.owner().to_owned(),
            goes_on,
            at,
            // Allow for clock skew between replicas.
            expires_at: at.saturating_add(longest).saturating_add(5_000),
            replaces,
            approvals: self.approvals.clone(),
        }
    }

    /// The error of a call with an unknown outcome. The ticket of a call without a key is free after it: its runner
    /// could not choose another one.
    async fn unknown_error(&self, unknown: UnknownOutcome) -> ApiResult<ApiError> {
        let UnknownOutcome {
            call_id,
            ticket,
            error,
        } = unknown;
        self.note(&ticket, CallEffect::Unknown);
        if matches!(self.key, TicketKey::Counted { .. }) {
            self.finish(call_id, ToolCallEnd::Undone).await?;
        }
        let error = error.unwrap_or_else(|| refusal(RepeatedCallDecision::OutcomeUnknown));
        let effect = CallEffect::Unknown.as_str();
        let error = error.with("effect", json!(effect));
        Ok(error.with("ticket", json!(ticket)))
    }

    /// The error of a call that was not executed. Its ticket is free.
    async fn not_done(&self, call_id: Uuid, ticket: &str, error: ApiError) -> ApiResult<ApiError> {
        self.finish(call_id, ToolCallEnd::Undone).await?;
        self.note(ticket, CallEffect::NotDone);
        let error = error.with("effect", json!(CallEffect::NotDone.as_str()));
        Ok(error.with("ticket", json!(ticket)))
    }

    async fn finish(&self, call_id: Uuid, end: ToolCallEnd) -> Result<(), StoreError> {
        let finish = self.end(call_id, end);
        self.state.runs.store().write(finish).await
    }

    fn end(&self, call_id: Uuid, end: ToolCallEnd) -> FinishToolCall {
        FinishToolCall {
            run_id: self.caller.grant.run.id,
            key_of: self.key_of.clone(),
            call_id,
            end,
        }
    }

    fn ticket(&self, key: &str) -> String {
        self.key_of.unique_key(self.caller.grant.run.id, key)
    }

    fn note(&self, ticket: &str, effect: CallEffect) {
        let ticket = ticket.to_owned();
        self.host_call.note_effect(TicketEffect { ticket, effect });
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
    fn enter(call: &TicketedCall<'_>, id: Uuid) -> Self {
        let calls = call.state.calls_in_progress().clone();
        calls.insert(id);
        Self {
            runs: call.state.runs.clone(),
            calls,
            // Dropped before the tool was called: undo the record.
            finish: Some(call.end(id, ToolCallEnd::Undone)),
            id,
        }
    }

    async fn call(
        mut self,
        call: &TicketedCall<'_>,
        ticket: &str,
        parameters: &JsonObject,
    ) -> ApiResult<TriedCall> {
        // From here on, a drop leaves the outcome unknown: the tool may have received the call.
        self.finish = Some(call.end(self.id, ToolCallEnd::Unknown));
        call.note(ticket, CallEffect::Unknown);
        let origin = CallOrigin {
            endpoint: call.caller.grant.run.endpoint_id,
            skills: call.skills,
            key: Some(ticket),
            behalf: call.behalf,
        };
        let called = call.state.tools.call(call.tool, parameters, origin);
        let called = called.await;
        let called = match called {
            Ok(result) => Ok(call.checked(result).await?),
            Err(error) => Err(error),
        };
        failpoint::pass("tool_call.before_outcome").await?;
        let end = match &called {
            Ok(checked) => end_of(checked),
            Err(error) if error.had_no_effect() => ToolCallEnd::Undone,
            Err(_) => ToolCallEnd::Unknown,
        };
        let finish = call.end(self.id, end);
        // From here on the outcome is stored even if the caller is dropped.
        self.finish = Some(finish.clone());
        self.runs.store().write(finish).await?;
        self.finish = None;
        failpoint::pass("tool_call.after_outcome").await?;
        match called {
            Ok(checked) => {
                call.note(ticket, CallEffect::Done);
                checked
                    .map(TriedCall::Answered)
                    .map_err(|refused| withheld_error(refused).with("ticket", json!(ticket)))
            }
            Err(error) if error.had_no_effect() => {
                call.note(ticket, CallEffect::NotDone);
                Err(error.into())
            }
            // A repeated read has no effect, so its outcome needs no settling.
            Err(error) if domain::tool_call::is_repeatable(call.granted.effect) => {
                Err(error.into())
            }
            Err(error) => Ok(TriedCall::Unknown(UnknownOutcome {
                call_id: self.id,
                ticket: ticket.to_owned(),
                error: Some(error.into()),
            })),
        }
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

/// Hash by which equal calls of a tool are found.
pub(super) fn request_sha256(tool_name: &str, parameters: &JsonObject) -> String {
    sha256_hex(call_text(tool_name, parameters).as_bytes())
}

/// Parses the stored result of a call, which may be the refusal of a hook. `row`: names it in the error.
pub(super) fn stored_result(result: &str, row: &str) -> ApiResult<Value> {
    if let Some(refused) = withheld_by(result) {
        return Err(withheld_error(refused));
    }
    let parsed = serde_json::from_str(result).map_err(|_| StoreError::Corrupt {
        column: "tool_calls.result",
        row: row.to_owned(),
    });
    Ok(parsed?)
}

/// The error of a refused result. The tool was called.
fn withheld_error(refused: HookRefused) -> ApiError {
    let effect = CallEffect::Done.as_str();
    ApiError::from(refused).with("effect", json!(effect))
}

pub(super) fn refusal(decision: RepeatedCallDecision) -> ApiError {
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
            "the earlier call may have been executed, and its outcome is unknown; check its effect before you call \
             again, with a new key if the call had one",
        ),
    }
}

fn end_of(checked: &Result<Value, HookRefused>) -> ToolCallEnd {
    ToolCallEnd::Done(match checked {
        Ok(result) => result.to_string(),
        Err(refused) => withheld(refused),
    })
}

fn declined() -> ApiError {
    ApiError::conflict(
        CallEffect::NotDone.as_str(),
        "a person found that the earlier call did not happen, and decided against it; continue without it",
    )
}
