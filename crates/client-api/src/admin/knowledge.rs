//! Documents of knowledge bases: upload, read, delete, reindex, and search as a run would.

use axum::Json;
use axum::extract::{Request, State};
use domain::knowledge::MAX_NAME_BYTES;
use domain::knowledge::filter::{check_metadata, entries};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::knowledge::{KnowledgeDocument, Reindexed, RetrievalQuery, RetrievalResults};
use protocol::run::Page;
use serde::Deserialize;
use store::{BaseKey, DocumentFacts, sha256_hex};

use crate::admin::endpoints::{NameQuery, name_page, to_page};
use keys::cursor::CursorKind;
use knowledge::extract::DocumentFormat;
use knowledge::index::{DocumentSource, Indexed, NewDocument};
use models::Payment;
use web::auth::AdminCaller;
use web::binary::Binary;
use web::error::{ApiError, ApiResult};
use web::json::{JsonBody, media_type, parse_part, read_body};
use web::knowledge::shown;
use web::query::{PathOf, QueryOf, single_header};
use web::state::ApiState;

/// Metadata of an uploaded document.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct DocumentQuery {
    /// Display name. Default: the document id.
    name: Option<String>,
    /// A JSON object for filters. Its values are scalars or lists of scalars.
    metadata: Option<String>,
}

/// Cursor of a reindexing.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReindexQuery {
    /// The `next_cursor` of the previous call.
    cursor: Option<String>,
}

/// Maximum ids in the message about an unknown knowledge base.
const NAMED: usize = 20;

/// Key of a knowledge base of this gateway. Admins may list the bases, so the 404 names them.
fn key(state: &ApiState, caller: &AdminCaller, kb_id: String) -> ApiResult<BaseKey> {
    let catalog = state.runs.catalog();
    let base_ids = catalog.knowledge_bases.iter();
    let base_ids: Vec<_> = base_ids.map(|base| base.kb_id.as_str()).collect();
    if !base_ids.contains(&kb_id.as_str()) {
        // Bounded: the catalog may have many bases.
        let advice = match base_ids.get(..base_ids.len().min(NAMED)) {
            Some(some @ [_, ..]) => format!("(this gateway has: {})", some.join(", ")),
            _ => "(this gateway has none; add one at [[knowledge_bases]])".to_owned(),
        };
        return Err(ApiError::not_found("knowledge base", kb_id).with_advice(&advice));
    }
    Ok(BaseKey {
        workspace: caller.workspace.clone(),
        kb_id,
    })
}

fn list_name(base: &BaseKey) -> String {
    format!("knowledge {}", base.kb_id)
}

/// Lists the documents of a knowledge base by id.
#[utoipa::path(get, path = "/v1/knowledge-bases/{kb_id}/documents", tag = "admin", security(("api_key" = [])),
    params(("kb_id" = String, Path, description = "The knowledge base"), NameQuery), responses(
    (status = 200, description = "A page", body = Page<KnowledgeDocument>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such knowledge base", body = ErrorBody),
    (status = 409, description = "`remote_base`: its documents are stored by another service", body = ErrorBody)))]
pub(crate) async fn list_documents(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(kb_id): PathOf<String>,
    QueryOf(query): QueryOf<NameQuery>,
) -> ApiResult<Json<Page<KnowledgeDocument>>> {
    let base = key(&state, &caller, kb_id)?;
    // Only bases of this gateway have documents here.
    state.knowledge.embedded(&base.kb_id)?;
    let (list, workspace) = (list_name(&base), &caller.workspace);
    let (after, limit) = name_page(&state, &list, workspace, query.cursor, query.limit)?;
    let store = state.runs.store();
    let found = store
        .knowledge()
        .list_documents(&base, after.as_deref(), caller.answer.page(limit))
        .await?
        .map(shown);
    let id = |item: &KnowledgeDocument| item.document_id.clone();
    Ok(Json(to_page(&state, &list, workspace, found, id)))
}

/// Retrieves a document's metadata and indexing status.
#[utoipa::path(get, path = "/v1/knowledge-bases/{kb_id}/documents/{*document_id}", tag = "admin", security(("api_key" = [])),
    params(("kb_id" = String, Path, description = "The knowledge base"),
        ("document_id" = String, Path, description = "The document")), responses(
    (status = 200, description = "The document, without its text", body = KnowledgeDocument),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such knowledge base or document", body = ErrorBody),
    (status = 409, description = "`remote_base`: its documents are stored by another service", body = ErrorBody)))]
