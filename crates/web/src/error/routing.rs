//! Errors of routes, hosts and origins.

use http::StatusCode;

use super::api_error::ApiError;

pub fn no_route() -> ApiError {
    let message = "there is no such route; /openapi.json lists them";
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

pub fn no_method() -> ApiError {
    let message = "this route has no such method; /openapi.json lists them";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_argument", message)
}

/// 404 with a message for this kind of address.
pub fn no_such(message: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
}

/// The `Host` of the request is not on the allow-list.
pub fn host_not_allowed() -> ApiError {
    ApiError::unauthorized(
        "this `Host` is not allowed; add it to server.public_url or \
         server.allowed_hosts",
    )
}

/// The `Origin` of the request is not on the allow-list.
pub fn origin_not_allowed() -> ApiError {
    ApiError::unauthorized(
        "this `Origin` is not allowed; add it to server.cors_origins, or its host to server.allowed_hosts",
    )
}
