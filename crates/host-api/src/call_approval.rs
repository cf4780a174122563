//! Tool calls that need an approval: covered by one that exists, or decided by a person.

use std::time::Duration;

use domain::approval::HeldCall;
use protocol::JsonObject;
use protocol::id::ApprovalId;
use protocol::resources::{ToolApproval, ToolResource};
use protocol::tool::HeldToolCall;
use serde_json::{Value, json};
use store::CallToApprove;

use crate::hooks::checked_parameters;
use crate::ticketed_call::request_sha256;
use crate::tools::{CallKey, ToolCalling};
use runs::awaited::CallDecision;
use web::error::{ApiError, ApiResult};

/// Decisions that a call waits for: other calls may use an approval first.
const DECISIONS: usize = 3;
/// Reason of a call without an approval.
const APPROVAL_REQUIRED: &str = "approval_required";

/// Outcome of a tool call.
pub(super) enum ApprovedOutcome {
    Result(Value),
    /// The call was not made: no person has decided about it in its time.
    Held(HeldToolCall),
}

impl ToolCalling<'_> {
    /// Calls the tool; waits for a person if it asks and no approval covers the call. `wait`: maximum of each wait;
    /// `None`: until the question is final.
    pub(super) async fn call_when_approved(
        &self,
        parameters: JsonObject,
        key: Option<CallKey<'_>>,
        wait: Option<Duration>,
    ) -> ApiResult<ApprovedOutcome> {
        // Before everything else: grant, approval and ticket are of the arguments that the tool gets.
        let parameters = checked_parameters(self.caller, self.state, self.name, parameters).await?;
        for _ in 0..DECISIONS {
            match self.call(&parameters, key).await {
                Err(error) if is_approval_required(&error) => {}
                called => return called.map(ApprovedOutcome::Result),
            }
            // The call holds no slot and no budget here: a person may take hours.
            if let Some(held) = self.until_decided(&parameters, wait).await? {
                return Ok(ApprovedOutcome::Held(held));
            }
        }
        let message = "other calls used the approval first; repeat the call";
        Err(ApiError::conflict(APPROVAL_REQUIRED, message))
    }

    /// Waits until a person allows the call. `Some`: not decided yet.
    async fn until_decided(
        &self,
        parameters: &JsonObject,
        wait: Option<Duration>,
    ) -> ApiResult<Option<HeldToolCall>> {
        let call = HeldCall {
            tool: self.name.to_owned(),
            parameters: parameters.clone(),
            amends: self.needed_amendment(),
        };
        let denial = call.amends.as_ref().map(|amends| self.denial(amends));
        let awaited = &self.state.runs.awaited;
        let decision = awaited.ask_about_call(&self.caller.grant, &call, denial, wait);
        let decision = decision.await?;
        if let Some(amends) = &call.amends {
            self.record_denial(amends, &decision).await?;
        }
        match decision {
            CallDecision::Allowed => Ok(None),
            CallDecision::Open { question } if wait.is_some() => {
                Ok(Some(HeldToolCall::awaiting(question)))
            }
            // Without a limit, only the end of this gateway leaves the question open.
            CallDecision::Open { .. } => Err(ApiError::unavailable(
                "the gateway is stopping while a person decides about this call; repeat the call",
            )),
            CallDecision::Denied { reason } => Err(denied(reason)),
            CallDecision::Expired => Err(ApiError::conflict(
                "approval_expired",
                "no person decided about this call in time; continue without it, or repeat it to ask again",
            )),
            CallDecision::Cancelled => Err(ApiError::cancelled()),
            CallDecision::Full => Err(ApiError::unauthorized(
                "this run was not granted the tool, and its number of questions about calls is exhausted; continue \
                 without the tool",
            )),
            CallDecision::TooLong => Err(ApiError::conflict(
                "too_long_to_approve",
                "this call needs an approval, and its arguments are too long to be shown to a person; \
                 use several calls with shorter arguments",
            )),
        }
    }

    /// Approvals that cover the call. `None`: the tool needs none.
    pub(super) async fn covering_approvals(
        &self,
        granted: &ToolResource,
        parameters: &JsonObject,
    ) -> ApiResult<Option<Vec<ApprovalId>>> {
        match granted.approval {
            None => return Ok(None),
            Some(ToolApproval::Ask) => {}
        }
        let call = CallToApprove {
            tool: &granted.tool_name,
            parameters,
            request_sha256: &request_sha256(&granted.tool_name, parameters),
            definition_sha256: None,
        };
        let now = self.state.runs.clock().now_ms();
        let approvals = self.state.runs.store().interactions();
        let covering = approvals.find_covering_approvals(&self.caller.grant.run, call, now);
        Ok(Some(covering.await?))
    }
}

/// The error of a call that no approval covers.
pub(super) fn approval_required() -> ApiError {
    let message = "the call needs an approval; a person decides about it";
    ApiError::conflict(APPROVAL_REQUIRED, message)
}

fn is_approval_required(error: &ApiError) -> bool {
    error.details.get("reason") == Some(&json!(APPROVAL_REQUIRED))
}

/// The model gets the reason of the person.
fn denied(reason: Option<String>) -> ApiError {
    let message = match reason {
        Some(reason) => format!("a person denied this call: {reason}"),
        None => "a person denied this call; do not repeat it".to_owned(),
    };
    ApiError::conflict("call_denied", message)
}
