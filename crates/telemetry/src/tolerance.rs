//! Accepted input that deviates from its protocol. Each deviation is counted by kind and logged at debug level.
//! The caller also adds a note for the user: in `processor.log`, in the health of the source, or in the report.

use std::fmt::Display;

use crate::metrics;

/// The source of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Provider,
    Runner,
    ToolServer,
    KnowledgeServer,
    Document,
    Client,
}

impl Peer {
    fn as_str(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Runner => "runner",
            Self::ToolServer => "tool_server",
            Self::KnowledgeServer => "knowledge_server",
            Self::Document => "document",
            Self::Client => "client",
        }
    }
}

/// Records one deviation. `kind`: a fixed name in `snake_case`, never text of the peer. `source`: the configured
/// name of the peer, or the id of the run. Callers limit the reports per stream or document.
pub fn tolerated(peer: Peer, kind: &'static str, source: impl Display) {
    let peer = peer.as_str();
    metrics::input_tolerated(peer, kind);
    tracing::debug!(peer, kind, %source, "accepted input that deviates from its protocol: {kind} from {peer} {source}");
}
