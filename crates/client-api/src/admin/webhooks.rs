//! Webhooks and their deliveries (`docs/webhooks.md`).

use axum::Json;
use axum::extract::State;
use domain::webhook::MAX_WEBHOOKS;
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::id::WebhookId;
use protocol::run::Page;
use protocol::webhook::{
    DeliveryStatus, RedeliverRequest, Redelivered, RotateSecretRequest, Webhook, WebhookCircuit,
    WebhookDelivery, WebhookList, WebhookSpec, WebhookTestResult,
};
use serde::Deserialize;
use store::{DeliveryRecord, ListPage, SavedWebhook, WebhookRecord};

use crate::admin::endpoints::{name_page, to_page};
use crate::principals::name_keys;
use web::auth::AdminCaller;
use web::error::version::{read_only, version_conflict};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, if_match};
use web::state::ApiState;

/// Latest time of a message in a request: the end of the year 9999, in epoch seconds.
const LATEST: i64 = 253_402_300_799;

fn seconds(at: i64) -> i64 {
    at.div_euclid(1000)
}

async fn shown(
    state: &ApiState,
    caller: &AdminCaller,
    records: Vec<WebhookRecord>,
) -> ApiResult<Vec<Webhook>> {
    let now = state.runs.clock().now_ms();
    let mut webhooks: Vec<_> = records
        .into_iter()
        .map(|record| view(record, now))
        .collect();
    let principals = webhooks.iter_mut().map(|one| &mut one.updated_by);
    name_keys(state, &caller.workspace, caller.role, principals.collect()).await?;
    Ok(webhooks)
}

fn view(record: WebhookRecord, now: i64) -> Webhook {
    // Only its time: the secret itself is never shown again.
    let until = record.previous_secret.map(|(_, until)| until);
    Webhook {
        id: record.id,
        name: record.name,
        origin: record.origin,
        url: record.url,
        events: record.events,
        agents: record.agents,
        payload: record.payload,
        enabled: record.enabled,
        disabled_reason: record.disabled_reason,
        secret: None,
        previous_secret_until: until.filter(|until| *until > now).map(seconds),
        circuit: WebhookCircuit {
            failures: record.failures,
            retry_at: Some(record.open_until).filter(|at| *at > now).map(seconds),
        },
        version: record.version,
        created_at: seconds(record.created_at),
        updated_at: seconds(record.updated_at),
        updated_by: record.updated_by,
    }
}

async fn find(state: &ApiState, caller: &AdminCaller, id: WebhookId) -> ApiResult<WebhookRecord> {
    let webhooks = state.runs.store().notifications();
    let found = webhooks.find_webhook(&caller.workspace, id).await?;
    found.ok_or_else(|| ApiError::not_found("webhook", id))
}

/// The saved webhook, with its secret if the response shows it.
async fn saved(
    state: &ApiState,
    caller: &AdminCaller,
    id: impl std::fmt::Display,
    saved: SavedWebhook,
    secret: Option<String>,
) -> ApiResult<Webhook> {
    let record = match saved {
        SavedWebhook::Saved(record) => record,
        SavedWebhook::ReadOnly => return Err(read_only()),
        SavedWebhook::Mismatch(version) => return Err(version_conflict(version)),
        SavedWebhook::Unknown | SavedWebhook::Done => {
            return Err(ApiError::not_found("webhook", id));
        }
        SavedWebhook::Full => {
            let message =
                format!("the workspace has {MAX_WEBHOOKS} webhooks; delete one of them first");
            return Err(ApiError::conflict("too_many_webhooks", message));
        }
    };
    let webhooks = shown(state, caller, vec![*record]).await?;
    let webhook = webhooks.into_iter().next();
    let webhook = webhook.ok_or_else(|| ApiError::not_found("webhook", id))?;
    Ok(Webhook { secret, ..webhook })
}

/// Creates a webhook.
///
/// Messages are written from the response on. Without `url` they are in `GET /v1/feed` only. The response has the signing
/// secret, which no later response repeats. A workspace has at most 100 webhooks.
#[utoipa::path(post, path = "/v1/webhooks", tag = "admin", security(("api_key" = [])), request_body = WebhookSpec, responses(
    (status = 201, description = "Created. `secret` is only in this response", body = Webhook),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "`details.reason`: name_taken, too_many_webhooks", body = ErrorBody)))]
pub(crate) async fn create_webhook(
    caller: AdminCaller,
    State(state): State<ApiState>,
    JsonBody(spec): JsonBody<WebhookSpec>,
) -> ApiResult<(StatusCode, Json<Webhook>)> {
    let webhooks = &state.runs.webhooks;
    let created = webhooks.create(&caller.workspace, spec, caller.stamp(&state));
    let created = created.await?;
    let webhook = saved(&state, &caller, "", created.saved, created.secret).await?;
    tracing::info!(webhook.id = %webhook.id, webhook.name = webhook.name, by = %caller.key,
        "webhook {} was created", webhook.id);
    Ok((StatusCode::CREATED, Json(webhook)))
}

