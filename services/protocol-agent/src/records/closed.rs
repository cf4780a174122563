//! Closed graphs: their records, and their facts for later declarations.

use std::collections::BTreeMap;

use action_graph::Graph;
use action_graph::graph::{GraphStatus, Millis, Transition};
use action_graph::ids::{ActionId, GraphId};
use action_graph::json::canonical;
use action_graph::node::ActionOutput;
use action_graph::record::{RecordBody, ResultRecord};
use action_graph::rules::{KnownAction, KnownGraph};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::GraphRecords;
use crate::records::error::RecordsError;
use crate::records::head::GraphHead;
use crate::records::host::{RecordsHost, body_id, read_bodies};
use crate::records::save::{GraphClosing, GraphSummary, SOURCE, key_of};

/// Name of the body with the record of a closed graph.
const CLOSED: &str = "closed";
/// Maximum bytes of an output in the record of a closed graph. Larger ones remain separate bodies.
const INLINE: usize = 64 << 10;
/// Newest closed graphs whose facts every declaration gets.
const NEWEST: usize = 8;
/// Maximum closed graphs of a conversation.
const MAX_CLOSED: usize = 50;
/// Retention of closed graphs: 30 days, in milliseconds.
const RETENTION: Millis = 30 * 24 * 60 * 60 * 1_000;

/// Record of a closed graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClosedGraph {
    /// Result record of the graph as JSON.
    pub(super) record: Value,
    actions: BTreeMap<ActionId, ClosedAction>,
    transitions: Vec<Transition>,
    /// Names of bodies with observations.
    observations: Vec<String>,
}

/// Action of a closed graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ClosedAction {
    #[serde(flatten)]
    facts: KnownAction,
    /// Name of the body with an output that exceeds [`INLINE`].
    body: Option<String>,
}

impl ClosedGraph {
    /// Ids of the bodies that stay after the end of the graph.
    fn body_ids(&self) -> Vec<String> {
        let outputs = self.actions.values().filter_map(|one| one.body.as_ref());
        let names = outputs.chain(&self.observations).map(|name| body_id(name));
        names.chain([SOURCE.to_owned()]).collect()
    }
}

/// Document of a graph in the list of documents.
#[derive(Clone, Debug)]
pub(super) struct GraphEntry {
    pub(super) id: GraphId,
    pub(super) summary: GraphSummary,
}

/// Graphs of the conversation, and records of closed ones.
#[derive(Debug)]
pub struct GraphArchive<H> {
    pub(super) host: H,
    /// Oldest first.
    pub(super) entries: Vec<GraphEntry>,
    /// Cache of closed graphs; `None` for absent records.
    pub(super) read: BTreeMap<GraphId, Option<ClosedGraph>>,
    pub(super) now: Millis,
}

impl<H: RecordsHost> GraphRecords<H> {
    /// Closes a graph and stores its record. Idempotent.
    pub async fn close(
        &mut self,
        graph: &Graph,
        record: &ResultRecord,
    ) -> Result<(), RecordsError> {
        let id = &graph.id;
        let Some(held) = self.driven.held.get(id) else {
            return Ok(());
        };
        let mut change = GraphHead::of(graph, Some(&held.head));
        let closed = closed_graph(graph, record, &change.head);
        let content = serde_json::to_value(&closed).unwrap_or_default();
        let key = CLOSED.to_owned();
        change.bodies.push(RecordBody { key, content });
        let closing = GraphClosing {
            status: record.status,
            at: record.time,
        };
        let summary = held.summary.clone();
        self.end(id, summary, closing, change.bodies, closed.body_ids())
            .await?;
        self.archive.read.insert(id.clone(), Some(closed));
        Ok(())
    }

    /// Closes a graph whose bodies are gone.
    pub(super) async fn close_lost(
        &mut self,
        id: &GraphId,
        summary: GraphSummary,
    ) -> Result<(), RecordsError> {
        let closing = GraphClosing {
            status: GraphStatus::Failed,
            at: self.now,
        };
        self.end(id, summary, closing, Vec::new(), Vec::new()).await
    }

    async fn end(
        &mut self,
        id: &GraphId,
        mut summary: GraphSummary,
        closing: GraphClosing,
        bodies: Vec<RecordBody>,
        body_ids: Vec<String>,
    ) -> Result<(), RecordsError> {
        let open = summary.document();
        summary.closed = Some(closing);
        let mut document = summary.document();
        document.body_ids = Some(body_ids);
        self.driven.put(id, bodies, &open, document).await?;
        self.driven.held.remove(id);
        // The last entry is the graph that was closed last.
        self.archive.entries.retain(|entry| entry.id != *id);
        let id = id.clone();
        self.archive.entries.push(GraphEntry { id, summary });
        Ok(())
    }

    /// Facts about earlier graphs: the newest closed ones, those whose id occurs in `output`, and open ones of other
    /// runs; oldest first. The caller adds those of this run.
    pub async fn graph_facts(&mut self, output: &str) -> Result<Vec<KnownGraph>, RecordsError> {
        let mut list = self.archive.graph_facts(output).await?;
        list.extend(self.others.values().cloned());
        Ok(list)
    }

    /// Records of the newest closed graphs, oldest first.
    #[cfg(test)]
    pub(crate) async fn closed_records(&mut self) -> Vec<Value> {
        self.graph_facts("").await.unwrap();
        let entries = self.archive.entries.iter();
        let closed = entries.filter_map(|one| self.archive.read.get(&one.id)?.as_ref());
        closed.map(|closed| closed.record.clone()).collect()
    }

