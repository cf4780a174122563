//! Accepted input that deviates from its protocol. Each deviation is counted by kind and logged at debug level.
//! The caller also adds a note for the user: in `processor.log`, in the health of the source, or in the report.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

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

/// Maximum number of remembered result types.
const MAX_TYPES: usize = 1_000;

/// Result types of runners that were logged.
static LOGGED_TYPES: Mutex<BTreeSet<(String, String)>> = Mutex::new(BTreeSet::new());

/// Counts a result whose type is not of the protocol, and logs the first of each type and runner.
pub fn unknown_result_type(runner: &str, kind: &str, run: impl Display) {
    metrics::input_tolerated(Peer::Runner.as_str(), "unknown_result_type");
    let entry = (runner.to_owned(), kind.to_owned());
    let mut logged = LOGGED_TYPES.lock().unwrap_or_else(PoisonError::into_inner);
    // Bounded: the type is text of the runner, which could send ever new ones.
    if logged.len() < MAX_TYPES && logged.insert(entry) {
        tracing::warn!(
            runner.id = runner,
            run.id = %run,
            kind,
            "runner {runner} sends results of an unknown type, stored without effect: {kind}"
        );
    }
}