pub(crate) async fn get_document(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf((kb_id, document_id)): PathOf<(String, String)>,
) -> ApiResult<Json<KnowledgeDocument>> {
    let base = key(&state, &caller, kb_id)?;
    state.knowledge.embedded(&base.kb_id)?;
    let record = state
        .runs
        .store()
        .knowledge()
        .find_document(&base, &document_id)
        .await?;
    let record = record.ok_or_else(|| ApiError::not_found("document", &document_id))?;
    Ok(Json(shown(record)))
}

/// Creates or replaces a document and indexes it.
///
/// The response arrives when the new version is searchable; until then searches use the previous one. Indexing
/// continues if the client disconnects, and the document's record shows the progress.
///
/// `Content-Type` selects the format: text in any declared charset, Markdown, HTML, or PDF with a text layer.
/// Uploading the same bytes with the same name and metadata has no effect.
#[utoipa::path(put, path = "/v1/knowledge-bases/{kb_id}/documents/{*document_id}", tag = "admin", security(("api_key" = [])),
    params(("kb_id" = String, Path, description = "The knowledge base"),
        ("document_id" = String, Path, description = "The id of the document; it may contain slashes"), DocumentQuery),
    request_body(content = inline(Binary), content_type = "application/octet-stream",
        description = "At most 20 MiB, with its `Content-Type`. For `application/octet-stream` the name's extension decides: .md, .html, .pdf, .txt"), responses(
    (status = 200, description = "Indexed. The document existed before, in whatever state", body = KnowledgeDocument),
    (status = 201, description = "Indexed. The document is new", body = KnowledgeDocument),
    (status = 400, description = "Id, name or metadata is not valid; or the document cannot be read. Then the previous version stays searchable, and the record has status `failed` and the error", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such knowledge base, or it was deleted meanwhile", body = ErrorBody),
    (status = 409, description = "`document_busy`, `base_full` or `remote_base`", body = ErrorBody),
    (status = 413, description = "The document is too large", body = ErrorBody),
    (status = 429, description = "The limit of concurrent indexing is reached", body = ErrorBody),
    (status = 502, description = "The embedding provider failed", body = ErrorBody)))]
pub(crate) async fn put_document(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf((kb_id, document_id)): PathOf<(String, String)>,
    QueryOf(query): QueryOf<DocumentQuery>,
    request: Request,
) -> ApiResult<(StatusCode, Json<KnowledgeDocument>)> {
    let base = key(&state, &caller, kb_id)?;
    state.knowledge.embedded(&base.kb_id)?;
    // The id becomes part of URLs, logs and results, so it gets the rules of a name.
    check_text("document_id", &document_id)?;
    let name = query.name.unwrap_or_else(|| document_id.clone());
    check_text("name", &name)?;
    let metadata = metadata_of(query.metadata.as_deref())?;
    let mime_type = single_header(request.headers(), CONTENT_TYPE.as_str())?;
    let mime_type = mime_type.unwrap_or_default().to_owned();
    let kind = match media_type(request.headers()).as_str() {
        // Clients send this type for files that they do not know: the extension decides.
        "application/octet-stream" => DocumentFormat::of_name(&name),
        _ => DocumentFormat::of_media_type(&mime_type),
    };
    let kind = kind.map_err(|error| ApiError::invalid_argument(format!("the document {error}")))?;
    // Read the body first, so that slow uploads hold no indexing slot.
    let bytes = read_body(request, &state).await?;
    let indexing_slot = state.knowledge.indexing_slot().await?;
    // Read before indexing, because indexing creates the row. It selects 200 or 201 only.
    let is_new = state
        .runs
        .store()
        .knowledge()
        .find_document(&base, &document_id)
        .await?
        .is_none();
    let document = NewDocument {
        base,
        document_id,
        facts: DocumentFacts {
            name,
            mime_type,
            metadata: serde_json::Value::Object(metadata.clone()).to_string(),
            sha256: sha256_hex(&*bytes),
            bytes: bytes.len() as u64,
        },
        entries: entries(&metadata),
        // Shares the buffer of the body; its memory permit lives until the function returns.
        source: DocumentSource::Bytes(kind, bytes.bytes.clone()),
        stamp: caller.stamp(&state),
    };
    match state.knowledge.index(document, indexing_slot).await? {
        Indexed::Changed(record) if is_new => Ok((StatusCode::CREATED, Json(shown(record)))),
        Indexed::Changed(record) | Indexed::Unchanged(record) => {
            Ok((StatusCode::OK, Json(shown(record))))
        }
    }
}

