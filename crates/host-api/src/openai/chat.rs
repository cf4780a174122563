//! The chat completions face: bodies and answers pass unchanged, except for the model's name.

use axum::body::Bytes;
use protocol::JsonObject;
use protocol::error::AgentApiError;
use protocol::hook::{HookFormat, HookValue};
use serde_json::{Value, json};

use crate::host_call::Spend;
use crate::models::allowed_parameters::check_parameters;
use crate::models::content_parts::{check_urls, without_data};
use crate::models::hooked::check_replaced_body;
use crate::models::images::with_images;
use crate::models::pipeline::{
    CallTarget, CompleteAnswer, FaceAnswer, LastFrames, ModelFace, PreparedCall, RenderedItem,
};
use crate::models::token_bounds::{chat_spend, check_token_limits, prompt_texts};
use web::error::openai::openai_error;
use web::error::{ApiError, ApiResult};
use web::memory_budget::MemoryPermit;

/// A chat completion request, of which the handler has checked the members that need no model.
#[derive(Clone)]
pub(super) struct ChatFace(pub(super) JsonObject);

impl ModelFace for ChatFace {
    const FORMAT: HookFormat = HookFormat::Chat;

    fn document(&self) -> HookValue<'_> {
        HookValue::Object(&self.0)
    }

    fn check_document(&self, replaced: &Value) -> Result<(), String> {
        check_replaced_body(&self.0, replaced, check_chat)
    }

    fn set_document(&mut self, replaced: Value) {
        if let Value::Object(body) = replaced {
            self.0 = body;
        }
    }

    async fn prepare(self, target: &CallTarget<'_>) -> ApiResult<PreparedCall> {
        let Self(body) = self;
        let options = body.get("stream_options");
        let wants_usage = options.and_then(|options| options.get("include_usage")?.as_bool());
        let answer = ChatAnswer {
            model: target.id.to_owned(),
            wants_usage: wants_usage.unwrap_or(false),
            has_finished: false,
        };
        let prepared = PreparedChat::of(target, body, &[]).await?;
        Ok(PreparedCall {
            request: prepared.body.into(),
            spend: prepared.spend,
            images: prepared.images,
            answer: Box::new(answer),
        })
    }
}

/// Checks the members of a request that need no model.
pub(super) fn check_chat(body: &JsonObject) -> ApiResult<()> {
    if !body.get("messages").is_some_and(Value::is_array) {
        return Err(ApiError::invalid("/messages", "must be a list"));
    }
    check_token_limits(body).map_err(|fault| ApiError::faults(&[fault]))?;
    // Before the stream begins: later, this fault would have no status of its own.
    if body
        .get("stream_options")
        .is_some_and(|options| !options.is_object() && !options.is_null())
    {
        return Err(ApiError::invalid("/stream_options", "must be an object"));
    }
    Ok(())
}

/// A checked chat completion with its images.
pub(crate) struct PreparedChat {
    /// The provider's body.
    pub(crate) body: JsonObject,
    pub(crate) spend: Spend,
    pub(crate) images: Vec<MemoryPermit>,
}

impl PreparedChat {
    /// Checks a body and inlines its images. `extra_texts`: texts that the provider gets in addition.
    pub(crate) async fn of(
        target: &CallTarget<'_>,
        body: JsonObject,
        extra_texts: &[String],
    ) -> ApiResult<Self> {
        let CallTarget { model, id, .. } = *target;
        let checked = check_parameters(&body, &model.extra_members)
            .and_then(|()| check_urls(&body, |url| model.check_fetch_url(url)));
        checked.map_err(|fault| ApiError::faults(&[fault]))?;
        let mut body = model.completion_body(body);
        // Texts count as they are in the body. Images count by their number, so they need not be read for this.
        let (texts, non_text) = without_data(&mut body, prompt_texts);
        let texts = model.count.of_texts(texts.iter().chain(extra_texts));
        let data = model.count.of_data(non_text.images, non_text.file_bytes);
        let spend = chat_spend(id, model, texts.saturating_add(data), &body);
        let images = with_images(target.caller, target.state, &mut body).await?;
        Ok(Self {
            body,
            spend,
            images,
        })
    }
}

/// A completion with the catalog's model name. Its stream ends with `[DONE]`.
struct ChatAnswer {
    model: String,
    /// Usage is sent only on request.
    wants_usage: bool,
    has_finished: bool,
}

impl FaceAnswer for ChatAnswer {
    fn complete(self: Box<Self>, mut completion: JsonObject) -> ApiResult<CompleteAnswer> {
        complete(&mut completion, &self.model, "chat.completion");
        Ok(Value::Object(completion).into())
    }

    fn item(&mut self, mut chunk: JsonObject) -> ApiResult<RenderedItem> {
        complete(&mut chunk, &self.model, "chat.completion.chunk");
        // A stream without a finish reason was cut, even if the connection ended normally.
        self.has_finished |= finishes(&chunk);
        let frame = shown(chunk, self.wants_usage).map(|chunk| chunk_frame(&chunk));
        Ok(frame.unwrap_or_default().into())
    }

    fn has_finished(&self) -> bool {
        self.has_finished
    }

    fn finish(self: Box<Self>) -> LastFrames {
        LastFrames {
            answer: Bytes::new(),
            mark: Bytes::from_static(b"data: [DONE]\n\n"),
        }
    }

    fn error(self: Box<Self>, status: u16, error: AgentApiError) -> Bytes {
        chunk_frame(&openai_error(status, error))
    }
}

/// True if a choice ends with this chunk.
fn finishes(chunk: &JsonObject) -> bool {
    let choices = chunk.get("choices").and_then(Value::as_array);
    let mut choices = choices.into_iter().flatten();
    choices.any(|choice| llm_formats::chat::finish_reason(choice).is_some())
}

/// Sets the catalog's model name, and the object type that some servers omit and OpenAI clients require.
pub fn complete(answer: &mut JsonObject, id: &str, object: &str) {
    answer.insert("model".to_owned(), json!(id));
    answer
        .entry("object")
        .or_insert_with(|| Value::from(object));
}

/// Removes usage that was not requested. `None` if nothing else is left.
fn shown(mut chunk: JsonObject, wants_usage: bool) -> Option<Value> {
    if !wants_usage && chunk.remove("usage").is_some_and(|usage| !usage.is_null()) {
        let choices = chunk.get("choices").and_then(Value::as_array);
        if choices.is_none_or(Vec::is_empty) {
            return None;
        }
    }
    Some(Value::Object(chunk))
}

/// Encodes a chunk as a server-sent event.
pub fn chunk_frame(data: &Value) -> Bytes {
    format!("data: {data}\n\n").into()
}
