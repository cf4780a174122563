//! Models, tools and knowledge bases of mock runs. A scripted model calls the first tool that it is offered, and then
//! answers; the tool repeats its arguments; the knowledge base has one passage.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use llm_formats::chat::{ChunkReader, ThinkBlocks};
use protocol::JsonObject;
use protocol::host_api::{SteeringPull, SteeringPullResult};
use protocol::knowledge::{
    KnowledgeBaseList, RetrievalQuery, RetrievalResultEntry, RetrievalResults,
};
use protocol::message::ContentElement;
use protocol::model::{CountTokens, CountedTokens, LlmInvokeResult, LlmRequest, ModelList};
use protocol::resources::{
    KnowledgeBaseResource, KnowledgeOperation, ModelOperation, ModelResource, ToolEffect,
    ToolOperation, ToolResource,
};
use protocol::tool::{CallTool, ToolCallResult, ToolDescription, ToolDetail, ToolList};
use serde_json::{Value, json};

use super::routes::MockRunCaller;
use ::knowledge::retrieve::check_query;
use clock::Clock;
use egress::Egress;
use egress::upstream::UpstreamError;
use host_api::models::{chat_body, frame};
use host_api::openai::{chunk_frame, complete, named_model, shown_model};
use host_api::tools::schema_of;
use models::{
    BatchSize, Chunks, Model, MonitoredProvider, Payment, Provider, ProviderEmbeddings,
    ProviderRequest, Script, Scripted, TokenCount, Vocabulary,
};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::PathOf;
use web::stream::event_stream;

/// A model for the catalog of a mock run.
pub(crate) fn mock_model(model_id: &str) -> ModelResource {
    ModelResource {
        model_id: model_id.to_owned(),
        model_type: Some("llm".to_owned()),
        provider: Some("conform".to_owned()),
        operations: vec![
            ModelOperation::Invoke,
            ModelOperation::Stream,
            ModelOperation::CountTokens,
        ],
        input_modalities: Vec::new(),
    }
}

/// A tool for the catalog of a mock run. It accepts any arguments.
pub(crate) fn mock_tool(tool_name: &str) -> ToolResource {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    ToolResource {
        tool_name: tool_name.to_owned(),
        tool_type: None,
        description: Some("Looks up a text.".to_owned()),
        operations: ToolOperation::ALL.to_vec(),
        parameters: schema.as_object().cloned(),
        source: Some("gateway".to_owned()),
        effect: Some(ToolEffect::Read),
        idempotent: Some(true),
        effect_source: None,
        approval: None,
    }
}

/// A knowledge base for the catalog of a mock run.
pub(crate) fn mock_knowledge_base(kb_id: &str) -> KnowledgeBaseResource {
    KnowledgeBaseResource {
        kb_id: kb_id.to_owned(),
        kb_name: Some("Conform".to_owned()),
        kb_type: Some("embedded".to_owned()),
        operations: KnowledgeOperation::ALL.to_vec(),
    }
}

/// No event arrives during a mock run.
pub(super) async fn pull_steering(
    caller: MockRunCaller,
    JsonBody(_pull): JsonBody<SteeringPull>,
) -> ApiResult<Json<SteeringPullResult>> {
    let part = caller.not_cancelled()?;
    part.run.snapshot.steering_pull()?;
    Ok(Json(SteeringPullResult { items: Vec::new() }))
}

/// The model of all model ids.
pub(super) fn model(clock: Clock, egress: Egress) -> Model {
    let provider = Arc::new(ConformModel);
    Model {
        provider: Arc::new(MonitoredProvider::new(
            "conform", "scripted", None, provider, clock,
        )),
        upstream: "conform".to_owned(),
        context_window_tokens: None,
        max_output_tokens: None,
        extra_members: Arc::new([]),
        price: None,
        reserved_tokens: None,
        count: TokenCount {
            vocabulary: Vocabulary::O200k,
            margin: 1.0,
        },
        batch_size: BatchSize::new(None),
        egress,
        is_own: false,
    }
}

/// Calls the first offered tool, and answers when it has the result or is offered none.
struct ConformModel;

