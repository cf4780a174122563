//! JSON request bodies. Errors carry a JSON pointer to the fault.

mod absent_nulls;

use std::time::Duration;

use axum::Extension;
use axum::body::{BodyDataStream, Bytes};
use axum::extract::{FromRequest, Request};
use bytes::{Buf as _, BytesMut};
use domain::json_text::check_json_text;
use futures_util::StreamExt as _;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use protocol::admin::Fault;
use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;

use crate::discard_body::discard_body;
use crate::error::body::slow_body;
use crate::error::{ApiError, ApiResult};
use crate::memory_budget::{BufferedBody, MemoryBudget, MemoryPermit, Sender};
use crate::recheck::{AcceptedCredential, ChecksCredentials};
use telemetry::tolerance::{Peer, tolerated};

/// Timeout for reading a body. An extension of every request.
#[derive(Clone, Copy)]
pub struct BodyTimeout(pub Duration);

impl Default for BodyTimeout {
    fn default() -> Self {
        Self(Duration::from_secs(30))
    }
}

/// Default body limit of a route, in bytes.
pub const BODY_BYTES: usize = 1024 * 1024;

/// Body limit of a route, in bytes. An extension of every request.
#[derive(Clone, Copy)]
pub struct BodyLimit(usize);

/// Sets the body limit of routes. The innermost layer wins.
pub fn body_limit(bytes: usize) -> Extension<BodyLimit> {
    Extension(BodyLimit(bytes))
}

/// A JSON object body. The credential is checked again after the body is complete, see [`crate::recheck`].
pub struct JsonBody<T>(pub T);

impl<S: ChecksCredentials, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = json_bytes(request, state).await?;
        parse(&bytes).map(Self)
    }
}

/// A JSON object body of any media type, or no body. The credential is checked again like for [`JsonBody`].
pub struct OptionalJsonBody<T>(pub Option<T>);

impl<S: ChecksCredentials, T: DeserializeOwned> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read_json(request, state).await?;
        if bytes.is_empty() {
            return Ok(Self(None));
        }
        parse(&bytes).map(|body| Self(Some(body)))
    }
}

/// Reads a body with `Content-Type: application/json`.
pub async fn json_bytes(
    request: Request,
    state: &impl ChecksCredentials,
) -> ApiResult<BufferedBody> {
    let max_bytes = body_limit_of(&request);
    json_bytes_of(request, state, max_bytes).await
}

/// Like `json_bytes`, with a configured limit.
pub async fn json_bytes_of(
    request: Request,
    state: &impl ChecksCredentials,
    max_bytes: usize,
) -> ApiResult<BufferedBody> {
    if media_type(request.headers()) != "application/json" {
        let message = "send the body with `Content-Type: application/json`";
        return Err(ApiError::invalid_argument(message));
    }
    let sender = sender_of(&request);
    let body = read_body_of(request, state, max_bytes).await?;
    in_utf8(body, sender)
}

/// The media type of a body, in lower case and without parameters.
pub fn media_type(headers: &HeaderMap) -> String {
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

/// Reads a body within its limits of size, time and memory, then checks the credential again.
pub async fn read_body(
    request: Request,
    state: &impl ChecksCredentials,
) -> ApiResult<BufferedBody> {
    let max_bytes = body_limit_of(&request);
    read_body_of(request, state, max_bytes).await
}

/// Reads a JSON body of any media type, and skips a byte order mark.
pub async fn read_json(
    request: Request,
    state: &impl ChecksCredentials,
) -> ApiResult<BufferedBody> {
    let max_bytes = body_limit_of(&request);
    read_json_of(request, state, max_bytes).await
}

/// Like `read_json`, with a configured limit.
pub async fn read_json_of(
    request: Request,
    state: &impl ChecksCredentials,
    max_bytes: usize,
) -> ApiResult<BufferedBody> {
    let sender = sender_of(&request);
    let body = read_body_of(request, state, max_bytes).await?;
    in_utf8(body, sender)
}

fn sender_of(request: &Request) -> Sender {
    extension(request).unwrap_or(Sender::Nobody)
}

fn in_utf8(mut body: BufferedBody, sender: Sender) -> ApiResult<BufferedBody> {
    const MARK: &[u8] = b"\xEF\xBB\xBF";
    // Some clients on Windows send the mark; RFC 8259 lets a parser skip it.
    if body.starts_with(MARK) {
        body.bytes.advance(MARK.len());
        match sender {
            Sender::Run(run, _) => tolerated(Peer::Runner, "byte_order_mark", run),
            Sender::Key(key) => tolerated(Peer::Client, "byte_order_mark", key),
            Sender::Nobody => tolerated(Peer::Client, "byte_order_mark", "no API key"),
        }
    }
    // JSON text starts with two ASCII characters or is a single one, so a zero byte means UTF-16 or UTF-32.
    match body.as_ref() {
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] | [0, _, ..] | [_, 0, ..] => {
            let message = "is UTF-16 or UTF-32 text; encode the JSON as UTF-8";
            Err(ApiError::invalid("", message))
        }
        _ => Ok(body),
    }
}

