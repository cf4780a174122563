//! JSON bodies, with a JSON pointer to whatever is wrong in them.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use domain::json_text::check_json_text;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use protocol::admin::Fault;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use crate::api::error::ApiError;

/// A body that trickles in for longer is refused. An extension of every request.
#[derive(Clone, Copy)]
pub(super) struct BodyPatience(pub(super) Duration);

impl Default for BodyPatience {
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

/// A JSON object as the body of a request.
pub(super) struct JsonBody<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = json_bytes(request, state).await?;
        parse(&bytes).map(Self)
    }
}

/// Reads the body of a request that says it is JSON.
pub(super) async fn json_bytes<S: Send + Sync>(
    request: Request,
    state: &S,
) -> Result<Bytes, ApiError> {
    if media_type(request.headers()) != "application/json" {
        let message = "send the body with `Content-Type: application/json`";
        return Err(ApiError::invalid_argument(message));
    }
    read_body(request, state).await
}

/// The media type of a request's body, in lower case and without parameters.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let essence = content_type
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}

/// Reads a body within its bounds of size and time.
pub(super) async fn read_body<S: Send + Sync>(
    request: Request,
    state: &S,
) -> Result<Bytes, ApiError> {
    let patience = request.extensions().get::<BodyPatience>().copied();
    let BodyPatience(patience) = patience.unwrap_or_default();
    let reading = Bytes::from_request(request, state);
    tokio::time::timeout(patience, reading)
        .await
        .map_err(|_| ApiError::slow_body())?
        .map_err(|rejection| unreadable(&rejection))
}

fn unreadable(rejection: &BytesRejection) -> ApiError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        ApiError::too_large("the body is larger than this route takes")
    } else {
        ApiError::invalid_argument("the body could not be read")
    }
}

/// Reads a document that must be an object.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    parse_part(bytes).map_err(|fault| ApiError::faults(&[fault]))
}

/// Reads a part of a document that must be an object; a fault's pointer begins at the part.
pub(super) fn parse_part<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    // An array would fill a structure by position.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Fault::new("", "must be a JSON object"));
    }
    check_json_text(bytes).map_err(|fault| Fault::new("", fault.to_string()))?;
    // Where it is wrong is asked only when it is.
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(_) => parse_with_places(bytes),
    }
}

fn parse_with_places<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let message = plain_message(error.inner());
        Fault::new(pointer(error.path(), &message), message)
    })?;
    deserializer
        .end()
        .map_err(|_| Fault::new("", "has something behind its end"))?;
    Ok(value)
}

/// The message without the place in the bytes, which the pointer tells better.
fn plain_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ")
        .map_or(text.clone(), |(message, _)| message.to_owned())
}

/// The pointer of a fault. A missing or unknown field is named by the message alone.
fn pointer(path: &serde_path_to_error::Path, message: &str) -> String {
    let mut pointer = String::new();
    for segment in path {
        match segment {
            Segment::Map { key } => {
                pointer.push('/');
                pointer.push_str(&domain::form::escape_pointer(key));
            }
            Segment::Seq { index } => {
                pointer.push('/');
                pointer.push_str(&index.to_string());
            }
            Segment::Enum { .. } | Segment::Unknown => {}
        }
    }
    let named = ["missing field `", "unknown field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split('`').next());
    if let Some(field) = named
        && !pointer.ends_with(&format!("/{field}"))
    {
        pointer.push('/');
        pointer.push_str(&domain::form::escape_pointer(field));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;
    use protocol::event::EventEnvelope;

    use super::*;

    async fn check(body: &str, expected: &str) {
        let error = parse::<EventEnvelope>(body.as_bytes())
            .unwrap_err()
            .into_response();
        let bytes = axum::body::to_bytes(error.into_body(), 10_000)
            .await
            .unwrap();
        let error: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(error["error"]["details"]["pointer"], expected, "{error}");
    }

    #[tokio::test]
    async fn a_fault_is_named_by_its_pointer() {
        check("{}", "/event_type").await;
        check(r#"{"event_type":1}"#, "/event_type").await;
        check(r#"{"event_type":"a","nope":1}"#, "/nope").await;
        check(r#"{"event_type":"a","event_type":"b"}"#, "/event_type").await;
        check(
            r#"{"event_type":"a","conversation":{"x":1}}"#,
            "/conversation/x",
        )
        .await;
        check(r#"{"event_type":"a","actor":{}}"#, "/actor/actor_type").await;
        check(
            r#"{"event_type":"a","input":{"contents":[{"type":"text"},{}]}}"#,
            "/input/contents/1/type",
        )
        .await;
        check(r#"{"event_type":"a"} {}"#, "").await;
        check(r#"["a"]"#, "").await;
        check("", "").await;
    }
}
