//! The native face: protocol messages over chat completions.

use axum::body::Bytes;
use llm_formats::chat::{ChunkReader, ThinkBlocks};
use protocol::JsonObject;
use protocol::error::AgentApiError;
use protocol::hook::{HookFormat, HookValue};
use protocol::model::LlmRequest;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::images::with_images;
use super::pipeline::{
    AnswerBody, CallTarget, CompleteAnswer, CountedUse, FaceAnswer, LastFrames, ModelFace,
    PreparedCall, RenderedItem,
};
use super::token_bounds::chat_spend;
use super::{chat_body, counted_tokens, frame};
use egress::upstream::UpstreamError;
use web::error::ApiResult;

/// A request of the native API.
#[derive(Clone)]
pub(super) struct NativeFace(pub(super) LlmRequest);

impl ModelFace for NativeFace {
    const FORMAT: HookFormat = HookFormat::Native;

    fn document(&self) -> HookValue<'_> {
        HookValue::Request(&self.0)
    }

    fn check_document(&self, replaced: &Value) -> Result<(), String> {
        let read = LlmRequest::deserialize(replaced);
        let message = |_| "the replacement is no valid request".to_owned();
        read.map(drop).map_err(message)
    }

    fn set_document(&mut self, replaced: Value) {
        if let Ok(request) = serde_json::from_value(replaced) {
            self.0 = request;
        }
    }

    async fn prepare(self, target: &CallTarget<'_>) -> ApiResult<PreparedCall> {
        let CallTarget { model, id, .. } = *target;
        let Self(request) = self;
        let mut body = chat_body(&request, model, id)?;
        let images = with_images(target.caller, target.state, &mut body).await?;
        let body = model.completion_body(body);
        let prompt = counted_tokens(
            model,
            &request.messages,
            &request.tools,
            &request.extra_args,
        );
        let reader = ChunkReader::new(ThinkBlocks::of(&request)).of_model(id);
        Ok(PreparedCall {
            spend: chat_spend(id, model, prompt, &body),
            request: body.into(),
            images,
            answer: Box::new(NativeAnswer(reader)),
        })
    }
}

struct NativeAnswer(ChunkReader);

impl FaceAnswer for NativeAnswer {
    fn complete(self: Box<Self>, completion: JsonObject) -> ApiResult<CompleteAnswer> {
        let none = || UpstreamError::Malformed("a completion without a message".to_owned());
        let response = self.0.complete(&completion).ok_or_else(none)?;
        Ok(CompleteAnswer {
            bytes: response.message.plain_text().len(),
            body: AnswerBody::Invoked(Box::new(response)),
            counted: CountedUse::default(),
            keep: None,
        })
    }

    fn item(&mut self, chunk: JsonObject) -> ApiResult<RenderedItem> {
        let chunk = self.0.read(&chunk);
        let frame = chunk.map(|chunk| frame("chunk", &json!({"chunk": chunk})));
        Ok(frame.unwrap_or_default().into())
    }

    fn has_finished(&self) -> bool {
        self.0.has_finished()
    }

    fn finish(self: Box<Self>) -> LastFrames {
        // One frame with the final chunk and the usage, because clients stop after `is_final`.
        let (last, usage) = self.0.finish();
        let last = frame("chunk", &json!({"chunk": last}));
        let usage = usage.map(|usage| frame("usage", &json!({"usage": usage})));
        LastFrames {
            answer: Bytes::new(),
            mark: [last, usage.unwrap_or_default()].concat().into(),
        }
    }

    fn error(self: Box<Self>, _status: u16, error: AgentApiError) -> Bytes {
        frame("error", &json!({"error": error}))
    }
}
