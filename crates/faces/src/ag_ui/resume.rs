//! Answers to interrupts.

use protocol::admin::Fault;
use serde_json::Value;
use store::InteractionRecord;

use super::AgUiRequest;
use super::input::{ResumeEntry, ResumeStatus};
use crate::agent_runs::{cancel_question, conversation_of, find_question_of_agent, request_of};
use crate::answer::GivenAnswer;
use client_api::client::interactions::{ContinuedRun, answer_with_key};
use web::error::{ApiError, ApiResult};

/// Submits the answers in order. Returns the run of the last one.
pub(super) async fn resume_run(
    call: &AgUiRequest<'_>,
    thread: &str,
    entries: Vec<ResumeEntry>,
) -> ApiResult<ContinuedRun> {
    let mut continued = None;
    for (at, entry) in entries.into_iter().enumerate() {
        let record = question_of(call, thread, &entry.interrupt, at).await?;
        let run = match entry.given {
            ResumeStatus::Resolved(payload) => {
                let answer = answer_of(&payload, &record, at)?;
                let GivenAnswer {
                    action_id, values, ..
                } = answer;
                answer_with_key(call.state, call.caller, &record.id, action_id, values).await?
            }
            ResumeStatus::Cancelled => cancel_question(call.state, call.caller, &record).await?,
        };
        continued = Some(run);
    }
    continued.ok_or_else(|| ApiError::invalid("/resume", "must have an answer"))
}

/// A question of this agent in this thread.
async fn question_of(
    call: &AgUiRequest<'_>,
    thread: &str,
    id: &str,
    at: usize,
) -> ApiResult<InteractionRecord> {
    let pointer = format!("/resume/{at}/interruptId");
    let absent = || ApiError::invalid(&pointer, "names no interrupt of this agent and key");
    let record = find_question_of_agent(call.state, call.caller, call.agent, id).await?;
    let record = record.ok_or_else(absent)?;
    let run = call.caller.find_run(call.state, record.run_id).await?;
    if conversation_of(call.state, &run).await?.as_deref() != Some(thread) {
        let message = "must be the thread of the interrupt";
        return Err(ApiError::invalid("/threadId", message));
    }
    Ok(record)
}

fn answer_of(payload: &Value, record: &InteractionRecord, at: usize) -> ApiResult<GivenAnswer> {
    let answer = match payload {
        // A question with one action and no fields needs no more.
        Value::Null => Some(GivenAnswer::default()),
        Value::String(text) => GivenAnswer::of_text(text, &request_of(record)?),
        payload => GivenAnswer::of_value(payload),
    };
    answer.ok_or_else(|| {
        let message = format!(
            "must be like {}, or a text that is an action or the value of the only field",
            GivenAnswer::FORM
        );
        ApiError::faults(&[Fault::new(format!("/resume/{at}/payload"), message)])
    })
}
