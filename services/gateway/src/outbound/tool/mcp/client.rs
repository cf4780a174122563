//! The SDK's HTTP transport over the one guarded client: every request is judged like any other, every
//! answer is bounded.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::foreign_text::shown;
use domain::json_text::check_json_text;
use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use reqwest::{RequestBuilder, Response};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};
use tokio::time::{Instant, sleep_until, timeout};
use url::Url;

use super::super::ANSWER_BYTES;
use super::sound::{Unsound, look_at};
use crate::outbound::egress::{Egress, EgressError};
use crate::outbound::runner::read_at_most;

type McpError = StreamableHttpError<EgressError>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";
/// Of a refusal, so much is read.
const REFUSAL_BYTES: usize = 64 * 1024;
/// A stream that is asked for ends no sooner: whoever ends it is asked again at this pace.
const STREAM_REST: Duration = Duration::from_secs(1);
/// All that one answer may hold, its events together.
const STREAM_BYTES: usize = 4 * ANSWER_BYTES;

/// The guarded client with the static headers of one server.
#[derive(Clone)]
pub(super) struct GuardedClient {
    pub(super) egress: Egress,
    pub(super) headers: HeaderMap,
    /// How long a server may take to answer one request, its stream included.
    pub(super) patience: Duration,
}

impl GuardedClient {
    fn request(
        &self,
        method: Method,
        uri: &str,
        session: Option<&str>,
        more: HashMap<HeaderName, HeaderValue>,
    ) -> Result<RequestBuilder, McpError> {
        let url = Url::parse(uri).map_err(|_| unexpected("its URL"))?;
        let request = self.egress.request(method, &url);
        let mut request = request
            .map_err(StreamableHttpError::Client)?
            .headers(self.headers.clone())
            .header(ACCEPT_ENCODING, "identity");
        for (name, value) in more {
            request = request.header(name, value);
        }
        if let Some(session) = session {
            request = request.header(SESSION, session);
        }
        Ok(request)
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, McpError> {
        let sent = timeout(self.patience, self.egress.send(request)).await;
        let response = sent
            .unwrap_or(Err(EgressError::Timeout))
            .map_err(StreamableHttpError::Client)?;
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS => {
                Err(refused(&response))
            }
            status if status.is_server_error() => Err(refused(&response)),
            _ => Ok(response),
        }
    }
}

impl StreamableHttpClient for GuardedClient {
    type Error = EgressError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, McpError> {
        let request = self.request(Method::POST, &uri, session_id.as_deref(), custom_headers)?;
        let request = request.header(ACCEPT, format!("{EVENT_STREAM}, {JSON}"));
        let response = self.send(request.json(&message)).await?;
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if status == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        let session = response.headers().get(SESSION);
        let session = session.and_then(|value| value.to_str().ok());
        let session = session.map(str::to_owned);
        let kind = content_type(&response);
        if status.is_success() && kind.starts_with(EVENT_STREAM) {
            let events = events(response).take_until(tokio::time::sleep(self.patience));
            return Ok(StreamableHttpPostResponse::Sse(events.boxed(), session));
        }
        let most = if status.is_success() {
            ANSWER_BYTES
        } else {
            REFUSAL_BYTES
        };
        let body = timeout(self.patience, read_at_most(response, most + 1)).await;
        let body = body
            .unwrap_or(Err(EgressError::Timeout))
            .map_err(StreamableHttpError::Client)?;
        if body.len() > most {
            return Err(StreamableHttpError::ResponseBodyTooLarge { max_size: most });
        }
        read_json(&message, status, &kind, &body).map(|answer| match answer {
            Some(answer) => StreamableHttpPostResponse::Json(answer, session),
            None => StreamableHttpPostResponse::Accepted,
        })
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), McpError> {
        let request = self.request(Method::DELETE, &uri, Some(&session_id), custom_headers)?;
        // A server that keeps its sessions loses nothing of ours.
        self.send(request).await.map(|_| ())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, McpError> {
        let rest = Instant::now() + STREAM_REST;
        let request = self.request(Method::GET, &uri, session_id.as_deref(), custom_headers)?;
        let mut request = request.header(ACCEPT, EVENT_STREAM);
        if let Some(last) = last_event_id {
            request = request.header(LAST_EVENT, last);
        }
        let response = self.send(request).await?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        }
        if response.status() == StatusCode::NOT_FOUND && session_id.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        if !response.status().is_success() {
            return Err(unexpected(format!("HTTP {}", response.status())));
        }
        let kind = content_type(&response);
        if !kind.starts_with(EVENT_STREAM) {
            return Err(StreamableHttpError::UnexpectedContentType(Some(shown(
                &kind,
            ))));
        }
        Ok(ending_after(rest, events(response)).boxed())
    }
}

