//! Errors in the format of Anthropic's API.

/// An error type, and the HTTP status that clients expect with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorKind {
    /// Value of `error.type`.
    pub name: &'static str,
    pub status: u16,
}

/// Returns the Anthropic error for a gateway HTTP status. Anthropic uses 529 for 503.
pub fn error_kind(status: u16) -> ErrorKind {
    let (name, status) = match status {
        401 => ("authentication_error", 401),
        403 => ("permission_error", 403),
        404 => ("not_found_error", 404),
        413 => ("request_too_large", 413),
        429 => ("rate_limit_error", 429),
        408 => ("timeout_error", 408),
        504 => ("timeout_error", 504),
        // Anthropic's SDKs retry 529.
        503 | 529 => ("overloaded_error", 529),
        500.. => ("api_error", status),
        _ => ("invalid_request_error", status),
    };
    ErrorKind { name, status }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_type() {
        for (status, name, expected) in [
            (400, "invalid_request_error", 400),
            (401, "authentication_error", 401),
            (403, "permission_error", 403),
            (404, "not_found_error", 404),
            (405, "invalid_request_error", 405),
            (408, "timeout_error", 408),
            (409, "invalid_request_error", 409),
            (413, "request_too_large", 413),
            (415, "invalid_request_error", 415),
            (429, "rate_limit_error", 429),
            (500, "api_error", 500),
            (501, "api_error", 501),
            (502, "api_error", 502),
            (503, "overloaded_error", 529),
            (504, "timeout_error", 504),
        ] {
            assert_eq!(
                error_kind(status),
                ErrorKind {
                    name,
                    status: expected
                }
            );
        }
    }
}
