//! Query strings, path parameters and conditional headers, with errors in the common error body.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use axum::extract::{FromRequestParts, Path, Query, RawPathParams, Request};
use domain::history::MAX_NAMES;
use http::header::IF_MATCH;
use http::request::Parts;
use http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use store::ConversationsOf;
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use crate::error::{ApiError, ApiResult};

/// Default and maximum page size, in items.
const DEFAULT_LIMIT: u64 = 50;
const MAX_LIMIT: u64 = 100;

/// A query string. An empty parameter counts as absent, except `bot_id`, `name` and `thread_id`.
pub struct QueryOf<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        check_query(query)?;
        read(query).map(Self)
    }
}

/// Cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PageQuery {
    /// The `next_cursor` of the previous page.
    pub cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    pub limit: Option<u64>,
}

/// A query string of a list: filters that other routes share, and [`PageQuery`].
pub struct PagedQuery<T> {
    pub filter: T,
    pub page: PageQuery,
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for PagedQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        check_query(query)?;
        // Serde cannot flatten a struct that denies unknown fields.
        let (page, filter): (Vec<_>, Vec<_>) = query.split('&').partition(|pair| {
            let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
            matches!(name, "cursor" | "limit")
        });
        Ok(Self {
            filter: read(&filter.join("&"))?,
            page: read(&page.join("&"))?,
        })
    }
}

/// Reads a query; empty parameters count as absent.
fn read<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let (given, empty) = without_empty(query);
    // An empty unknown parameter is as wrong as one with a value.
    if let Some(unknown) = empty.into_iter().find_map(unknown_in::<T>) {
        return Err(invalid_query(&unknown));
    }
    parsed(&given).map_err(|fault| invalid_query(&fault))
}

/// Parameters with a meaningful empty value: a conversation without a bot or a thread, and a name that its route
/// rejects.
const MAY_BE_EMPTY: [&str; 3] = ["bot_id", "name", "thread_id"];

/// Splits a query into parameters with a value and the names of empty ones, which count as absent.
fn without_empty(query: &str) -> (String, BTreeSet<&str>) {
    let (mut given, mut empty) = (Vec::new(), BTreeSet::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if value.is_empty() && !MAY_BE_EMPTY.contains(&name) {
            empty.insert(name);
        } else {
            given.push(pair);
        }
    }
    (given.join("&"), empty)
}

/// The error for an unknown parameter, even if it is empty.
fn unknown_in<T: DeserializeOwned>(name: &str) -> Option<String> {
    let fault = parsed::<T>(&format!("{name}=")).err()?;
    fault.contains("unknown field").then_some(fault)
}

/// Parses a query; errors are in plain words.
fn parsed<T: DeserializeOwned>(query: &str) -> Result<T, String> {
    let uri = Uri::builder().path_and_query(format!("/?{query}")).build();
    let uri = uri.map_err(|_| "it is no query".to_owned())?;
    let query = Query::<T>::try_from_uri(&uri);
    query
        .map(|Query(query)| query)
        .map_err(|rejection| plain_fault(&rejection.body_text()))
}

fn invalid_query(fault: &str) -> ApiError {
    ApiError::invalid_argument(format!("the query is not valid: {fault}"))
}

/// Replaces parser messages (digits, UUID syntax) by messages about the parameter.
fn plain_fault(message: &str) -> String {
    const NUMBERS: [&str; 3] = ["digit", "parse integer", "number too "];
    let fault = message.strip_prefix("Failed to deserialize query string: ");
    let fault = fault.unwrap_or(message);
    let Some((name, why)) = fault.split_once(": ") else {
        return fault.to_owned();
    };
    if NUMBERS.iter().any(|of_numbers| why.contains(of_numbers)) {
        format!("`{name}` must be an integer, not below 0")
    } else if why.starts_with("UUID parsing failed") {
        format!("`{name}` must be an id, as the API gives it")
    } else {
        fault.to_owned()
    }
}