/// The message in a body; none where none is needed.
fn read_json(
    asked: &ClientJsonRpcMessage,
    status: StatusCode,
    kind: &str,
    body: &[u8],
) -> Result<Option<ServerJsonRpcMessage>, McpError> {
    let wants_answer = matches!(asked, ClientJsonRpcMessage::Request(_));
    let is_json = kind.starts_with(JSON);
    let fault = check_json_text(body).err().filter(|_| is_json);
    if let Some(fault) = fault.filter(|_| status.is_success()) {
        return Err(unexpected(format!("it {fault}")));
    }
    let is_json = is_json && fault.is_none();
    let read = is_json.then(|| serde_json::from_slice(body));
    match read {
        Some(Ok(answer)) if status.is_success() => Ok(Some(answer)),
        Some(Ok(error @ JsonRpcMessage::Error(_))) => Ok(Some(error)),
        _ if status.is_success() && !wants_answer => Ok(None),
        Some(Err(error)) if status.is_success() => Err(error.into()),
        None if status.is_success() => Err(StreamableHttpError::UnexpectedContentType(Some(
            shown(kind),
        ))),
        // What it says beside the status may be anything, also what it was sent.
        _ => Err(unexpected(format!("HTTP {status}"))),
    }
}

fn unexpected(what: impl Into<Cow<'static, str>>) -> McpError {
    StreamableHttpError::UnexpectedServerResponse(what.into())
}

fn refused(response: &Response) -> McpError {
    let wait = response.headers().get(RETRY_AFTER);
    let wait = wait
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    HttpStatusError::new(response.status().as_u16(), wait).into()
}

fn content_type(response: &Response) -> String {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|value| value.to_str().ok());
    kind.unwrap_or_default().trim().to_ascii_lowercase()
}

/// Why a stream of events is not read on.
#[derive(Debug, thiserror::Error)]
enum StreamFault {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("an event or the whole stream is too large")]
    TooLarge,
}

/// The events of a response. A stream that goes on without an empty line, and one that holds too much,
/// end with an error.
fn events(response: Response) -> impl Stream<Item = Result<Sse, SseError>> + Send {
    let (mut open, mut whole) = (0_usize, 0_usize);
    let mut last = b'\n';
    let bounded = response
        .bytes_stream()
        .map_err(|error| StreamFault::from(EgressError::from(error)))
        .and_then(move |chunk| {
            whole = whole.saturating_add(chunk.len());
            for &byte in &chunk {
                let ends = byte == b'\n' && last == b'\n';
                open = if ends { 0 } else { open + 1 };
                if byte != b'\r' {
                    last = byte;
                }
            }
            std::future::ready(if open > 2 * ANSWER_BYTES || whole > STREAM_BYTES {
                Err(StreamFault::TooLarge)
            } else {
                Ok(chunk)
            })
        });
    SseStream::from_bytes_stream(bounded).map_ok(sound)
}

/// An event whose message may be read.
fn sound(mut event: Sse) -> Sse {
    let message = event.data.as_deref().unwrap_or_default();
    if let Err(Unsound { instead }) = look_at(message.as_bytes()) {
        event.data = instead;
    }
    event
}

/// The same events; the end, good or bad, is told no sooner than then.
fn ending_after<E: Send>(
    rest: Instant,
    events: impl Stream<Item = Result<Sse, E>> + Send,
) -> impl Stream<Item = Result<Sse, E>> + Send {
    let end = stream::once(sleep_until(rest)).filter_map(|()| std::future::ready(None));
    let events = events.then(move |event| async move {
        if event.is_err() {
            sleep_until(rest).await;
        }
        event
    });
    events.chain(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_that_ends_at_once_is_not_asked_for_at_once() {
        let event = || Ok::<_, &str>(Sse::default());
        for said in [vec![], vec![event()], vec![event(), Err("broken")]] {
            let begun = Instant::now();
            let rest = begun + Duration::from_millis(50);
            let count = said.len();
            let told: Vec<_> = ending_after(rest, stream::iter(said)).collect().await;
            assert_eq!(told.len(), count);
            assert!(Instant::now() >= rest);
        }
        let begun = Instant::now();
        let mut events =
            ending_after(begun + Duration::from_hours(1), stream::iter([event()])).boxed();
        assert!(events.next().await.unwrap().is_ok());
        assert!(
            begun.elapsed() < Duration::from_hours(1),
            "an event waits for nothing"
        );
    }
}
