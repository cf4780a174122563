//! Renders answers as messages and their events.

use axum::body::Bytes;
use llm_formats::messages::{MessageEventWriter, MessageRelay};
use protocol::JsonObject;
use protocol::error::AgentApiError;
use serde_json::{Value, json};
use uuid::Uuid;

use super::wire_format::error_body;
use crate::models::pipeline::{
    CompleteAnswer, CountedUse, FaceAnswer, LastFrames, RenderedItem, typed_frames,
};
use egress::upstream::UpstreamError;
use web::error::ApiResult;

const PING: Bytes = Bytes::from_static(b"event: ping\ndata: {\"type\":\"ping\"}\n\n");

/// A message written from a chat completion.
pub(super) struct WrittenMessage(MessageEventWriter);

impl WrittenMessage {
    /// `request`: the Messages request.
    pub(super) fn new(model: &str, request: &JsonObject) -> Self {
        let id = format!("msg_{}", Uuid::now_v7().simple());
        Self(MessageEventWriter::new(&id, model, request))
    }
}

impl FaceAnswer for WrittenMessage {
    fn complete(self: Box<Self>, completion: JsonObject) -> ApiResult<CompleteAnswer> {
        let none = || UpstreamError::Malformed("a completion without a message".to_owned());
        Ok(self.0.complete(&completion).ok_or_else(none)?.into())
    }

    fn item(&mut self, chunk: JsonObject) -> ApiResult<RenderedItem> {
        Ok(typed_frames(&self.0.read(&chunk)).into())
    }

    fn has_finished(&self) -> bool {
        self.0.has_finished()
    }

    fn finish(self: Box<Self>) -> LastFrames {
        typed_frames(&self.0.finish().0).into()
    }

    fn error(self: Box<Self>, status: u16, error: AgentApiError) -> Bytes {
        typed_frames(&[error_body(status, &error)])
    }

    fn heartbeat(&self) -> Option<Bytes> {
        Some(PING)
    }
}

/// A message of a provider with this API.
pub(super) struct RelayedMessage(pub(super) MessageRelay);

impl RelayedMessage {
    fn counted(&self, text_bytes: usize) -> CountedUse {
        CountedUse {
            usage: self.0.usage(),
            text_bytes,
        }
    }
}

impl FaceAnswer for RelayedMessage {
    fn complete(mut self: Box<Self>, mut message: JsonObject) -> ApiResult<CompleteAnswer> {
        let none = || UpstreamError::Malformed("a message without content".to_owned());
        let bytes = self.0.message(&mut message).ok_or_else(none)?;
        Ok(CompleteAnswer {
            counted: self.counted(bytes),
            ..Value::Object(message).into()
        })
    }

    fn item(&mut self, mut event: JsonObject) -> ApiResult<RenderedItem> {
        let bytes = self.0.event(&mut event);
        Ok(RenderedItem {
            frames: typed_frames(&[Value::Object(event)]),
            counted: self.counted(bytes),
            end: self.0.has_stopped().then_some(Ok(())),
            keep: None,
        })
    }

    fn has_finished(&self) -> bool {
        self.0.has_finished()
    }

    fn finish(self: Box<Self>) -> LastFrames {
        // The provider closed the stream after the final delta and without its last event.
        typed_frames(&[json!({"type": "message_stop"})]).into()
    }

    fn error(self: Box<Self>, status: u16, error: AgentApiError) -> Bytes {
        typed_frames(&[error_body(status, &error)])
    }

    fn heartbeat(&self) -> Option<Bytes> {
        Some(PING)
    }
}
