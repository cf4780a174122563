//! Builds the chat completion of a request in Google's format.

use llm_formats::BOUNDS;
use llm_formats::gemini::{ContentWriter, read_request};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::hook::{HookFormat, HookValue};
use serde_json::Value;
use uuid::Uuid;

use super::answer::{StreamFraming, WrittenContent};
use crate::models::hooked::check_replaced_body;
use crate::models::pipeline::{CallTarget, ModelFace, PreparedCall};
use crate::models::token_bounds::check_token_limits;
use crate::openai::PreparedChat;
use web::error::{ApiError, ApiResult};

/// A request in Google's format, as the client sent it.
#[derive(Clone)]
pub(super) struct GeminiFace {
    pub(super) body: JsonObject,
    pub(super) framing: StreamFraming,
}

impl ModelFace for GeminiFace {
    const FORMAT: HookFormat = HookFormat::Gemini;

    fn document(&self) -> HookValue<'_> {
        HookValue::Object(&self.body)
    }

    fn check_document(&self, replaced: &Value) -> Result<(), String> {
        check_replaced_body(&self.body, replaced, |_| Ok(()))
    }

    fn set_document(&mut self, replaced: Value) {
        if let Value::Object(body) = replaced {
            self.body = body;
        }
    }

    async fn prepare(self, target: &CallTarget<'_>) -> ApiResult<PreparedCall> {
        let Self { body, framing } = self;
        let mut request = read_request(&body, target.id).map_err(refused)?;
        // Dropped before the images are read: a body has megabytes.
        drop(body);
        let mut chat = std::mem::take(&mut request.chat);
        let [of_openai, _] = BOUNDS;
        // OpenAI's hosts refuse it, and Gemini CLI sends it with each request.
        if target.model.provider.bound() == of_openai {
            chat.remove("top_k");
        }
        check_token_limits(&chat)
            .map_err(|fault| refused(fault).moved(|at| request.pointer(at)))?;
        let prepared = PreparedChat::of(target, chat, &[]).await;
        let prepared = prepared.map_err(|failed| failed.moved(|at| request.pointer(at)))?;
        let id = Uuid::now_v7().simple().to_string();
        let writer = ContentWriter::new(id, target.id, &request);
        Ok(PreparedCall {
            request: prepared.body.into(),
            spend: prepared.spend,
            images: prepared.images,
            answer: Box::new(WrittenContent::new(writer, framing)),
        })
    }
}

pub(super) fn refused(fault: Fault) -> ApiError {
    ApiError::faults(&[fault])
}
