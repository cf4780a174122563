//! Interactions: questions of runs to users. Read them, create links, submit answers.

mod answer;
mod link;
mod view;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::approval::read_answer;
use domain::budget::raise_of;
use domain::interaction::{check_answer, check_submission};
use http::{HeaderValue, StatusCode};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::api_key::KeyRole;
use protocol::error::ErrorBody;
use protocol::event::EventAccepted;
use protocol::id::{RunId, WorkspaceId};
use protocol::interaction::{InteractionRequest, InteractionSubmission};
use protocol::run::Page;
use serde::{Deserialize, Serialize};
use store::{
    ExpiryPosition, InteractionFilter, InteractionOrder, InteractionRecord, InteractionStatus,
    LinkInteraction, StoreError, Unanswerable, sha256_hex,
};
use uuid::Uuid;

use crate::client::events::REPLAYED;
use keys::api_key::link_token;
use runs::intake::IntakeError;
use runs::interactions::{AnswerSender, Answered, AnsweredQuestion, read_held_call};
use web::auth::ScopedCaller;
use web::error::interaction::{already_submitted, interaction_cancelled, interaction_expired};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, conversations_of, page_limit};
use web::state::ApiState;

pub(super) use answer::principal;
pub(super) use link::LinkCaller;
pub(super) use view::read_request;
use view::{Interaction, view, views};

/// Filters, cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct InteractionsQuery {
    /// Only interactions of this run.
    #[param(value_type = Option<String>)]
    run_id: Option<RunId>,
    /// Only interactions of conversations with this id.
    conversation_id: Option<String>,
    /// Only interactions of this bot's conversation; empty for conversations without a bot. Needs
    /// `conversation_id`.
    bot_id: Option<String>,
    /// Only interactions of this thread; empty for conversations without a thread. Needs `conversation_id`.
    thread_id: Option<String>,
    /// Only interactions with this status now.
    #[param(inline)]
    status: Option<StatusFilter>,
    /// `newest` (default): newest first. `expiry`: next expiry first, with `status=open` only.
    #[serde(default)]
    #[param(inline)]
    order: ListOrder,
    /// The `next_cursor` of the previous page. A filtered page may be empty, because a request scans at most
    /// 10,000 interactions.
    after: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Status of an interaction.
#[derive(Clone, Copy, Debug, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StatusFilter {
    /// It accepts an answer.
    Open,
    Submitted,
    Expired,
    Cancelled,
}

impl From<StatusFilter> for InteractionStatus {
    fn from(status: StatusFilter) -> Self {
        match status {
            StatusFilter::Open => Self::Open,
            StatusFilter::Submitted => Self::Submitted,
            StatusFilter::Expired => Self::Expired,
            StatusFilter::Cancelled => Self::Cancelled,
        }
    }
}

/// Order of the list.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ListOrder {
    #[default]
    Newest,
    Expiry,
}

impl InteractionsQuery {
    /// The order, from the cursor on.
    fn order(&self) -> ApiResult<InteractionOrder> {
        let after = self.after.as_deref();
        let invalid = || ApiError::invalid("/after", "must be the `next_cursor` of a page");
        match (self.order, self.status) {
            (ListOrder::Newest, _) => {
                let before = after.map(|id| Uuid::parse_str(id).map_err(|_| invalid()));
                let before = before.transpose()?;
                Ok(InteractionOrder::Newest { before })
            }
            (ListOrder::Expiry, Some(StatusFilter::Open)) => {
                let after = after.map(|at| expiry_position(at).ok_or_else(invalid));
                let after = after.transpose()?;
                Ok(InteractionOrder::Expiry { after })
            }
            (ListOrder::Expiry, _) => {
                let message = "orders open interactions only; add `status=open`";
                Err(ApiError::invalid("/order", message))
            }
        }
    }
}

/// Reads a cursor of a list by expiry, `MILLISECONDS.ID`.
fn expiry_position(cursor: &str) -> Option<ExpiryPosition> {
    let (expires_at, id) = cursor.split_once('.')?;
    Some(ExpiryPosition {
        expires_at: expires_at.parse().ok()?,
        id: Uuid::parse_str(id).ok()?,
    })
}

