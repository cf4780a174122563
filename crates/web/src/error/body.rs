//! Errors of request bodies: encoding, framing (request smuggling) and time.

use http::StatusCode;

use super::api_error::ApiError;

/// Compressed bodies are refused: their unpacked size has no bound.
pub fn encoded_body() -> ApiError {
    let message = "send the body as it is, without `Content-Encoding`";
    ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "invalid_argument",
        message,
    )
}

pub fn slow_body() -> ApiError {
    let message = "the body did not come in time; send it again";
    ApiError {
        retryable: true,
        ..ApiError::new(StatusCode::REQUEST_TIMEOUT, "deadline_exceeded", message)
    }
}

/// Rejection by a protocol library, with the status that the library chose.
pub fn no_message(status: StatusCode, message: String) -> ApiError {
    ApiError::new(status, "invalid_argument", message)
}

pub fn chunked_twice() -> ApiError {
    let message = "send `Transfer-Encoding: chunked` once";
    ApiError::invalid_argument(message)
}

pub fn unknown_transfer_coding() -> ApiError {
    let message =
        "`Transfer-Encoding` must be `chunked` and no other; send the body without other codings";
    let status = StatusCode::NOT_IMPLEMENTED;
    ApiError::new(status, "invalid_argument", message)
}
