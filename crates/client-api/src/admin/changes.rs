//! Administrative changes: the list, its export, and the restoration of agents (`docs/people.md`).

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use domain::redaction::restore_secrets;
use http::header::{ACCEPT, CONTENT_TYPE, LINK};
use http::{HeaderMap, HeaderValue};
use protocol::admin::{Agent, AgentSpec};
use protocol::change::{AdminChange, ChangeOrder, ObjectKind, RestoreAgentRequest};
use protocol::error::ErrorBody;
use protocol::id::{AgentId, ApiKeyId, ChangeId};
use protocol::principal::{Principal, PrincipalKind};
use protocol::run::Page;
use serde::Deserialize;
use store::{ChangeFilter, ChangeRecord, SaveAgent};

use super::agents::{check, save};
use super::endpoints::{name_page, to_page};
use crate::principals::name_keys;
use web::auth::AdminCaller;
use web::error::version::{read_only, version_conflict};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, if_match};
use web::state::ApiState;

/// Media type of an export: a JSON object in each line.
const NDJSON: &str = "application/x-ndjson";

/// Filters, cursor and size of a page of changes.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeQuery {
    /// Only changes of objects of this kind.
    #[param(inline)]
    kind: Option<ObjectKind>,
    /// Only changes of the object with this id.
    object_id: Option<String>,
    /// Only changes by this API key (its id), by the configuration file (`config`) or by commands (`cli`).
    actor: Option<String>,
    /// Only changes from this time on, in epoch seconds.
    since: Option<u32>,
    /// `newest` first (default), or `oldest` first.
    #[param(inline)]
    order: Option<ChangeOrder>,
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

impl ChangeQuery {
    fn filter(&self) -> ApiResult<ChangeFilter> {
        Ok(ChangeFilter {
            kind: self.kind,
            object_id: self.object_id.clone(),
            by: self.actor.as_deref().map(actor).transpose()?,
            since: self.since.map(|since| i64::from(since) * 1000),
            order: self.order.unwrap_or_default(),
        })
    }
}

/// The stored form of an actor.
fn actor(text: &str) -> ApiResult<String> {
    let named = [PrincipalKind::Config, PrincipalKind::Cli];
    if let Some(kind) = named.into_iter().find(|kind| kind.as_str() == text) {
        return Ok(Principal::from(kind).stored());
    }
    let key = text.parse::<ApiKeyId>().map_err(|_| {
        let message = "`actor` must be the id of an API key, `config` or `cli`";
        ApiError::invalid_argument(message)
    })?;
    Ok(Principal::from(key).stored())
}

fn view(record: ChangeRecord) -> AdminChange {
    AdminChange {
        id: record.id,
        at: record.at.div_euclid(1000),
        action: record.action,
        kind: record.kind,
        object_id: record.object_id,
        object_name: record.object_name,
        changed_by: record.by,
        request_id: record.request_id,
        patch: record.patch,
        version: record.version,
    }
}

/// Lists the administrative changes of the workspace, with the old and new values.
///
/// A change of the API, of the configuration file or of a command is stored in the same transaction as the object. A
/// request that changes nothing has no row. Pauses of all workspaces are in the list of each workspace.
///
/// With `Accept: application/x-ndjson` the page has a change in each line, and the header `Link` with `rel="next"` if
/// more follow.
#[utoipa::path(get, path = "/v1/changes", tag = "admin", security(("api_key" = [])), params(ChangeQuery), responses(
    (status = 200, description = "A page", body = Page<AdminChange>),
    (status = 400, description = "A filter, cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_changes(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<ChangeQuery>,
    RawQuery(raw): RawQuery,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let (list, workspace) = ("changes", &caller.workspace);
    let filter = query.filter()?;
    let (after, limit) = name_page(&state, list, workspace, query.cursor, query.limit)?;
    // The signature covers the cursor, so it is the id of a change.
    let after = after.and_then(|id| id.parse::<ChangeId>().ok());
    let log = state.runs.store().audit_log();
    let found = log.list_changes(workspace, &filter, after, caller.answer.page(limit));
    let mut found = found.await?.map(view);
    let principals = found.items.iter_mut().map(|change| &mut change.changed_by);
    name_keys(&state, workspace, caller.role, principals.collect()).await?;
    let page = to_page(&state, list, workspace, found, |change: &AdminChange| {
        change.id.to_string()
    });
    if accepts_lines(&headers) {
        return Ok(lines(&page, raw.as_deref().unwrap_or_default()));
    }
    Ok(Json(page).into_response())
}

