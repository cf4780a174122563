//! Error responses of the runner API.

use axum::http::StatusCode;
use axum::http::header::RETRY_AFTER;
use axum::response::{IntoResponse, Json, Response};
use protocol::JsonObject;
use protocol::error::{AgentApiError, ErrorBody};
use protocol::id::RunnerId;

use crate::signature::SignatureError;

/// Cause of a rejected request. Status codes appear only here.
#[derive(Debug, thiserror::Error)]
pub(super) enum RequestRejection {
    #[error("{0}")]
    Unsigned(#[from] SignatureError),
    #[error("this webhook-id was used before, or is older than what is remembered")]
    Replayed,
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body did not arrive")]
    Unread,
    #[error("too many unfinished requests; send the body at once")]
    Crowded,
    #[error("the body is not what this call takes: {0}")]
    InvalidBody(String),
    #[error("there is no such route")]
    NoRoute,
    #[error("the route does not take this method")]
    NoMethod,
    #[error("there is no runner {0} here")]
    NoRunner(RunnerId),
    #[error("there is no run {0} here")]
    NoRun(String),
    #[error("attempt {0} is not above the last one of the run")]
    StaleAttempt(u32),
    #[error("run {0} is being executed already")]
    RunIsLive(String),
    #[error("all places for runs are taken")]
    Busy,
}

impl RequestRejection {
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Unsigned(_) => (StatusCode::UNAUTHORIZED, "unauthenticated"),
            Self::Replayed | Self::RunIsLive(_) | Self::StaleAttempt(_) => {
                (StatusCode::CONFLICT, "conflict")
            }
            Self::TooLarge(_) => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
            Self::Unread => (StatusCode::REQUEST_TIMEOUT, "invalid_argument"),
            Self::InvalidBody(_) => (StatusCode::BAD_REQUEST, "invalid_argument"),
            Self::NoMethod => (StatusCode::METHOD_NOT_ALLOWED, "invalid_argument"),
            Self::NoRoute | Self::NoRunner(_) | Self::NoRun(_) => {
                (StatusCode::NOT_FOUND, "not_found")
            }
            Self::Busy | Self::Crowded => (StatusCode::SERVICE_UNAVAILABLE, "rate_limited"),
        }
    }
}

impl IntoResponse for RequestRejection {
    fn into_response(self) -> Response {
        let (status, code) = self.status_and_code();
        let retryable = matches!(self, Self::Busy | Self::Crowded | Self::Unread);
        let error = AgentApiError {
            code: code.to_owned(),
            message: self.to_string(),
            retryable,
            details: JsonObject::new(),
        };
        let answer = (status, Json(ErrorBody { error }));
        if matches!(self, Self::Busy | Self::Crowded) {
            ([(RETRY_AFTER, "1")], answer).into_response()
        } else {
            answer.into_response()
        }
    }
}