impl ConformModel {
    fn scripted(body: &JsonObject) -> Scripted {
        let tool = body.get("tools").and_then(|tools| tools.get(0));
        let tool = tool.and_then(|tool| tool["function"]["name"].as_str());
        let call = tool.map(|name| {
            json!({
                "offered": name, "after_tool": false,
                "tool_calls": [{"name": name, "arguments": {"text": "{input}"}}],
            })
        });
        let rest = [
            json!({"after_tool": true, "answer": "The tool says: {tool}"}),
            json!({"answer": "You said: {input}"}),
        ];
        let turns: Vec<_> = call.into_iter().chain(rest).collect();
        let script = Script::read(Some(json!({"turns": turns})));
        Scripted::new(script.expect("the script is valid"))
    }
}

#[async_trait]
impl Provider for ConformModel {
    async fn complete(&self, request: ProviderRequest) -> Result<JsonObject, UpstreamError> {
        let body = request.completion()?;
        Self::scripted(&body).complete(body.into()).await
    }

    async fn stream(&self, request: ProviderRequest) -> Result<Chunks, UpstreamError> {
        let body = request.completion()?;
        Self::scripted(&body).stream(body.into()).await
    }

    async fn embed(&self, body: JsonObject) -> Result<ProviderEmbeddings, UpstreamError> {
        Self::scripted(&body).embed(body).await
    }

    async fn rerank(&self, body: JsonObject) -> Result<JsonObject, UpstreamError> {
        Self::scripted(&body).rerank(body).await
    }
}

impl MockRunCaller {
    fn model(&self, id: &str, operation: ModelOperation) -> ApiResult<&Model> {
        self.0.run.snapshot.model(id, operation)?;
        Ok(self.0.model.as_ref())
    }
}

pub(super) async fn list_models(caller: MockRunCaller) -> ApiResult<Json<ModelList>> {
    let part = caller.not_cancelled()?;
    let models = part.run.snapshot.resources.models.clone();
    Ok(Json(ModelList { models }))
}

pub(super) async fn invoke_model(
    caller: MockRunCaller,
    PathOf(id): PathOf<String>,
    JsonBody(request): JsonBody<LlmRequest>,
) -> ApiResult<Json<LlmInvokeResult>> {
    let caller = MockRunCaller(caller.not_cancelled()?);
    let model = caller.model(&id, ModelOperation::Invoke)?;
    let body = model.completion_body(chat_body(&request, model, &id)?);
    let paid = Payment::by_operator();
    let completion = model.provider.complete(body, &paid).await?;
    let reader = ChunkReader::new(ThinkBlocks::of(&request)).of_model(&id);
    let response = reader.complete(&completion);
    response.map(Json).ok_or_else(ApiError::internal)
}

pub(super) async fn stream_model(
    caller: MockRunCaller,
    PathOf(id): PathOf<String>,
    JsonBody(request): JsonBody<LlmRequest>,
) -> ApiResult<Response> {
    let caller = MockRunCaller(caller.not_cancelled()?);
    let model = caller.model(&id, ModelOperation::Stream)?;
    let body = model.completion_body(chat_body(&request, model, &id)?);
    let mut reader = ChunkReader::new(ThinkBlocks::of(&request)).of_model(&id);
    let mut frames = Vec::new();
    let paid = Payment::by_operator();
    let mut chunks = model.provider.stream(body, &paid).await?;
    while let Some(chunk) = chunks.next().await {
        if let Some(chunk) = reader.read(&chunk?) {
            frames.extend_from_slice(&frame("chunk", &json!({"chunk": chunk})));
        }
    }
    let (last, usage) = reader.finish();
    frames.extend_from_slice(&frame("chunk", &json!({"chunk": last})));
    frames.extend_from_slice(&frame("usage", &json!({"usage": usage})));
    Ok(event_stream(Body::from(frames)))
}

pub(super) async fn count_model_tokens(
    caller: MockRunCaller,
    PathOf(id): PathOf<String>,
    JsonBody(request): JsonBody<CountTokens>,
) -> ApiResult<Json<CountedTokens>> {
    let caller = MockRunCaller(caller.not_cancelled()?);
    let model = caller.model(&id, ModelOperation::CountTokens)?;
    let tokens = model.count.of_request(&request.messages, &request.tools);
    Ok(Json(CountedTokens { tokens }))
}

