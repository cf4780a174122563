//! The one pipeline of model calls. All four APIs ("faces") run it: the native one, chat completions, responses and
//! messages.
//!
//! 1. [`RoutedCall::begin`] checks the snapshot, begins the audit, and takes a concurrency slot. A route has several
//!    candidates: steps 1 to 4 repeat with the next one until one answers.
//! 2. [`ModelFace::prepare`] checks the request, inlines its images, and builds the upstream request.
//! 3. [`HostCall::reserve`] reserves the bound or the expected use in the budgets.
//! 4. The provider is called, for a complete answer or a stream.
//!    A stream reserves more by [`HostCall::grow`], and ends when a budget has nothing left.
//! 5. [`FaceAnswer`] renders the answer, its events, or the error of a broken stream.
//! 6. [`HostCall::end`] settles the use and records the outcome.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use protocol::JsonObject;
use protocol::error::AgentApiError;
use protocol::message::LlmTokenUsage;
use protocol::resources::ModelOperation;
use serde_json::Value;

use super::routing::RoutedCall;
use super::token_bounds::generated_bytes;
use crate::host_call::{AttemptError, HostCall, Spend};
use egress::upstream::UpstreamError;
use models::{Model, Payment, ProviderRequest};
use web::auth::RunCaller;
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
pub(crate) trait ModelFace: Clone + Send {
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
    pub(crate) response: Response,
    /// Size for the audit, in bytes.
    pub(crate) bytes: usize,
    /// Use of a wire answer. The pipeline counts completions itself.
    pub(crate) counted: CountedUse,
}

impl From<Value> for CompleteAnswer {
    fn from(body: Value) -> Self {
        Self {
            bytes: body.to_string().len(),
            response: Json(body).into_response(),
            counted: CountedUse::default(),
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
}

impl From<Bytes> for RenderedItem {
    fn from(frames: Bytes) -> Self {
        Self {
            frames,
            counted: CountedUse::default(),
            end: None,
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
pub(crate) async fn call_model(
    caller: &RunCaller,
    state: &ApiState,
    id: &str,
    delivery: Delivery,
    face: impl ModelFace,
) -> ApiResult<Response> {
    let (action, operation) = match delivery {
        Delivery::Complete => ("models_invoke", ModelOperation::Invoke),
        Delivery::Stream => ("models_stream", ModelOperation::Stream),
    };
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
                        let response = call.end(answer)?;
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
) -> Result<ApiResult<Response>, AttemptError> {
    let is_completion = prepared.is_completion();
    let _images = prepared.images;
    let answering = target.model.provider.complete(prepared.request, paid);
    let received = call.attempt(answering).await?;
    if is_completion {
        // Counted before the answer is read: the provider bills it in any case.
        call.count(domain::usage::usage_of(&received));
        call.count_text(generated_bytes(&received, "message"));
    }
    Ok(prepared.answer.complete(received).map(|answer| {
        call.count(answer.counted.usage);
        call.count_text(answer.counted.text_bytes);
        call.add_bytes(answer.bytes);
        answer.response
    }))
}

/// A streaming answer. If it is dropped, the call ends as abandoned.
struct AnswerStream {
    call: HostCall,
    items: BoxStream<'static, ApiResult<JsonObject>>,
    /// The items are chunks of a completion.
    is_completion: bool,
    answer: Box<dyn FaceAnswer>,
    /// Interval of heartbeats.
    heartbeat: Duration,
}

impl AnswerStream {
    /// All frames. The stream ends with the run or the first error.
    fn frames(mut self) -> impl Stream<Item = Result<Bytes, Infallible>> {
        let begun = self.answer.begin();
        self.call.add_bytes(begun.len());
        let later = stream::unfold(
            Some(self),
            |stream| async move { Some(stream?.next().await) },
        );
        stream::once(std::future::ready(begun))
            .chain(later)
            .filter(|frames| std::future::ready(!frames.is_empty()))
            .map(Ok)
    }

    /// The next frames, and the rest of the stream.
    async fn next(mut self) -> (Bytes, Option<Self>) {
        let beat = self.answer.heartbeat();
        let item = match beat {
            None => self.items.next().await,
            Some(beat) => match tokio::time::timeout(self.heartbeat, self.items.next()).await {
                Ok(item) => item,
                // The item is not lost: `next` of the stream is cancel-safe, and the next frame waits for it again.
                Err(_) => return (beat, Some(self)),
            },
        };
        match item {
            Some(Ok(item)) => match self.read(item) {
                (frames, Some(stream)) => stream.within_budget(frames).await,
                ended => ended,
            },
            Some(Err(failed)) => (self.fail(failed), None),
            None => (self.finish(), None),
        }
    }

    fn read(mut self, item: JsonObject) -> (Bytes, Option<Self>) {
        self.call.trace_mut().note_chunk();
        if self.is_completion {
            self.call.count(domain::usage::usage_of(&item));
            self.call.count_text(generated_bytes(&item, "delta"));
        }
        let rendered = match self.answer.item(item) {
            Ok(rendered) => rendered,
            Err(failed) => return (self.fail(failed), None),
        };
        self.call.count(rendered.counted.usage);
        self.call.count_text(rendered.counted.text_bytes);
        self.call.add_bytes(rendered.frames.len());
        match rendered.end {
            None => (rendered.frames, Some(self)),
            // The provider may leave the connection open after its last event.
            Some(end) => {
                let _ = self.call.end(end.map_err(ApiError::from));
                (rendered.frames, None)
            }
        }
    }

    /// Ends the stream when its use reaches what its budgets have left. Exceeds them by the last item at most.
    async fn within_budget(mut self, frames: Bytes) -> (Bytes, Option<Self>) {
        // Nothing is left to stop: only the count of the answer may follow.
        if self.answer.has_finished() {
            return (frames, Some(self));
        }
        match self.call.grow().await {
            Ok(()) => (frames, Some(self)),
            Err(over) => ([frames, self.fail(over)].concat().into(), None),
        }
    }

    /// Ends the stream after the provider's last item.
    fn finish(mut self) -> Bytes {
        // Without this check, a cut answer would look complete to the client.
        if !self.answer.has_finished() {
            let cut = "the stream ended before the answer did".to_owned();
            return self.fail(UpstreamError::Malformed(cut).into());
        }
        let LastFrames { answer, mark } = self.answer.finish();
        self.call.add_bytes(answer.len());
        let _ = self.call.end(Ok(()));
        if mark.is_empty() {
            return answer;
        }
        [answer, mark].concat().into()
    }

    fn fail(self, failed: ApiError) -> Bytes {
        let failed = self.call.end::<()>(Err(failed)).err();
        let (status, error) = failed.unwrap_or_else(ApiError::internal).into_parts();
        self.answer.error(status, error)
    }
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
