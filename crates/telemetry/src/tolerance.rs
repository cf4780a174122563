//! Input that departs from its protocol and is accepted all the same. Each deviation is counted by kind and logged at
//! debug; the caller also adds a note where the user looks: `processor.log`, health of the source, or the report.

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

/// Records one deviation. `kind`: a fixed name in `snake_case`, never text of the peer; `source`: the name of the peer as
/// the configuration has it, or the id of the run. Callers bound how often one stream or document reports.
pub fn tolerated(peer: Peer, kind: &'static str, source: impl Display) {
    let peer = peer.as_str();
    metrics::input_tolerated(peer, kind);
    tracing::debug!(peer, kind, %source, "accepted input that departs from its protocol: {kind} from {peer} {source}");
}
