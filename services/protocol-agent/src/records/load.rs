//! Load of records at the start of a run, and take-over of graphs.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::diagnostic::Diagnostic;
use action_graph::graph::Millis;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::{ActionOutput, Node, NodeState};
use action_graph::record::{RestoreError, restore};
use action_graph::rules::KnownGraph;
use action_graph::schedule::GraphEvent;
use action_graph::transcript::TranscriptTurn;
use protocol::run::RunStatus;
use serde_json::Value;

use crate::failpoint::reach;
use crate::records::allowances::{self, Allowances};
use crate::records::bodies::Bodies;
use crate::records::digests::{self, DigestList};
use crate::records::document::{StateDocument, StoredRecord, is_version_conflict, named, read};
use crate::records::error::RecordsError;
use crate::records::head::GraphHead;
use crate::records::host::{RecordsHost, with_retries};
use crate::records::index::{self, Index, OpenEntry};
use crate::records::reconcile::{RecoveryFacts, RecoveryFindings};
use crate::records::save::{DrivenGraph, DrivenGraphs, HEADS, head_key};
use crate::records::{Adoption, GraphArchive, GraphRecords, LoadedRecords, Resumed, RunIdentity};

/// Maximum heads of a conversation that are examined.
const MAX_HEADS: u32 = 32;
/// Maximum lifetime of a graph: 7 days, in milliseconds. It then ends with its results so far.
const LONGEST: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Maximum consecutive conflicts of one take-over.
const ROUNDS: usize = 4;

/// Stored head of a graph.
enum StoredHead {
    Here(Box<GraphHead>, i64),
    Absent,
    Lost(String),
}

impl<H: RecordsHost> GraphRecords<H> {
    /// Reads the records of the conversation and takes over every open graph whose run has ended. Call it first in a
    /// run. Without a conversation or a grant, nothing is read or stored.
    pub async fn load(
        host: H,
        me: RunIdentity,
        now: Millis,
    ) -> Result<(Self, LoadedRecords), RecordsError> {
        let conversation = me.conversation.clone().unwrap_or_default();
        let bodies = Bodies::new(host.clone(), &conversation);
        let mut records = Self {
            refused: refusal(&me),
            digests: StateDocument::absent(digests::KEY),
            others: BTreeMap::new(),
            now,
            allowances: StateDocument::absent(allowances::KEY),
            archive: GraphArchive {
                host: host.clone(),
                bodies: bodies.clone(),
                index: StateDocument::absent(index::KEY),
                read: BTreeMap::new(),
                now,
            },
            driven: DrivenGraphs {
                host: host.clone(),
                me: me.clone(),
                bodies,
                held: BTreeMap::new(),
            },
            host,
            me,
        };
        let mut loaded = LoadedRecords::default();
        if records.me.needs_state().is_err() {
            return Ok((records, loaded));
        }
        let host = &records.host;
        let (index, digests, allowances, keys) = futures_util::try_join!(
            StateDocument::<Index>::read(host, index::KEY, &conversation),
            StateDocument::<DigestList>::read(host, digests::KEY, &conversation),
            StateDocument::<Allowances>::read(host, allowances::KEY, &conversation),
            async {
                Ok(with_retries(|| host.state_list("apd.", MAX_HEADS * 2))
                    .await?
                    .keys)
            },
        )?;
        loaded.digests.clone_from(&digests.value.digests);
        records.digests = digests;
        records.archive.index = index;
        records.allowances = allowances;
        if records.can_persist() {
            records.load_graphs(&keys, &mut loaded).await?;
        }
        loaded.inbox = records.read_inbox(&keys).await?;
        Ok((records, loaded))
    }

    /// Tries to take over each open graph named by the index or by a head's key.
    async fn load_graphs(
        &mut self,
        keys: &[String],
        loaded: &mut LoadedRecords,
    ) -> Result<(), RecordsError> {
        let heads = keys.iter().filter_map(|key| key.strip_prefix(HEADS));
        let heads: BTreeSet<_> = heads.map(|id| GraphId(id.to_owned())).collect();
        let index = &self.archive.index.value;
        let named: Vec<_> = index.open.iter().map(|one| one.id.clone()).collect();
        let is_named = |id: &&GraphId| !named.contains(id);
        let nameless: Vec<_> = heads.iter().filter(is_named).cloned().collect();
        let (mut found, mut absent) = (Vec::new(), Vec::new());
        for id in named.into_iter().chain(nameless) {
            // A run died after it closed the graph and before it removed the head.
            if self.archive.is_closed(&id) {
                let key = head_key(&id);
                with_retries(|| self.host.state_delete(&key)).await?;
                continue;
            }
            match self.adopt(&id).await? {
                Adoption::Mine(resumed) => loaded.mine.push(*resumed),
                Adoption::Busy { run } => loaded.busy.push((id.clone(), run)),
                Adoption::Gone => absent.push(id),
                Adoption::Lost(why) => loaded.lost.push((id, why)),
            }
        }
        loaded
            .mine
            .sort_by_key(|one| self.driven.held[&one.graph.id].head.opened);
        for (id, held) in &self.driven.held {
            found.push(OpenEntry {
                id: id.clone(),
                run: self.me.run.clone(),
                at: held.head.opened,
            });
        }
        let now = self.now;
        // `|` and not `||`: both changes have to be made.
        let mend = |index: &mut Index| Ok(index.mend(&found, &absent) | index.forget(now));
        self.archive.index.change(&self.host, mend).await
    }

