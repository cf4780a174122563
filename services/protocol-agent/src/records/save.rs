//! Storage of a graph at its opening and while it runs: each write is one transaction with its new bodies.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::declaration::DeclarationSource;
use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{Graph, GraphStatus, Millis};
use action_graph::ids::GraphId;
use action_graph::record::RecordBody;
use action_graph::result::observe::mark_delivered;
use action_graph::transcript::TranscriptTurn;
use protocol::host_api::StatePut;
use secrets::digest::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::records::closed::GraphEntry;
use crate::records::document::{VERSION, is_version_conflict};
use crate::records::error::RecordsError;
use crate::records::head::{GraphHead, HEAD, HeadChange, Observation, PendingQuestion};
use crate::records::host::{RecordsHost, body_id, read_bodies, with_retries};
use crate::records::{GraphRecords, OpenOutcome, RunIdentity};

/// Maximum bytes of the bodies of one write. The gateway's limit of a request is 20 MiB.
const WRITE_BYTES: usize = 16 << 20;
/// Maximum open graphs of a conversation. The agent's own limits may be lower.
const OPEN: usize = 16;
/// Maximum lease, in seconds. It ends with the run.
const LEASE: u32 = 86_400;
/// Maximum characters of a title.
const TITLE: usize = 80;
/// Maximum runs in a summary, which has at most 2 KiB.
const RUNS: usize = 24;

/// Name of the body with the model's output.
pub(super) const SOURCE: &str = "source";
/// Maximum bytes of the model's output that are stored for inspection.
const RAW: usize = 64 << 10;

/// Key prefix of graphs.
pub(super) const GRAPHS: &str = "apd.g.";

/// Key of a graph's document.
pub(super) fn key_of(graph: &GraphId) -> String {
    format!("{GRAPHS}{graph}")
}

/// Summary of a graph's document, for the list of documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GraphSummary {
    version: u16,
    /// Number of the declaration in the run that opened the graph.
    pub(super) ordinal: u32,
    pub(super) opened: Millis,
    title: String,
    /// The last [`RUNS`] runs that drove the graph; the first one opened it.
    pub(super) runs: Vec<String>,
    /// Absent while the graph is open.
    pub(super) closed: Option<GraphClosing>,
}

/// End of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GraphClosing {
    pub(super) status: GraphStatus,
    pub(super) at: Millis,
}

impl GraphSummary {
    /// Document of a graph with the lease of this run.
    pub(super) fn document(&self) -> StatePut {
        StatePut {
            summary: Some(json!(self)),
            lease_seconds: Some(LEASE),
            ..StatePut::of(Value::Null)
        }
    }

    /// Run that drives the graph.
    pub(super) fn owner(&self) -> &str {
        self.runs.last().map_or("", String::as_str)
    }

    /// Sets another run as the owner of the graph.
    pub(super) fn take_over(&mut self, run: &str) {
        if self.owner() != run {
            if self.runs.len() == RUNS {
                // The first run opened the graph.
                self.runs.remove(1);
            }
            self.runs.push(run.to_owned());
        }
    }
}

/// Graphs that this run drives.
#[derive(Debug)]
pub struct DrivenGraphs<H> {
    pub(super) host: H,
    pub(super) me: RunIdentity,
    pub(super) held: BTreeMap<GraphId, DrivenGraph>,
}

/// Stored graph that this run drives.
#[derive(Debug)]
pub(super) struct DrivenGraph {
    pub(super) head: GraphHead,
    pub(super) summary: GraphSummary,
    /// Names of stored bodies.
    pub(super) written: BTreeSet<String>,
}

impl<H: RecordsHost> DrivenGraphs<H> {
    /// True if this run drives this graph and it is stored.
    pub fn holds(&self, graph: &GraphId) -> bool {
        self.held.contains_key(graph)
    }

    /// Runs that drove a graph, for its record.
    pub fn runs(&self, graph: &GraphId) -> Vec<String> {
        let held = self.held.get(graph);
        held.map_or_else(
            || vec![self.me.run.clone()],
            |held| held.summary.runs.clone(),
        )
    }

