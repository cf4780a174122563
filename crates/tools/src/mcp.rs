//! MCP client: connects to servers, lists their tools and calls them.

mod child;
mod client;
mod content_blocks;
mod events;
mod listed_tool;
mod listener;
mod listing;
mod message_limits;
mod offered_name;
mod outcome;
mod request_limit;
mod sessions;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use protocol::JsonObject;
use protocol::peer_text::shown;
use protocol::tool::{McpServer, McpServerState};
use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, ErrorCode};
use rmcp::service::{Peer, RoleClient, ServiceExt};
use rmcp::transport::Transport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::call_slots::{CallSlots, CallSource};
use super::{ANSWER_BYTES, KnownTool, McpServerSpec, McpTransport, Tools};
use base::clock::Clock;
use client::GuardedClient;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use listener::NotificationHandler;
use request_limit::{BoundedTransport, TOO_MANY_REQUESTS};
use sessions::{SESSION_LOST, Sessions};

/// Timeout of the handshake, and of a tool list.
const START: Duration = Duration::from_secs(30);
const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Interval at which the list is refreshed without a change notification.
const LIST_AGAIN: Duration = Duration::from_mins(2);
/// Minimum pause between two lists.
const LIST_PAUSE: Duration = Duration::from_millis(500);
/// Maximum of concurrent calls of one server. One endpoint and one tool get at most three quarters each.
const CALLS: usize = 32;
/// Attempts for a list that times out while calls are in progress.
const SLOW_LISTS: u32 = 3;
/// Maximum number of reported tools that are unusable.
const MAX_REPORTED_OMISSIONS: usize = 50;

pub(super) struct ManagedServer {
    spec: McpServerSpec,
    clock: Clock,
    status: Mutex<ServerStatus>,
    listed: Mutex<Vec<Arc<KnownTool>>>,
    peer: ArcSwapOption<Peer<RoleClient>>,
    /// A call failed on the connection: check whether the server still lists its tools.
    broken: Notify,
    call_slots: CallSlots,
    /// Number of stdout lines that are not messages.
    noise: Arc<AtomicU64>,
}

struct ServerStatus {
    state: McpServerState,
    since: i64,
    last_error: Option<String>,
    served: Vec<String>,
    /// Names that another source owns.
    taken: Vec<String>,
    unusable: Vec<String>,
    /// Accepted deviations of the list.
    notes: Vec<String>,
}

impl ManagedServer {
    pub(super) fn new(spec: McpServerSpec, clock: Clock) -> Self {
        Self {
            spec,
            clock,
            status: Mutex::new(ServerStatus {
                state: McpServerState::Connecting,
                since: clock.now_seconds(),
                last_error: None,
                served: Vec::new(),
                taken: Vec::new(),
                unusable: Vec::new(),
                notes: Vec::new(),
            }),
            listed: Mutex::default(),
            peer: ArcSwapOption::empty(),
            broken: Notify::new(),
            call_slots: CallSlots::new(CALLS),
            noise: Arc::default(),
        }
    }

    /// Number of calls in progress.
    fn calling(&self) -> usize {
        self.call_slots.used()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.spec.timeout
    }

    /// Whether the first connection is still pending.
    pub(super) fn is_starting(&self) -> bool {
        self.status().state == McpServerState::Connecting
    }

    /// Tools of the last list.
    pub(super) fn listed(&self) -> Vec<Arc<KnownTool>> {
        let listed = self.listed.lock();
        listed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records published tools and names that another source owns.
    pub(super) fn note_published(&self, served: Vec<String>, taken: Vec<String>) {
        let mut status = self.status();
        for name in taken.iter().filter(|name| !status.taken.contains(name)) {
            tracing::warn!(
                mcp.server = self.spec.name,
                "tool {name} is omitted: another source has this name; set `prefix`"
            );
        }
        (status.served, status.taken) = (served, taken);
    }

    pub(super) fn view(&self) -> McpServer {
        let status = self.status();
        let taken = status.taken.iter();
        let taken = taken.map(|name| format!("{name}: another source has this name; set `prefix`"));
        let noise = Some(self.noise.load(Ordering::Relaxed)).filter(|lines| *lines > 0);
        let noise = noise.map(|lines| {
            format!(
                "{lines} lines on standard output were no messages: let it log to standard error"
            )
        });
        McpServer {
            name: self.spec.name.clone(),
            transport: self.spec.transport.name().to_owned(),
            state: status.state,
            since: status.since,
            tools: status.served.clone(),
            left_out: taken
                .chain(status.unusable.iter().cloned())
                .take(MAX_REPORTED_OMISSIONS)
                .collect(),
            notes: noise
                .into_iter()
                .chain(status.notes.iter().cloned())
                .collect(),
            last_error: status.last_error.clone(),
        }
    }

    /// Logs a line of standard error. While the server is away, each attempt repeats its lines.
    fn log_stderr(&self, line: &str) {
        let name = &self.spec.name;
        if self.status().state == McpServerState::Away {
            tracing::debug!(mcp.server = name, "MCP server stderr: {line}");
        } else {
            tracing::info!(mcp.server = name, "MCP server stderr: {line}");
        }
    }

    fn status(&self) -> std::sync::MutexGuard<'_, ServerStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, state: McpServerState, error: Option<String>) {
        let mut status = self.status();
        if status.state != state {
            status.state = state;
            status.since = self.clock.now_seconds();
        }
        status.last_error = error;
    }

