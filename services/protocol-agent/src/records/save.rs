//! Storage of a graph at its opening and while it runs: bodies first, then the head by compare-and-swap on its version.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::declaration::DeclarationSource;
use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{Graph, Millis};
use action_graph::ids::GraphId;
use action_graph::record::{GraphOwner, RecordBody};
use action_graph::result::observe::mark_delivered;
use action_graph::transcript::TranscriptTurn;
use secrets::digest::sha256_hex;
use serde_json::{Value, json};

use crate::failpoint::reach;
use crate::records::bodies::Bodies;
use crate::records::document::{StoredRecord, is_version_conflict, named, read};
use crate::records::error::RecordsError;
use crate::records::head::{GraphHead, HEAD_BYTES, HeadChange, Observation, PendingQuestion};
use crate::records::host::{RecordsHost, with_retries};
use crate::records::index::{Index, OpenEntry};
use crate::records::{GraphRecords, OpenOutcome, RunIdentity};

/// Maximum bytes of all bodies of a graph.
const GRAPH_BYTES: u64 = 256 << 20;
/// Maximum consecutive conflicts of one write of a head.
const ROUNDS: usize = 4;

/// Name of the body with the model's output.
const SOURCE: &str = "source";
/// Maximum bytes of the model's output that are stored for inspection.
const RAW: usize = 64 << 10;

/// Key prefix of heads.
pub(super) const HEADS: &str = "apd.g.";

/// State key of a graph's head.
pub(super) fn head_key(graph: &GraphId) -> String {
    format!("{HEADS}{graph}")
}

/// Graphs that this run drives.
#[derive(Debug)]
pub struct DrivenGraphs<H> {
    pub(super) host: H,
    pub(super) me: RunIdentity,
    pub(super) bodies: Bodies<H>,
    pub(super) held: BTreeMap<GraphId, DrivenGraph>,
}

