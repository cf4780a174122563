//! The index of a conversation: its open graphs, the last closed ones, and which declaration made which graph.

use action_graph::graph::{GraphStatus, Millis};
use action_graph::ids::GraphId;
use serde::{Deserialize, Serialize};

use crate::records::error::RecordsError;

/// The key of the index.
pub(super) const KEY: &str = "apd.index";
/// Bytes of the index.
const BYTES: usize = 60 << 10;
/// Open graphs of a conversation, whatever the limits of the agent allow.
const OPEN: usize = 16;
/// Closed graphs that are named.
const CLOSED: usize = 50;
/// Declarations that are known to have made a graph.
const CREATED: usize = 64;
/// Graphs whose bodies are to be removed.
const DISCARDED: usize = 64;
/// Results of closed graphs are kept for 30 days.
const KEPT: Millis = 30 * 24 * 60 * 60 * 1_000;
/// Characters of a title.
const TITLE: usize = 80;

/// The index.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Index {
    /// Open graphs, oldest first.
    pub(super) open: Vec<OpenEntry>,
    /// Closed graphs, oldest first.
    pub(super) closed: Vec<ClosedEntry>,
    created: Vec<CreatedEntry>,
    /// Graphs whose bodies nothing names any more.
    pub(super) discarded: Vec<GraphId>,
}

/// An open graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenEntry {
    pub(super) id: GraphId,
    /// The run that opened it.
    pub(super) run: String,
    pub(super) at: Millis,
}

/// A closed graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClosedEntry {
    pub(super) id: GraphId,
    pub(super) title: String,
    pub(super) status: GraphStatus,
    pub(super) at: Millis,
    /// Name of the body with its record; absent when it could not be read.
    pub(super) body: Option<String>,
}

/// A declaration of a run and the graph that it made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CreatedEntry {
    run: String,
    ordinal: u32,
    id: GraphId,
}

impl ClosedEntry {
    /// Whether its results are gone.
    pub(super) fn is_expired(&self, now: Millis) -> bool {
        now.saturating_sub(self.at) > KEPT
    }
}

impl Index {
    /// The graph that this declaration of this run has made.
    pub(super) fn made_by(&self, run: &str, ordinal: u32) -> Option<&GraphId> {
        let mut created = self.created.iter();
        let made = created.find(|one| one.run == run && one.ordinal == ordinal);
        made.map(|one| &one.id)
    }

    /// Names a graph as open; false when it stands there.
    pub(super) fn open(&mut self, open: OpenEntry, ordinal: u32) -> Result<bool, RecordsError> {
        if self.open.iter().any(|one| one.id == open.id) {
            return Ok(false);
        }
        if self.open.len() >= OPEN {
            return Err(RecordsError::Full {
                what: "the list of open graphs",
                most: OPEN,
            });
        }
        let created = CreatedEntry {
            run: open.run.clone(),
            ordinal,
            id: open.id.clone(),
        };
        if self.created.len() >= CREATED {
            self.created.remove(0);
        }
        self.created.push(created);
        self.open.push(open);
        self.trim();
        Ok(true)
    }

    /// Names a graph as closed; false when it stands there.
    pub(super) fn close(&mut self, closed: ClosedEntry) -> bool {
        if self.closed.iter().any(|one| one.id == closed.id) {
            return false;
        }
        self.open.retain(|one| one.id != closed.id);
        let title = closed.title.chars().take(TITLE).collect();
        self.closed.push(ClosedEntry { title, ..closed });
        self.trim();
        true
    }

    /// Adds graphs whose heads are in state and drops open ones without a head; false when nothing changed.
    pub(super) fn mend(&mut self, found: &[OpenEntry], absent: &[GraphId]) -> bool {
        let before = self.open.len();
        self.open.retain(|one| !absent.contains(&one.id));
        self.created.retain(|one| !absent.contains(&one.id));
        let is_gone = before != self.open.len();
        self.discard(absent.iter().cloned());
        let mut is_new = false;
        for open in found {
            let is_known = self.open.iter().any(|one| one.id == open.id);
            if !is_known && self.closed.iter().all(|one| one.id != open.id) {
                self.open.push(open.clone());
                is_new = true;
            }
        }
        is_gone || is_new
    }

    /// Forgets closed graphs beyond the bounds of number, age and bytes; their bodies are to be removed.
    pub(super) fn forget(&mut self, now: Millis) -> bool {
        let old = self.closed.iter().filter(|one| one.is_expired(now)).count();
        let surplus = old.max(self.closed.len().saturating_sub(CLOSED));
        let gone: Vec<_> = self.closed.drain(..surplus).collect();
        let is_changed = !gone.is_empty();
        self.discard(gone.into_iter().map(|one| one.id));
        is_changed
    }

    fn trim(&mut self) {
        while self.closed.len() > CLOSED || (self.bytes() > BYTES && !self.closed.is_empty()) {
            let gone = self.closed.remove(0);
            self.discard([gone.id]);
        }
    }

    fn bytes(&self) -> usize {
        serde_json::to_vec(self).map_or(0, |bytes| bytes.len())
    }

    fn discard(&mut self, ids: impl IntoIterator<Item = GraphId>) {
        self.discarded.extend(ids);
        let surplus = self.discarded.len().saturating_sub(DISCARDED);
        let lost = self.discarded.drain(..surplus).count();
        if lost > 0 {
            tracing::warn!(
                graphs = lost,
                "bodies of old graphs stay in storage: remove them there"
            );
        }
    }
}
