//! Preparation of a Responses request for the model's provider.

use llm_formats::chat::responses::{
    ProviderApi, ResponseEventWriter, ResponseHead, ResponsesPassthrough, ResponsesRequest,
    passthrough_body, read_request, rewrite_response,
};
use protocol::JsonObject;
use protocol::message::Message;
use protocol::model::LlmTool;
use serde_json::{Value, json};
use uuid::Uuid;

use super::frames::{ResponseEvents, StreamingResponse, too_large};
use super::turn::{StoredTurn, Turn};
use crate::host_call::HostCall;
use crate::models::token_bounds::{check_token_limits, generated_bytes, prompt_texts};
use crate::openai::{CompletionInput, prepare};
use models::{Model, WireFormat};
use telemetry::tolerance::{Peer, tolerated};
use web::auth::RunCaller;
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;
use web::response_store::ResponseOwner;
use web::state::ApiState;

/// A request to a granted model.
pub(super) struct ResponsesInvocation<'a> {
    pub(super) caller: &'a RunCaller,
    pub(super) state: &'a ApiState,
    pub(super) model: &'a Model,
    pub(super) id: &'a str,
}

/// The provider's request. The original request is dropped to save memory.
struct PreparedResponse {
    body: JsonObject,
    answering: AnswerConversion,
    /// Memory permits of its images.
    images: Vec<MemoryPermit>,
    turn: Option<StoredTurn>,
}

/// Conversion of the provider's answer.
enum AnswerConversion {
    /// From a chat completion.
    Written(Box<ResponseEventWriter>),
    /// From a response.
    Passed(ResponsesPassthrough),
}