/// Lists the webhooks of the workspace by name.
#[utoipa::path(get, path = "/v1/webhooks", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items, without secrets", body = WebhookList),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_webhooks(
    caller: AdminCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<WebhookList>> {
    let webhooks = state.runs.store().notifications();
    let records = webhooks.all_webhooks(&caller.workspace).await?;
    let items = shown(&state, &caller, records).await?;
    Ok(Json(WebhookList { items }))
}

/// Retrieves a webhook.
#[utoipa::path(get, path = "/v1/webhooks/{webhook_id}", tag = "admin", security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook")), responses(
    (status = 200, description = "The webhook without its secret", body = Webhook),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook", body = ErrorBody)))]
pub(crate) async fn get_webhook(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<WebhookId>,
) -> ApiResult<Json<Webhook>> {
    let record = find(&state, &caller, id).await?;
    let record = SavedWebhook::Saved(Box::new(record));
    saved(&state, &caller, id, record, None).await.map(Json)
}

/// Replaces the settings of a webhook, except its secret.
///
/// Closes its circuit. With `If-Match` the update applies to that version only. Deliveries that are pending go to the
/// new URL.
#[utoipa::path(put, path = "/v1/webhooks/{webhook_id}", tag = "admin", security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")),
    request_body = WebhookSpec, responses(
    (status = 200, description = "Changed", body = Webhook),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook", body = ErrorBody),
    (status = 409, description = "The version does not match, the name is taken, or the webhook is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn update_webhook(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<WebhookId>,
    headers: HeaderMap,
    JsonBody(spec): JsonBody<WebhookSpec>,
) -> ApiResult<Json<Webhook>> {
    let if_match = if_match(&headers)?;
    let (workspace, stamp) = (&caller.workspace, caller.stamp(&state));
    let webhooks = &state.runs.webhooks;
    let updated = webhooks.update(workspace, id, spec, if_match, stamp);
    let updated = updated.await?;
    saved(&state, &caller, id, updated, None).await.map(Json)
}

/// Deletes a webhook and its deliveries.
#[utoipa::path(delete, path = "/v1/webhooks/{webhook_id}", tag = "admin", security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook", body = ErrorBody),
    (status = 409, description = "The version does not match, or the webhook is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn delete_webhook(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<WebhookId>,
    headers: HeaderMap,
) -> ApiResult<StatusCode> {
    let if_match = if_match(&headers)?;
    let webhooks = &state.runs.webhooks;
    let deleted = webhooks.delete(&caller.workspace, id, if_match, caller.stamp(&state));
    match deleted.await? {
        SavedWebhook::Done => Ok(StatusCode::NO_CONTENT),
        refused => Err(match saved(&state, &caller, id, refused, None).await {
            Err(error) => error,
            Ok(_) => ApiError::not_found("webhook", id),
        }),
    }
}

/// Replaces the signing secret of a webhook.
///
/// For a day, each delivery has signatures by the new and by the previous secret. An older one ends at once.
#[utoipa::path(post, path = "/v1/webhooks/{webhook_id}/rotate-secret", tag = "admin", security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook")), request_body = RotateSecretRequest, responses(
    (status = 200, description = "Rotated. `secret` is only in this response", body = Webhook),
    (status = 400, description = "The secret is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook", body = ErrorBody),
    (status = 409, description = "The webhook is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn rotate_webhook_secret(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<WebhookId>,
    JsonBody(request): JsonBody<RotateSecretRequest>,
) -> ApiResult<Json<Webhook>> {
    let (workspace, stamp) = (&caller.workspace, caller.stamp(&state));
    let webhooks = &state.runs.webhooks;
    let rotating = webhooks.rotate_secret(workspace, id, request.secret, stamp);
    let rotated = rotating.await?;
    let webhook = saved(&state, &caller, id, rotated.saved, rotated.secret).await?;
    tracing::info!(webhook.id = %id, by = %caller.key, "the secret of webhook {id} was rotated");
    Ok(Json(webhook))
}

/// Sends a message of type `webhook.test` to the URL of a webhook, and waits for the response.
///
/// The message is in no list. It is sent to a disabled webhook and with an open circuit, too.
#[utoipa::path(post, path = "/v1/webhooks/{webhook_id}/test", tag = "admin", security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook")), responses(
    (status = 200, description = "The result, also of a failure", body = WebhookTestResult),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook", body = ErrorBody),
    (status = 429, description = "`details.reason`: webhook_tests. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn test_webhook(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<WebhookId>,
) -> ApiResult<Json<WebhookTestResult>> {
    let record = find(&state, &caller, id).await?;
    Ok(Json(state.runs.webhooks.test(&record).await?))
}

/// Filter and cursor of a list of deliveries.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeliveryQuery {
    /// `pending`, `delivered` or `dead`.
    status: Option<DeliveryStatus>,
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists the deliveries of a webhook, newest message first.
///
/// Delivered ones are listed for seven days, dead ones for 30.
#[utoipa::path(get, path = "/v1/webhooks/{webhook_id}/deliveries", tag = "admin", security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook"), DeliveryQuery), responses(
    (status = 200, description = "A page", body = Page<WebhookDelivery>),
    (status = 400, description = "A status, cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook", body = ErrorBody)))]
