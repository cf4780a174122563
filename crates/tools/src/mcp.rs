//! MCP client: connects to servers, lists their tools and calls them.

mod as_actor;
mod child;
mod client;
pub(super) mod connection;
mod content_blocks;
mod events;
mod lifecycle;
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
use protocol::tool::{McpServer, McpServerState};
use rmcp::ServiceError;
use rmcp::model::{CallToolRequestParams, CallToolResponse, ErrorCode};
use rmcp::service::{Peer, RoleClient};
use serde_json::Value;
use tokio::sync::Notify;

use super::available_tool::AvailableTool;
use super::call_slots::{CallSlots, CallSource};
use super::on_behalf_of::{Bearer, OnBehalfOf};
use super::specs::McpServerSpec;
use clock::Clock;
use egress::Egress;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use lifecycle::McpLifecycle;
use sessions::SESSION_LOST;

/// Maximum of concurrent calls of one server. One endpoint and one tool get at most three quarters each.
const CALLS: usize = 32;
/// Maximum number of reported tools that are unusable.
const MAX_REPORTED_OMISSIONS: usize = 50;

/// Member of `_meta` that names the call, so that a server that receives it twice can act once.
const TICKET: &str = "runnel/ticket";

/// A call by the upstream name of its tool.
pub(super) struct McpToolCall<'a> {
    pub(super) name: &'a str,
    pub(super) parameters: JsonObject,
    pub(super) key: Option<&'a str>,
    /// Token of the actor.
    pub(super) bearer: Option<&'a Bearer>,
}

pub(super) struct ManagedServer {
    spec: McpServerSpec,
    clock: Clock,
    status: Mutex<ServerStatus>,
    listed: Mutex<Vec<Arc<AvailableTool>>>,
    lifecycle: McpLifecycle,
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
            lifecycle: McpLifecycle::default(),
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

    /// True until the first connection succeeds or fails.
    pub(super) fn is_starting(&self) -> bool {
        self.status().state == McpServerState::Connecting
    }

    /// Tools of the last list.
    pub(super) fn listed(&self) -> Vec<Arc<AvailableTool>> {
        let listed = self.listed.lock();
        listed.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records published tools and names that another source owns.
    pub(super) fn note_published(&self, served: Vec<String>, taken: Vec<String>) {
        let mut status = self.status();
        // The catalog is published often; only new conflicts are logged.
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
        // A server that is away is restarted every minute, and would fill the log with its banner.
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
        // `since` is the time of the transition, not of the last report.
        if status.state != state {
            status.state = state;
            status.since = self.clock.now_seconds();
        }
        status.last_error = error;
    }

    /// Set if each call has a token of its actor.
    pub(super) fn on_behalf_of(&self) -> Option<&OnBehalfOf> {
        self.spec.on_behalf_of.as_ref()
    }

    /// Calls a tool by its upstream name.
    pub(super) async fn call(
        &self,
        egress: &Egress,
        redactor: &Redactor,
        caller: CallSource,
        call: McpToolCall<'_>,
    ) -> Result<Value, UpstreamError> {
        let Some(peer) = self.peer.load_full() else {
            let why = self.status().last_error.clone();
            let why = why.unwrap_or_else(|| "it is being connected to".to_owned());
            return Err(UpstreamError::Away(why));
        };
        let McpToolCall {
            name,
            parameters,
            key,
            bearer,
        } = call;
        let mut request = CallToolRequestParams::new(name.to_owned()).with_arguments(parameters);
        if let Some(key) = key {
            let meta = request.meta.get_or_insert_default();
            meta.insert(TICKET.to_owned(), key.into());
        }
        let calling = async {
            if let Some(bearer) = bearer {
                return self.call_as(egress, redactor, bearer, request).await;
            }
            let mut called = peer.call_tool_once(request.clone()).await;
            // The server refused the session within a stream and did not execute the call. The client opens a
            // new session.
            if matches!(&called, Err(ServiceError::McpError(error)) if error.code == ErrorCode(SESSION_LOST))
            {
                called = peer.call_tool_once(request).await;
            }
            called.map_err(|error| self.failure(redactor, error))
        };
        let call_slots = &self.call_slots;
        let called = call_slots
            .run(caller, self.spec.timeout, Box::pin(calling))
            .await?;
        match called {
            CallToolResponse::Complete(result) => outcome::result(&result),
            _ => Err(UpstreamError::Unsupported(
                "the tool requires input from the user, or continues in the background; the gateway \
                 supports neither"
                    .to_owned(),
            )),
        }
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
            // Wakes the connection task, which lists the tools again and reconnects if that fails.
            self.broken.notify_one();
        }
        failure
    }
}
