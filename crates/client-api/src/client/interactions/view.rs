//! Interactions as readers see them.

use protocol::api_key::KeyRole;
use protocol::event::EventAccepted;
use protocol::id::{RunId, WorkspaceId};
use protocol::interaction::InteractionRequest;
use protocol::principal::Principal;
use protocol::raw::RawJson;
use serde::Serialize;
use store::{InteractionRecord, StoreError, TakenAs};

use super::answer::InteractionAnswer;
use crate::principals::name_keys;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;

/// A question of a run to a user.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Interaction {
    /// Id of the interaction, as in `metadata.interaction.id` of the ledger event.
    id: String,
    #[schema(value_type = String)]
    run_id: RunId,
    /// Sequence of the ledger event with the question; 0 for a question of the gateway, which has none.
    sequence: u64,
    /// `open`, `submitted`, `expired`, or `cancelled` together with its run.
    status: &'static str,
    #[schema(value_type = InteractionRequest)]
    request: RawJson,
    /// Epoch seconds, like all times of this object.
    asked_at: i64,
    /// Expiry by the gateway's clock.
    expires_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    submitted_at: Option<i64>,
    /// The accepted answer. Absent for other statuses than `submitted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<InteractionAnswer>,
    /// The event of the answer. Absent if the run waited for the answer (`request.await`).
    #[serde(skip_serializing_if = "Option::is_none")]
    submitted_event_id: Option<String>,
    /// The run that got the answer: a new one, or the asking run if it waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    submitted_run_id: Option<RunId>,
}

impl Interaction {
    fn of(record: InteractionRecord, now_ms: i64) -> Result<Self, StoreError> {
        let status = match &record.answered {
            Some(_) => "submitted",
            None if record.cancelled => "cancelled",
            // The sweep closes expired interactions later; until then the time decides.
            None if record.is_closed || record.expires_at <= now_ms => "expired",
            None => "open",
        };
        let answer = match &record.answered {
            Some(answered) => InteractionAnswer::read(answered, &read_request(&record)?.fields),
            None => None,
        };
        let request = RawJson::parse(record.request).map_err(|_| corrupt(&record.id))?;
        let (event_id, has_answer) = match record.answered.as_ref().map(|answered| &answered.taken)
        {
            Some(TakenAs::Event { event_id, answer }) => {
                let answer = serde_json::from_str::<EventAccepted>(answer).ok();
                (
                    Some(event_id.clone()),
                    answer.and_then(|answer| answer.run_id),
                )
            }
            Some(TakenAs::AnswerDelivery) => (None, Some(record.run_id)),
            None => (None, None),
        };
        let submitted_at = record.answered.as_ref().map(|answered| answered.at);
        Ok(Self {
            run_id: record.run_id,
            sequence: record.sequence,
            status,
            request,
            asked_at: record.asked_at.div_euclid(1000),
            expires_at: record.expires_at.div_euclid(1000),
            submitted_at: submitted_at.map(|at| at.div_euclid(1000)),
            answer,
            submitted_run_id: has_answer,
            submitted_event_id: event_id,
            id: record.id,
        })
    }
}

/// The records for a reader of this role.
pub(super) async fn views(
    state: &ApiState,
    workspace: &WorkspaceId,
    reader: KeyRole,
    records: Vec<InteractionRecord>,
) -> ApiResult<Vec<Interaction>> {
    let now = state.runs.clock().now_ms();
    let records = records.into_iter();
    let mut items = records
        .map(|record| Interaction::of(record, now))
        .collect::<Result<Vec<_>, _>>()?;
    let answers = items.iter_mut().filter_map(|item| item.answer.as_mut());
    let principals: Vec<&mut Principal> = answers.map(|answer| &mut answer.by).collect();
    name_keys(state, workspace, reader, principals).await?;
    Ok(items)
}

pub(super) async fn view(
    state: &ApiState,
    workspace: &WorkspaceId,
    reader: KeyRole,
    record: InteractionRecord,
) -> ApiResult<Interaction> {
    let id = record.id.clone();
    let mut views = views(state, workspace, reader, vec![record]).await?;
    views
        .pop()
        .ok_or_else(|| ApiError::not_found("interaction", id))
}

pub(in crate::client) fn read_request(
    record: &InteractionRecord,
) -> Result<InteractionRequest, StoreError> {
    serde_json::from_str(&record.request).map_err(|_| corrupt(&record.id))
}

fn corrupt(id: &str) -> StoreError {
    StoreError::Corrupt {
        column: "interactions.request",
        row: id.to_owned(),
    }
}
