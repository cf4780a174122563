//! Renders answers as responses and their events.

use axum::body::Bytes;
use llm_formats::chat::responses::{
    ANSWER_BYTES, AnswerEnd, AnswerTooLarge, ResponseEventWriter, ResponsesPassthrough,
    output_bytes, rewrite_response,
};
use protocol::JsonObject;
use protocol::error::AgentApiError;
use serde_json::Value;

use super::turn::StoredTurn;
use crate::models::pipeline::{
    CompleteAnswer, CountedUse, FaceAnswer, LastFrames, RenderedItem, typed_frames,
};
use egress::upstream::UpstreamError;
use web::error::openai::code_of;
use web::error::{ApiError, ApiResult};

/// A response written from a chat completion.
pub(super) struct WrittenResponse {
    pub(super) writer: ResponseEventWriter,
    pub(super) stored: Option<StoredTurn>,
}

impl FaceAnswer for WrittenResponse {
    fn complete(self: Box<Self>, completion: JsonObject) -> ApiResult<CompleteAnswer> {
        let (response, unsent) = self.writer.complete(&completion).map_err(too_large)?;
        let stored = self.stored;
        Ok(CompleteAnswer {
            keep: Some(Box::new(move |response| keep(stored, response, unsent))),
            ..response.into()
        })
    }

    fn begin(&mut self) -> Bytes {
        typed_frames(&self.writer.begin())
    }

    fn item(&mut self, chunk: JsonObject) -> ApiResult<RenderedItem> {
        let events = self.writer.read(&chunk).map_err(too_large)?;
        Ok(typed_frames(&events).into())
    }

    fn has_finished(&self) -> bool {
        self.writer.has_finished()
    }

    fn finish(self: Box<Self>) -> LastFrames {
        // Read before `finish` consumes the writer.
        let unsent = self.writer.unsent_reasoning();
        let events = self.writer.finish();
        if let Some(last) = events.last() {
            keep(self.stored, &last["response"], unsent);
        }
        typed_frames(&events).into()
    }

    fn error(self: Box<Self>, _status: u16, error: AgentApiError) -> Bytes {
        typed_frames(&[self.writer.fail(code_of(&error), &error.message)])
    }
}

/// A response of a provider with this API.
pub(super) struct PassedResponse {
    pub(super) passing: ResponsesPassthrough,
    pub(super) stored: Option<StoredTurn>,
}

impl FaceAnswer for PassedResponse {
    fn complete(self: Box<Self>, response: JsonObject) -> ApiResult<CompleteAnswer> {
        let mut response = Value::Object(response);
        let counted = CountedUse {
            usage: response.get("usage").and_then(domain::usage::usage),
            text_bytes: output_bytes(&response),
        };
        rewrite_response(&mut response, self.passing.head());
        let stored = self.stored;
        Ok(CompleteAnswer {
            counted,
            keep: Some(Box::new(move |response| keep(stored, response, None))),
            ..response.into()
        })
    }

    fn item(&mut self, mut event: JsonObject) -> ApiResult<RenderedItem> {
        let end = self.passing.read(&mut event);
        let event = Value::Object(event);
        let frames = typed_frames(std::slice::from_ref(&event));
        let mut keeping: Option<Box<dyn FnOnce() + Send>> = None;
        let end = end.map(|end| match end {
            AnswerEnd::Complete => {
                let stored = self.stored.take();
                keeping = Some(Box::new(move || keep(stored, &event["response"], None)));
                Ok(())
            }
            // The event reports the failure already, so no further event follows.
            AnswerEnd::Failed(message) => Err(UpstreamError::Faulty(message)),
        });
        Ok(RenderedItem {
            frames,
            counted: CountedUse {
                usage: self.passing.usage.clone(),
                text_bytes: self.passing.text_bytes,
            },
            end,
            keep: keeping,
        })
    }

    /// The last event ends the stream, so an end without it is an error.
    fn has_finished(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>) -> LastFrames {
        Bytes::new().into()
    }

    fn error(self: Box<Self>, _status: u16, error: AgentApiError) -> Bytes {
        typed_frames(&[self.passing.fail(code_of(&error), &error.message)])
    }
}

/// Stores an answer for later requests. The client sees its end afterwards: its next request may refer to it at once.
fn keep(stored: Option<StoredTurn>, response: &Value, unsent_reasoning: Option<String>) {
    // A later request must not continue a failed answer.
    if let Some(stored) = stored.filter(|_| response["status"] != "failed") {
        stored.keep(response, unsent_reasoning);
    }
}

fn too_large(_: AnswerTooLarge) -> ApiError {
    UpstreamError::TooLarge { max: ANSWER_BYTES }.into()
}
