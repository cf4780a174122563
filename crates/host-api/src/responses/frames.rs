//! Event stream of a response.

use std::convert::Infallible;

use axum::body::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use llm_formats::chat::responses::{
    ANSWER_BYTES, AnswerEnd, ResponseEventWriter, ResponsesPassthrough,
};
use protocol::JsonObject;
use serde_json::Value;

use super::errors::code_of;
use super::turn::StoredTurn;
use crate::host_call::HostCall;
use crate::models::generated_bytes;
use egress::upstream::UpstreamError;
use models::{Chunks, WireEvents};
use web::error::{ApiError, ApiResult};

/// A streaming answer, and its turn for later requests.
pub(super) struct StreamingResponse {
    pub(super) events: ResponseEvents,
    pub(super) turn: Option<StoredTurn>,
}

/// Source of the events of an answer.
pub(super) enum ResponseEvents {
    /// Built from chunks of a chat completion.
    Written {
        chunks: Chunks,
        writer: Box<ResponseEventWriter>,
    },
    /// Relayed from a provider with this API.
    Passed {
        events: WireEvents,
        passing: ResponsesPassthrough,
    },
}

/// State of a stream.
enum ResponseStreamState {
    Written(AnsweringCall, Box<ResponseEventWriter>),
    Passed(AnsweringCall, Box<ResponsesPassthrough>),
    Over,
}

/// A call whose answer is streaming.
struct AnsweringCall {
    call: HostCall,
    turn: Option<StoredTurn>,
}

impl AnsweringCall {
    /// Ends the call after a complete answer. `last`: its last event.
    fn end(self, last: Option<&Value>, unsent_reasoning: Option<String>) {
        // Stored before the client sees the end: its next request may refer to this answer at once.
        if let (Some(turn), Some(last)) = (self.turn, last) {
            turn.keep(&last["response"], unsent_reasoning);
        }
        let _ = self.call.end(Ok(()));
    }
}

impl StreamingResponse {
    /// Frames of the answer. The stream ends with the run or the first error.
    pub(super) fn frames(
        self,
        mut call: HostCall,
    ) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
        let turn = self.turn;
        let (items, stream_state, begun) = match self.events {
            ResponseEvents::Written { chunks, mut writer } => {
                // The first events need no chunk of the provider.
                let begun = frames(&writer.begin());
                call.add_bytes(begun.len());
                let items = call.while_live(chunks).boxed();
                let call = AnsweringCall { call, turn };
                (items, ResponseStreamState::Written(call, writer), begun)
            }
            ResponseEvents::Passed { events, passing } => {
                let items = call.while_live(events).boxed();
                let call = AnsweringCall { call, turn };
                let stream_state = ResponseStreamState::Passed(call, Box::new(passing));
                (items, stream_state, Bytes::new())
            }
        };
        let later_frames = stream::unfold((items, stream_state), |(items, stream_state)| {
            stream_state.next(items)
        });
        stream::once(std::future::ready(begun))
            .chain(later_frames)
            .filter(|frame| std::future::ready(!frame.is_empty()))
            .map(Ok)
    }
}

type ProviderItems = BoxStream<'static, ApiResult<JsonObject>>;

impl ResponseStreamState {
    /// Frames of the next item.
    async fn next(self, mut items: ProviderItems) -> Option<(Bytes, (ProviderItems, Self))> {
        if matches!(self, Self::Over) {
            return None;
        }
        let item = items.next().await;
        let (frame, stream_state) = match self {
            Self::Written(call, writer) => written(call, writer, item),
            Self::Passed(call, passing) => passed(call, passing, item),
            Self::Over => return None,
        };
        Some((frame, (items, stream_state)))
    }
}

/// Frames for a chunk of a chat completion.
fn written(
    mut answering: AnsweringCall,
    mut writer: Box<ResponseEventWriter>,
    item: Option<ApiResult<JsonObject>>,
) -> (Bytes, ResponseStreamState) {
    let call = &mut answering.call;
    let failed = match item {
        Some(Ok(chunk)) => {
            call.count(domain::usage::usage_of(&chunk));
            call.count_text(generated_bytes(&chunk, "delta"));
            match writer.read(&chunk) {
                Ok(events) => {
                    let frames = frames(&events);
                    call.add_bytes(frames.len());
                    return (frames, ResponseStreamState::Written(answering, writer));
                }
                Err(_) => too_large(),
            }
        }
        Some(Err(failed)) => failed,
        None if writer.has_finished() => {
            // Read before `finish` consumes the writer.
            let unsent = writer.unsent_reasoning();
            let events = writer.finish();
            let frames = frames(&events);
            call.add_bytes(frames.len());
            answering.end(events.last(), unsent);
            return (frames, ResponseStreamState::Over);
        }
        None => cut(),
    };
    let (code, message) = ended(answering.call, failed);
    (
        frames(&[writer.fail(&code, &message)]),
        ResponseStreamState::Over,
    )
}

/// Frames for an event of the provider.
fn passed(
    mut answering: AnsweringCall,
    mut passing: Box<ResponsesPassthrough>,
    item: Option<ApiResult<JsonObject>>,
) -> (Bytes, ResponseStreamState) {
    let call = &mut answering.call;
    let failed = match item {
        Some(Ok(mut event)) => {
            let end = passing.read(&mut event);
            call.count(passing.usage.clone());
            call.count_text(passing.text_bytes);
            let event = Value::Object(event);
            let frames = frames(std::slice::from_ref(&event));
            call.add_bytes(frames.len());
            match end {
                None => return (frames, ResponseStreamState::Passed(answering, passing)),
                Some(AnswerEnd::Complete) => answering.end(Some(&event), None),
                // The event reports the failure already, so no further event follows.
                Some(AnswerEnd::Failed(message)) => {
                    let failed = UpstreamError::Faulty(message).into();
                    let _ = answering.call.end::<()>(Err(failed));
                }
            }
            return (frames, ResponseStreamState::Over);
        }
        Some(Err(failed)) => failed,
        None => cut(),
    };
    let (code, message) = ended(answering.call, failed);
    (
        frames(&[passing.fail(&code, &message)]),
        ResponseStreamState::Over,
    )
}

/// Ends the call and returns code and message of the last event.
fn ended(call: HostCall, failed: ApiError) -> (String, String) {
    let failed = call.end::<()>(Err(failed)).err();
    let (_, error) = failed.unwrap_or_else(ApiError::internal).into_parts();
    (code_of(&error).to_owned(), error.message)
}

fn cut() -> ApiError {
    let cut = "the stream ended before the answer did".to_owned();
    UpstreamError::Malformed(cut).into()
}

pub(super) fn too_large() -> ApiError {
    UpstreamError::TooLarge { max: ANSWER_BYTES }.into()
}

/// Encodes events as server-sent events named by their type.
fn frames(events: &[Value]) -> Bytes {
    let frames = events.iter().map(|event| {
        let name = event["type"].as_str().unwrap_or("message");
        format!("event: {name}\ndata: {event}\n\n")
    });
    frames.collect::<String>().into()
}
