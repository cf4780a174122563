//! The common error body and the mapping of errors to status codes (host API).

mod appended;
mod artifact;
mod consumed;
mod framing;
mod interaction;
mod moved;
mod register;

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CONTENT_RANGE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::error::{AgentApiError, ErrorBody};
use protocol::id::RunId;
use serde_json::{Value, json};
use store::StoreError;

use telemetry::metrics;

mod causes;

pub(crate) use consumed::Consumed;

/// Maximum characters of a message, because it may quote the request.
const MESSAGE_CHARS: usize = 2000;

fn cut(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS) {
        message.truncate(end);
    }
    message
}

/// The result of a handler.
pub(super) type ApiResult<T> = Result<T, ApiError>;

/// The error of a response, for APIs with an error format of their own. An extension of the response.
#[derive(Clone, Debug)]
pub(super) struct ErrorExtension(pub(super) AgentApiError);

/// A response with status 4xx or 5xx.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    retryable: bool,
    details: JsonObject,
    retry_after_seconds: Option<u32>,
    content_range: Option<String>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
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

    pub(super) fn with(mut self, key: &str, value: Value) -> Self {
        self.details.insert(key.to_owned(), value);
        self
    }

    fn retryable_after(mut self, seconds: u32) -> Self {
        self.retryable = true;
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// The same for every cause, so that the response does not reveal the cause.
    pub(super) fn unauthenticated() -> Self {
        let message = "send a valid credential as `Authorization: Bearer …`";
        Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", message)
    }

    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "unauthorized", message)
    }

    /// The same for absent objects and for objects of other workspaces.
    pub(super) fn not_found(what: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            format!("there is no such {what}"),
        )
    }

    pub(super) fn no_route() -> Self {
        let message = "there is no such route; /openapi.json lists them";
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 404 with a message for this kind of address.
    pub(super) fn no_such(message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(super) fn no_method() -> Self {
        let message = "this route has no such method; /openapi.json lists them";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_argument", message)
    }

    pub(super) fn panicked() -> Self {
        tracing::error!("a handler panicked");
        metrics::panicked(metrics::Task::Handler);
        Self::internal()
    }

    pub(super) fn internal() -> Self {
        let message = "the gateway failed; its log says why";
        Self {
            retryable: true,
            ..Self::new(StatusCode::INTERNAL_SERVER_ERROR, "runtime_error", message)
        }
    }

    /// Invalid input at one JSON pointer.
    pub(super) fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::faults(&[Fault::new(pointer, message)])
    }

    /// Invalid input at several JSON pointers. The message names the first fault; the details list the first
    /// few.
    pub(super) fn faults(faults: &[Fault]) -> Self {
        let named = Fault::first(faults);
        let unnamed = faults.len() - named.len();
        let first = named
            .first()
            .cloned()
            .unwrap_or_else(|| Fault::new("", "is not valid"));
        let place = if first.pointer.is_empty() {
            "the document"
        } else {
            &first.pointer
        };
        let message = format!("{place} {}", first.message);
        let refused = Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
            .with("pointer", json!(first.pointer))
            .with("faults", json!(named));
        match unnamed {
            0 => refused,
            _ => refused.with("more_faults", json!(unnamed)),
        }
    }

    /// Rejection by a protocol library, with the status that the library chose.
    pub(super) fn no_message(status: StatusCode, message: String) -> Self {
        Self::new(status, "invalid_argument", message)
    }

    /// Invalid header, query or path.
    pub(super) fn invalid_argument(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", message)
    }

    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
    }

    /// Compressed bodies are refused: their unpacked size has no bound.
    pub(super) fn encoded_body() -> Self {
        let message = "send the body as it is, without `Content-Encoding`";
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "invalid_argument",
            message,
        )
    }

    pub(super) fn slow_body() -> Self {
        let message = "the body did not come in time; send it again";
        Self {
            retryable: true,
            ..Self::new(StatusCode::REQUEST_TIMEOUT, "deadline_exceeded", message)
        }
    }

    pub(super) fn conflict(reason: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message).with("reason", json!(reason))
    }

    /// The current version differs from `If-Match`.
    pub(super) fn version_conflict(version: i64) -> Self {
        Self::conflict(
            "version_mismatch",
            "the version does not match; read the current one and try again",
        )
        .with("version", json!(version))
    }

    pub(super) fn read_only() -> Self {
        Self::conflict(
            "read_only",
            "this is defined in the configuration file; change it there",
        )
    }

    /// The events after the cursor were deleted by retention. The client continues from the run itself.
    pub(super) fn cursor_expired(run: RunId, last_sequence: u64) -> Self {
        let message = "retention has deleted these events; read the run at `snapshot_url`";
        Self::new(StatusCode::GONE, "cursor_expired", message)
            .with("snapshot_url", json!(format!("/v1/runs/{run}")))
            .with("oldest_sequence", json!(last_sequence + 1))
            .with("last_sequence", json!(last_sequence))
    }

    /// The cursor is past the last event of the run.
    pub(super) fn cursor_past_end(last_sequence: u64) -> Self {
        Self::invalid_argument("the cursor is past the last event of this run")
            .with("last_sequence", json!(last_sequence))
    }

    /// The tool no longer matches the grant of the run.
    pub(super) fn tool_withdrawn(reason: &str, message: &str) -> Self {
        Self::unauthorized(message).with("reason", json!(reason))
    }

    /// The address has sent too many wrong credentials.
    pub(super) fn refused_too_often() -> Self {
        let message = "too many credentials from this address were refused; send a valid one, and not \
                       sooner than `Retry-After` says";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
            .with("reason", json!("refused_too_often"))
            .retryable_after(10)
    }

    /// The `Host` of the request is not on the allow-list.
    pub(super) fn foreign_name() -> Self {
        Self::unauthorized(
            "this `Host` is not allowed; add it to server.public_url or \
             server.allowed_hosts",
        )
    }

    /// The `Origin` of the request is not on the allow-list.
    pub(super) fn foreign_origin() -> Self {
        Self::unauthorized("this `Origin` is not allowed; add it to server.allowed_hosts")
    }

    pub(super) fn rate_limited() -> Self {
        let message = "this run calls too often; wait as long as `Retry-After` says";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message).retryable_after(1)
    }

    /// The run has reached its limit of concurrent uploads and deletes.
    pub(super) fn uploads_full() -> Self {
        let message = "other uploads and deletes of this run are under way; wait for their answers";
        Self::rate_limited_by("uploads", message.to_owned(), 1)
    }

    /// The run has reached its limit of concurrent host calls.
    pub(super) fn host_calls_full() -> Self {
        let message = "the run has reached its limit of concurrent host calls; wait for their responses, and read them";
        Self::rate_limited_by("host_calls", message.to_owned(), 1)
    }

    /// A budget is used up. `seconds` is the time until it resets, if it does.
    pub(super) fn over_budget(message: String, seconds: Option<u32>) -> Self {
        let refused = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
            .with("reason", json!("budget"));
        match seconds {
            Some(seconds) => refused.retryable_after(seconds),
            None => refused,
        }
    }

    /// A limit of the gateway, named by `reason`.
    pub(super) fn rate_limited_by(reason: &str, message: String, seconds: u32) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
            .with("reason", json!(reason))
            .retryable_after(seconds)
    }

    /// In a batch: an earlier event failed temporarily, so this one was not tried.
    pub(super) fn not_tried() -> Self {
        let message = "an earlier event was not accepted; send both again, in this order";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "runtime_error", message).retryable_after(1)
    }

    /// The `code` of the error.
    pub(super) fn code(&self) -> &'static str {
        self.code
    }

    /// The message for the caller.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// The status and the error object.
    pub(super) fn into_parts(self) -> (u16, AgentApiError) {
        let error = AgentApiError {
            code: self.code.to_owned(),
            message: self.message,
            retryable: self.retryable,
            details: self.details,
        };
        (self.status.as_u16(), error)
    }

    pub(super) fn cancelled() -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "cancelled",
            "the run was cancelled; end it",
        )
    }

    pub(super) fn deadline_exceeded() -> Self {
        let message = "the run is past its deadline";
        Self::new(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded", message)
    }
}

impl IntoResponse for ApiError {
    fn into_response(mut self) -> Response {
        let (status, retry_after_seconds) = (self.status, self.retry_after_seconds);
        let content_range = self.content_range.take();
        let (_, error) = self.into_parts();
        let refused = ErrorExtension(error.clone());
        let mut response = (status, Json(ErrorBody { error })).into_response();
        response.extensions_mut().insert(refused);
        let headers = response.headers_mut();
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

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if let StoreError::OverBudget(over) = error {
            return over.into();
        }
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "a request failed in the store"
        );
        match error {
            StoreError::Db(_)
            | StoreError::Sqlite(_)
            | StoreError::Closed
            | StoreError::Unreachable => {
                let message = "the database does not respond; try again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "runtime_error", message)
                    .retryable_after(1)
            }
            StoreError::Locked => {
                let message = "a database row is locked by another transaction; try again";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "runtime_error", message)
                    .retryable_after(1)
            }
            StoreError::Taken
            | StoreError::Refused
            | StoreError::Pruned
            | StoreError::Panicked
            | StoreError::OverBudget(_)
            | StoreError::Corrupt { .. } => Self::internal(),
        }
    }
}