/// The cursor of the next page.
fn next_cursor(order: InteractionOrder) -> Option<String> {
    match order {
        InteractionOrder::Newest { before } => before.map(|id| id.to_string()),
        InteractionOrder::Expiry { after } => {
            after.map(|ExpiryPosition { expires_at, id }| format!("{expires_at}.{id}"))
        }
    }
}

/// Lists interactions of all conversations, newest first or by expiry.
#[utoipa::path(get, path = "/v1/interactions", tag = "client", security(("api_key" = [])),
    params(InteractionsQuery), responses(
    (status = 200, description = "A page", body = Page<Interaction>),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_interactions(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<InteractionsQuery>,
) -> ApiResult<Json<Page<Interaction>>> {
    let limit = page_limit(query.limit)?;
    let now = state.runs.clock().now_ms();
    let (workspace, agents) = caller.list_scope();
    let filter = InteractionFilter {
        order: query.order()?,
        run_id: query.run_id,
        agents,
        conversations: conversations_of(query.conversation_id, query.bot_id, query.thread_id)?,
        status: query.status.map(InteractionStatus::from),
        now,
    };
    let store = state.runs.store();
    let found = store
        .interactions()
        .list_interactions(workspace, &filter, caller.answer.page(limit))
        .await?;
    Ok(Json(Page {
        items: views(&state, workspace, caller.role, found.records).await?,
        has_more: found.next.is_some(),
        next_cursor: found.next.and_then(next_cursor),
        prev_cursor: None,
        total_count: None,
    }))
}

/// Retrieves an interaction and its status.
#[utoipa::path(get, path = "/v1/interactions/{interaction}", tag = "client", security(("api_key" = [])),
    params(("interaction" = String, Path, description = "The `id` of the interaction")), responses(
    (status = 200, description = "The interaction", body = Interaction),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such interaction", body = ErrorBody)))]
pub(crate) async fn get_interaction(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<Interaction>> {
    let (workspace, record) = caller.find_interaction(&state, &id).await?;
    let interaction = view(&state, workspace, caller.role, record).await?;
    Ok(Json(interaction))
}

/// A link to answer one interaction without an API key.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct InteractionLink {
    /// Secret token of 256 random bits, shown only once. It grants the right to answer.
    token: String,
    /// URL for programs: `POST` the answer here.
    url: String,
    /// URL of the answer page for users. It needs no key and no scripts.
    page_url: String,
    /// Epoch seconds.
    expires_at: i64,
}

/// Creates a link to answer an interaction without an API key.
///
/// Deliver it to the intended user only. Each call creates a new link and invalidates the previous one. One of kind
/// `budget` needs a key of role admin.
#[utoipa::path(post, path = "/v1/interactions/{interaction}/link", tag = "client", security(("api_key" = [])),
    params(("interaction" = String, Path, description = "The `id` of the interaction")), responses(
    (status = 200, description = "The link", body = InteractionLink),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The role of the key does not raise budgets", body = ErrorBody),
    (status = 404, description = "No such interaction", body = ErrorBody),
    (status = 409, description = "`details.reason`: already_submitted", body = ErrorBody),
    (status = 410, description = "The interaction has expired, or its run was cancelled", body = ErrorBody)))]