    /// Takes over a graph unless a live run drives it.
    pub async fn adopt(&mut self, id: &GraphId) -> Result<Adoption, RecordsError> {
        self.needs_storage()?;
        self.driven.held.remove(id);
        self.others.remove(id);
        for _ in 0..ROUNDS {
            let (mut head, version) = match self.find(id).await? {
                StoredHead::Here(head, version) => (head, version),
                StoredHead::Lost(why) => return Ok(Adoption::Lost(why)),
                StoredHead::Absent => return self.absent(id).await,
            };
            let owner = head.stored.owner.clone();
            let is_mine = owner.run == self.me.run && owner.attempt <= self.me.attempt;
            if !is_mine && is_live(&self.host, &owner.run).await? {
                self.show(id, *head).await?;
                return Ok(Adoption::Busy { run: owner.run });
            }
            head.take_over(&self.me.run, self.me.attempt);
            let value = named(&self.me.conversation(), &*head);
            let key = head_key(id);
            // Conditional write: of several runs, only one wins the graph.
            match with_retries(|| self.host.state_put(&key, value.clone(), Some(version))).await {
                Ok(version) => {
                    reach("adopt.taken").await;
                    return self.resume(id, *head, version, &owner.run).await;
                }
                Err(error) if is_version_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Adoption::Busy { run: String::new() })
    }

    /// Caches facts about a graph of another run.
    async fn show(&mut self, id: &GraphId, head: GraphHead) -> Result<(), RecordsError> {
        let mut bodies = self.driven.bodies.read_all(id, head.names()).await?;
        bodies.extend(head.inline);
        let restored = restore(head.stored, &self.me.conversation(), &mut |name| {
            bodies.remove(name)
        });
        if let Ok(graph) = restored {
            let facts = KnownGraph::from(&graph);
            self.others.insert(
                id.clone(),
                KnownGraph {
                    open: true,
                    ..facts
                },
            );
        }
        Ok(())
    }

    /// Handles an index entry without a head: its live run may be about to write the head.
    async fn absent(&self, id: &GraphId) -> Result<Adoption, RecordsError> {
        let mut open = self.archive.index.value.open.iter();
        match open.find(|one| one.id == *id) {
            Some(one) if one.run != self.me.run && is_live(&self.host, &one.run).await? => {
                let run = one.run.clone();
                Ok(Adoption::Busy { run })
            }
            _ => Ok(Adoption::Gone),
        }
    }

    /// Restores a graph after its take-over. Closes a graph with missing bodies.
    async fn resume(
        &mut self,
        id: &GraphId,
        head: GraphHead,
        version: i64,
        before: &str,
    ) -> Result<Adoption, RecordsError> {
        let names = head.names();
        let mut bodies = self
            .driven
            .bodies
            .read_all(id, names.iter().cloned())
            .await?;
        bodies.extend(head.inline.clone());
        let stored = head.stored.clone();
        let restored = restore(stored, &self.me.conversation(), &mut |name| {
            bodies.remove(name)
        });
        let held = DrivenGraph {
            head,
            version: Some(version),
            written: names,
        };
        let mut graph = match restored {
            Ok(graph) => graph,
            Err(RestoreError::Version(version)) => {
                return Ok(Adoption::Lost(RestoreError::Version(version).to_string()));
            }
            Err(error) => {
                self.driven.held.insert(id.clone(), held);
                self.close_lost(id).await?;
                return Ok(Adoption::Lost(error.to_string()));
            }
        };
        graph.settings.standing = self.standing();
        let outputs = outputs_of_running(&self.driven.bodies, &graph).await?;
        let ended = runs_that_ended(&self.host, &held.head, before).await?;
        let mut facts = RecoveryFacts {
            outputs,
            asks: &held.head.asks,
            ended: &ended,
            now: self.now,
        };
        let mut found = RecoveryFindings::of(&graph, &mut facts);
        if self.now.saturating_sub(held.head.opened) > LONGEST {
            found.events.push(GraphEvent::Deadline);
        }
        let observations = self.observations(id, &held.head, graph.seq).await?;
        let diagnostics = diagnostics(&self.driven.bodies, id, &held.head.source).await?;
        self.driven.held.insert(id.clone(), held);
        Ok(Adoption::Mine(Box::new(Resumed {
            graph,
            diagnostics,
            observations,
            found,
        })))
    }

    async fn find(&self, id: &GraphId) -> Result<StoredHead, RecordsError> {
        let key = head_key(id);
        let Some(entry) = with_retries(|| self.host.state_get(&key)).await? else {
            return Ok(StoredHead::Absent);
        };
        Ok(match read(entry.value, &self.me.conversation()) {
            StoredRecord::Here(head) => StoredHead::Here(head, entry.version),
            StoredRecord::Later(version) => {
                StoredHead::Lost(RestoreError::Version(version).to_string())
            }
            StoredRecord::Absent => StoredHead::Absent,
        })
    }

    /// Observations before this transition by runs that stored no turns.
    async fn observations(
        &self,
        id: &GraphId,
        head: &GraphHead,
        seq: u64,
    ) -> Result<Vec<TranscriptTurn>, RecordsError> {
        let has_digest = |run: &str| {
            let mut digests = self.digests.value.digests.iter();
            digests.any(|digest| digest.run == run)
        };
        let is_wanted = |one: &&crate::records::head::Observation| {
            one.seq < seq && one.run != self.me.run && !has_digest(&one.run)
        };
        let mut turns = Vec::new();
        for observation in head.observations.iter().filter(is_wanted) {
            let body = self.driven.bodies.read(id, &observation.body).await?;
            turns.extend(body.and_then(|body| serde_json::from_value::<TranscriptTurn>(body).ok()));
        }
        Ok(turns)
    }
}

/// True if a run has not ended. An absent run has ended and was removed.
async fn is_live(host: &impl RecordsHost, run: &str) -> Result<bool, RecordsError> {
    let status = with_retries(|| host.run_status(run)).await?;
    Ok(status.is_some_and(|status| !status.is_terminal()))
}

/// True if a run has completed. An absent run has ended and was removed.
async fn has_completed(host: &impl RecordsHost, run: &str) -> Result<bool, RecordsError> {
    let status = with_retries(|| host.run_status(run)).await?;
    Ok(matches!(status, Some(RunStatus::Completed) | None))
}

/// Runs whose questions were certainly sent and not answered: completed ones, unless the last driving run died.
async fn runs_that_ended(
    host: &impl RecordsHost,
    head: &GraphHead,
    before: &str,
) -> Result<BTreeSet<String>, RecordsError> {
    let mut ended = BTreeSet::new();
    // A run that died may have had the answer.
    if head.asks.is_empty() || !has_completed(host, before).await? {
        return Ok(ended);
    }
    let runs: BTreeSet<_> = head.asks.iter().map(|ask| ask.run.clone()).collect();
    for run in runs {
        if run == before || has_completed(host, &run).await? {
            ended.insert(run);
        }
    }
    Ok(ended)
}

/// Warnings and repairs of the declaration.
async fn diagnostics(
    bodies: &Bodies<impl RecordsHost>,
    id: &GraphId,
    body: &str,
) -> Result<Vec<Diagnostic>, RecordsError> {
    let body = bodies.read(id, body).await?;
    let list = body.and_then(|mut body| body.get_mut("diagnostics").map(Value::take));
    let list = list.and_then(|list| serde_json::from_value(list).ok());
    Ok(list.unwrap_or_default())
}

/// Outputs of running attempts whose bodies were stored without a new head.
async fn outputs_of_running(
    bodies: &Bodies<impl RecordsHost>,
    graph: &action_graph::Graph,
) -> Result<BTreeMap<(ActionId, u32), ActionOutput>, RecordsError> {
    let is_running = |node: &&Node| node.state == NodeState::Running;
    let mut found = BTreeMap::new();
    for node in graph.nodes.iter().filter(is_running) {
        let id = &node.action.id;
        let beginning = format!("{id}.{}.", node.attempt);
        let names = bodies.names(&graph.id, &beginning).await?;
        for name in names.iter().filter(|name| !name.contains(".p")) {
            let body = bodies.read(&graph.id, name).await?;
            let output = body.and_then(|body| serde_json::from_value(body).ok());
            found.extend(output.map(|output| ((id.clone(), node.attempt), output)));
        }
    }
    Ok(found)
}

fn refusal(me: &RunIdentity) -> Option<&'static str> {
    match me {
        RunIdentity {
            conversation: None, ..
        } => Some("the event has no conversation: graphs end with this run"),
        RunIdentity {
            has_state: false, ..
        } => Some("the agent has no access to the conversation's state: graphs end with this run"),
        RunIdentity {
            has_storage: false, ..
        } => {
            Some("the agent has no access to its own storage or to runs: graphs end with this run")
        }
        _ => None,
    }
}
