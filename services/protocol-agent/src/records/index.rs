//! Index of a conversation: its open graphs, the last closed ones, and the graph of each declaration.

use action_graph::graph::{GraphStatus, Millis};
use action_graph::ids::GraphId;
use serde::{Deserialize, Serialize};

use crate::records::error::RecordsError;

/// State key of the index.
pub(super) const KEY: &str = "apd.index";
/// Maximum bytes of the index.
const BYTES: usize = 60 << 10;
/// Maximum open graphs of a conversation. The agent's own limits may be lower.
const OPEN: usize = 16;
/// Maximum closed graphs in the index.
const CLOSED: usize = 50;
/// Maximum declarations with their graphs in the index.
const CREATED: usize = 64;
/// Maximum graphs in the queue for the removal of bodies.
const DISCARDED: usize = 64;
/// Retention of closed graphs: 30 days, in milliseconds.
const RETENTION: Millis = 30 * 24 * 60 * 60 * 1_000;
/// Maximum characters of a title.
const TITLE: usize = 80;

/// Index of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Index {
    /// Open graphs, oldest first.
    pub(super) open: Vec<OpenEntry>,
    /// Closed graphs, oldest first.
    pub(super) closed: Vec<ClosedEntry>,
    created: Vec<CreatedEntry>,
    /// Graphs whose bodies are no longer referenced.
    pub(super) discarded: Vec<GraphId>,
}

/// Index entry of an open graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenEntry {
    pub(super) id: GraphId,
    /// Run that opened the graph.
    pub(super) run: String,
    pub(super) at: Millis,
}

/// Index entry of a closed graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClosedEntry {
    pub(super) id: GraphId,
    pub(super) title: String,
    pub(super) status: GraphStatus,
    pub(super) at: Millis,
    /// Name of the body with its record; absent for an unreadable graph.
    pub(super) body: Option<String>,
}

/// Declaration of a run and its graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct CreatedEntry {
    run: String,
    ordinal: u32,
    id: GraphId,
}

impl ClosedEntry {
    /// True after the retention of its results.
    pub(super) fn is_expired(&self, now: Millis) -> bool {
        now.saturating_sub(self.at) > RETENTION
    }
}

impl Index {
    /// Graph that this declaration of this run has opened.
    pub(super) fn made_by(&self, run: &str, ordinal: u32) -> Option<&GraphId> {
        let mut created = self.created.iter();
        let made = created.find(|one| one.run == run && one.ordinal == ordinal);
        made.map(|one| &one.id)
    }

    /// Adds an open graph; false if it is listed.
    pub(super) fn open(&mut self, open: OpenEntry, ordinal: u32) -> Result<bool, RecordsError> {
        if self.open.iter().any(|one| one.id == open.id) {
            return Ok(false);
        }
        if self.open.len() >= OPEN {
            return Err(RecordsError::Full {
                what: "the list of open graphs",
                bound: OPEN,
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

    /// Moves a graph from the open to the closed ones; false if it is closed already.
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

    /// Adds graphs that have a head and removes open ones without one; false if nothing changed.
    pub(super) fn mend(&mut self, found: &[OpenEntry], absent: &[GraphId]) -> bool {
        let before = self.open.len();
        self.open.retain(|one| !absent.contains(&one.id));
        self.created.retain(|one| !absent.contains(&one.id));
        let is_gone = before != self.open.len();
        self.discard(absent.iter().cloned());
        let mut is_new = false;
        for open in found {
            let is_listed = self.open.iter().any(|one| one.id == open.id);
            // A closed graph may still have a head, if its run died before the removal.
            if !is_listed && self.closed.iter().all(|one| one.id != open.id) {
                self.open.push(open.clone());
                is_new = true;
            }
        }
        is_gone || is_new
    }

    /// Removes closed graphs beyond the bounds of number and age, and queues their bodies for removal.
    pub(super) fn forget(&mut self, now: Millis) -> bool {
        let old = self.closed.iter().filter(|one| one.is_expired(now)).count();
        let surplus = old.max(self.closed.len().saturating_sub(CLOSED));
        let gone: Vec<_> = self.closed.drain(..surplus).collect();
        let is_changed = !gone.is_empty();
        self.discard(gone.into_iter().map(|one| one.id));
        is_changed
    }

    fn trim(&mut self) {
        // Only closed graphs are evicted: an unlisted open graph could not be found again.
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
                "the removal queue of old graphs is full, their bodies remain: remove them in the agent's storage"
            );
        }
    }
}