pub(super) async fn list_openai_models(caller: MockRunCaller) -> ApiResult<Json<Value>> {
    let part = caller.not_cancelled()?;
    let models = part.run.snapshot.resources.models.iter();
    let models: Vec<_> = models.map(shown_model).collect();
    Ok(Json(json!({"object": "list", "data": models})))
}

pub(super) async fn create_chat_completion(
    caller: MockRunCaller,
    JsonBody(body): JsonBody<JsonObject>,
) -> ApiResult<Response> {
    let caller = MockRunCaller(caller.not_cancelled()?);
    let id = named_model(&body)?;
    if !body.get("messages").is_some_and(Value::is_array) {
        return Err(ApiError::invalid("/messages", "must be a list"));
    }
    let paid = Payment::by_operator();
    if body.get("stream").and_then(Value::as_bool) != Some(true) {
        let model = caller.model(&id, ModelOperation::Invoke)?;
        let body = model.completion_body(body);
        let mut completion = model.provider.complete(body, &paid).await?;
        complete(&mut completion, &id, "chat.completion");
        return Ok(Json(completion).into_response());
    }
    let model = caller.model(&id, ModelOperation::Stream)?;
    let mut frames = Vec::new();
    let body = model.completion_body(body);
    let mut chunks = model.provider.stream(body, &paid).await?;
    while let Some(chunk) = chunks.next().await {
        let mut chunk = chunk?;
        complete(&mut chunk, &id, "chat.completion.chunk");
        frames.extend_from_slice(&chunk_frame(&Value::Object(chunk)));
    }
    frames.extend_from_slice(b"data: [DONE]\n\n");
    Ok(event_stream(Body::from(frames)))
}

pub(super) async fn list_tools(caller: MockRunCaller) -> ApiResult<Json<ToolList>> {
    let part = caller.not_cancelled()?;
    let tools = part.run.snapshot.resources.tools.clone();
    Ok(Json(ToolList { tools }))
}

pub(super) async fn get_tool(
    caller: MockRunCaller,
    PathOf(name): PathOf<String>,
) -> ApiResult<Json<ToolDetail>> {
    let part = caller.not_cancelled()?;
    let granted = part.run.snapshot.tool(&name, ToolOperation::Detail)?;
    let tool = ToolDescription {
        name,
        description: granted.description.clone().unwrap_or_default(),
        parameters: schema_of(granted),
        source: granted.source.clone(),
        effect: granted.effect,
        idempotent: granted.idempotent,
        effect_source: granted.effect_source,
    };
    Ok(Json(ToolDetail { tool }))
}

pub(super) async fn call_tool(
    caller: MockRunCaller,
    PathOf(name): PathOf<String>,
    JsonBody(body): JsonBody<CallTool>,
) -> ApiResult<Json<ToolCallResult>> {
    let part = caller.not_cancelled()?;
    part.run.snapshot.tool(&name, ToolOperation::Call)?;
    let arguments = Value::Object(body.parameters);
    let result = json!(format!("{name} was called with {arguments}"));
    Ok(Json(ToolCallResult { result }))
}

pub(super) async fn list_knowledge_bases(
    caller: MockRunCaller,
) -> ApiResult<Json<KnowledgeBaseList>> {
    let part = caller.not_cancelled()?;
    let knowledge_bases = part.run.snapshot.listed_knowledge_bases()?;
    Ok(Json(KnowledgeBaseList { knowledge_bases }))
}

pub(super) async fn retrieve_knowledge(
    caller: MockRunCaller,
    PathOf(id): PathOf<String>,
    JsonBody(query): JsonBody<RetrievalQuery>,
) -> ApiResult<Json<RetrievalResults>> {
    let part = caller.not_cancelled()?;
    let operation = KnowledgeOperation::Retrieve;
    part.run.snapshot.knowledge_base(&id, operation)?;
    let faults = check_query(&query);
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let passage = format!("A passage about: {}", query.query_text);
    let metadata = json!({"name": "conform.md", "document_id": "conform"});
    let entry = RetrievalResultEntry {
        id: "conform-1".to_owned(),
        content: vec![ContentElement::text(passage)],
        metadata: metadata.as_object().cloned().unwrap_or_default(),
        distance: 0.1,
        score: Some(0.9),
    };
    Ok(Json(RetrievalResults {
        results: vec![entry],
    }))
}