pub(crate) async fn link_interaction(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<InteractionLink>> {
    let (workspace, record) = caller.find_interaction(&state, &id).await?;
    check_raiser(caller.role, &record)?;
    if record.answered.is_some() {
        return Err(already_submitted());
    }
    check_open(&state, &record)?;
    let token = link_token();
    let linked = LinkInteraction {
        workspace: workspace.clone(),
        id: record.id,
        // Only the hash is stored, so that a copy of the database opens no links.
        token_sha256: sha256_hex(token.as_bytes()),
    };
    state.runs.store().write(linked).await?;
    let host = state.runs.keys().tokens.audience();
    // The audience is the public URL with the path of the host API.
    let root = host.strip_suffix("/host/v1").unwrap_or(host);
    Ok(Json(InteractionLink {
        url: format!("{root}/v1/interactions/{token}"),
        page_url: format!("{root}/v1/interactions/{token}/page"),
        token,
        expires_at: record.expires_at.div_euclid(1000),
    }))
}

/// Submits the answer to an interaction.
///
/// Only the first answer is accepted. If the asking run waits for it (`request.await`), the run receives it:
/// 200. Otherwise the answer becomes an event `interaction.submitted` for the asking agent in the same
/// conversation: 202. The same answer again returns the same response with `Idempotent-Replayed: true`. One of kind
/// `budget` needs a key of role admin or operator.
#[utoipa::path(post, path = "/v1/interactions/{interaction}/submit", tag = "client", security(("api_key" = [])),
    params(("interaction" = String, Path, description = "The `id` of the interaction")),
    request_body = InteractionSubmission, responses(
    (status = 200, description = "The waiting run has received the answer", body = Interaction),
    (status = 202, description = "Stored; the run is created", body = EventAccepted),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The role of the key does not raise budgets", body = ErrorBody),
    (status = 404, description = "No such interaction", body = ErrorBody),
    (status = 409, description = "`details.reason`: already_submitted, agent_gone, run_active", body = ErrorBody),
    (status = 410, description = "The interaction has expired, or its run was cancelled", body = ErrorBody),
    (status = 413, description = "The body is larger than 256 KiB", body = ErrorBody),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn submit_interaction(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    JsonBody(submission): JsonBody<InteractionSubmission>,
) -> ApiResult<Response> {
    let (workspace, question) = question_for_key(&state, &caller, &id).await?;
    submit(&state, workspace, caller.role, question, submission).await
}

/// A question that the caller may answer with its key.
async fn question_for_key<'a>(
    state: &ApiState,
    caller: &'a ScopedCaller,
    id: &str,
) -> ApiResult<(&'a WorkspaceId, AnsweredQuestion)> {
    let (workspace, record) = caller.find_interaction(state, id).await?;
    check_raiser(caller.role, &record)?;
    let sender = AnswerSender::Key(caller.starting_key());
    Ok((workspace, AnsweredQuestion { record, sender }))
}

/// Run that continues after an answer.
pub struct ContinuedRun {
    pub run: RunId,
    /// Sequence of the last event before the answer; 0 for a new run.
    pub after: u64,
}

/// Submits the chosen action and the values, and returns the run that continues: the waiting one, or that of the
/// answer's event.
pub async fn answer_with_key(
    state: &ApiState,
    caller: &ScopedCaller,
    id: &str,
    action_id: Option<String>,
    values: JsonObject,
) -> ApiResult<ContinuedRun> {
    let (workspace, question) = question_for_key(state, caller, id).await?;
    let submission = InteractionSubmission {
        interaction_id: read_request(&question.record)?.interaction_id,
        action_id,
        values,
        submitted_at: None,
    };
    match accept_answer(state, workspace, &question, submission).await? {
        // The waiting run continues after its question.
        Answered::AnswerDelivery { .. } => Ok(ContinuedRun {
            run: question.record.run_id,
            after: question.record.sequence,
        }),
        Answered::Event(accepted) => {
            let gone = || ApiError::from(IntakeError::AgentGone);
            Ok(ContinuedRun {
                run: accepted.answer.run_id.ok_or_else(gone)?,
                after: accepted.answer.last_sequence.unwrap_or(0),
            })
        }
    }
}

/// Submits the answer to an interaction by its link. The token is the only credential.
///
/// Otherwise it works like `POST /v1/interactions/{interaction}/submit`.
#[utoipa::path(post, path = "/v1/interactions/{interaction}", tag = "client",
    params(("interaction" = String, Path, description = "The token of a link")),
    request_body = InteractionSubmission, responses(
    (status = 200, description = "The waiting run has received the answer", body = Interaction),
    (status = 202, description = "Stored; the run is created", body = EventAccepted),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "The link token is not valid", body = ErrorBody),
    (status = 409, description = "`details.reason`: already_submitted, agent_gone, run_active", body = ErrorBody),
    (status = 410, description = "The interaction has expired, or its run was cancelled", body = ErrorBody),
    (status = 413, description = "The body is larger than 256 KiB", body = ErrorBody),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn submit_interaction_by_link(
    link: LinkCaller,
    State(state): State<ApiState>,
    JsonBody(submission): JsonBody<InteractionSubmission>,
) -> ApiResult<Response> {
    let (workspace, question) = link.question(&state).await?;
    // A link reads what a key of role client reads.
    submit(&state, &workspace, KeyRole::Client, question, submission).await
}

/// Fails if an unanswered interaction no longer accepts an answer.
pub(super) fn check_open(state: &ApiState, record: &InteractionRecord) -> ApiResult<()> {
    if record.cancelled {
        return Err(interaction_cancelled());
    }
    if record.is_closed || record.expires_at <= state.runs.clock().now_ms() {
        return Err(interaction_expired());
    }
    Ok(())
}

/// Returns all faults of an answer to this question.
pub(super) fn answer_faults(
    record: &InteractionRecord,
    request: &InteractionRequest,
    submission: &InteractionSubmission,
) -> Result<Vec<Fault>, StoreError> {
    let mut faults = check_submission(submission);
    faults.extend(check_answer(request, submission));
    if let Some(questioned) = &record.budget {
        faults.extend(raise_of(&questioned.measure, submission).err());
    }
    if let Some(call) = &record.held_call
        && faults.is_empty()
    {
        faults.extend(read_answer(submission, &read_held_call(record, call)?).err());
    }
    Ok(faults)
}

/// Fails if a key of this role must not decide about a budget: a program that posts events does not raise their limits.
fn check_raiser(role: KeyRole, record: &InteractionRecord) -> ApiResult<()> {
    if record.budget.is_none() || matches!(role, KeyRole::Admin | KeyRole::Operator) {
        return Ok(());
    }
    let message =
        "a question about a budget is answered with a key of role admin or operator, or by a link";
    Err(ApiError::unauthorized(message))
}

/// Validates an answer and submits it.
pub(super) async fn accept_answer(
    state: &ApiState,
    workspace: &WorkspaceId,
    question: &AnsweredQuestion,
    submission: InteractionSubmission,
) -> ApiResult<Answered> {
    let record = &question.record;
    // An answered interaction needs no check here: the submission compares the two answers.
    if record.answered.is_none() {
        check_open(state, record)?;
        let faults = answer_faults(record, &read_request(record)?, &submission)?;
        if !faults.is_empty() {
            return Err(ApiError::faults(&faults));
        }
    }
    let answered = state
        .runs
        .interactions
        .submit_interaction(workspace, question, submission);
    answered.await.map_err(|error| match error {
        IntakeError::IdempotencyMismatch => already_submitted(),
        IntakeError::Unanswerable(Unanswerable::Cancelled) => interaction_cancelled(),
        IntakeError::Unanswerable(Unanswerable::Expired) => interaction_expired(),
        // A newer link was created between authentication and this call.
        IntakeError::Unanswerable(Unanswerable::LinkReplaced) => {
            ApiError::unauthenticated().of_link()
        }
        error => error.into(),
    })
}

async fn submit(
    state: &ApiState,
    workspace: &WorkspaceId,
    reader: KeyRole,
    question: AnsweredQuestion,
    submission: InteractionSubmission,
) -> ApiResult<Response> {
    let (mut response, replayed) =
        match accept_answer(state, workspace, &question, submission).await? {
            Answered::Event(accepted) => {
                let answer = (StatusCode::ACCEPTED, Json(accepted.answer));
                (answer.into_response(), accepted.replayed)
            }
            Answered::AnswerDelivery { replayed } => {
                let store = state.runs.store();
                let record = store
                    .interactions()
                    .find_interaction(workspace, &question.record.id);
                // Read again: the submission has changed the status.
                let record = record.await?;
                let record = record
                    .ok_or_else(|| ApiError::not_found("interaction", &question.record.id))?;
                let interaction = view(state, workspace, reader, record).await?;
                (Json(interaction).into_response(), replayed)
            }
        };
    if replayed {
        let replayed = HeaderValue::from_static("true");
        response.headers_mut().insert(REPLAYED, replayed);
    }
    Ok(response)
}
