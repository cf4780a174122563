//! Writes chat completions from the events of a run: a state machine without I/O.

use domain::usage::TokenParts;
use protocol::id::RunId;
use protocol::run::AgentRunEvent;
use serde_json::{Value, json};

use super::run_error;
use crate::answer_text::{AnswerText, AnswerTextEnd};
use crate::follow::FaceWriter;
use crate::questions::{ASK_USER, OpenQuestion};
use web::error::openai::openai_error;
use web::error::{ApiError, ApiResult};

/// Members of all chunks.
pub(super) struct ChatHead {
    pub(super) run: RunId,
    /// Epoch seconds.
    pub(super) created: i64,
    /// Name of the agent.
    pub(super) model: String,
    /// The stream ends with a chunk of usage.
    pub(super) wants_usage: bool,
}

/// Writer of one completion.
pub(super) struct ChatWriter {
    head: ChatHead,
    answer: AnswerText,
}

impl ChatWriter {
    pub(super) fn new(head: ChatHead) -> Self {
        Self {
            head,
            answer: AnswerText::default(),
        }
    }

    /// The complete answer, or the error of a failed run.
    pub(super) fn completion(self, tokens: Option<TokenParts>) -> ApiResult<Value> {
        // The text so far is lost in this form; the run has it.
        let reason = self.finish_reason()?;
        let mut message =
            json!({"role": "assistant", "content": self.answer.text, "refusal": null});
        if !self.answer.questions.is_empty() {
            let calls = self.answer.questions.iter().map(call_of);
            message["tool_calls"] = calls.collect();
        }
        let mut completion = self.object("chat.completion");
        completion["choices"] =
            json!([{"index": 0, "message": message, "logprobs": null, "finish_reason": reason}]);
        if let Some(tokens) = self.answer.reported.or(tokens) {
            completion["usage"] = usage_of(tokens);
        }
        Ok(completion)
    }

    fn object(&self, kind: &str) -> Value {
        let id = format!("chatcmpl-{}", self.head.run.0.simple());
        json!({"id": id, "object": kind, "created": self.head.created, "model": self.head.model})
    }

    fn chunk(&self, delta: &Value, reason: Option<&str>) -> String {
        let mut chunk = self.object("chat.completion.chunk");
        chunk["choices"] =
            json!([{"index": 0, "delta": delta, "logprobs": null, "finish_reason": reason}]);
        frame(&chunk)
    }

    /// The finish reason, or the error of a failed run.
    fn finish_reason(&self) -> ApiResult<&'static str> {
        let reason = match &self.answer.end {
            Some(AnswerTextEnd::Failed { code, message }) => {
                return Err(run_error(self.head.run, code, message));
            }
            Some(AnswerTextEnd::Waiting) => "tool_calls",
            Some(AnswerTextEnd::Cut) => "length",
            Some(AnswerTextEnd::Completed(_)) if !self.answer.questions.is_empty() => "tool_calls",
            Some(AnswerTextEnd::Completed(reason)) => match reason.as_str() {
                "length" | "max_tokens" => "length",
                "content_filter" => "content_filter",
                _ => "stop",
            },
            None => "stop",
        };
        Ok(reason)
    }
}

impl FaceWriter for ChatWriter {
    fn begin(&mut self) -> String {
        self.chunk(&json!({"role": "assistant", "content": ""}), None)
    }

    fn write(&mut self, event: &AgentRunEvent) -> String {
        let change = self.answer.add(event);
        let mut frames = String::new();
        if let Some(text) = change.text {
            frames += &self.chunk(&json!({"content": text}), None);
        }
        if change.has_question
            && let Some((question, earlier)) = self.answer.questions.split_last()
        {
            let mut call = call_of(question);
            // Clients join pieces of calls by this number.
            call["index"] = json!(earlier.len());
            frames += &self.chunk(&json!({"tool_calls": [call]}), None);
        }
        frames
    }

    fn has_ended(&self) -> bool {
        self.answer.has_ended()
    }

    fn finish(&mut self, tokens: Option<TokenParts>) -> String {
        let reason = match self.finish_reason() {
            Ok(reason) => reason,
            Err(error) => return error_frame(error),
        };
        let mut frames = self.chunk(&json!({}), Some(reason));
        if self.head.wants_usage {
            let mut chunk = self.object("chat.completion.chunk");
            chunk["choices"] = json!([]);
            chunk["usage"] = (self.answer.reported.or(tokens)).map_or(Value::Null, usage_of);
            frames += &frame(&chunk);
        }
        frames + "data: [DONE]\n\n"
    }

    fn cut(&mut self) -> String {
        let message = "the gateway stops, or the API key was revoked; the run continues";
        error_frame(ApiError::unavailable(message))
    }

    fn bytes(&self) -> usize {
        self.answer.bytes()
    }
}

fn call_of(question: &OpenQuestion) -> Value {
    json!({"id": question.id, "type": "function",
        "function": {"name": ASK_USER, "arguments": question.arguments}})
}

fn usage_of(tokens: TokenParts) -> Value {
    let (prompt, completion) = (tokens.prompt(), tokens.completion());
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt.saturating_add(completion),
        "prompt_tokens_details": {"cached_tokens": tokens.cache_read},
        "completion_tokens_details": {"reasoning_tokens": tokens.reasoning},
    })
}

fn error_frame(error: ApiError) -> String {
    let (status, error) = error.into_parts();
    frame(&openai_error(status, error))
}

fn frame(data: &Value) -> String {
    format!("data: {data}\n\n")
}