/// Splits the comma-separated names of a filter, each once.
///
/// The number of names is limited, because each number needs a prepared statement of its own in the database
/// cache.
pub fn names_of(parameter: &str, text: Option<&str>) -> ApiResult<Vec<String>> {
    let names = text.into_iter().flat_map(|text| text.split(','));
    let mut found = Vec::new();
    for (index, name) in names.map(str::trim).enumerate() {
        let pointer = format!("/{parameter}/{index}");
        if index >= MAX_NAMES {
            let message = format!("is one too many: at most {MAX_NAMES} names may be joined");
            return Err(ApiError::invalid(pointer, message));
        }
        if name.is_empty() {
            let message = "is empty: names are joined by single commas";
            return Err(ApiError::invalid(pointer, message));
        }
        if !found.iter().any(|existing| existing == name) {
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

/// The conversation filter of a list. `bot_id` or `thread_id` needs a `conversation_id`.
pub fn conversations_of(
    conversation_id: Option<String>,
    bot_id: Option<String>,
    thread_id: Option<String>,
) -> Result<Option<ConversationsOf>, ApiError> {
    match conversation_id {
        Some(conversation_id) => Ok(Some(ConversationsOf {
            conversation_id,
            bot_id,
            thread_id,
        })),
        None if bot_id.is_none() && thread_id.is_none() => Ok(None),
        None => Err(ApiError::invalid_argument(
            "`bot_id` and `thread_id` say which conversation of a `conversation_id` is meant: name that, too",
        )),
    }
}

/// Write operations of operators that take no query. An ignored `dry_run`, for example, would be dangerous, so a
/// query is an error.
pub struct WritesWithoutQuery(HashSet<(Method, String)>);

impl WritesWithoutQuery {
    pub fn of(document: &OpenApi) -> Self {
        let writes = document.paths.paths.iter().flat_map(|(path, item)| {
            let all = [
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::DELETE, &item.delete),
            ];
            let without = all.into_iter().filter(|(_, operation)| {
                operation
                    .as_ref()
                    .is_some_and(|operation| is_of_operators(operation) && !takes_query(operation))
            });
            without.map(|(method, _)| (method, without_wildcards(path).into_owned()))
        });
        Self(writes.collect())
    }

    /// Rejects a query that the route would ignore.
    pub fn refuse_ignored_query(&self, request: &Request, route: Option<&str>) -> ApiResult<()> {
        let is_ignored = request.method() != Method::GET
            && request.uri().query().is_some_and(|query| !query.is_empty())
            && route.is_some_and(|route| {
                let path = without_wildcards(route).into_owned();
                self.0.contains(&(request.method().clone(), path))
            });
        if is_ignored {
            let message = "this route takes no query, and nothing was done; leave it out";
            return Err(ApiError::invalid_argument(message));
        }
        Ok(())
    }
}

/// Normalizes a route template: a wildcard parameter becomes a plain one.
pub fn without_wildcards(route: &str) -> Cow<'_, str> {
    if route.contains("{*") {
        route.replace("{*", "{").into()
    } else {
        route.into()
    }
}

fn is_of_operators(operation: &Operation) -> bool {
    let tags = operation.tags.iter().flatten();
    tags.into_iter().any(|tag| tag == "admin")
}

fn takes_query(operation: &Operation) -> bool {
    let mut parameters = operation.parameters.iter().flatten();
    parameters.any(|parameter| match parameter {
        RefOr::T(parameter) => matches!(parameter.parameter_in, ParameterIn::Query),
        // A referenced parameter may be a query parameter.
        RefOr::Ref(_) => true,
    })
}

/// A path parameter. A malformed id gives 404, like an absent object.
pub struct PathOf<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for PathOf<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        refuse_nul(parts.uri.path())?;
        let path = Path::<T>::from_request_parts(parts, state).await;
        match path {
            Ok(Path(path)) => Ok(Self(path)),
            Err(_) => Err(unknown_object(parts).await),
        }
    }
}

/// 404 for a path with a malformed id, which no object has.
async fn unknown_object(parts: &mut Parts) -> ApiError {
    let parameters = RawPathParams::from_request_parts(parts, &()).await;
    let last = parameters.as_ref().ok().and_then(|all| all.iter().last());
    let (name, id) = last.unwrap_or(("object", ""));
    let kind = name.trim_end_matches("_id").replace('_', " ");
    ApiError::not_found(&kind, id)
}

fn check_query(query: &str) -> Result<(), ApiError> {
    refuse_nul(query)?;
    // A replacement character would change the search text silently.
    if percent_decode_str(query).decode_utf8().is_err() {
        return Err(ApiError::invalid_argument(
            "the query must be percent-encoded UTF-8",
        ));
    }
    Ok(())
}

// PostgreSQL rejects U+0000 in text and SQLite accepts it; no stored name contains it.
fn refuse_nul(encoded: &str) -> Result<(), ApiError> {
    if encoded.contains("%00") {
        return Err(ApiError::invalid_argument(
            "the address must not contain the character U+0000",
        ));
    }
    Ok(())
}