    /// Calls a tool by its upstream name.
    pub(super) async fn call(
        &self,
        redactor: &Redactor,
        (name, caller): (&str, CallSource),
        parameters: JsonObject,
    ) -> Result<Value, UpstreamError> {
        let Some(peer) = self.peer.load_full() else {
            let why = self.status().last_error.clone();
            let why = why.unwrap_or_else(|| "it is being connected to".to_owned());
            return Err(UpstreamError::Away(why));
        };
        let request = CallToolRequestParams::new(name.to_owned()).with_arguments(parameters);
        let calling = async {
            let mut called = peer.call_tool_once(request.clone()).await;
            // The server refused the session within a stream and did not execute the call. The client opens a
            // new session.
            if matches!(&called, Err(ServiceError::McpError(error)) if error.code == ErrorCode(SESSION_LOST))
            {
                called = peer.call_tool_once(request).await;
            }
            match called {
                Ok(CallToolResponse::Complete(result)) => outcome::result(&result),
                Ok(_) => Err(UpstreamError::Unsupported(
                    "the tool asks the user something, or goes on in the background; the gateway \
                     supports neither"
                        .to_owned(),
                )),
                Err(error) => Err(self.failure(redactor, error)),
            }
        };
        let call_slots = &self.call_slots;
        call_slots
            .run(caller, self.spec.timeout, Box::pin(calling))
            .await
    }

    fn failure(&self, redactor: &Redactor, error: ServiceError) -> UpstreamError {
        let failure = outcome::failure(redactor, error);
        let is_broken = matches!(
            failure,
            UpstreamError::Unreachable(_)
                | UpstreamError::Broken(_)
                | UpstreamError::Lost(_)
                | UpstreamError::Away(_)
        );
        if is_broken {
            self.broken.notify_one();
        }
        failure
    }
}

/// Maintains the connection to a server. Never returns.
pub(super) async fn keep(server: &Arc<ManagedServer>, tools: &Tools) {
    let mut wait = FIRST_WAIT;
    loop {
        let begun = Instant::now();
        let error = connect(server, tools).await;
        server.peer.store(None);
        let error = shown(&tools.0.redactor.redact(&error));
        if server.status().last_error.as_ref() != Some(&error) {
            tracing::warn!(
                mcp.server = server.spec.name,
                "an MCP server is not available; reconnecting: {error}"
            );
        }
        server.enter(McpServerState::Away, Some(error));
        if begun.elapsed() > MAX_WAIT {
            wait = FIRST_WAIT;
        }
        sleep(wait).await;
        wait = (wait * 2).min(MAX_WAIT);
    }
}

