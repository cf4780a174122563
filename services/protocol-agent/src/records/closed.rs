//! Closed graphs: their records, and their facts for later declarations.

use std::collections::BTreeMap;

use action_graph::Graph;
use action_graph::graph::{GraphStatus, Millis};
use action_graph::ids::{ActionId, GraphId};
use action_graph::json::canonical;
use action_graph::node::ActionOutput;
use action_graph::record::{RecordBody, ResultRecord};
use action_graph::rules::{KnownAction, KnownGraph};
use secrets::digest::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failpoint::reach;
use crate::records::GraphRecords;
use crate::records::bodies::Bodies;
use crate::records::document::StateDocument;
use crate::records::error::RecordsError;
use crate::records::head::GraphHead;
use crate::records::host::{RecordsHost, with_retries};
use crate::records::index::{ClosedEntry, Index};
use crate::records::save::head_key;

/// Maximum bytes of an output in the record of a closed graph. Larger ones remain separate bodies.
const INLINE: usize = 64 << 10;
/// Newest closed graphs whose facts every declaration gets.
const NEWEST: usize = 8;

/// Record of a closed graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ClosedGraph {
    /// Result record of the graph as JSON.
    pub(super) record: Value,
    actions: BTreeMap<ActionId, ClosedAction>,
    /// Names of bodies with the model's output, transitions and observations.
    source: String,
    segments: Vec<String>,
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

/// The index of graphs, and closed ones.
#[derive(Debug)]
pub struct GraphArchive<H> {
    pub(super) host: H,
    pub(super) bodies: Bodies<H>,
    pub(super) index: StateDocument<Index>,
    /// Cache of closed graphs; `None` for absent records.
    pub(super) read: BTreeMap<GraphId, Option<ClosedGraph>>,
    pub(super) now: Millis,
}

impl<H: RecordsHost> GraphRecords<H> {
    /// Closes a graph: writes its record, updates the index, and removes its head. Idempotent.
    pub async fn close(
        &mut self,
        graph: &Graph,
        record: &ResultRecord,
    ) -> Result<(), RecordsError> {
        let id = &graph.id;
        if !self.driven.held.contains_key(id) {
            return Ok(());
        }
        // Store the last state first: a run that takes the graph over before its end closes the same state.
        self.driven.save(graph).await?;
        let Some(held) = self.driven.held.get(id) else {
            return Ok(());
        };
        let mut change = held.head.next(graph)?;
        let recent = std::mem::take(&mut change.head.recent);
        if let Some(first) = recent.first() {
            let key = format!("transitions.{:06}", first.seq);
            let content = serde_json::to_value(&recent).unwrap_or_default();
            change.head.segments.push(key.clone());
            change.bodies.push(RecordBody { key, content });
        }
        let closed = closed_graph(graph, record, &change.head);
        let content = serde_json::to_value(&closed).unwrap_or_default();
        let body = format!("closed.{}", &sha256_hex(content.to_string())[..16]);
        let mut bodies: Vec<_> = change
            .bodies
            .iter()
            .map(|one| (one.key.as_str(), &one.content))
            .collect();
        bodies.retain(|(key, _)| !held.written.contains(*key));
        bodies.push((&body, &content));
        self.driven.bodies.write_all(id, &bodies).await?;
        reach("close.body").await;
        let entry = ClosedEntry {
            id: id.clone(),
            title: graph.info.title.clone(),
            status: record.status,
            at: record.time,
            body: Some(body),
        };
        self.end(entry).await?;
        self.archive.read.insert(id.clone(), Some(closed));
        Ok(())
    }

    /// Closes a graph whose bodies are gone.
    pub(super) async fn close_lost(&mut self, id: &GraphId) -> Result<(), RecordsError> {
        let held = self.driven.held.get(id);
        let title = held.map(|held| held.head.stored.graph.info.title.clone());
        let entry = ClosedEntry {
            id: id.clone(),
            title: title.unwrap_or_default(),
            status: GraphStatus::Failed,
            at: self.now,
            body: None,
        };
        self.end(entry).await
    }

    async fn end(&mut self, entry: ClosedEntry) -> Result<(), RecordsError> {
        let id = entry.id.clone();
        // Index before head: a head without an index entry would be adopted again by the next run.
        let close = |index: &mut Index| Ok(index.close(entry.clone()));
        self.archive.index.change(&self.host, close).await?;
        reach("close.index").await;
        let key = head_key(&id);
        with_retries(|| self.host.state_delete(&key)).await?;
        self.driven.held.remove(&id);
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
        let closed = self.archive.index.value.closed.iter();
        let closed = closed.filter_map(|one| self.archive.read.get(&one.id)?.as_ref());
        closed.map(|closed| closed.record.clone()).collect()
    }

