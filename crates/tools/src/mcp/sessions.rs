//! Detects whether a refusal means that the server lost the session.
//!
//! A server that lost a session has not executed the request. A new session begins, and the request is sent once
//! more. The SDK does both on `SessionExpired`. Recovery aborts other calls of the session, so unclear refusals
//! are checked by a ping first.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::json_text::check_json_text;
use http::StatusCode;
use rmcp::model::{ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

/// Error code of a refused session. The call is retried once.
pub(super) const SESSION_LOST: i32 = -31_998;
/// Maximum number of bytes of a refusal that are searched for session errors.
const SEARCHED: usize = 4096;

/// The sessions of one connection.
#[derive(Clone, Default)]
pub(super) struct Sessions(Arc<Mutex<SessionState>>);

#[derive(Default)]
struct SessionState {
    /// The last session with a successful response. Only its refusals can indicate a lost session.
    worked: Option<String>,
    /// The session that the server lost.
    lost: Option<String>,
}

impl Sessions {
    pub(super) fn note_worked(&self, session: &str) {
        let mut state = self.state();
        if state.worked.as_deref() != Some(session) {
            state.worked = Some(session.to_owned());
        }
    }

    pub(super) fn has_worked(&self, session: &str) -> bool {
        self.state().worked.as_deref() == Some(session)
    }

    pub(super) fn lose(&self, session: &str) {
        self.state().lost = Some(session.to_owned());
    }

    pub(super) fn is_lost(&self, session: &str) -> bool {
        self.state().lost.as_deref() == Some(session)
    }

    fn state(&self) -> MutexGuard<'_, SessionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Degree of evidence that a session is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionDoubt {
    None,
    Lost,
    /// Lost, unless the session answers a ping.
    UnlessAlive,
    /// Lost if the session refuses a ping or does not answer it: the request itself may have failed.
    IfRefused,
}

/// Classifies the response to a request. `read`: the message in its body.
pub(super) fn session_doubt(
    status: StatusCode,
    read: Option<&ServerJsonRpcMessage>,
    body: &[u8],
) -> SessionDoubt {
    // The specification demands 404 for unknown sessions; some servers send 410.
    if matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE) {
        return SessionDoubt::Lost;
    }
    match read {
        Some(JsonRpcMessage::Error(error)) => {
            match (error.id.is_some(), speaks_of_session(&error.error.message)) {
                (false, true) => SessionDoubt::Lost,
                (false, false) | (true, true) => SessionDoubt::UnlessAlive,
                (true, false) => SessionDoubt::None,
            }
        }
        None if status == StatusCode::BAD_REQUEST => {
            let text = &body[..body.len().min(SEARCHED)];
            if speaks_of_session(&String::from_utf8_lossy(text)) {
                SessionDoubt::Lost
            } else {
                SessionDoubt::UnlessAlive
            }
        }
        _ => SessionDoubt::None,
    }
}

fn speaks_of_session(text: &str) -> bool {
    let text = text.to_lowercase();
    ["session", "not initialized", "uninitialized"]
        .iter()
        .any(|word| text.contains(word))
}

/// The answer to a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingResult {
    Answered,
    Refused,
    /// Accepted without a response.
    NoAnswer,
    /// The server is unreachable.
    Unreached,
}

impl PingResult {
    const ID: &'static str = "runnel-session-check";

    pub(super) fn request() -> Value {
        json!({"jsonrpc": "2.0", "id": Self::ID, "method": "ping"})
    }

    pub(super) fn read(status: StatusCode, body: &[u8]) -> Self {
        if !status.is_success() {
            return Self::Refused;
        }
        // Bounds the depth before a value is built.
        let body = Some(body).filter(|body| check_json_text(body).is_ok());
        let reply: Option<Value> = body.and_then(|body| serde_json::from_slice(body).ok());
        let Some(reply) = reply else {
            return Self::NoAnswer;
        };
        let is_ours = reply["id"] == Self::ID;
        let message = reply.pointer("/error/message").and_then(Value::as_str);
        match (is_ours, reply.get("result"), reply.get("error")) {
            (true, Some(_), _) => Self::Answered,
            // A server without ping support still knows the session.
            (true, _, Some(_)) if !message.is_some_and(speaks_of_session) => Self::Answered,
            (_, _, Some(_)) => Self::Refused,
            _ => Self::NoAnswer,
        }
    }
}

/// An error without an id, assigned to the request of its stream.
pub(super) struct Addressed {
    request_id: RequestId,
    error: ErrorData,
    pub(super) speaks_of_session: bool,
}