    /// Graph and question of a submission; `None` if no open graph waits for it.
    pub fn ask(&self, interaction: &str) -> Option<(GraphId, PendingQuestion)> {
        self.held.iter().find_map(|(id, held)| {
            let mut asks = held.head.asks.iter();
            let ask = asks.find(|ask| ask.interaction == interaction)?;
            Some((id.clone(), ask.clone()))
        })
    }

    /// Stores the current state of a graph. Execute its following commands only afterwards. Does nothing for graphs
    /// that are not durable.
    pub async fn save(&mut self, graph: &Graph) -> Result<(), RecordsError> {
        let Some(held) = self.held.get(&graph.id) else {
            return Ok(());
        };
        let change = GraphHead::of(graph, Some(&held.head));
        self.write(&graph.id, change).await
    }

    /// Stores a question. Send it only afterwards, so that its answer finds the graph.
    pub async fn store_question(
        &mut self,
        graph: &Graph,
        ask: PendingQuestion,
    ) -> Result<(), RecordsError> {
        let Some(held) = self.held.get(&graph.id) else {
            return Ok(());
        };
        let run = self.me.run.clone();
        let mut change = GraphHead::of(graph, Some(&held.head));
        change.head.ask(PendingQuestion { run, ..ask });
        self.write(&graph.id, change).await
    }

    /// Observation of this decision point: the stored one, or a new one, which is stored. Its results count as
    /// delivered.
    pub async fn observed(
        &mut self,
        graph: &mut Graph,
        make: impl FnOnce(&Graph) -> TranscriptTurn + Send,
    ) -> Result<TranscriptTurn, RecordsError> {
        let Some(held) = self.held.get(&graph.id) else {
            let turn = make(graph);
            mark_delivered(graph);
            return Ok(turn);
        };
        if let Some(turn) = self.observation(graph, &held.head).await? {
            mark_delivered(graph);
            return Ok(turn);
        }
        let turn = make(graph);
        mark_delivered(graph);
        let content = serde_json::to_value(&turn).unwrap_or_default();
        let hash = sha256_hex(content.to_string());
        let key = format!("observation.{}.{}", graph.seq, &hash[..16]);
        let mut change = GraphHead::of(graph, Some(&held.head));
        change.head.observe(Observation {
            seq: graph.seq,
            generation: graph.generation,
            run: self.me.run.clone(),
            body: key.clone(),
        });
        change.bodies.push(RecordBody { key, content });
        self.write(&graph.id, change).await?;
        Ok(turn)
    }

    /// Stored observation of exactly this decision point.
    async fn observation(
        &self,
        graph: &Graph,
        head: &GraphHead,
    ) -> Result<Option<TranscriptTurn>, RecordsError> {
        let mut made = head.observations.iter().rev();
        let made = made.find(|one| (one.seq, one.generation) == (graph.seq, graph.generation));
        let names = made.map(|made| made.body.clone());
        let mut bodies = read_bodies(&self.host, &key_of(&graph.id), names).await?;
        let body = bodies.pop_first().map(|(_, body)| body);
        Ok(body.and_then(|body| serde_json::from_value(body).ok()))
    }

    /// Writes a change with its bodies.
    async fn write(&mut self, id: &GraphId, change: HeadChange) -> Result<(), RecordsError> {
        let Some(held) = self.held.get(id) else {
            return Ok(());
        };
        let HeadChange { head, mut bodies } = change;
        bodies.push(head.body());
        let document = held.summary.document();
        self.put(id, bodies, &document, document.clone()).await?;
        if let Some(held) = self.held.get_mut(id) {
            held.head = head;
        }
        Ok(())
    }

