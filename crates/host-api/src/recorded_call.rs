//! Tool calls of a run that was retried from a result. The record of the ended run answers the calls that it made
//! before this result.

use domain::tool_call::RepeatedCallDecision;
use protocol::JsonObject;
use protocol::resources::ToolOperation;
use protocol::tool::KeyScope;
use serde_json::Value;
use store::{AnswerFromRecord, RecordedAnswer};

use crate::ticketed_call::{refusal, request_sha256, stored_result};
use crate::tools::{CallKey, ToolCalling, still_exists};
use web::error::{ApiError, ApiResult};

impl ToolCalling<'_> {
    /// The recorded result of the call. `None`: the tool is called.
    pub(super) async fn answer_from_record(
        &self,
        parameters: &JsonObject,
        key: Option<CallKey<'_>>,
    ) -> ApiResult<Option<Value>> {
        let run = &self.caller.grant.run;
        // The results of a key in the scope of the conversation are available to all its runs.
        let is_shared = key.is_some_and(|key| key.scope == KeyScope::Conversation);
        if run.retry_from.is_none() || is_shared {
            return Ok(None);
        }
        // The record grants nothing: a call of a withdrawn tool is refused like any other, by the caller.
        let granted = self
            .caller
            .grant
            .snapshot
            .tool(self.name, ToolOperation::Call);
        let Ok(granted) = granted else {
            return Ok(None);
        };
        if still_exists(self.state, granted).is_err() {
            return Ok(None);
        }
        self.caller.access.check_local(self.state).await?;
        self.caller.answer.check_available()?;
        let call = self.audited_call();
        let answer = AnswerFromRecord {
            run_id: run.id,
            request_sha256: request_sha256(&granted.tool_name, parameters),
            effect: granted.effect,
            key: key.map(|key| key.key.to_owned()),
            audit: self.caller.audit_entry(self.state, call, None, 0),
            at: self.state.runs.clock().now_ms(),
        };
        match self.state.runs.store().write(answer).await? {
            RecordedAnswer::Stored(result) => {
                Ok(Some(stored_result(&result, &run.id.to_string())?))
            }
            RecordedAnswer::Absent => Ok(None),
            RecordedAnswer::Mismatch => Err(refusal(RepeatedCallDecision::Mismatch)),
            RecordedAnswer::Unknown => Err(refusal(RepeatedCallDecision::OutcomeUnknown)),
            // A call would repeat the effect of the recorded one.
            RecordedAnswer::Gone => Err(ApiError::conflict(
                "record_gone",
                "the retention has deleted the recorded result of this call; end the run and post its event anew",
            )),
            RecordedAnswer::RunEnded => Err(ApiError::unauthenticated()),
        }
    }
}
