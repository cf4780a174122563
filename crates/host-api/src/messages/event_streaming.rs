//! Event stream of a message.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _};
use llm_formats::messages::{MessageEventWriter, MessageRelay};
use protocol::JsonObject;
use serde_json::{Value, json};

use super::wire_format::error_body;
use crate::host_call::HostCall;
use crate::models::token_bounds::generated_bytes;
use egress::upstream::UpstreamError;
use web::error::{ApiError, ApiResult};

/// A streaming answer.
pub(super) struct MessageEventStream {
    call: HostCall,
    items: BoxStream<'static, ApiResult<JsonObject>>,
    conversion: EventConversion,
    /// Interval between `ping` events on an idle stream.
    heartbeat: Duration,
}

/// Conversion of items to events.
pub(super) enum EventConversion {
    /// Built from the chunks of a chat completion.
    Written(Box<MessageEventWriter>),
    /// Relayed from a provider with this API.
    Relayed(MessageRelay),
}

impl EventConversion {
    pub(super) fn written(id: &str, model: &str, settings: &JsonObject) -> Self {
        Self::Written(Box::new(MessageEventWriter::new(id, model, settings)))
    }

    pub(super) fn relayed(model: &str) -> Self {
        Self::Relayed(MessageRelay::new(model))
    }
}

impl MessageEventStream {
    /// `items` are chunks or events of the provider. They end with the run or the first error.
    pub(super) fn new(
        call: HostCall,
        items: BoxStream<'static, Result<JsonObject, UpstreamError>>,
        conversion: EventConversion,
        heartbeat: Duration,
    ) -> Self {
        Self {
            items: Box::pin(call.while_live(items)),
            call,
            conversion,
            heartbeat,
        }
    }

    /// Returns the next frames and the rest of the stream.
    async fn next(mut self) -> (Bytes, Option<Self>) {
        let Ok(item) = tokio::time::timeout(self.heartbeat, self.items.next()).await else {
            // The item is not lost: `next` of the stream is cancel-safe, and the next frame waits for it again.
            return (frame(&json!({"type": "ping"})), Some(self));
        };
        match item {
            Some(Ok(item)) => self.read(item),
            Some(Err(failed)) => (self.fail(failed), None),
            None => (self.finish(), None),
        }
    }

    fn read(mut self, mut item: JsonObject) -> (Bytes, Option<Self>) {
        let (frames, is_over) = match &mut self.conversion {
            EventConversion::Written(writer) => {
                self.call.count(domain::usage::usage_of(&item));
                self.call.count_text(generated_bytes(&item, "delta"));
                (frames_of(&writer.read(&item)), false)
            }
            EventConversion::Relayed(relay) => {
                let bytes = relay.event(&mut item);
                self.call.count_text(bytes);
                self.call.count(relay.usage());
                (frame(&Value::Object(item)), relay.has_stopped())
            }
        };
        self.call.add_bytes(frames.len());
        // `message_stop` ends the answer; a provider may keep the connection open.
        if is_over {
            let _ = self.call.end(Ok(()));
            return (frames, None);
        }
        (frames, Some(self))
    }

    /// Finishes the stream after the provider's last item.
    fn finish(mut self) -> Bytes {
        let has_finished = match &self.conversion {
            EventConversion::Written(writer) => writer.has_finished(),
            EventConversion::Relayed(relay) => relay.has_finished(),
        };
        // Without this, a cut answer would look complete to the client.
        if !has_finished {
            let cut = "the stream ended before the answer did".to_owned();
            return self.fail(UpstreamError::Malformed(cut).into());
        }
        let events = match self.conversion {
            EventConversion::Written(writer) => writer.finish().0,
            // The provider closed the stream after the final delta and without its last event.
            EventConversion::Relayed(_) => vec![json!({"type": "message_stop"})],
        };
        let frames = frames_of(&events);
        self.call.add_bytes(frames.len());
        let _ = self.call.end(Ok(()));
        frames
    }

    /// Builds the error event. The call has ended.
    fn fail(self, failed: ApiError) -> Bytes {
        let failed = self.call.end::<()>(Err(failed)).err();
        let parts = failed.map(ApiError::into_parts);
        parts
            .map(|(status, error)| frame(&error_body(status, &error)))
            .unwrap_or_default()
    }
}

/// Frames of a message. The stream ends with the run or the first error.
pub(super) fn frames(
    event_streaming: MessageEventStream,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let frames = stream::unfold(Some(event_streaming), |event_streaming| async move {
        Some(event_streaming?.next().await)
    });
    frames
        // Items without visible output give an empty frame.
        .filter(|frames| std::future::ready(!frames.is_empty()))
        .map(Ok)
}

fn frames_of(events: &[Value]) -> Bytes {
    let frames = events.iter().map(text_of);
    frames.collect::<String>().into()
}

fn frame(event: &Value) -> Bytes {
    text_of(event).into()
}

fn text_of(event: &Value) -> String {
    let name = event["type"].as_str().unwrap_or_default();
    // Line breaks in a provider's event type would corrupt the stream.
    let name = name.replace(['\r', '\n'], "");
    format!("event: {name}\ndata: {event}\n\n")
}