fn body_limit_of(request: &Request) -> usize {
    let BodyLimit(max_bytes) = extension(request).unwrap_or(BodyLimit(BODY_BYTES));
    max_bytes
}

async fn read_body_of(
    request: Request,
    state: &impl ChecksCredentials,
    max_bytes: usize,
) -> ApiResult<BufferedBody> {
    let BodyTimeout(body_timeout) = extension(&request).unwrap_or_default();
    let sender = sender_of(&request);
    let accepted = extension::<AcceptedCredential>(&request);
    let budget = extension::<MemoryBudget>(&request);
    let mut permit = budget.map(|budget| budget.permit_for(sender));
    let announced = announced(request.headers()).unwrap_or(0);
    if announced > max_bytes && request.headers().contains_key(EXPECT) {
        // The client waits for `100 Continue` and has not sent the body.
        return Err(too_large(max_bytes));
    }
    let mut frames = request.into_body().into_data_stream();
    let reading = async {
        // Refused before the first read, and the body is discarded below.
        if announced > max_bytes {
            return Err(BodyReadError::Refused(too_large(max_bytes)));
        }
        read_frames(&mut frames, &mut permit, max_bytes).await
    };
    let read = tokio::time::timeout(body_timeout, reading).await;
    match read.map_err(|_| slow_body())? {
        Ok(bytes) => {
            // The body may have taken long: the credential must still be valid.
            state.check_again(accepted.as_ref()).await?;
            Ok(BufferedBody {
                bytes,
                _permit: permit,
            })
        }
        Err(BodyReadError::Broken) => Err(ApiError::invalid_argument("the body could not be read")),
        Err(BodyReadError::Refused(refused)) => {
            // The discarded bytes are not stored, so they need no permit.
            drop(permit);
            // Clients read no response while they send, so discard the rest of the body within limits.
            discard_body(&mut frames).await;
            Err(refused)
        }
    }
}

fn extension<T: Clone + Send + Sync + 'static>(request: &Request) -> Option<T> {
    request.extensions().get().cloned()
}

/// The announced length of a body.
pub fn announced(headers: &HeaderMap) -> Option<usize> {
    let length = headers.get(CONTENT_LENGTH)?;
    length.to_str().ok()?.parse().ok()
}

fn too_large(max_bytes: usize) -> ApiError {
    let message = format!("the body is larger than the {max_bytes} bytes that this route takes");
    ApiError::too_large(message)
}

/// The reason why a body could not be read.
enum BodyReadError {
    /// The body ended early.
    Broken,
    Refused(ApiError),
}

/// A larger body gets one allocation of the route's limit. Untouched pages of it occupy no memory.
const LARGE_BYTES: usize = 1024 * 1024;

async fn read_frames(
    frames: &mut BodyDataStream,
    permit: &mut Option<MemoryPermit>,
    max_bytes: usize,
) -> Result<Bytes, BodyReadError> {
    let mut first = Bytes::new();
    let mut buffer = BytesMut::new();
    while let Some(frame) = frames.next().await {
        let frame = frame.map_err(|_| BodyReadError::Broken)?;
        let bytes = first.len() + buffer.len() + frame.len();
        if bytes > max_bytes {
            return Err(BodyReadError::Refused(too_large(max_bytes)));
        }
        if let Some(permit) = permit {
            // Grown before the frame is stored: a full budget stops the read.
            permit.grow_to(bytes).map_err(BodyReadError::Refused)?;
        }
        // Avoid a copy when the body arrives in one piece.
        if bytes == frame.len() {
            first = frame;
            continue;
        }
        // Incremental growth would leave several times the size to the allocator.
        if bytes > LARGE_BYTES && buffer.capacity() < max_bytes {
            buffer.reserve(max_bytes.saturating_sub(buffer.len()));
        }
        buffer.extend_from_slice(&std::mem::take(&mut first));
        buffer.extend_from_slice(&frame);
    }
    Ok(if first.is_empty() {
        buffer.freeze()
    } else {
        first
    })
}

/// Parses a document that must be an object.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    parse_part(bytes).map_err(|fault| ApiError::faults(&[fault]))
}

