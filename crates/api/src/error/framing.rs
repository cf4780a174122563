//! Errors of ambiguous body framing (request smuggling).

use http::StatusCode;

use super::ApiError;

impl ApiError {
    pub(crate) fn chunked_twice() -> Self {
        let message = "send `Transfer-Encoding: chunked` once";
        Self::invalid_argument(message)
    }

    pub(crate) fn unknown_transfer_coding() -> Self {
        let message =
            "`Transfer-Encoding` must be `chunked` alone; send the body without other codings";
        let status = StatusCode::NOT_IMPLEMENTED;
        Self::new(status, "invalid_argument", message)
    }
}
