//! The error of a response: status, code, message and details.

use std::fmt::Display;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_RANGE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::{AgentApiError, ErrorBody};
use serde_json::{Value, json};

use telemetry::metrics;

/// Maximum characters of a message, because it may quote the request.
const MESSAGE_CHARS: usize = 2000;
/// Maximum characters of an id in a message.
const ID_CHARS: usize = 200;

fn cut(mut message: String) -> String {
    // By characters: a cut by bytes could split one.
    if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS) {
        message.truncate(end);
    }
    message
}

/// The result of a handler.
pub type ApiResult<T> = Result<T, ApiError>;

/// The error of a response, for APIs with an error format of their own. An extension of the response.
#[derive(Clone, Debug)]
pub struct ErrorExtension(pub AgentApiError);

/// A response with status 4xx or 5xx.
#[derive(Debug)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub retryable: bool,
    pub details: JsonObject,
    pub retry_after_seconds: Option<u32>,
    pub content_range: Option<String>,
}

impl ApiError {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: cut(message.into()),
            retryable: false,
            details: JsonObject::new(),
            retry_after_seconds: None,
            content_range: None,
        }
    }

    #[must_use]
    pub fn with(mut self, key: &str, value: Value) -> Self {
        self.details.insert(key.to_owned(), value);
        self
    }

    #[must_use]
    pub fn retryable_after(mut self, seconds: u32) -> Self {
        self.retryable = true;
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// The same for every cause, so that the response does not reveal the cause.
    pub fn unauthenticated() -> Self {
        let message = "send a valid credential as `Authorization: Bearer …`";
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
    }

    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "unauthorized", message)
    }

    /// The same for absent objects and for objects of other workspaces. `id`: as the caller wrote it.
    pub fn not_found(kind: &str, id: impl Display) -> Self {
        // The id may be any text from the URL.
        let id: String = id.to_string().chars().take(ID_CHARS).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no {kind} {id}"),
        )
    }

    /// Appends advice to the message.
    #[must_use]
    pub fn with_advice(mut self, advice: &str) -> Self {
        self.message = cut(format!("{} {advice}", self.message));
        self
    }

    /// Invalid input at one JSON pointer.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::faults(&[Fault::new(pointer, message)])
    }

    /// Invalid input at several JSON pointers. The message names the first fault; the details list the first
    /// few.
    pub fn faults(faults: &[Fault]) -> Self {
        let named = Fault::first(faults);
        let unnamed = faults.len() - named.len();
        let first = named
            .first()
            .cloned()
            .unwrap_or_else(|| Fault::new("", "is not valid"));
        let location = if first.pointer.is_empty() {
            "the document"
        } else {
            &first.pointer
        };
        let message = format!("{location} {}", first.message);
        let refused = Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
            .with("pointer", json!(first.pointer))
            .with("faults", json!(named));
        match unnamed {
            0 => refused,
            _ => refused.with("more_faults", json!(unnamed)),
        }
    }

    /// Invalid header, query or path.
    pub fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
    }

    pub fn conflict(reason: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message).with("reason", json!(reason))
    }

    /// A limit of the gateway, named by `reason`.
    pub fn rate_limited_by(reason: &str, message: String, seconds: u32) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
            .with("reason", json!(reason))
            .retryable_after(seconds)
    }

    /// A temporary failure of the gateway or its database. Retry after one second.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "runtime_error", message).retryable_after(1)
    }

    pub fn cancelled() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "cancelled",
            "the run was cancelled; end it",
        )
    }

    pub fn deadline_exceeded() -> Self {
        let message = "the run is past its deadline";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message)
    }

    pub fn panicked() -> Self {
        tracing::error!("a handler panicked");
        metrics::panicked(metrics::PanickedTask::Handler);
        Self::internal()
    }

    pub fn internal() -> Self {
        let message = "the gateway failed; its log has the cause";
        Self {
            retryable: true,
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "runtime_error", message)
        }
    }

    /// Rewrites a 401 for an invalid link: no other credential would help.
    #[must_use]
    pub fn of_link(mut self) -> Self {
        if self.status == StatusCode::UNAUTHORIZED {
            "no open link has this token; ask its sender for a new one"
                .clone_into(&mut self.message);
        }
        self
    }

    /// The `code` of the error.
    pub fn code(&self) -> &'static str {
        self.code
    }

    /// The message for the caller.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// `details.reason`, if present.
    pub fn reason(&self) -> Option<&str> {
        self.details.get("reason")?.as_str()
    }

    /// The status and the error object.
    pub fn into_parts(self) -> (u16, AgentApiError) {
        let error = AgentApiError {
            code: self.code.to_owned(),
            message: self.message,
            retryable: self.retryable,
            details: self.details,
        };
        (self.status.as_u16(), error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(mut self) -> Response {
        let (status, retry_after_seconds) = (self.status, self.retry_after_seconds);
        let content_range = self.content_range.take();
        let (_, error) = self.into_parts();
        // APIs with an error format of their own build their body from this extension.
        let refused = ErrorExtension(error.clone());
        let mut response = (status, Json(ErrorBody { error })).into_response();
        response.extensions_mut().insert(refused);
        let headers = response.headers_mut();
        // RFC 9110 requires the challenge with each 401.
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(seconds) = retry_after_seconds {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(Ok(range)) = content_range.map(HeaderValue::try_from) {
            headers.insert(CONTENT_RANGE, range);
        }
        response
    }
}
