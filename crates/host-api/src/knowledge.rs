//! Granted knowledge bases.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::knowledge::{KnowledgeBaseList, RetrievalQuery, RetrievalResults};
use protocol::resources::KnowledgeOperation;
use store::BaseKey;

use crate::host_call::{HostCall, Spend};
use runs::call_limits::CallKind;
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::ApiResult;
use web::json::JsonBody;
use web::query::PathOf;
use web::state::ApiState;

/// Lists the granted knowledge bases.
#[utoipa::path(get, path = "/host/v1/knowledge-bases", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "The granted knowledge bases", body = KnowledgeBaseList),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "No knowledge base may be listed", body = ErrorBody)))]
pub(crate) async fn list_granted_knowledge_bases(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<KnowledgeBaseList>> {
    let call = AuditedCall {
        action: "knowledge_list",
        resource: "knowledge_bases",
        operation: "list",
    };
    let listed = caller.grant.snapshot.listed_knowledge_bases();
    let knowledge_bases = caller.granted(&state, call, listed).await?;
    Ok(Json(KnowledgeBaseList { knowledge_bases }))
}

/// Searches a knowledge base for the passages closest to a query.
#[utoipa::path(post, path = "/host/v1/knowledge-bases/{kb_id}/retrieve", tag = "host", security(("run_token" = [])),
    params(("kb_id" = String, Path, description = "The knowledge base")),
    request_body = RetrievalQuery, responses(
    (status = 200, description = "Passages, closest first; empty without matches", body = RetrievalResults),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The knowledge base was not granted, or does not exist", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 429, description = "A limit is reached: the knowledge base's rate limit, a budget, or the run's call rate", body = ErrorBody),
    (status = 502, description = "The knowledge base returned an error or an invalid response (`details.reason`)", body = ErrorBody),
    (status = 504, description = "The knowledge base did not respond in time", body = ErrorBody)))]
pub(crate) async fn retrieve_knowledge(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(kb_id): PathOf<String>,
    JsonBody(query): JsonBody<RetrievalQuery>,
) -> ApiResult<Json<RetrievalResults>> {
    retrieve(&caller, &state, &kb_id, &query).await.map(Json)
}

/// Searches a knowledge base, for all APIs that offer it. The call is authorized, audited, metered and traced,
/// and ends with its run.
pub(crate) async fn retrieve(
    caller: &RunCaller,
    state: &ApiState,
    kb_id: &str,
    query: &RetrievalQuery,
) -> ApiResult<RetrievalResults> {
    let call = AuditedCall {
        action: "retrieve_knowledge_base",
        resource: kb_id,
        operation: "retrieve",
    };
    let snapshot = &caller.grant.snapshot;
    let permission = snapshot.knowledge_base(kb_id, KnowledgeOperation::Retrieve);
    let (mut host_call, _granted) = HostCall::begin(caller, state, call, permission).await?;
    host_call.trace_retrieval(kb_id, query.top_k);
    // Held by the call until its end.
    if let Err(refused) = host_call.take_slot(CallKind::Retrieval) {
        return host_call.end(Err(refused));
    }
    let embedding = state.knowledge.embedding_model(kb_id);
    let embedding = embedding.and_then(|id| state.models.find(id).ok());
    let spend = Spend::of_retrieval(kb_id, &query.query_text, embedding);
    // Before the provider is called: the reservation bounds what concurrent calls can spend.
    let paid = match host_call.reserve(spend).await {
        Ok(paid) => paid,
        Err(refused) => return host_call.end(Err(refused)),
    };
    let base = BaseKey {
        workspace: caller.grant.run.workspace.clone(),
        kb_id: kb_id.to_owned(),
    };
    let found = host_call
        .within(state.knowledge.retrieve(&base, query, &paid))
        .await;
    // Also after an error: the embedding may have been paid.
    host_call.count_paid(&paid);
    let found = found.map(|results| RetrievalResults { results });
    if let Ok(found) = &found {
        let texts = found.results.iter().flat_map(|entry| &entry.content);
        let bytes = texts.map(|part| part.text.as_ref().map_or(0, String::len));
        host_call.add_bytes(bytes.sum());
        host_call.trace_mut().note_passages(found.results.len());
    }
    host_call.end(found)
}