/// Validates a page size: 1 to 100.
pub fn page_limit(limit: Option<u64>) -> Result<u64, ApiError> {
    match limit {
        None => Ok(DEFAULT_LIMIT),
        Some(limit) if (1..=MAX_LIMIT).contains(&limit) => Ok(limit),
        Some(_) => Err(ApiError::invalid_argument("`limit` must be 1 to 100")),
    }
}

/// The version in `If-Match`, with or without quotes.
pub fn if_match(headers: &HeaderMap) -> Result<Option<i64>, ApiError> {
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
        .ok_or_else(|| ApiError::invalid_argument("`If-Match` must be the version, an integer"))
}

/// The `traceparent` header. Repeated headers are ignored: a trace is no reason to fail a request.
pub fn trace_header(headers: &HeaderMap) -> Option<&str> {
    single_header(headers, "traceparent").ok().flatten()
}

/// Name of the header `Idempotency-Key`.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The `Idempotency-Key` header: 1 to 255 printable ASCII characters; `None` if absent.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    let is_printable = |key: &str| key.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    match single_header(headers, IDEMPOTENCY_KEY) {
        Ok(Some(key)) if (1..=255).contains(&key.len()) && is_printable(key) => Ok(Some(key)),
        Ok(None) => Ok(None),
        _ => Err(ApiError::invalid_argument(
            "`Idempotency-Key` must occur once and have 1 to 255 printable ASCII characters",
        )),
    }
}

/// The single value of a header; `None` if absent.
pub fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    if values.next().is_some() {
        return Err(ApiError::invalid_argument(format!(
            "`{name}` must occur once"
        )));
    }
    let text = value
        .to_str()
        .map_err(|_| ApiError::invalid_argument(format!("`{name}` is malformed")))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct TestQuery {
        after: Option<u64>,
        bot_id: Option<String>,
        #[serde(default)]
        label: String,
    }

    #[test]
    fn idempotency_keys_are_printable_ascii() {
        let longest = "k".repeat(255);
        let too_long = "k".repeat(256);
        for (values, is_valid) in [
            (vec!["k"], true),
            (vec!["a ~!key"], true),
            (vec![&*longest], true),
            (vec![""], false),
            (vec![&*too_long], false),
            (vec!["a\tb"], false),
            (vec!["schlüssel"], false),
            (vec!["k", "k"], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in &values {
                let value = http::HeaderValue::from_bytes(value.as_bytes()).unwrap();
                headers.append(IDEMPOTENCY_KEY, value);
            }
            let key = idempotency_key(&headers);
            assert_eq!(key.is_ok(), is_valid, "{values:?}");
            if let Err(error) = key {
                assert!(error.message().contains("`Idempotency-Key`"), "{error:?}");
            }
        }
        assert!(matches!(idempotency_key(&HeaderMap::new()), Ok(None)));
    }

    #[tokio::test]
    async fn counts_empty_parameters_as_absent() {
        let read = async |query: &str| {
            let request = http::Request::get(format!("/x?{query}")).body(()).unwrap();
            let (mut parts, ()) = request.into_parts();
            let read = QueryOf::<TestQuery>::from_request_parts(&mut parts, &()).await;
            read.map(|QueryOf(found)| found)
                .map_err(|error| error.message().to_owned())
        };
        let found = |after, bot_id: Option<&str>, label: &str| TestQuery {
            after,
            bot_id: bot_id.map(str::to_owned),
            label: label.to_owned(),
        };
        for (query, expected) in [
            ("", found(None, None, "")),
            ("after=&label=", found(None, None, "")),
            ("after&label=x%3D", found(None, None, "x=")),
            ("after=7&bot_id=", found(Some(7), Some(""), "")),
            ("after=&after=7", found(Some(7), None, "")),
            ("&after=7&", found(Some(7), None, "")),
        ] {
            assert_eq!(read(query).await.unwrap(), expected, "{query}");
        }
        for (query, fault) in [
            ("other=", "unknown field `other`"),
            ("after=&other", "unknown field `other`"),
            ("after=x", "`after` must be an integer"),
            ("after=7&after=8", "duplicate field `after`"),
        ] {
            let refused = read(query).await.unwrap_err();
            assert!(refused.contains(fault), "{query}: {refused}");
        }
    }
}