fn check_text(what: &str, text: &str) -> ApiResult<()> {
    let is_valid = (1..=MAX_NAME_BYTES).contains(&text.len())
        && !text.trim().is_empty()
        && !text.chars().any(char::is_control);
    if is_valid {
        return Ok(());
    }
    let message =
        format!("`{what}` must have 1 to {MAX_NAME_BYTES} bytes and no control characters");
    Err(ApiError::invalid_argument(message))
}

fn metadata_of(text: Option<&str>) -> ApiResult<JsonObject> {
    let Some(text) = text else {
        return Ok(JsonObject::new());
    };
    let metadata: JsonObject = parse_part(text.as_bytes()).map_err(|fault| {
        let pointer = format!("/metadata{}", fault.pointer);
        ApiError::faults(&[Fault::new(pointer, fault.message)])
    })?;
    check_metadata(&metadata).map_err(|faults| ApiError::faults(&faults))?;
    Ok(metadata)
}

/// Deletes a document.
#[utoipa::path(delete, path = "/v1/knowledge-bases/{kb_id}/documents/{*document_id}", tag = "admin", security(("api_key" = [])),
    params(("kb_id" = String, Path, description = "The knowledge base"),
        ("document_id" = String, Path, description = "The document")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such knowledge base or document", body = ErrorBody),
    (status = 409, description = "`remote_base`: its documents are stored by another service", body = ErrorBody)))]
pub(crate) async fn delete_document(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf((kb_id, document_id)): PathOf<(String, String)>,
) -> ApiResult<StatusCode> {
    let base = key(&state, &caller, kb_id)?;
    state
        .knowledge
        .remove(base, document_id, caller.stamp(&state))
        .await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Rebuilds the index of a knowledge base with its current settings: chunks, terms and vectors.
///
/// Each call processes documents for about ten seconds and returns a cursor. Documents stay searchable all the
/// time.
#[utoipa::path(post, path = "/v1/knowledge-bases/{kb_id}/reindex", tag = "admin", security(("api_key" = [])),
    params(("kb_id" = String, Path, description = "The knowledge base"), ReindexQuery), responses(
    (status = 200, description = "The processed documents, with `status` and `error`", body = Reindexed),
    (status = 400, description = "The cursor is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such knowledge base", body = ErrorBody),
    (status = 409, description = "`remote_base`: its documents are stored by another service", body = ErrorBody),
    (status = 429, description = "The limit of concurrent indexing is reached", body = ErrorBody)))]
pub(crate) async fn reindex_knowledge_base(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(kb_id): PathOf<String>,
    QueryOf(query): QueryOf<ReindexQuery>,
) -> ApiResult<Json<Reindexed>> {
    let base = key(&state, &caller, kb_id)?;
    // Part of the signature: a cursor of another base is rejected.
    let list = format!("reindex {}\n{}", base.kb_id, base.workspace);
    let cursors = state.runs.cursors();
    let after = match &query.cursor {
        None => None,
        Some(cursor) => {
            let position = cursors.decode(CursorKind::Names, &list, cursor)?;
            Some(String::from_utf8(position).map_err(|_| keys::cursor::InvalidCursor)?)
        }
    };
    let done = state
        .knowledge
        .reindex(&base, after, &caller.stamp(&state))
        .await?;
    let next = done.more_after;
    Ok(Json(Reindexed {
        documents: done.documents.into_iter().map(shown).collect(),
        next_cursor: next.map(|id| cursors.encode(CursorKind::Names, &list, id.as_bytes())),
    }))
}

/// Searches a knowledge base like a run with a grant for it.
#[utoipa::path(post, path = "/v1/knowledge-bases/{kb_id}/retrieve", tag = "admin", security(("api_key" = [])),
    params(("kb_id" = String, Path, description = "The knowledge base")),
    request_body = RetrievalQuery, responses(
    (status = 200, description = "Passages, closest first; empty without matches", body = RetrievalResults),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such knowledge base", body = ErrorBody),
    (status = 429, description = "The knowledge base's rate limit is reached", body = ErrorBody),
    (status = 502, description = "The knowledge base returned an error or an invalid response (`details.reason`)", body = ErrorBody),
    (status = 504, description = "The knowledge base did not respond in time", body = ErrorBody)))]
pub(crate) async fn search_knowledge_base(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(kb_id): PathOf<String>,
    JsonBody(query): JsonBody<RetrievalQuery>,
) -> ApiResult<Json<RetrievalResults>> {
    let base = key(&state, &caller, kb_id)?;
    let results = state
        .knowledge
        // By the operator: no run pays for this search, and no budget limits it.
        .retrieve(&base, &query, &Payment::by_operator())
        .await?;
    Ok(Json(RetrievalResults { results }))
}