/// Runs one connection. Returns the reason of its end.
async fn connect(server: &Arc<ManagedServer>, tools: &Tools) -> String {
    match &server.spec.transport {
        McpTransport::Http { url, headers } => {
            let client = GuardedClient {
                server: server.spec.name.as_str().into(),
                sessions: Sessions::default(),
                egress: tools.0.egress.clone(),
                headers: headers.clone(),
                patience: server.spec.timeout.max(START),
            };
            let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
            config.max_sse_event_size = ANSWER_BYTES;
            // Two slots for list requests besides the calls.
            config.max_concurrent_requests = CALLS + 2;
            let mut again = ExponentialBackoff::default();
            again.max_delay = Some(MAX_WAIT);
            config.retry_config = Arc::new(again);
            run_connection(
                server,
                tools,
                StreamableHttpClientTransport::with_client(client, config),
            )
            .await
        }
        McpTransport::Child { .. } => {
            let mut child = match child::Child::spawn(&server.spec) {
                Ok(child) => child,
                Err(error) => return format!("it cannot be started: {error}"),
            };
            server.noise.store(0, Ordering::Relaxed);
            let log = |line: &str| server.log_stderr(&tools.0.redactor.redact(line));
            let Some(transport) = child.transport(&server.spec.name, &server.noise) else {
                return "it has no standard input or output".to_owned();
            };
            let why = tokio::select! {
                error = run_connection(server, tools, transport) => error,
                error = child.run(log) => error,
            };
            child.with_last_words(why, log).await
        }
    }
}

async fn run_connection<T>(server: &Arc<ManagedServer>, tools: &Tools, transport: T) -> String
where
    T: Transport<RoleClient> + 'static,
{
    let overrun = CancellationToken::new();
    let transport = BoundedTransport::new(transport, overrun.clone());
    let changed = Arc::new(Notify::new());
    let listener = NotificationHandler::new(Arc::clone(&changed));
    let service = match timeout(START, listener.serve(transport)).await {
        Ok(Ok(service)) => service,
        _ if overrun.is_cancelled() => return TOO_MANY_REQUESTS.to_owned(),
        Ok(Err(error)) => return outcome::no_start(&tools.0.redactor, error),
        Err(_) => return "it did not answer in time".to_owned(),
    };
    let peer = Arc::new(service.peer().clone());
    // Dropping the service closes the connection.
    let closed = async {
        tokio::select! {
            biased;
            () = overrun.cancelled() => TOO_MANY_REQUESTS.to_owned(),
            _ = service.waiting() => "it closed the connection".to_owned(),
        }
    };
    tokio::pin!(closed);
    let mut slow = 0;
    loop {
        let listed = tokio::select! {
            listed = timeout(START, listing::list(server, &peer, &tools.0.redactor)) => listed,
            why = &mut closed => return why,
        };
        match listed {
            Ok(Ok(list)) => {
                publish(server, tools, &peer, list);
                slow = 0;
            }
            Ok(Err(error)) => return outcome::failure(&tools.0.redactor, error).to_string(),
            Err(_) if is_only_busy(slow, server.calling()) => slow += 1,
            Err(_) => return "it did not list its tools in time".to_owned(),
        }
        let again = async {
            sleep(LIST_PAUSE).await;
            tokio::select! {
                () = changed.notified() => {}
                // The failure may be limited to one call, so other calls continue while the server still lists
                // its tools.
                () = server.broken.notified() => {}
            }
        };
        tokio::select! {
            () = again => {}
            () = sleep(if slow == 0 { LIST_AGAIN } else { START }) => {}
            why = &mut closed => return why,
        }
    }
}

/// Whether a list timed out because of calls in progress. Closing the connection would abort these calls.
fn is_only_busy(slow: u32, calling: usize) -> bool {
    calling > 0 && slow < SLOW_LISTS
}

fn publish(
    server: &Arc<ManagedServer>,
    tools: &Tools,
    peer: &Arc<Peer<RoleClient>>,
    list: listing::ListedTools,
) {
    let mut list = list.finish(&server.spec);
    for reason in list.unusable.iter_mut().chain(&mut list.notes) {
        *reason = shown(reason);
    }
    list.log_new_problems(server);
    let count = list.known.len();
    *server.listed.lock().unwrap_or_else(PoisonError::into_inner) = list.known;
    let mut status = server.status();
    (status.unusable, status.notes) = (list.unusable, list.notes);
    drop(status);
    tools.publish();
    server.peer.store(Some(Arc::clone(peer)));
    if server.status().state != McpServerState::Ready {
        tracing::info!(
            mcp.server = server.spec.name,
            "an MCP server is ready with {count} tools"
        );
    }
    server.enter(McpServerState::Ready, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_lists_keep_calls_for_limited_attempts() {
        for (slow, calling, is_waited_for) in [
            (0, 0, false),
            (0, 1, true),
            (SLOW_LISTS - 1, CALLS, true),
            (SLOW_LISTS, CALLS, false),
            (1, 0, false),
        ] {
            assert_eq!(
                is_only_busy(slow, calling),
                is_waited_for,
                "{slow} {calling}"
            );
        }
    }
}