    /// Model output that declared a graph of this conversation, at most 64 KiB. `None` if it was removed.
    pub async fn declaration(&mut self, graph: &GraphId) -> Result<Option<String>, RecordsError> {
        if !self.archive.entries.iter().any(|one| one.id == *graph) {
            return Ok(None);
        }
        let bodies = read_bodies(&self.host, &key_of(graph), [SOURCE.to_owned()]).await?;
        let mut raw = bodies.values().filter_map(|body| body.get("raw")?.as_str());
        Ok(raw.next().map(str::to_owned))
    }
}

impl<H: RecordsHost> GraphArchive<H> {
    /// Graph that this declaration of this run has opened.
    pub(super) fn made_by(&self, run: &str, ordinal: u32) -> Option<&GraphId> {
        let mut entries = self.entries.iter();
        let is_made = |one: &&GraphEntry| {
            one.summary.runs.first().is_some_and(|first| first == run)
                && one.summary.ordinal == ordinal
        };
        entries.find(is_made).map(|one| &one.id)
    }

    /// Number of open graphs.
    pub(super) fn open_graphs(&self) -> usize {
        let entries = self.entries.iter();
        entries.filter(|one| one.summary.closed.is_none()).count()
    }

    /// Closed graphs within their retention (true) or after it, oldest first.
    fn closed(&self) -> impl Iterator<Item = (&GraphId, bool)> {
        self.entries.iter().filter_map(|one| {
            let closing = one.summary.closed.as_ref()?;
            Some((&one.id, self.now.saturating_sub(closing.at) <= RETENTION))
        })
    }

    /// Facts about the newest closed graphs, and those whose id occurs in `output`; oldest first.
    async fn graph_facts(&mut self, output: &str) -> Result<Vec<KnownGraph>, RecordsError> {
        let mut list = Vec::new();
        let closed = self.closed().filter(|(_, is_retained)| *is_retained);
        let closed: Vec<_> = closed.map(|(id, _)| id.clone()).collect();
        let newest = closed.len().saturating_sub(NEWEST);
        for (position, id) in closed.into_iter().enumerate() {
            let is_named = output.contains(&id.0);
            if position < newest && !is_named {
                continue;
            }
            let graph = self.closed_graph(&id).await?;
            let mut actions = BTreeMap::new();
            for (action_id, action) in graph.iter().flat_map(|graph| &graph.actions) {
                // Large outputs are loaded for named graphs only: each takes a request.
                let mut facts = action.facts.clone();
                if let (Some(body), true) = (&action.body, is_named) {
                    facts.output = self.value(&id, body).await?;
                }
                actions.insert(action_id.clone(), facts);
            }
            list.push(KnownGraph {
                id,
                open: false,
                expired: graph.is_none(),
                actions,
            });
        }
        Ok(list)
    }

    /// Output of an action of a closed graph of this conversation. `None` if it was removed. The caller checks its
    /// visibility by `private` of [`KnownAction`].
    pub async fn output(
        &mut self,
        graph: &GraphId,
        action: &ActionId,
    ) -> Result<Option<Value>, RecordsError> {
        let closed = self.closed_graph(graph).await?;
        let Some(action) = closed.and_then(|mut closed| closed.actions.remove(action)) else {
            return Ok(None);
        };
        match &action.body {
            Some(body) => self.value(graph, body).await,
            None => Ok(action.facts.output),
        }
    }

    async fn value(&self, graph: &GraphId, body: &str) -> Result<Option<Value>, RecordsError> {
        let mut bodies = read_bodies(&self.host, &key_of(graph), [body.to_owned()]).await?;
        let body = bodies.remove(body);
        let output = body.and_then(|body| serde_json::from_value::<ActionOutput>(body).ok());
        Ok(output.map(|output| output.value))
    }

    async fn closed_graph(&mut self, id: &GraphId) -> Result<Option<ClosedGraph>, RecordsError> {
        if let Some(read) = self.read.get(id) {
            return Ok(read.clone());
        }
        if !self.closed().any(|(one, _)| one == id) {
            return Ok(None);
        }
        let mut bodies = read_bodies(&self.host, &key_of(id), [CLOSED.to_owned()]).await?;
        let body = bodies.remove(CLOSED);
        let closed: Option<ClosedGraph> = body.and_then(|body| serde_json::from_value(body).ok());
        // Records of closed graphs never change, so absent ones are cached, too.
        self.read.insert(id.clone(), closed.clone());
        Ok(closed)
    }

    /// Removes closed graphs beyond the bounds of number and age. The next run retries after an error.
    pub(super) async fn sweep(&mut self) {
        let old = self
            .closed()
            .filter(|(_, is_retained)| !is_retained)
            .count();
        let surplus = self.closed().count().saturating_sub(MAX_CLOSED).max(old);
        let gone: Vec<_> = self
            .closed()
            .take(surplus)
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            match self.host.delete_document(&key_of(&id)).await {
                Ok(_) => self.entries.retain(|entry| entry.id != id),
                Err(error) => tracing::debug!(error = %error, "a closed graph stays for now"),
            }
        }
    }
}

fn closed_graph(graph: &Graph, record: &ResultRecord, head: &GraphHead) -> ClosedGraph {
    let facts = KnownGraph::from(graph).actions.into_iter();
    let actions = facts.map(|(id, mut facts)| {
        let is_large = |value: &mut Value| canonical(value).len() > INLINE;
        let large = facts.output.take_if(is_large);
        let body = large.and_then(|_| head.stored.outputs.get(&id).cloned());
        (id, ClosedAction { facts, body })
    });
    ClosedGraph {
        record: serde_json::to_value(record).unwrap_or_default(),
        actions: actions.collect(),
        transitions: head.transitions.clone(),
        observations: head
            .observations
            .iter()
            .map(|one| one.body.clone())
            .collect(),
    }
}
