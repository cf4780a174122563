//! Query strings, paths and conditional headers, with errors in the one envelope.

use axum::extract::{FromRequestParts, Path, Query};
use http::HeaderMap;
use http::header::IF_MATCH;
use http::request::Parts;
use serde::de::DeserializeOwned;

use crate::api::error::ApiError;

/// Items of a page when the caller names no limit, and at most.
const DEFAULT_LIMIT: u64 = 50;
const MOST: u64 = 100;

/// A query string.
pub(super) struct QueryOf<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        refuse_nul(parts.uri.query())?;
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(query)| Self(query)).map_err(|rejection| {
            ApiError::invalid_argument(format!("the query is not valid: {}", rejection.body_text()))
        })
    }
}

/// A path parameter. One that cannot be an id names nothing: 404 like any other that is absent.
pub(super) struct PathOf<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        refuse_nul(Some(parts.uri.path()))?;
        let path = Path::<T>::from_request_parts(parts, state).await;
        path.map(|Path(path)| Self(path))
            .map_err(|_| ApiError::not_found("object"))
    }
}

// One database takes the character, the other does not: none of ours has it anywhere.
fn refuse_nul(encoded: Option<&str>) -> Result<(), ApiError> {
    if encoded.is_some_and(|text| text.contains("%00")) {
        return Err(ApiError::invalid_argument(
            "the address must not contain the character U+0000",
        ));
    }
    Ok(())
}

/// The page size that a caller asks for: 1 to 100.
pub(super) fn page_limit(limit: Option<u64>) -> Result<u64, ApiError> {
    match limit {
        None => Ok(DEFAULT_LIMIT),
        Some(limit) if (1..=MOST).contains(&limit) => Ok(limit),
        Some(_) => Err(ApiError::invalid_argument("`limit` must be 1 to 100")),
    }
}

/// The version that `If-Match` names, with or without quotes.
pub(super) fn if_match(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
    let Some(value) = headers.get(IF_MATCH) else {
        return Ok(None);
    };
    let text = value
        .to_str()
        .ok()
        .map(|text| text.trim().trim_matches('"'));
    let version = text.and_then(|text| text.parse().ok());
    version
        .map(Some)
        .ok_or_else(|| ApiError::invalid_argument("`If-Match` must be the version, a whole number"))
}

/// The `traceparent` of a request. Of several, none: a trace is nothing to refuse a request for.
pub(super) fn trace_header(headers: &HeaderMap) -> Option<&str> {
    single_header(headers, "traceparent").ok().flatten()
}

/// The one value of a header; `None` when it is absent.
pub(super) fn single_header<'a>(
    headers: &'a HeaderMap,
    name: &str,
) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(ApiError::invalid_argument(format!(
            "`{name}` must stand once"
        )));
    }
    let text = value
        .to_str()
        .map_err(|_| ApiError::invalid_argument(format!("`{name}` is malformed")))?;
    Ok(Some(text))
}
