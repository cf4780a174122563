//! Connects to a server, publishes its tools, and connects again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use egress::Egress;
use http::HeaderMap;
use protocol::peer_text::shown;
use protocol::tool::McpServerState;
use rmcp::service::{Peer, RoleClient};
use rmcp::transport::Transport;
use rmcp::transport::common::client_side_sse::ExponentialBackoff;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::super::result_size::ANSWER_BYTES;
use super::super::specs::McpServerSpec;
use super::super::{McpTransport, Tools};
use super::client::GuardedClient;
use super::lifecycle::START;
use super::listener::NotificationHandler;
use super::request_limit::{BoundedTransport, TOO_MANY_REQUESTS};
use super::sessions::Sessions;
use super::{CALLS, ManagedServer, child, listing, outcome};

const FIRST_WAIT: Duration = Duration::from_secs(1);
const MAX_WAIT: Duration = Duration::from_mins(1);
/// Interval at which the list is refreshed without a change notification.
const LIST_AGAIN: Duration = Duration::from_mins(2);
/// Minimum pause between two lists.
const LIST_PAUSE: Duration = Duration::from_millis(500);
/// Attempts for a list that times out while calls are in progress.
const SLOW_LISTS: u32 = 3;

/// Maintains the connection to a server. Never returns.
pub(in super::super) async fn keep(server: &Arc<ManagedServer>, tools: &Tools) {
    let mut wait = FIRST_WAIT;
    loop {
        let begun = Instant::now();
        let was_stateless = server.lifecycle.is_stateless();
        let error = connect(server, tools).await;
        server.peer.store(None);
        // The server refused the handshake; the next attempt omits it, without a wait.
        if !was_stateless && server.lifecycle.is_stateless() {
            continue;
        }
        let error = shown(&tools.0.redactor.redact(&error));
        // A server that stays away reports the same error every minute; it is logged once.
        if server.status().last_error.as_ref() != Some(&error) {
            tracing::warn!(
                mcp.server = server.spec.name,
                "an MCP server is not available; reconnecting: {error}"
            );
        }
        server.enter(McpServerState::Away, Some(error));
        // A connection that lasted was healthy, so its end does not continue the backoff.
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
            let transport = http_transport(&server.spec, &tools.0.egress, url, headers.clone());
            run_connection(server, tools, transport).await
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

/// The transport to a server at a URL.
pub(super) fn http_transport(
    spec: &McpServerSpec,
    egress: &Egress,
    url: &Url,
    headers: HeaderMap,
) -> StreamableHttpClientTransport<GuardedClient> {
    let client = GuardedClient {
        server: spec.name.as_str().into(),
        sessions: Sessions::default(),
        egress: egress.clone(),
        headers,
        patience: spec.timeout.max(START),
    };
    let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
    config.max_sse_event_size = ANSWER_BYTES;
    // Two slots for list requests besides the calls.
    config.max_concurrent_requests = CALLS + 2;
    let mut again = ExponentialBackoff::default();
    again.max_delay = Some(MAX_WAIT);
    config.retry_config = Arc::new(again);
    StreamableHttpClientTransport::with_client(client, config)
}

async fn run_connection<T>(server: &Arc<ManagedServer>, tools: &Tools, transport: T) -> String
where
    T: Transport<RoleClient> + 'static,
{
    let overrun = CancellationToken::new();
    let transport = BoundedTransport::new(transport, overrun.clone());
    let changed = Arc::new(Notify::new());
    let listener = NotificationHandler::new(Arc::clone(&changed));
    let redactor = &tools.0.redactor;
    let service = match server.lifecycle.open(listener, transport, redactor).await {
        Ok(service) => service,
        Err(_) if overrun.is_cancelled() => return TOO_MANY_REQUESTS.to_owned(),
        Err(error) => return error.to_string(),
    };
    let peer = Arc::new(service.peer().clone());
    // Dropping the service closes the connection.
    let closed = async {
        tokio::select! {
            // The limit also closes the connection; its reason is reported first.
            biased;
            () = overrun.cancelled() => TOO_MANY_REQUESTS.to_owned(),
            _ = service.waiting() => "it closed the connection".to_owned(),
        }
    };
    tokio::pin!(closed);
    let mut slow = 0;
    loop {
        let listed = tokio::select! {
            listed = timeout(START, listing::list(server, &peer, redactor)) => listed,
            why = &mut closed => return why,
        };
        match listed {
            Ok(Ok(list)) => {
                publish(server, tools, &peer, list);
                slow = 0;
            }
            Ok(Err(error)) => {
                // The next attempt begins with the handshake again.
                server.lifecycle.forget();
                return outcome::failure(redactor, error).to_string();
            }
            Err(_) if is_only_busy(slow, server.calling()) => slow += 1,
            Err(_) => return "it did not list its tools in time".to_owned(),
        }
        let again = async {
            // A server that notifies in a loop triggers two lists a second at most.
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

/// True if a list timed out because of calls in progress. Closing the connection would abort these calls.
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
    let count = list.tools.len();
    *server.listed.lock().unwrap_or_else(PoisonError::into_inner) = list.tools;
    let mut status = server.status();
    (status.unusable, status.notes) = (list.unusable, list.notes);
    // Before the new tools appear in the catalog, `status` must be free: `publish` locks it again.
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