    /// Model output that declared a graph of this conversation, at most 64 KiB. `None` if it was removed.
    pub async fn declaration(&mut self, graph: &GraphId) -> Result<Option<String>, RecordsError> {
        let held = self.driven.held.get(graph);
        let mut source = held.map(|held| held.head.source.clone());
        if source.is_none() {
            let closed = self.archive.closed_by_id(graph).await?;
            source = closed.map(|closed| closed.source);
        }
        let Some(source) = source else {
            return Ok(None);
        };
        let body = self.driven.bodies.read(graph, &source).await?;
        let raw = body.and_then(|body| Some(body.get("raw")?.as_str()?.to_owned()));
        Ok(raw)
    }
}

impl<H: RecordsHost> GraphArchive<H> {
    /// True if the index lists this graph as closed.
    pub(super) fn is_closed(&self, id: &GraphId) -> bool {
        self.index.value.closed.iter().any(|one| one.id == *id)
    }

    /// Facts about the newest closed graphs, and those whose id occurs in `output`; oldest first.
    async fn graph_facts(&mut self, output: &str) -> Result<Vec<KnownGraph>, RecordsError> {
        let mut list = Vec::new();
        let closed = self.index.value.closed.clone();
        let newest = closed.len().saturating_sub(NEWEST);
        for (position, entry) in closed.iter().enumerate() {
            let is_named = output.contains(&entry.id.0);
            if position < newest && !is_named {
                continue;
            }
            let graph = if entry.is_expired(self.now) {
                None
            } else {
                self.closed_graph(entry).await?
            };
            let mut actions = BTreeMap::new();
            for (id, action) in graph.iter().flat_map(|graph| &graph.actions) {
                // Large outputs are loaded for named graphs only: each takes a request.
                let mut facts = action.facts.clone();
                if let (Some(body), true) = (&action.body, is_named) {
                    facts.output = self.value(&entry.id, body).await?;
                }
                actions.insert(id.clone(), facts);
            }
            list.push(KnownGraph {
                id: entry.id.clone(),
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
        let closed = self.closed_by_id(graph).await?;
        let Some(action) = closed.and_then(|mut closed| closed.actions.remove(action)) else {
            return Ok(None);
        };
        match &action.body {
            Some(body) => self.value(graph, body).await,
            None => Ok(action.facts.output),
        }
    }

    async fn closed_by_id(&mut self, id: &GraphId) -> Result<Option<ClosedGraph>, RecordsError> {
        let mut closed = self.index.value.closed.iter();
        match closed.find(|one| one.id == *id).cloned() {
            Some(entry) => self.closed_graph(&entry).await,
            None => Ok(None),
        }
    }

    async fn value(&self, graph: &GraphId, body: &str) -> Result<Option<Value>, RecordsError> {
        let body = self.bodies.read(graph, body).await?;
        let output = body.and_then(|body| serde_json::from_value::<ActionOutput>(body).ok());
        Ok(output.map(|output| output.value))
    }

    async fn closed_graph(
        &mut self,
        entry: &ClosedEntry,
    ) -> Result<Option<ClosedGraph>, RecordsError> {
        if let Some(read) = self.read.get(&entry.id) {
            return Ok(read.clone());
        }
        let body = match &entry.body {
            Some(body) => self.bodies.read(&entry.id, body).await?,
            None => None,
        };
        let closed: Option<ClosedGraph> = body.and_then(|body| serde_json::from_value(body).ok());
        // Records of closed graphs never change, so absent ones are cached, too.
        self.read.insert(entry.id.clone(), closed.clone());
        Ok(closed)
    }

    /// Removes up to 100 bodies of one forgotten graph. The next run retries after an error.
    pub(super) async fn sweep(&mut self) {
        let Some(id) = self.index.value.discarded.first().cloned() else {
            return;
        };
        match self.bodies.remove(&id).await {
            Ok(true) => {
                let forget = |index: &mut Index| {
                    index.discarded.retain(|one| *one != id);
                    Ok(true)
                };
                if let Err(error) = self.index.change(&self.host, forget).await {
                    tracing::debug!(error = %error, "a forgotten graph stays in the index for now");
                }
            }
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(error = %error, "bodies of a forgotten graph stay for now");
            }
        }
    }
}

fn closed_graph(graph: &Graph, record: &ResultRecord, head: &GraphHead) -> ClosedGraph {
    let facts = KnownGraph::from(graph).actions.into_iter();
    let actions = facts.map(|(id, mut facts)| {
        let is_large = |value: &mut Value| canonical(value).len() > INLINE;
        let large = facts.output.take_if(is_large);
        let body = large.and_then(|_| Some(head.stored.outputs.get(&id)?.key.clone()));
        (id, ClosedAction { facts, body })
    });
    ClosedGraph {
        record: serde_json::to_value(record).unwrap_or_default(),
        actions: actions.collect(),
        source: head.source.clone(),
        segments: head.segments.clone(),
        observations: head
            .observations
            .iter()
            .map(|one| one.body.clone())
            .collect(),
    }
}