fn accepts_lines(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    let mut types = accepted.into_iter().flat_map(|types| types.split(','));
    types.any(|one| {
        one.split(';')
            .next()
            .is_some_and(|one| one.trim() == NDJSON)
    })
}

/// A page with a change in each line, and the address of the next page in `Link`.
fn lines(page: &Page<AdminChange>, query: &str) -> Response {
    let mut text = String::new();
    for change in &page.items {
        // A change has text keys and finite numbers only, so it is always JSON.
        text.push_str(&serde_json::to_string(change).unwrap_or_default());
        text.push('\n');
    }
    let mut response = ([(CONTENT_TYPE, NDJSON)], text).into_response();
    if let Some(cursor) = &page.next_cursor {
        let is_filter = |pair: &&str| !pair.is_empty() && !pair.starts_with("cursor=");
        let mut pairs: Vec<_> = query
            .split('&')
            .filter(is_filter)
            .map(str::to_owned)
            .collect();
        pairs.push(format!("cursor={cursor}"));
        let link = format!("</v1/changes?{}>; rel=\"next\"", pairs.join("&"));
        if let Ok(link) = HeaderValue::from_str(&link) {
            response.headers_mut().insert(LINK, link);
        }
    }
    response
}

/// Gives an agent the settings that it had after a change.
///
/// The history has no values of secrets. A secret of `config` stays if it is the same since the change; otherwise the
/// request is refused with its pointer. With `If-Match` the agent is restored from that version only.
#[utoipa::path(post, path = "/v1/agents/{agent_id}/restore", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")),
    request_body = RestoreAgentRequest, responses(
    (status = 200, description = "The restored agent, with a new version", body = Agent),
    (status = 400, description = "The settings are no longer valid, or a secret has changed; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent, or no such change after which it existed", body = ErrorBody),
    (status = 409, description = "The version does not match, or the agent is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn restore_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
    headers: HeaderMap,
    JsonBody(request): JsonBody<RestoreAgentRequest>,
) -> ApiResult<Json<Agent>> {
    let expected = if_match(&headers)?;
    let (store, workspace) = (state.runs.store(), &caller.workspace);
    let agent = store.agents().find_agent(workspace, id).await?;
    let agent = agent.ok_or_else(|| ApiError::not_found("agent", id))?;
    // The next start would undo the change.
    if agent.origin == "config" {
        return Err(read_only());
    }
    if expected.is_some_and(|version| version != agent.version) {
        return Err(version_conflict(agent.version));
    }
    let object_id = id.to_string();
    let document = store.audit_log().find_changed_document(
        workspace,
        ObjectKind::Agent,
        &object_id,
        request.change_id,
    );
    let document = document.await?;
    let document = document.ok_or_else(|| ApiError::not_found("change", request.change_id))?;
    let mut spec = specification(document)?;
    let faults = restore_secrets(&mut spec.config, agent.spec.config, |secret| {
        state.runs.secret_mark(secret)
    });
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    // Its runner, or the rules for agents, may have changed since.
    check(&state, workspace, &spec).await?;
    let update = SaveAgent::Update {
        id,
        workspace: workspace.clone(),
        spec,
        // The secrets are those of this version.
        if_match: Some(agent.version),
        by: caller.key.into(),
        at: state.runs.clock().now_ms(),
    };
    let restored = save(&state, &caller, id, update).await?;
    restored
        .map(Json)
        .ok_or_else(|| ApiError::not_found("agent", id))
}

/// The specification in the document of a change.
fn specification(mut document: serde_json::Value) -> ApiResult<AgentSpec> {
    if let Some(members) = document.as_object_mut() {
        // A fact of the stored agent, and no part of its specification.
        members.remove("origin");
    }
    serde_json::from_value(document).map_err(|_| {
        let message = "another version of the gateway stored this change in a form that this one cannot read; replace \
            the agent by PUT /v1/agents/{agent_id}";
        ApiError::conflict("change_unreadable", message)
    })
}
