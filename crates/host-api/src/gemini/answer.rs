//! Renders answers in Google's format: complete, as server-sent events, or as a JSON array.

use axum::body::Bytes;
use llm_formats::chat::responses::{ANSWER_BYTES, AnswerTooLarge};
use llm_formats::gemini::ContentWriter;
use protocol::JsonObject;
use protocol::error::AgentApiError;
use serde_json::Value;

use super::wire_format::error_body;
use crate::models::pipeline::{CompleteAnswer, FaceAnswer, LastFrames, RenderedItem};
use crate::openai::chunk_frame;
use egress::upstream::UpstreamError;
use web::error::{ApiError, ApiResult};

/// Form of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamFraming {
    Events,
    /// One JSON array, whose items arrive one after another.
    Array,
}

/// An answer written from a chat completion.
pub(super) struct WrittenContent {
    writer: ContentWriter,
    framing: StreamFraming,
    has_items: bool,
}

impl WrittenContent {
    pub(super) fn new(writer: ContentWriter, framing: StreamFraming) -> Self {
        Self {
            writer,
            framing,
            has_items: false,
        }
    }
}

/// Encodes an item. `has_items`: another item precedes it.
fn frame(item: &Value, framing: StreamFraming, has_items: bool) -> Bytes {
    match (framing, has_items) {
        (StreamFraming::Events, _) => chunk_frame(item),
        (StreamFraming::Array, false) => format!("[{item}").into(),
        (StreamFraming::Array, true) => format!(",\n{item}").into(),
    }
}

/// The end of the array.
fn close(framing: StreamFraming) -> Bytes {
    match framing {
        StreamFraming::Events => Bytes::new(),
        StreamFraming::Array => Bytes::from_static(b"]\n"),
    }
}

impl FaceAnswer for WrittenContent {
    fn complete(self: Box<Self>, completion: JsonObject) -> ApiResult<CompleteAnswer> {
        Ok(self.writer.complete(&completion).map_err(too_large)?.into())
    }

    fn item(&mut self, chunk: JsonObject) -> ApiResult<RenderedItem> {
        let Some(item) = self.writer.read(&chunk).map_err(too_large)? else {
            return Ok(Bytes::new().into());
        };
        let frame = frame(&item, self.framing, self.has_items);
        self.has_items = true;
        Ok(frame.into())
    }

    fn has_finished(&self) -> bool {
        self.writer.has_finished()
    }

    fn finish(self: Box<Self>) -> LastFrames {
        LastFrames {
            answer: frame(&self.writer.finish(), self.framing, self.has_items),
            mark: close(self.framing),
        }
    }

    fn error(self: Box<Self>, status: u16, error: AgentApiError) -> Bytes {
        let error = error_body(status, &error, None);
        let frame = frame(&error, self.framing, self.has_items);
        [frame, close(self.framing)].concat().into()
    }
}

fn too_large(_: AnswerTooLarge) -> ApiError {
    UpstreamError::TooLarge { max: ANSWER_BYTES }.into()
}