pub(crate) async fn list_webhook_deliveries(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<WebhookId>,
    QueryOf(query): QueryOf<DeliveryQuery>,
) -> ApiResult<Json<Page<WebhookDelivery>>> {
    let record = find(&state, &caller, id).await?;
    let status = query.status.map_or("all", DeliveryStatus::as_str);
    // A cursor belongs to one webhook and one filter.
    let list = format!("deliveries\n{id}\n{status}");
    let workspace = &caller.workspace;
    let (before, limit) = name_page(&state, &list, workspace, query.cursor, query.limit)?;
    let before = before.map(|before| before.parse()).transpose();
    let before = before.map_err(|_| keys::cursor::InvalidCursor)?;
    let deliveries = state.runs.store().notifications();
    let found = deliveries
        .newest_deliveries(record.id, query.status, before, limit)
        .await?;
    let ListPage { items, has_more } = found;
    // The view has no position, which the cursor needs.
    let last = items.last().map(|record| record.position.to_string());
    let found = ListPage {
        items: items.into_iter().map(delivery).collect(),
        has_more,
    };
    let position = |_: &WebhookDelivery| last.clone().unwrap_or_default();
    Ok(Json(to_page(&state, &list, workspace, found, position)))
}

fn delivery(record: DeliveryRecord) -> WebhookDelivery {
    let is_pending = record.status == DeliveryStatus::Pending;
    WebhookDelivery {
        message_id: record.message_id,
        kind: record.kind,
        run_id: record.run_id,
        status: record.status,
        tries: record.tries,
        next_try_at: is_pending.then(|| seconds(record.due_at)),
        last_status: record.last_status,
        last_error: record.last_error,
        created_at: seconds(record.created_at),
        finished_at: record.finished_at.map(seconds),
    }
}

/// Delivers messages since a time again, in their order.
///
/// Takes deliveries that are listed and not pending. Their tries count from zero.
#[utoipa::path(post, path = "/v1/webhooks/{webhook_id}/redeliver", tag = "admin", security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook")), request_body = RedeliverRequest, responses(
    (status = 202, description = "The deliveries are pending", body = Redelivered),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook", body = ErrorBody)))]
pub(crate) async fn redeliver_webhook(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<WebhookId>,
    JsonBody(request): JsonBody<RedeliverRequest>,
) -> ApiResult<(StatusCode, Json<Redelivered>)> {
    if !(0..=LATEST).contains(&request.since) {
        let message = "must be a time in epoch seconds";
        return Err(ApiError::invalid("/since", message));
    }
    if request.status == Some(DeliveryStatus::Pending) {
        let message = "must be delivered or dead: a pending delivery is tried anyway";
        return Err(ApiError::invalid("/status", message));
    }
    // A foreign webhook looks like a missing one before anything is queued.
    let record = find(&state, &caller, id).await?;
    let webhooks = &state.runs.webhooks;
    let since = request.since * 1000;
    let redelivered = webhooks
        .redeliver_since(&record, since, request.status)
        .await?;
    Ok((StatusCode::ACCEPTED, Json(redelivered)))
}

/// Delivers one message again. Its tries count from zero.
#[utoipa::path(post, path = "/v1/webhooks/{webhook_id}/deliveries/{message_id}/redeliver", tag = "admin",
    security(("api_key" = [])),
    params(("webhook_id" = String, Path, description = "The webhook"),
        ("message_id" = String, Path, description = "The message")), responses(
    (status = 202, description = "The delivery is pending", body = Redelivered),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such webhook, or no delivery of the message that is not pending", body = ErrorBody)))]
pub(crate) async fn redeliver_webhook_message(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf((id, message)): PathOf<(WebhookId, String)>,
) -> ApiResult<(StatusCode, Json<Redelivered>)> {
    let record = find(&state, &caller, id).await?;
    let webhooks = &state.runs.webhooks;
    if !webhooks.redeliver_message(&record, message.clone()).await? {
        return Err(ApiError::not_found("finished delivery", message));
    }
    let redelivered = Redelivered {
        count: 1,
        has_more: false,
    };
    Ok((StatusCode::ACCEPTED, Json(redelivered)))
}