impl Addressed {
    pub(super) fn message(&self) -> String {
        self.with_code(self.error.code.0)
    }

    /// The error with the code that triggers the retry.
    pub(super) fn lost_session(&self) -> String {
        self.with_code(SESSION_LOST)
    }

    fn with_code(&self, code: i32) -> String {
        let error = json!({"code": code, "message": self.error.message});
        json!({"jsonrpc": "2.0", "id": self.request_id, "error": error}).to_string()
    }
}

/// Reads an error without an id; `None`: any other message.
pub(super) fn addressed(data: &str, request_id: &RequestId) -> Option<Addressed> {
    #[derive(Deserialize)]
    struct WithoutId {
        id: Option<IgnoredAny>,
        method: Option<IgnoredAny>,
        error: Option<ErrorData>,
    }
    // Most events are results: a search is cheaper than parsing them twice.
    if !data.contains("\"error\"") {
        return None;
    }
    let read: WithoutId = serde_json::from_str(data).ok()?;
    let error = read
        .error
        .filter(|_| read.id.is_none() && read.method.is_none())?;
    Some(Addressed {
        request_id: request_id.clone(),
        speaks_of_session: speaks_of_session(&error.message),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubt(status: u16, body: &Value) -> SessionDoubt {
        let read = serde_json::from_value(body.clone()).ok();
        let body = body.to_string();
        session_doubt(
            StatusCode::from_u16(status).unwrap(),
            read.as_ref(),
            body.as_bytes(),
        )
    }

    #[test]
    fn separates_lost_sessions_from_failed_calls() {
        let error = |id: Value, message: &str| json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32000, "message": message}});
        for (status, body, expected) in [
            (404, json!("x"), SessionDoubt::Lost),
            (410, json!("x"), SessionDoubt::Lost),
            (400, json!("No valid session ID"), SessionDoubt::Lost),
            (400, json!("x"), SessionDoubt::UnlessAlive),
            (
                400,
                error(Value::Null, "Server not initialized"),
                SessionDoubt::Lost,
            ),
            (
                200,
                error(Value::Null, "Session not found"),
                SessionDoubt::Lost,
            ),
            (200, error(Value::Null, "bad"), SessionDoubt::UnlessAlive),
            (
                200,
                error(json!(1), "no such session"),
                SessionDoubt::UnlessAlive,
            ),
            (200, error(json!(1), "bad argument"), SessionDoubt::None),
            (400, error(json!(1), "bad argument"), SessionDoubt::None),
            (405, json!("x"), SessionDoubt::None),
            (
                200,
                json!({"jsonrpc": "2.0", "id": 1, "result": {}}),
                SessionDoubt::None,
            ),
        ] {
            assert_eq!(doubt(status, &body), expected, "{status} {body}");
        }
    }

    #[test]
    fn reads_answers_to_pings() {
        let id = PingResult::ID;
        for (status, body, expected) in [
            (200, json!({"id": id, "result": {}}), PingResult::Answered),
            (
                200,
                json!({"id": id, "error": {"code": -32601, "message": "no ping"}}),
                PingResult::Answered,
            ),
            (
                200,
                json!({"id": id, "error": {"code": -32000, "message": "session unknown"}}),
                PingResult::Refused,
            ),
            (
                200,
                json!({"id": null, "error": {"code": -32000, "message": "x"}}),
                PingResult::Refused,
            ),
            (400, json!({}), PingResult::Refused),
            (202, json!(""), PingResult::NoAnswer),
            (
                200,
                json!({"method": "notifications/message"}),
                PingResult::NoAnswer,
            ),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let result = PingResult::read(status, body.to_string().as_bytes());
            assert_eq!(result, expected, "{body}");
        }
    }

    #[test]
    fn errors_without_id_belong_to_their_request() {
        let request_id = RequestId::Number(7);
        let read = |data: &str| addressed(data, &request_id).map(|error| error.message());
        let reply = read(r#"{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"m"}}"#);
        let reply: Value = serde_json::from_str(&reply.unwrap()).unwrap();
        assert_eq!(
            (&reply["id"], &reply["error"]["code"]),
            (&json!(7), &json!(-1))
        );
        for other in [
            r#"{"id":7,"error":{"code":-1,"message":"m"}}"#,
            r#"{"id":7,"result":{"error":{}}}"#,
            r#"{"method":"m","params":{"error":{}}}"#,
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
