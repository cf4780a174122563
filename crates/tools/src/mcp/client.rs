//! The SDK's HTTP transport over the guarded client. Requests follow the egress rules, responses are bounded.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::json_text::check_json_text;
use egress::{RequestBuilder, Response};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use protocol::peer_text::shown;
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError,
    StreamableHttpPostResponse,
};
use sse_stream::Sse;
use tokio::time::{Instant, timeout};
use url::Url;

use super::super::result_size::ANSWER_BYTES;
use super::content_blocks::readable;
use super::events::{ending_after, events};
use super::message_limits::repaired;
use super::sessions::{PingResult, SessionDoubt, Sessions, addressed, session_doubt};
use egress::read_up_to;
use egress::{Egress, EgressError};
use telemetry::tolerance::{Peer, tolerated};

type McpError = StreamableHttpError<EgressError>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";
/// Maximum number of bytes read of an error response.
const REFUSAL_BYTES: usize = 64 * 1024;
/// Minimum time until a GET stream is reported as ended. It limits the rate of reconnects.
const STREAM_REST: Duration = Duration::from_secs(1);
/// Timeout of a ping that checks a session.
const PING_TIME: Duration = Duration::from_secs(5);

/// The guarded client with the static headers of one server.
#[derive(Clone)]
pub(super) struct GuardedClient {
    /// Name of the server in the configuration.
    pub(super) server: Arc<str>,
    pub(super) sessions: Sessions,
    pub(super) egress: Egress,
    pub(super) headers: HeaderMap,
    /// Timeout of one request, including its stream.
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

