//! The one pipeline of model calls. All five APIs ("faces") run it: the native one, chat completions, responses,
//! messages and Gemini.
//!
//! 0. [`check_request`] passes the request through the hooks.
//! 1. [`RoutedCall::begin`] checks the snapshot, begins the audit, and takes a concurrency slot. A route has several
//!    candidates: steps 1 to 4 repeat with the next one until one answers.
//! 2. [`ModelFace::prepare`] checks the request, inlines its images, and builds the upstream request.
//! 3. [`HostCall::reserve`] reserves the bound or the expected use in the budgets.
//! 4. The provider is called, for a complete answer or a stream.
//!    A stream reserves more by [`HostCall::grow`], and ends when a budget has nothing left.
//! 5. [`FaceAnswer`] renders the answer, its events, or the error of a broken stream. Hooks check the answer before
//!    it, or the end of its stream, is delivered.
//! 6. [`HostCall::end`] settles the use and records the outcome.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use protocol::JsonObject;
use protocol::error::AgentApiError;
use protocol::hook::{HookFormat, HookValue};
use protocol::message::LlmTokenUsage;
use protocol::model::LlmInvokeResult;
use protocol::resources::ModelOperation;
use serde_json::Value;

use super::answer_stream::AnswerStream;
use super::hooked::{CheckedStream, check_answer, check_request};
use super::routing::RoutedCall;
use super::token_bounds::generated_bytes;
use crate::hooks::HookedCall;
use crate::host_call::{AttemptError, HostCall, Spend};
use egress::upstream::UpstreamError;
use models::{Model, Payment, ProviderRequest};
use web::auth::{AuditedCall, RunCaller};
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;
use web::state::ApiState;
use web::stream::event_stream;

/// Delivery of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    Complete,
    Stream,
}

impl Delivery {
    /// Delivery for the request member `stream`.
    pub(crate) fn of(body: &JsonObject) -> Self {
        match body.get("stream").and_then(Value::as_bool) {
            Some(true) => Self::Stream,
            _ => Self::Complete,
        }
    }
}

/// Caller and granted model of a request.
#[derive(Clone, Copy)]
pub(crate) struct CallTarget<'a> {
    pub(crate) caller: &'a RunCaller,
    pub(crate) state: &'a ApiState,
    pub(crate) model: &'a Model,
    /// Id of the model in the catalog.
    pub(crate) id: &'a str,
}

/// A request in one of the APIs. Cloned if another candidate of a route may need it.
pub(crate) trait ModelFace: Clone + Send + Sync {
    /// Form of request and answer, for hooks.
    const FORMAT: HookFormat;

    /// The request, for hooks.
    fn document(&self) -> HookValue<'_>;

    /// Checks a replacement of the request.
    fn check_document(&self, replaced: &Value) -> Result<(), String>;

    /// Replaces the request by a checked one.
    fn set_document(&mut self, replaced: Value);

    /// Checks the request and builds the upstream request. Errors reserve no budget.
    fn prepare(
        self,
        target: &CallTarget<'_>,
    ) -> impl Future<Output = ApiResult<PreparedCall>> + Send;
}

/// An upstream request with everything that the call needs.
pub(crate) struct PreparedCall {
    pub(crate) request: ProviderRequest,
    /// Upper bound for the budgets.
    pub(crate) spend: Spend,
    /// Memory permits of the images, held until the provider answers.
    pub(crate) images: Vec<MemoryPermit>,
    /// Renders the answer.
    pub(crate) answer: Box<dyn FaceAnswer>,
}

impl PreparedCall {
    /// The answer is a completion, not one of a wire format.
    fn is_completion(&self) -> bool {
        matches!(self.request, ProviderRequest::Completion(_))
    }
}

/// Renders one answer in the form of its API. Answers of a [`ProviderRequest::Completion`] are completions and
/// their chunks, others are documents and events of the wire format.
pub(crate) trait FaceAnswer: Send {
    /// Renders a complete answer.
    fn complete(self: Box<Self>, answer: JsonObject) -> ApiResult<CompleteAnswer>;

    /// Frames before the first item.
    fn begin(&mut self) -> Bytes {
        Bytes::new()
    }

    /// Renders one item of a stream.
    fn item(&mut self, item: JsonObject) -> ApiResult<RenderedItem>;