impl ResponsesInvocation<'_> {
    /// Creates a complete response.
    pub(super) async fn create(
        &self,
        call: &mut HostCall,
        request: JsonObject,
    ) -> ApiResult<Value> {
        let PreparedResponse {
            body,
            answering,
            images: _images,
            turn,
        } = self.prepare(call, request).await?;
        let provider = &self.model.provider;
        let (response, unsent) = match answering {
            AnswerConversion::Passed(passing) => {
                let answered = call
                    .within(provider.ask(WireFormat::Responses, body))
                    .await?;
                let mut response = Value::Object(answered);
                call.count(response.get("usage").and_then(domain::usage::usage));
                call.count_text(llm_formats::chat::responses::output_bytes(&response));
                rewrite_response(&mut response, passing.head());
                (response, None)
            }
            AnswerConversion::Written(writer) => {
                let completion = call.within(provider.complete(body)).await?;
                call.count(domain::usage::usage_of(&completion));
                call.count_text(generated_bytes(&completion, "message"));
                writer.complete(&completion).map_err(|_| too_large())?
            }
        };
        // The size as sent, for the audit.
        call.add_bytes(response.to_string().len());
        // A later request must not continue a failed answer.
        if let Some(turn) = turn.filter(|_| response["status"] != "failed") {
            turn.keep(&response, unsent);
        }
        Ok(response)
    }

    /// Creates a streaming response.
    pub(super) async fn stream(
        &self,
        call: &mut HostCall,
        request: JsonObject,
    ) -> ApiResult<StreamingResponse> {
        let PreparedResponse {
            body,
            answering,
            images: _images,
            turn,
        } = self.prepare(call, request).await?;
        let provider = &self.model.provider;
        let events = match answering {
            AnswerConversion::Passed(passing) => {
                let events = provider.request_events(WireFormat::Responses, body);
                ResponseEvents::Passed {
                    events: call.within(events).await?,
                    passing,
                }
            }
            AnswerConversion::Written(writer) => ResponseEvents::Written {
                chunks: call.within(provider.stream(body)).await?,
                writer,
            },
        };
        Ok(StreamingResponse { events, turn })
    }

    /// Builds the provider's body within the budgets.
    async fn prepare(
        &self,
        call: &mut HostCall,
        mut request: JsonObject,
    ) -> ApiResult<PreparedResponse> {
        let turn = Turn::of(self.caller, self.state, &mut request)?;
        let prepared = self.prepare_turn(call, request, &turn).await;
        // Pointers refer to the resolved request until here, which the client does not know.
        let mut prepared = prepared.map_err(|failed| failed.moved(|at| turn.pointer(at)))?;
        prepared.turn = turn.stored;
        Ok(prepared)
    }

    async fn prepare_turn(
        &self,
        call: &mut HostCall,
        request: JsonObject,
        turn: &Turn,
    ) -> ApiResult<PreparedResponse> {
        let Self {
            caller,
            state,
            model,
            id,
        } = self;
        let opened = &model.extra_members;
        let target = if model.provider.supports(WireFormat::Responses) {
            ProviderApi::Responses
        } else {
            ProviderApi::Chat
        };
        let mut responses_request = read_request(&request, id, target, opened)
            .map_err(|fault| ApiError::faults(&[fault]))?;
        self.report_left_out(turn.owner, &responses_request);
        // Moved, not cloned: a body has megabytes.
        let body = std::mem::take(&mut responses_request.chat);
        check_token_limits(&body)
            .map_err(|fault| ApiError::faults(&[responses_request.fault(fault)]))?;
        let prompt = CompletionInput {
            body,
            extra_texts: &responses_request.beside,
        };
        let prepared = prepare(caller, state, call, (id, model), prompt).await;
        let (chat, images) =
            prepared.map_err(|failed| failed.moved(|at| responses_request.pointer(at)))?;
        let head = self.head(turn);
        let (body, answering) = match target {
            ProviderApi::Responses => {
                let body = passthrough_body(request, &responses_request, &chat, opened);
                (
                    body,
                    AnswerConversion::Passed(ResponsesPassthrough::new(head)),
                )
            }
            ProviderApi::Chat => {
                let writer = ResponseEventWriter::new(head, &request, &responses_request);
                (chat, AnswerConversion::Written(Box::new(writer)))
            }
        };
        Ok(PreparedResponse {
            body,
            answering,
            images,
            turn: None,
        })
    }

    /// Logs each type of item that is left out, once for the run.
    fn report_left_out(&self, owner: ResponseOwner, responses_request: &ResponsesRequest) {
        let run = self.caller.grant.run.id;
        for kind in &responses_request.left_out {
            if self.state.response_store().reports(owner, kind) {
                tolerated(Peer::Runner, "unknown_response_item", run);
                tracing::warn!(
                    run.id = %run,
                    item.kind = kind,
                    "model {} of run {run} does not read items of type {kind}, leaving them out",
                    self.id
                );
            }
        }
    }

    fn head(&self, turn: &Turn) -> ResponseHead {
        ResponseHead {
            key: Uuid::new_v4().simple().to_string(),
            created_at: self.state.runs.clock().now_seconds(),
            model: self.id.to_owned(),
            previous: turn.previous.clone(),
        }
    }
}

/// Counts the tokens of a request like the native API.
pub(super) fn input_tokens(model: &Model, responses_request: &ResponsesRequest) -> u64 {
    let items = |name: &str| {
        let items = responses_request.chat.get(name).and_then(Value::as_array);
        items.into_iter().flatten()
    };
    let messages: Vec<_> = items("messages").map(message).collect();
    let tools: Vec<_> = items("tools").filter_map(tool).collect();
    // Messages and tools are counted in their own form; the rest counts as text.
    let mut others = responses_request.chat.clone();
    for counted in ["messages", "tools"] {
        others.remove(counted);
    }
    let others = prompt_texts(&others);
    let count = model.count;
    count.of_request(&messages, &tools)
        + count.of_texts(others.iter().chain(&responses_request.beside))
}

fn message(chat: &Value) -> Message {
    let mut chat = chat.clone();
    for part in chat["content"].as_array_mut().into_iter().flatten() {
        if part["type"] == "file" {
            let file = part["file"].take();
            *part = json!({"type": "file_base64", "file_base64": file["file_data"], "file_name": file["filename"]});
        }
    }
    let text = chat.to_string();
    // A message of an unknown form counts as text.
    serde_json::from_value(chat).unwrap_or_else(|_| Message::text("user", text))
}

fn tool(chat: &Value) -> Option<LlmTool> {
    let function = &chat["function"];
    let description = function["description"].as_str().unwrap_or_default();
    let parameters = function["parameters"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let tool =
        json!({"name": function["name"], "description": description, "parameters": parameters});
    serde_json::from_value(tool).ok()
}