    /// Sends one message and classifies the response.
    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: &HashMap<HeaderName, HeaderValue>,
    ) -> PostResult {
        let request = match self.request(Method::POST, uri, session, headers.clone()) {
            Ok(request) => request,
            Err(error) => return PostResult::failed(error),
        };
        let request = request.header(ACCEPT, format!("{EVENT_STREAM}, {JSON}"));
        let response = match self.send(request.json(message)).await {
            Ok(response) => response,
            Err(error) => return PostResult::failed(error),
        };
        let status = response.status();
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return PostResult::answered(StreamableHttpPostResponse::Accepted);
        }
        let opened = response.headers().get(SESSION);
        let opened = opened.and_then(|value| value.to_str().ok());
        let opened = opened.map(str::to_owned);
        let kind = content_type(&response);
        if status.is_success() && kind.starts_with(EVENT_STREAM) {
            let events = events(response, &self.server);
            // The deadline covers the stream as well; a server may keep it open.
            let events = events.take_until(tokio::time::sleep(self.patience));
            return PostResult::answered(StreamableHttpPostResponse::Sse(events.boxed(), opened));
        }
        let limit = if status.is_success() {
            ANSWER_BYTES
        } else {
            REFUSAL_BYTES
        };
        // One byte more than allowed was requested, to notice the excess.
        let body = timeout(self.patience, read_up_to(response, limit + 1)).await;
        let body = match body.unwrap_or(Err(EgressError::Timeout)) {
            Ok(body) if body.len() > limit => {
                return PostResult::failed(StreamableHttpError::ResponseBodyTooLarge {
                    max_size: limit,
                });
            }
            Ok(body) => body,
            Err(error) => return PostResult::failed(StreamableHttpError::Client(error)),
        };
        let body = repaired(&body, &self.server);
        let read = read_json(message, &self.server, status, &kind, &body);
        PostResult {
            doubt: session_doubt(status, read.as_ref().ok().and_then(Option::as_ref), &body),
            answer: read.map(|answer| match answer {
                Some(answer) => StreamableHttpPostResponse::Json(answer, opened),
                None => StreamableHttpPostResponse::Accepted,
            }),
        }
    }

    /// Checks with a ping whether the server knows a session.
    async fn ping(
        &self,
        uri: &str,
        session: &str,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> PingResult {
        let asking = async {
            let request = self
                .request(Method::POST, uri, Some(session), headers)
                .ok()?;
            let request = request.header(ACCEPT, format!("{EVENT_STREAM}, {JSON}"));
            let request = request.json(&PingResult::request());
            let response = self.egress.send(request).await.ok()?;
            let status = response.status();
            if !content_type(&response).starts_with(EVENT_STREAM) {
                let body = read_up_to(response, REFUSAL_BYTES).await.ok()?;
                return Some(PingResult::read(status, &body));
            }
            let mut events = events(response, &self.server).boxed();
            while let Some(Ok(event)) = events.next().await {
                let reply = event.data.unwrap_or_default();
                match PingResult::read(status, reply.as_bytes()) {
                    PingResult::NoAnswer => {}
                    clear => return Some(clear),
                }
            }
            Some(PingResult::NoAnswer)
        };
        let reply = timeout(PING_TIME.min(self.patience), asking).await;
        reply.ok().flatten().unwrap_or(PingResult::Unreached)
    }

    /// An event of the response to this request. An error without an id belongs to the request.
    fn addressed_to(&self, mut event: Sse, request_id: &RequestId, session: Option<&str>) -> Sse {
        let data = event.data.as_deref().unwrap_or_default();
        let Some(error) = addressed(data, request_id) else {
            if let Some(session) = session.filter(|_| data.contains("\"result\"")) {
                self.sessions.note_worked(session);
            }
            return event;
        };
        tolerated(Peer::ToolServer, "error_without_id", &self.server);
        let lost = session.filter(|_| error.speaks_of_session);
        event.data = Some(lost.map_or_else(|| error.message(), |_| error.lost_session()));
        if let Some(session) = lost {
            self.sessions.lose(session);
        }
        event
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, McpError> {
        let sent = timeout(self.patience, self.egress.send(request)).await;
        let response = sent
            .unwrap_or(Err(EgressError::Timeout))
            .map_err(StreamableHttpError::Client)?;
        // Status and `Retry-After` are the complete cause; the body is not read.
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
        let session = session_id.as_deref();
        let request_id = request_id(&message);
        // A notification refused by a lost session needs no answer.
        let worked_session =
            session.filter(|session| request_id.is_some() && self.sessions.has_worked(session));
        if worked_session.is_some_and(|session| self.sessions.is_lost(session)) {
            return Err(StreamableHttpError::SessionExpired);
        }
        let posted = self.post(&uri, &message, session, &custom_headers).await;
        let Some(request_id) = request_id else {
            return posted.answer;
        };
        if let Some(worked_session) = worked_session {
            let is_lost = match posted.doubt {
                SessionDoubt::None => false,
                SessionDoubt::Lost => true,
                SessionDoubt::UnlessAlive => {
                    self.ping(&uri, worked_session, custom_headers).await != PingResult::Answered
                }
                SessionDoubt::IfRefused => {
                    let ping = self.ping(&uri, worked_session, custom_headers).await;
                    matches!(ping, PingResult::Refused | PingResult::NoAnswer)
                }
            };
            if is_lost {
                tolerated(Peer::ToolServer, "lost_session", &self.server);
                return Err(StreamableHttpError::SessionExpired);
            }
        } else if posted.doubt == SessionDoubt::Lost && session.is_some() {
            return Err(StreamableHttpError::SessionExpired);
        }
        match posted.answer? {
            StreamableHttpPostResponse::Sse(events, opened) => {
                let client = self.clone();
                let owned = session.map(str::to_owned);
                let events = events
                    .map_ok(move |event| client.addressed_to(event, &request_id, owned.as_deref()));
                Ok(StreamableHttpPostResponse::Sse(events.boxed(), opened))
            }
            StreamableHttpPostResponse::Json(mut answer, opened) => {
                if let JsonRpcMessage::Error(error) = &mut answer
                    && error.id.is_none()
                {
                    tolerated(Peer::ToolServer, "error_without_id", &self.server);
                    error.id = Some(request_id);
                } else if let (JsonRpcMessage::Response(_), Some(session)) = (&answer, session) {
                    self.sessions.note_worked(session);
                }
                Ok(StreamableHttpPostResponse::Json(answer, opened))
            }
            accepted => Ok(accepted),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), McpError> {
        let request = self.request(Method::DELETE, &uri, Some(&session_id), custom_headers)?;
        // A session that cannot be deleted does no harm.
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
        Ok(ending_after(rest, events(response, &self.server)).boxed())
    }
}

/// The response to one POST.
struct PostResult {
    answer: Result<StreamableHttpPostResponse, McpError>,
    /// Indication of a lost session.
    doubt: SessionDoubt,
}

impl PostResult {
    fn answered(answer: StreamableHttpPostResponse) -> Self {
        Self {
            answer: Ok(answer),
            doubt: SessionDoubt::None,
        }
    }

    fn failed(error: McpError) -> Self {
        let is_failing =
            matches!(&error, StreamableHttpError::HttpStatus(error) if error.status >= 500);
        Self {
            answer: Err(error),
            doubt: if is_failing {
                SessionDoubt::IfRefused
            } else {
                SessionDoubt::None
            },
        }
    }
}

fn request_id(message: &ClientJsonRpcMessage) -> Option<RequestId> {
    match message {
        ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
        _ => None,
    }
}

/// Parses the message in a body. `None` if the message needs no response.
fn read_json(
    request: &ClientJsonRpcMessage,
    server: &str,
    status: StatusCode,
    kind: &str,
    body: &[u8],
) -> Result<Option<ServerJsonRpcMessage>, McpError> {
    let wants_answer = matches!(request, ClientJsonRpcMessage::Request(_));
    let is_json = kind.starts_with(JSON);
    let fault = check_json_text(body).err().filter(|_| is_json);
    if let Some(fault) = fault.filter(|_| status.is_success()) {
        return Err(unexpected(format!("it {fault}")));
    }
    let is_json = is_json && fault.is_none();
    let read = is_json.then(|| serde_json::from_slice(&readable(body, server)));
    match read {
        Some(Ok(answer)) if status.is_success() => Ok(Some(answer)),
        Some(Ok(error @ JsonRpcMessage::Error(_))) => Ok(Some(error)),
        _ if status.is_success() && !wants_answer => Ok(None),
        Some(Err(error)) if status.is_success() => Err(error.into()),
        None if status.is_success() => Err(StreamableHttpError::UnexpectedContentType(Some(
            shown(kind),
        ))),
        // The body is not shown, since it may hold our credentials.
        _ if status.is_client_error() => Err(HttpStatusError::new(status.as_u16(), None).into()),
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