    /// True if the stream may end: the provider sent a finish reason.
    fn has_finished(&self) -> bool;

    /// Renders the end of a stream.
    fn finish(self: Box<Self>) -> LastFrames;

    /// Renders the error that ends a stream. The call has ended.
    fn error(self: Box<Self>, status: u16, error: AgentApiError) -> Bytes;

    /// Frame for an idle stream. `None`: the API has none.
    fn heartbeat(&self) -> Option<Bytes> {
        None
    }
}

/// A rendered complete answer.
pub(crate) struct CompleteAnswer {
    pub(crate) body: AnswerBody,
    /// Size for the audit, in bytes.
    pub(crate) bytes: usize,
    /// Use of a wire answer. The pipeline counts completions itself.
    pub(crate) counted: CountedUse,
    /// Stores the answer for later requests, once it may be delivered.
    pub(crate) keep: Option<KeepAnswer>,
}

/// Stores an answer as it is delivered.
pub(crate) type KeepAnswer = Box<dyn FnOnce(&Value) + Send>;

/// Body of a complete answer.
pub(crate) enum AnswerBody {
    Json(Value),
    Invoked(Box<LlmInvokeResult>),
}

impl AnswerBody {
    /// The answer, for hooks.
    pub(super) fn hook_value(&self) -> HookValue<'_> {
        match self {
            Self::Json(body) => HookValue::Json(body),
            Self::Invoked(result) => HookValue::Answer(result),
        }
    }
}

impl CompleteAnswer {
    fn into_response(self) -> Response {
        match self.body {
            AnswerBody::Json(body) => {
                if let Some(keep) = self.keep {
                    keep(&body);
                }
                Json(body).into_response()
            }
            AnswerBody::Invoked(result) => Json(result).into_response(),
        }
    }
}

impl From<Value> for CompleteAnswer {
    fn from(body: Value) -> Self {
        Self {
            bytes: body.to_string().len(),
            body: AnswerBody::Json(body),
            counted: CountedUse::default(),
            keep: None,
        }
    }
}

/// The frames of one item.
pub(crate) struct RenderedItem {
    /// Empty: the item has no visible output.
    pub(crate) frames: Bytes,
    /// Use of a wire answer. The pipeline counts completions itself.
    pub(crate) counted: CountedUse,
    /// `Some`: the answer ends with this item.
    pub(crate) end: Option<Result<(), UpstreamError>>,
    /// Stores the complete answer for later requests, once its end may be delivered.
    pub(crate) keep: Option<Box<dyn FnOnce() + Send>>,
}

impl From<Bytes> for RenderedItem {
    fn from(frames: Bytes) -> Self {
        Self {
            frames,
            counted: CountedUse::default(),
            end: None,
            keep: None,
        }
    }
}

/// The last frames of a complete stream.
pub(crate) struct LastFrames {
    pub(crate) answer: Bytes,
    /// End mark. The audit does not count it.
    pub(crate) mark: Bytes,
}

impl From<Bytes> for LastFrames {
    fn from(answer: Bytes) -> Self {
        Self {
            answer,
            mark: Bytes::new(),
        }
    }
}

/// Use that a provider reports.
#[derive(Default)]
pub(crate) struct CountedUse {
    pub(crate) usage: Option<LlmTokenUsage>,
    /// Bytes of generated text, for an estimate without a count.
    pub(crate) text_bytes: usize,
}

