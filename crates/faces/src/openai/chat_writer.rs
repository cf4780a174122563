//! Writes chat completions from the events of a run: a state machine without I/O.

use domain::usage::TokenParts;
use protocol::id::RunId;
use protocol::result::{ResultType, RunCompletedPayload, RunFailedPayload};
use protocol::run::AgentRunEvent;
use serde_json::{Value, json};

use super::run_error;
use crate::follow::{ANSWER_BYTES, FaceWriter, reported_tokens};
use crate::message_text::{OpenMessage, TextChange};
use crate::questions::{ASK_USER, OpenQuestion};
use web::error::openai::openai_error;
use web::error::{ApiError, ApiResult};

/// Separator of the messages of a run in one completion.
const BETWEEN_MESSAGES: &str = "\n\n";

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

/// End of a completion.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ChatEnd {
    Finished(&'static str),
    Failed { code: String, message: String },
}

/// Writer of one completion.
pub(super) struct ChatWriter {
    head: ChatHead,
    open: OpenMessage,
    content: String,
    /// Begin of the open message in the content.
    message_from: usize,
    /// The next text begins a message.
    is_between: bool,
    questions: Vec<OpenQuestion>,
    reported: Option<TokenParts>,
    end: Option<ChatEnd>,
}

impl ChatWriter {
    pub(super) fn new(head: ChatHead) -> Self {
        Self {
            head,
            open: OpenMessage::default(),
            content: String::new(),
            message_from: 0,
            is_between: false,
            questions: Vec::new(),
            reported: None,
            end: None,
        }
    }

    /// The complete answer, or the error of a failed run.
    pub(super) fn completion(self, tokens: Option<TokenParts>) -> ApiResult<Value> {
        // The text so far is lost in this form; the run has it.
        let reason = match &self.end {
            Some(ChatEnd::Failed { code, message }) => {
                return Err(run_error(self.head.run, code, message));
            }
            Some(ChatEnd::Finished(reason)) => *reason,
            None => "stop",
        };
        let mut message = json!({"role": "assistant", "content": self.content, "refusal": null});
        if !self.questions.is_empty() {
            let calls = self.questions.iter().map(call_of);
            message["tool_calls"] = calls.collect();
        }
        let mut completion = self.object("chat.completion");
        completion["choices"] =
            json!([{"index": 0, "message": message, "logprobs": null, "finish_reason": reason}]);
        if let Some(tokens) = self.reported.or(tokens) {
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

    fn apply(&mut self, change: TextChange) -> Option<String> {
        match change {
            TextChange::Append(text) => {
                let is_first = self.content.is_empty();
                let text = if std::mem::take(&mut self.is_between) && !is_first {
                    self.message_from = self.content.len();
                    format!("{BETWEEN_MESSAGES}{text}")
                } else {
                    text
                };
                self.content.push_str(&text);
                Some(self.chunk(&json!({"content": text}), None))
            }
            TextChange::Close => {
                // The separator waits for text, so that no answer ends with it.
                self.is_between = true;
                self.message_from = self.content.len();
                None
            }
            TextChange::Withdraw => {
                // A stream has shown it, a complete answer leaves it out.
                self.content.truncate(self.message_from);
                self.is_between = true;
                None
            }
        }
    }

    fn finish_reason(&self, reason: &str) -> &'static str {
        match reason {
            _ if !self.questions.is_empty() => "tool_calls",
            "length" | "max_tokens" => "length",
            "content_filter" => "content_filter",
            _ => "stop",
        }
    }

    fn end_of(&self, event: &AgentRunEvent) -> Option<ChatEnd> {
        let data = || Value::Object(event.data.clone());
        match ResultType::parse(&event.kind)? {
            ResultType::RunCompleted => {
                let payload = serde_json::from_value::<RunCompletedPayload>(data()).ok();
                let reason = payload.map(|payload| payload.finish_reason);
                let reason = self.finish_reason(reason.as_deref().unwrap_or_default());
                Some(ChatEnd::Finished(reason))
            }
            ResultType::RunFailed => Some(failure_of(data())),
            _ => None,
        }
    }
}

fn failure_of(data: Value) -> ChatEnd {
    let payload = serde_json::from_value::<RunFailedPayload>(data).ok();
    let (code, message) = payload.map_or_else(Default::default, |payload| {
        (payload.code, payload.message.or(payload.error))
    });
    ChatEnd::Failed {
        code,
        message: message.unwrap_or_default(),
    }
}

impl FaceWriter for ChatWriter {
    fn begin(&mut self) -> String {
        self.chunk(&json!({"role": "assistant", "content": ""}), None)
    }

    fn write(&mut self, event: &AgentRunEvent) -> String {
        self.reported = reported_tokens(event).or(self.reported);
        let mut frames = String::new();
        for change in self.open.changes(event) {
            frames.extend(self.apply(change));
        }
        if let Some(question) = OpenQuestion::of(event) {
            let mut call = call_of(&question);
            // Clients join pieces of calls by this number.
            call["index"] = json!(self.questions.len());
            frames += &self.chunk(&json!({"tool_calls": [call]}), None);
            // The client must answer before the run continues, so the completion ends here.
            if question.is_awaited {
                self.end = Some(ChatEnd::Finished("tool_calls"));
            }
            self.questions.push(question);
        }
        // An end that is set already wins: nothing follows a question that waits.
        let end = self.end_of(event);
        self.end = self.end.take().or(end);
        if self.end.is_none() && self.bytes() > ANSWER_BYTES {
            self.end = Some(ChatEnd::Finished("length"));
        }
        frames
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn finish(&mut self, tokens: Option<TokenParts>) -> String {
        let reason = match &self.end {
            Some(ChatEnd::Failed { code, message }) => {
                return error_frame(run_error(self.head.run, code, message));
            }
            Some(ChatEnd::Finished(reason)) => *reason,
            None => "stop",
        };
        let mut frames = self.chunk(&json!({}), Some(reason));
        if self.head.wants_usage {
            let mut chunk = self.object("chat.completion.chunk");
            chunk["choices"] = json!([]);
            chunk["usage"] = self.reported.or(tokens).map_or(Value::Null, usage_of);
            frames += &frame(&chunk);
        }
        frames + "data: [DONE]\n\n"
    }

    fn cut(&mut self) -> String {
        let message = "the gateway stops, or the API key was revoked; the run continues";
        error_frame(ApiError::unavailable(message))
    }

    fn bytes(&self) -> usize {
        let questions = self.questions.iter().map(|one| one.arguments.len());
        self.content.len() + self.open.bytes() + questions.sum::<usize>()
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