/// Stored graph that this run drives.
#[derive(Debug)]
pub(super) struct DrivenGraph {
    pub(super) head: GraphHead,
    /// Version of the stored head; absent before the first write.
    pub(super) version: Option<i64>,
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
        held.map_or_else(|| vec![self.me.run.clone()], |held| held.head.runs.clone())
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
        let change = held.head.next(graph)?;
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
        let mut change = held.head.next(graph)?;
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
        let mut change = held.head.next(graph)?;
        change.head.observe(Observation {
            seq: graph.seq,
            generation: graph.generation,
            run: self.me.run.clone(),
            body: key.clone(),
        });
        change.bodies.push(RecordBody { key, content });
        self.write(&graph.id, change).await?;
        reach("observe.stored").await;
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
        let Some(made) = made else { return Ok(None) };
        let body = self.bodies.read(&graph.id, &made.body).await?;
        Ok(body.and_then(|body| serde_json::from_value(body).ok()))
    }

    /// Writes the bodies of a change, then its head.
    pub(super) async fn write(
        &mut self,
        id: &GraphId,
        change: HeadChange,
    ) -> Result<(), RecordsError> {
        let mut head = self.write_bodies(id, change).await?;
        reach("save.bodies").await;
        let size = serde_json::to_vec(&head).map_or(0, |bytes| bytes.len());
        if size > HEAD_BYTES {
            return Err(RecordsError::Full {
                what: "the head of the graph",
                bound: HEAD_BYTES,
            });
        }
        for _ in 0..ROUNDS {
            let Some(held) = self.held.get_mut(id) else {
                break;
            };
            let value = named(&head.stored.conversation, &head);
            let (key, version) = (head_key(id), held.version);
            match with_retries(|| self.host.state_put(&key, value.clone(), version)).await {
                Ok(version) => {
                    held.version = Some(version);
                    held.written.extend(head.names());
                    held.head = head;
                    reach("save.head").await;
                    return Ok(());
                }
                // A retried write conflicts with itself if only the response of the first one was lost.
                Err(error) if is_version_conflict(&error) => {
                    head = self.resolve_conflict(id, head).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(self.lost(id, String::new()))
    }

    /// Handles another stored version: our own write with a lost response, or a take-over by another run.
    async fn resolve_conflict(
        &mut self,
        id: &GraphId,
        head: GraphHead,
    ) -> Result<GraphHead, RecordsError> {
        let key = head_key(id);
        let Some(entry) = with_retries(|| self.host.state_get(&key)).await? else {
            return Err(self.lost(id, String::new()));
        };
        let stored: StoredRecord<GraphHead> = read(entry.value, &head.stored.conversation);
        let StoredRecord::Here(stored) = stored else {
            return Err(self.lost(id, String::new()));
        };
        let owner = &stored.stored.owner;
        if *owner != head.stored.owner {
            return Err(self.lost(id, owner.run.clone()));
        }
        if let Some(held) = self.held.get_mut(id) {
            held.version = Some(entry.version);
        }
        Ok(head)
    }

    fn lost(&mut self, id: &GraphId, run: String) -> RecordsError {
        self.held.remove(id);
        RecordsError::LeaseLost {
            graph: id.clone(),
            run,
        }
    }

    /// Writes bodies that are not stored yet.
    async fn write_bodies(
        &mut self,
        id: &GraphId,
        change: HeadChange,
    ) -> Result<GraphHead, RecordsError> {
        let HeadChange { mut head, bodies } = change;
        let Some(held) = self.held.get_mut(id) else {
            return Ok(head);
        };
        let mut new: BTreeMap<&str, &Value> = BTreeMap::new();
        for body in &bodies {
            if !held.written.contains(&body.key) && !head.inline.contains_key(&body.key) {
                new.insert(&body.key, &body.content);
            }
        }
        let list: Vec<_> = new.into_iter().collect();
        if head.bytes > GRAPH_BYTES {
            return Err(RecordsError::Full {
                what: "the bodies of the graph",
                bound: usize::try_from(GRAPH_BYTES).unwrap_or(usize::MAX),
            });
        }
        match self.bodies.write_all(id, &list).await {
            Ok(bytes) => {
                head.bytes += bytes;
                held.written
                    .extend(list.iter().map(|(key, _)| (*key).to_owned()));
            }
            // From a cancelled run, the gateway accepts only state: the bodies move into the head.
            Err(error) if error.is_cancelled() => {
                let bodies = list
                    .iter()
                    .map(|(key, content)| ((*key).to_owned(), (*content).clone()));
                head.inline.extend(bodies);
            }
            Err(error) => return Err(error),
        }
        Ok(head)
    }
}

impl<H: RecordsHost> GraphRecords<H> {
    /// Stores an accepted graph: the model's output, then the index, then its head. `ordinal`: number of the
    /// declaration in this run; a repeated one returns its existing graph.
    pub async fn open(
        &mut self,
        ordinal: u32,
        graph: &Graph,
        source: &DeclarationSource,
        raw: &str,
        diagnostics: &[Diagnostic],
        now: Millis,
    ) -> Result<OpenOutcome, RecordsError> {
        self.needs_storage()?;
        let id = &graph.id;
        if let Some(made) = self.archive.index.value.made_by(&self.me.run, ordinal) {
            return Ok(OpenOutcome::Exists(made.clone()));
        }
        let end = raw.floor_char_boundary(RAW);
        let body = json!({
            "raw": &raw[..end],
            "bytes": raw.len(),
            "source": source,
            "diagnostics": diagnostics,
            "accepted_sha256": graph.info.accepted_sha256,
        });
        let mut bytes = self.driven.bodies.write_all(id, &[(SOURCE, &body)]).await?;
        reach("open.raw").await;
        let open = OpenEntry {
            id: id.clone(),
            run: self.me.run.clone(),
            at: now,
        };
        // Index before head: the next run finds and removes an entry without a head, and its bodies.
        let add = |index: &mut Index| index.open(open.clone(), ordinal);
        self.archive.index.change(&self.host, add).await?;
        reach("open.index").await;
        let owner = GraphOwner {
            run: self.me.run.clone(),
            attempt: self.me.attempt,
            epoch: 1,
        };
        let conversation = self.me.conversation();
        let change = GraphHead::first(graph, &conversation, owner, SOURCE.to_owned(), now)?;
        let bodies: Vec<_> = change
            .bodies
            .iter()
            .map(|body| (body.key.as_str(), &body.content))
            .collect();
        bytes += self.driven.bodies.write_all(id, &bodies).await?;
        let mut head = change.head;
        head.bytes = bytes;
        let value = named(&conversation, &head);
        // Unconditional: the random id guarantees that the key is unused.
        let key = head_key(id);
        let version = with_retries(|| self.host.state_put(&key, value.clone(), None)).await?;
        reach("open.head").await;
        let held = DrivenGraph {
            written: head.names(),
            head,
            version: Some(version),
        };
        self.driven.held.insert(id.clone(), held);
        Ok(OpenOutcome::New)
    }
}