/// Calls a granted model, or the candidates of its route, and returns the answer in the form of the face.
pub(crate) async fn call_model<F: ModelFace>(
    caller: &RunCaller,
    state: &ApiState,
    id: &str,
    delivery: Delivery,
    mut face: F,
) -> ApiResult<Response> {
    let (action, operation) = match delivery {
        Delivery::Complete => ("models_invoke", ModelOperation::Invoke),
        Delivery::Stream => ("models_stream", ModelOperation::Stream),
    };
    let hooked = HookedCall {
        grant: &caller.grant,
        state,
        call: AuditedCall {
            action,
            resource: id,
            operation: operation.as_str(),
        },
    };
    // A call without a grant is refused below, and its request reaches no hook.
    if caller.grant.snapshot.model(id, operation).is_ok() {
        check_request(&hooked, &mut face).await?;
    }
    let mut routed = RoutedCall::new(caller, state, id, action, operation);
    let mut face = Some(face);
    loop {
        let (mut call, candidate) = routed.begin().await?;
        let target = CallTarget {
            caller,
            state,
            model: candidate.model,
            id: candidate.id,
        };
        // Copied only if another candidate may need it: a body has megabytes.
        let current = if routed.has_next() {
            face.clone()
        } else {
            face.take()
        };
        let current = current.ok_or_else(ApiError::internal)?;
        let failed = match prepared(&mut call, &target, current, delivery).await {
            Ok((prepared, paid)) => match delivery {
                Delivery::Complete => match complete(&mut call, &target, prepared, &paid).await {
                    Ok(answer) => {
                        let checked = checked_answer(&mut call, &hooked, F::FORMAT, answer).await;
                        let response = call.end(checked)?;
                        return Ok(routed.answered(candidate, response));
                    }
                    Err(failed) => failed,
                },
                Delivery::Stream => {
                    let is_completion = prepared.is_completion();
                    let _images = prepared.images;
                    let opened = routed.open(target.model, prepared.request, &paid);
                    // An error before the first event has an HTTP status of its own.
                    match call.attempt(opened).await {
                        Ok(items) => {
                            let stream = AnswerStream {
                                items: call.while_live(items).boxed(),
                                call,
                                is_completion,
                                answer: prepared.answer,
                                heartbeat: state.heartbeat,
                                check: CheckedStream::of(&hooked, &caller.grant),
                            };
                            let response = event_stream(Body::from_stream(stream.frames()));
                            return Ok(routed.answered(candidate, response));
                        }
                        Err(failed) => failed,
                    }
                }
            },
            Err(failed) => failed,
        };
        routed.failed(call, failed).await?;
    }
}

/// Builds the request for a candidate and reserves its use.
async fn prepared(
    call: &mut HostCall,
    target: &CallTarget<'_>,
    face: impl ModelFace,
    delivery: Delivery,
) -> Result<(PreparedCall, Arc<Payment>), AttemptError> {
    let prepared = face.prepare(target).await;
    let prepared = prepared.map_err(AttemptError::of_request)?;
    let spend = prepared.spend.clone();
    let reserving = call.reserve(match delivery {
        Delivery::Complete => spend,
        // Only a stream can be stopped at the end of a budget.
        Delivery::Stream => spend.expected(),
    });
    let paid = reserving.await?;
    Ok((prepared, paid))
}

/// Reads a complete answer. The inner error is one of the answer: the provider has been paid, so no other candidate is
/// called.
async fn complete(
    call: &mut HostCall,
    target: &CallTarget<'_>,
    prepared: PreparedCall,
    paid: &Payment,
) -> Result<ApiResult<CompleteAnswer>, AttemptError> {
    let is_completion = prepared.is_completion();
    let _images = prepared.images;
    let answering = target.model.provider.complete(prepared.request, paid);
    let received = call.attempt(answering).await?;
    if is_completion {
        // Counted before the answer is read: the provider bills it in any case.
        call.count(domain::usage::usage_of(&received));
        call.count_text(generated_bytes(&received, "message"));
    }
    Ok(prepared.answer.complete(received).inspect(|answer| {
        call.count(answer.counted.usage.clone());
        call.count_text(answer.counted.text_bytes);
    }))
}

/// The response of an answer after its hooks.
async fn checked_answer(
    call: &mut HostCall,
    hooked: &HookedCall<'_>,
    format: HookFormat,
    answer: ApiResult<CompleteAnswer>,
) -> ApiResult<Response> {
    let mut answer = answer?;
    call.within(check_answer(hooked, format, &mut answer))
        .await?;
    call.add_bytes(answer.bytes);
    Ok(answer.into_response())
}

/// Encodes events as server-sent events, each named by its type.
pub(crate) fn typed_frames(events: &[Value]) -> Bytes {
    let frames = events.iter().map(|event| {
        let name = event["type"].as_str().unwrap_or("message");
        // Line breaks in a provider's event type would corrupt the stream.
        let name = name.replace(['\r', '\n'], "");
        format!("event: {name}\ndata: {event}\n\n")
    });
    frames.collect::<String>().into()
}
