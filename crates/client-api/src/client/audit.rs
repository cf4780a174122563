//! The audit log of a run.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use domain::run::Run;
use protocol::api_key::KeyRole;
use protocol::error::ErrorBody;
use protocol::id::RunId;
use protocol::principal::Principal;
use protocol::run::Page;
use serde::{Deserialize, Serialize};
use store::{AnswerSummary, AuditRecord, StoreError};

use super::interactions::principal;
use super::usage::TokensByPrice;
use crate::principals::name_keys;
use keys::cursor::{CursorKind, InvalidCursor};
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::query::{PathOf, QueryOf, page_limit};
use web::state::ApiState;

/// Cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// One host API call of a run. It contains no values, tokens or user texts.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct AuditEntryView {
    id: String,
    /// Action code, for example `state_set` or `history_page`.
    action: String,
    resource: String,
    operation: String,
    /// `allow` or `deny`.
    decision: String,
    /// Reason of the decision. Of an allowed call that needs a grant, the rule of its decision in
    /// `GET /v1/runs/{run_id}/authorization`, for example `resource_policy.tools allows it`.
    rule: String,
    /// The answered question that allowed the call: of the entry `interaction_answer` itself, otherwise as the runner named
    /// it by `Approved-By`.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval: Option<CallApproval>,
    /// Bytes written, or bytes received from an external service.
    bytes: u64,
    /// Outcome of an external call, for example to a model or tool: `ok` or an error code. Absent while it is in
    /// progress.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    /// Duration of an external call in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<i64>,
    /// Ticket of a tool call that is not read-only, or has an idempotency key: the key that the tool received.
    #[serde(skip_serializing_if = "Option::is_none")]
    ticket: Option<String>,
    /// Effect of a tool call with a ticket: `done`, `recorded` (an earlier call was executed, and this one got its result),
    /// `not_done`, or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<String>,
    /// Approval that a tool call used, see `GET /v1/approvals/{approval_id}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    approval_id: Option<String>,
    /// The actor whose token a tool call used: its type and id, such as `user:42`.
    #[serde(skip_serializing_if = "Option::is_none")]
    on_behalf_of: Option<String>,
    /// The model that a call of a route reached, from its end on. Absent if it is `resource`.
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Tokens of a model call, known after its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<TokensByPrice>,
    /// Number of denied calls in this entry. Absent: one.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    /// Epoch seconds, of the newest of these calls.
    at: i64,
    /// Milliseconds from the creation of the run to the newest of these calls.
    #[schema(minimum = 0)]
    offset_ms: i64,
}

/// An answered question that allowed a call.
#[derive(Clone, Serialize, utoipa::ToSchema)]
pub(crate) struct CallApproval {
    /// Id of the interaction, see `GET /v1/interactions/{interaction}`.
    interaction_id: String,
    /// The asking run.
    #[schema(value_type = String)]
    run_id: RunId,
    title: String,
    /// Id of the chosen action. Absent if the answer names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    action_id: Option<String>,
    /// The credential of the answer: an API key, or the link.
    by: Principal,
    /// Time of the answer, in epoch seconds.
    answered_at: i64,
}

impl CallApproval {
    fn of(summary: AnswerSummary) -> Option<Self> {
        let actor = serde_json::from_str(&summary.answered_by).ok()?;
        Some(Self {
            interaction_id: summary.id,
            run_id: summary.run_id,
            title: summary.title,
            action_id: summary.action_id,
            by: principal(actor)?,
            answered_at: summary.answered_at.div_euclid(1000),
        })
    }
}

/// The questions of these entries that still exist, by id.
async fn approvals(
    state: &ApiState,
    run: &Run,
    reader: KeyRole,
    entries: &[AuditRecord],
) -> Result<HashMap<String, CallApproval>, StoreError> {
    let ids = entries
        .iter()
        .filter_map(|entry| entry.interaction_id.clone());
    let store = state.runs.store();
    let found = store
        .interactions()
        .find_answer_summaries(&run.workspace, ids)
        .await?;
    let mut approvals: Vec<_> = found.into_iter().filter_map(CallApproval::of).collect();
    let principals = approvals.iter_mut().map(|approval| &mut approval.by);
    name_keys(state, &run.workspace, reader, principals.collect()).await?;
    let by_id = approvals
        .into_iter()
        .map(|approval| (approval.interaction_id.clone(), approval));
    Ok(by_id.collect())
}

/// Lists the host API calls of a run in order, both allowed and denied.
///
/// After 1,000 denied calls of a run, further ones share an entry for each action and rule.
#[utoipa::path(get, path = "/v1/runs/{run_id}/audit", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run"), AuditQuery), responses(
    (status = 200, description = "A page", body = Page<AuditEntryView>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn list_run_audit(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<AuditQuery>,
) -> ApiResult<Json<Page<AuditEntryView>>> {
    let limit = page_limit(query.limit)?;
    let run = caller.find_run(&state, id).await?;
    // Part of the signature: a cursor of another run is rejected.
    let list = format!("audit\n{}\n{}", run.workspace, run.id);
    let cursors = state.runs.cursors();
    let after = match query.cursor {
        None => None,
        Some(cursor) => {
            let bytes = cursors.decode(CursorKind::Names, &list, &cursor)?;
            Some(String::from_utf8(bytes).map_err(|_| InvalidCursor)?)
        }
    };
    let found = state
        .runs
        .store()
        .audit_log()
        .list_audit(run.id, after.as_deref(), caller.answer.page(limit))
        .await?;
    let has_more = found.has_more;
    let next_cursor = found
        .items
        .last()
        .filter(|_| has_more)
        .map(|record| cursors.encode(CursorKind::Names, &list, record.id.as_bytes()));
    let ids = found.items.iter().map(|record| record.id.as_str());
    let usage = state.runs.store().usage();
    // One query for the page instead of one for each row.
    let calls = usage.model_calls(run.id, ids).await?;
    let approvals = approvals(&state, &run, caller.role, &found.items).await?;
    let items = found
        .items
        .into_iter()
        .map(|record| AuditEntryView {
            tokens: calls.get(&record.id).map(|call| call.tokens.into()),
            model: calls
                .get(&record.id)
                .filter(|call| call.model != record.resource)
                .map(|call| call.model.clone()),
            approval: (record.interaction_id).and_then(|id| approvals.get(&id).cloned()),
            id: record.id,
            action: record.action,
            resource: record.resource,
            operation: record.operation,
            decision: record.decision,
            rule: record.rule,
            bytes: record.bytes,
            outcome: record.outcome,
            duration_ms: record.duration_ms,
            ticket: record.ticket,
            effect: record.effect,
            approval_id: record.approval_id,
            on_behalf_of: record.on_behalf_of,
            calls: (record.calls > 1).then_some(record.calls),
            at: record.at.div_euclid(1000),
            // Clocks of replicas differ by milliseconds.
            offset_ms: (record.at - run.created_at).max(0),
        })
        .collect();
    Ok(Json(Page {
        items,
        next_cursor,
        prev_cursor: None,
        total_count: None,
        has_more,
    }))
}
