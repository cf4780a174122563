//! Begins a connection: by a handshake, or without one for servers of later revisions of the protocol.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rmcp::model::{
    DiscoverResult, ErrorCode, ErrorData, ProtocolVersion, ServerCapabilities, ServerPeerInfo,
};
use rmcp::service::{
    ClientInitializeError, RoleClient, RunningService, ServiceExt as _, serve_directly,
};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::time::timeout;

use super::listener::NotificationHandler;
use super::outcome;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;

/// Timeout of the handshake, and of a tool list.
pub(super) const START: Duration = Duration::from_secs(30);
/// Revision without handshake and session: each request names it.
const STATELESS: ProtocolVersion = ProtocolVersion::V_2026_07_28;
/// Maximum number of revisions of a server in a message.
const NAMED_VERSIONS: usize = 5;

/// A connection that did not open.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error("{0}")]
    Upstream(UpstreamError),
    #[error("{0}")]
    Other(String),
}

/// The lifecycle that a server takes. The handshake comes first, since most servers require it.
#[derive(Debug, Default)]
pub(super) struct McpLifecycle {
    is_stateless: AtomicBool,
}

impl McpLifecycle {
    pub(super) fn is_stateless(&self) -> bool {
        self.is_stateless.load(Ordering::Relaxed)
    }

    /// Opens a connection. A refusal by a later revision makes the next connection stateless.
    pub(super) async fn open<T>(
        &self,
        listener: NotificationHandler,
        transport: T,
        redactor: &Redactor,
    ) -> Result<RunningService<RoleClient, NotificationHandler>, OpenError>
    where
        T: Transport<RoleClient> + 'static,
    {
        if self.is_stateless() {
            // The SDK would send a handshake; here the peer is assumed instead.
            return Ok(serve_directly(listener, transport, Some(stateless_peer())));
        }
        match timeout(START, listener.serve(transport)).await {
            Ok(Ok(service)) => Ok(service),
            Ok(Err(error)) => {
                self.is_stateless
                    .store(lacks_handshake(&error), Ordering::Relaxed);
                Err(outcome::no_start(redactor, error))
            }
            Err(_) => Err(OpenError::Other("it did not answer in time".to_owned())),
        }
    }

    /// After a failed list, the next connection begins with the handshake again.
    pub(super) fn forget(&self) {
        self.is_stateless.store(false, Ordering::Relaxed);
    }
}

/// The peer before its first response. It may serve `server/discover`, which nothing here depends on.
fn stateless_peer() -> ServerPeerInfo {
    let found = DiscoverResult::new(vec![STATELESS], ServerCapabilities::default());
    ServerPeerInfo::from_discover_result(STATELESS, found)
}

fn lacks_handshake(error: &ClientInitializeError) -> bool {
    let ClientInitializeError::JsonRpcError(error) = error else {
        return false;
    };
    let codes = [
        ErrorCode::UNSUPPORTED_PROTOCOL_VERSION,
        ErrorCode::HEADER_MISMATCH,
        ErrorCode::METHOD_NOT_FOUND,
        // Required members of `_meta` are missing.
        ErrorCode::INVALID_PARAMS,
    ];
    codes.contains(&error.code)
}

/// The revisions of both sides, for an error that refuses ours.
pub(super) fn versions(error: &ErrorData) -> Option<String> {
    if error.code != ErrorCode::UNSUPPORTED_PROTOCOL_VERSION {
        return None;
    }
    let ours = format!(
        "the gateway speaks {} and {STATELESS}",
        ProtocolVersion::LATEST_WITH_INITIALIZE
    );
    let theirs = error.data.as_ref()?.get("supported");
    let theirs = theirs.and_then(Value::as_array).into_iter().flatten();
    let theirs: Vec<_> = theirs
        .filter_map(Value::as_str)
        .take(NAMED_VERSIONS)
        .collect();
    Some(match theirs.as_slice() {
        [] => ours,
        theirs => format!("it speaks {}, and {ours}", theirs.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn refused_revisions_are_named() {
        let ours = "the gateway speaks 2025-11-25 and 2026-07-28";
        for (code, data, expected) in [
            (
                -32022,
                json!({"supported": ["2027-01-01", 7, "x"]}),
                Some(format!("it speaks 2027-01-01, x, and {ours}")),
            ),
            (-32022, json!({}), Some(ours.to_owned())),
            (-32600, json!({"supported": ["2027-01-01"]}), None),
        ] {
            let error = ErrorData::new(ErrorCode(code), "no", Some(data));
            assert_eq!(versions(&error), expected);
        }
    }
}