/// Parses a part that must be an object. Pointers of faults are relative to the part.
pub fn parse_part<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    check_object(bytes)?;
    // Tracking the path is slower, so parse again for it only after a failure.
    match serde_json::from_slice(bytes) {
        Ok(value) => Ok(value),
        Err(_) => match absent_nulls::parse(bytes) {
            Some(parsed) => parsed.map_err(|error| data_fault(&error)),
            None => parse_with_pointers(bytes),
        },
    }
}

/// Like `parse`, for a type with raw JSON. Its nulls stay.
pub fn parse_raw<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let parsed = check_object(bytes).and_then(|()| parse_with_pointers(bytes));
    parsed.map_err(|fault| ApiError::faults(&[fault]))
}

fn check_object(bytes: &[u8]) -> Result<(), Fault> {
    // serde would fill a struct from an array by position.
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'{') {
        return Err(Fault::new("", "must be a JSON object"));
    }
    check_json_text(bytes).map_err(|fault| Fault::new("", fault.to_string()))
}

fn parse_with_pointers<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        if !error.inner().is_data() {
            return syntax_fault(error.inner());
        }
        data_fault(&error)
    })?;
    deserializer.end().map_err(|error| syntax_fault(&error))?;
    Ok(value)
}

fn data_fault(error: &serde_path_to_error::Error<serde_json::Error>) -> Fault {
    let message = plain_message(error.inner());
    Fault::new(pointer(error.path(), &message), message)
}

/// A fault of the text itself, with its line and column. Malformed text has no pointer.
pub fn syntax_fault(error: &serde_json::Error) -> Fault {
    Fault::new("", format!("is not JSON: {error}"))
}

/// The message without line and column, which the pointer replaces, and without Rust type names.
fn plain_message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let message = text.rsplit_once(" at line ");
    let message = message.map_or(text.as_str(), |(message, _)| message);
    let Some((found, expected)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let plain = match expected {
        "i8" | "i16" | "i32" | "i64" | "isize" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer, not below 0",
        "f32" | "f64" => "a number",
        named if named.starts_with("struct ") => "an object",
        named => named,
    };
    format!("{found}, expected {plain}")
}

/// The pointer of a fault. For a missing or unknown field it is the pointer of the parent object.
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
    async fn faults_have_json_pointers() {
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

    #[test]
    fn skips_byte_order_mark_and_rejects_other_encodings() {
        let read = |bytes: &[u8]| {
            let held = BufferedBody {
                bytes: Bytes::copy_from_slice(bytes),
                _permit: None,
            };
            in_utf8(held, Sender::Nobody)
                .map(|held| held.to_vec())
                .map_err(|error| error.message().to_owned())
        };
        assert_eq!(read(b"\xEF\xBB\xBF{}").unwrap(), b"{}");
        assert_eq!(read(b"{}").unwrap(), b"{}");
        assert_eq!(read(b"").unwrap(), b"");
        for wide in [
            &b"\xFF\xFE{\0}\0"[..],
            b"\xFE\xFF\0{\0}",
            b"{\0}\0",
            b"\0{\0}",
            b"\0\0\0{",
        ] {
            let refused = read(wide).unwrap_err();
            assert!(refused.contains("UTF-16"), "{refused}");
        }
    }

    #[test]
    fn syntax_faults_name_line_and_column() {
        for (body, expected) in [
            (
                "{\n \"event_type\": \"a\",}",
                "is not JSON: trailing comma at line 2 column 20",
            ),
            (
                r#"{"event_type":"a"} {}"#,
                "is not JSON: trailing characters at line 1 column 20",
            ),
            (
                r#"{"event_type":"#,
                "is not JSON: EOF while parsing a value at line 1 column 14",
            ),
        ] {
            let fault = parse_part::<EventEnvelope>(body.as_bytes()).unwrap_err();
            assert_eq!(
                (fault.pointer.as_str(), fault.message.as_str()),
                ("", expected)
            );
        }
    }

    #[test]
    fn fault_messages_use_json_terms() {
        let fault = |body: &str| parse_part::<EventEnvelope>(body.as_bytes()).unwrap_err();
        let fault = |body: &str| fault(body).message;
        assert_eq!(
            fault(r#"{"event_type":"a","input":"text"}"#),
            "invalid type: string \"text\", expected an object"
        );
        assert_eq!(
            fault(r#"{"event_type":"a","event_time":"now"}"#),
            "invalid type: string \"now\", expected an integer"
        );
        assert_eq!(
            fault(r#"{"event_type":1}"#),
            "invalid type: integer `1`, expected a string"
        );
    }
}