    /// Writes bodies that are not stored yet and, with the last of them, `document`. `stored`: the document until then.
    pub(super) async fn put(
        &mut self,
        id: &GraphId,
        bodies: Vec<RecordBody>,
        stored: &StatePut,
        document: StatePut,
    ) -> Result<(), RecordsError> {
        let names: Vec<_> = bodies.iter().map(|body| body.key.clone()).collect();
        let mut batches = batches(bodies, self.held.get(id))?;
        let last = batches.pop().unwrap_or_default();
        let mut writes: Vec<_> = batches.into_iter().map(|bodies| (stored, bodies)).collect();
        writes.push((&document, last));
        for (document, bodies) in writes {
            let document = StatePut {
                bodies,
                ..document.clone()
            };
            let key = key_of(id);
            // Without a version: the lease excludes other writers, and a write with a lost response is repeatable.
            match with_retries(|| self.host.put_document(&key, &document, None)).await {
                Ok(_) => {}
                Err(error) if is_version_conflict(&error) => {
                    self.held.remove(id);
                    let lease = error.details.get("lease").and_then(|one| one.get("run_id"));
                    let run = lease.and_then(Value::as_str).unwrap_or_default().to_owned();
                    let graph = id.clone();
                    return Err(RecordsError::LeaseLost { graph, run });
                }
                Err(error) => return Err(error.into()),
            }
        }
        if let Some(held) = self.held.get_mut(id) {
            // The head has the same name in each version.
            held.written
                .extend(names.into_iter().filter(|name| name != HEAD));
        }
        Ok(())
    }
}

/// Groups bodies that are not stored yet into writes within the gateway's limit.
fn batches(
    bodies: Vec<RecordBody>,
    held: Option<&DrivenGraph>,
) -> Result<Vec<BTreeMap<String, Value>>, RecordsError> {
    let (mut full, mut last, mut bytes) = (Vec::new(), BTreeMap::new(), 0);
    for body in bodies {
        if held.is_some_and(|held| held.written.contains(&body.key)) {
            continue;
        }
        let size = body.content.to_string().len();
        if size > WRITE_BYTES {
            return Err(RecordsError::Full {
                what: "a stored result",
                bound: WRITE_BYTES,
            });
        }
        if bytes + size > WRITE_BYTES {
            full.push(std::mem::take(&mut last));
            bytes = 0;
        }
        bytes += size;
        last.insert(body_id(&body.key), body.content);
    }
    full.push(last);
    Ok(full)
}

impl<H: RecordsHost> GraphRecords<H> {
    /// Stores an accepted graph with the model's output. `ordinal`: number of the declaration in this run; a repeated
    /// one returns its existing graph.
    pub async fn open(
        &mut self,
        ordinal: u32,
        graph: &Graph,
        source: &DeclarationSource,
        raw: &str,
        diagnostics: &[Diagnostic],
        now: Millis,
    ) -> Result<OpenOutcome, RecordsError> {
        self.needs_documents()?;
        let run = &self.me.run;
        if let Some(made) = self.archive.made_by(run, ordinal) {
            return Ok(OpenOutcome::Exists(made.clone()));
        }
        if self.archive.open_graphs() >= OPEN {
            return Err(RecordsError::Full {
                what: "the list of open graphs",
                bound: OPEN,
            });
        }
        let end = raw.floor_char_boundary(RAW);
        let content = json!({
            "raw": &raw[..end],
            "bytes": raw.len(),
            "source": source,
            "diagnostics": diagnostics,
            "accepted_sha256": graph.info.accepted_sha256,
        });
        let summary = GraphSummary {
            version: VERSION,
            ordinal,
            opened: now,
            title: graph.info.title.chars().take(TITLE).collect(),
            runs: vec![run.clone()],
            closed: None,
        };
        let HeadChange { head, mut bodies } = GraphHead::of(graph, None);
        let key = SOURCE.to_owned();
        bodies.push(RecordBody { key, content });
        bodies.push(head.body());
        let id = graph.id.clone();
        let written = bodies.iter().map(|body| body.key.clone());
        let written = written.filter(|name| name != HEAD).collect();
        // The random id guarantees that the key is unused.
        let document = summary.document();
        self.driven
            .put(&id, bodies, &document, document.clone())
            .await?;
        let held = DrivenGraph {
            head,
            summary: summary.clone(),
            written,
        };
        self.driven.held.insert(id.clone(), held);
        self.archive.entries.push(GraphEntry { id, summary });
        Ok(OpenOutcome::New)
    }
}
