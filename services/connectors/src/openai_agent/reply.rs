//! State of a reply of either API, and errors within it.

use serde_json::Value;

use crate::openai_agent::chat::CallDeltas;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, message_of};

#[derive(Default)]
pub(super) struct OpenAiReply {
    pub(super) calls: CallDeltas,
    /// The end mark was received.
    pub(super) is_done: bool,
    /// A reason for the end was received.
    pub(super) has_finish_reason: bool,
    pub(super) response_id: Option<String>,
}

impl OpenAiReply {
    /// True if the answer is complete. Servers may omit one of the two end marks.
    pub(super) fn is_complete(&self) -> bool {
        self.is_done || self.has_finish_reason
    }

    /// Emits the calls that the server ran. Fails if the client shall run one.
    pub(super) fn finish(&mut self, answer: &mut PlatformAnswer) -> Mapped {
        let reason = answer.finish_reason.as_deref();
        if matches!(reason, Some("tool_calls" | "function_call")) {
            let name = self.calls.first_name().unwrap_or("a tool");
            let message = format!(
                "the agent wants {name} called by its client, which connectors do not do: let the server run its tools"
            );
            return Err(ConnectorFailure::new(FailureKind::ApiError, message));
        }
        // Calls in a completed answer were run by the server.
        self.calls.tell(answer);
        Ok(())
    }
}

/// The error in an event or a document.
pub(super) fn error_in(name: Option<&str>, payload: &Value) -> Option<ConnectorFailure> {
    let error = &payload["error"];
    let has_error = match error {
        Value::Object(members) => !members.is_empty(),
        Value::String(text) => !text.is_empty(),
        _ => false,
    };
    let calls_itself_one = ["type", "object"]
        .iter()
        .any(|key| payload[*key] == "error");
    let is_answer = payload.get("choices").is_some()
        || payload.get("output").is_some()
        || payload.get("type").is_some();
    // FastGPT and RAGFlow report errors by a code and a message under status 200.
    let has_code = !is_answer
        && payload["code"]
            .as_i64()
            .is_some_and(|code| code != 0 && code != 200);
    if !has_error && !calls_itself_one && !has_code && name != Some("error") {
        return None;
    }
    let source = if has_error { error } else { payload };
    let code = code_of(source);
    let message = source
        .as_str()
        .or_else(|| message_of(source))
        .unwrap_or_default();
    Some(ConnectorFailure::reported(
        status_of(source, code.as_deref()),
        code.as_deref(),
        message,
    ))
}

/// The code or type of an error object.
pub(super) fn code_of(error: &Value) -> Option<String> {
    let text = |key: &str| {
        error[key]
            .as_str()
            .filter(|text| !text.is_empty() && *text != "error")
    };
    let code = text("code").or_else(|| text("type")).map(str::to_owned);
    code.or_else(|| error["code"].as_i64().map(|code| code.to_string()))
}

fn status_of(error: &Value, code: Option<&str>) -> Option<u16> {
    let stated = ["status", "status_code", "code"]
        .iter()
        .find_map(|key| error[*key].as_u64());
    let stated = stated
        .and_then(|status| u16::try_from(status).ok())
        .filter(|status| (400..600).contains(status));
    stated.or_else(|| match code? {
        code if code.contains("rate_limit") => Some(429),
        code if code.contains("authentication") || code.contains("api_key") => Some(401),
        code if code.contains("overloaded") => Some(503),
        _ => None,
    })
}
