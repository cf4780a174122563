//! Load of records at the start of a run, and take-over of graphs.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::graph::Millis;
use action_graph::ids::GraphId;
use action_graph::record::{RestoreError, restore};
use action_graph::rules::KnownGraph;
use action_graph::schedule::GraphEvent;
use futures_util::TryFutureExt as _;
use protocol::host_api::StateDocument;
use protocol::run::RunStatus;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::records::allowances;
use crate::records::closed::GraphEntry;
use crate::records::digests;
use crate::records::document::{SharedDocument, VERSION, is_version_conflict, version_of};
use crate::records::error::RecordsError;
use crate::records::head::{GraphHead, HEAD, Observation};
use crate::records::host::{RecordsHost, read_bodies, with_retries};
use crate::records::reconcile::{RecoveryFacts, RecoveryFindings};
use crate::records::save::{DrivenGraph, DrivenGraphs, GRAPHS, GraphSummary, SOURCE, key_of};
use crate::records::{Adoption, GraphArchive, GraphRecords, LoadedRecords, Resumed, RunIdentity};

/// Maximum lifetime of a graph: 7 days, in milliseconds. It then ends with its results so far.
const LONGEST: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Maximum consecutive conflicts of one take-over.
const ROUNDS: usize = 4;

impl<H: RecordsHost> GraphRecords<H> {
    /// Reads the records of the conversation and takes over every open graph whose run has ended. Call it first in a
    /// run. Without a conversation or a grant, nothing is read or stored.
    pub async fn load(
        host: H,
        me: RunIdentity,
        now: Millis,
    ) -> Result<(Self, LoadedRecords), RecordsError> {
        let mut records = Self {
            refused: refusal(&me),
            digests: SharedDocument::absent(digests::KEY),
            others: BTreeMap::new(),
            now,
            allowances: SharedDocument::absent(allowances::KEY),
            archive: GraphArchive {
                host: host.clone(),
                entries: Vec::new(),
                read: BTreeMap::new(),
                now,
            },
            driven: DrivenGraphs {
                host: host.clone(),
                me: me.clone(),
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
        let documents = with_retries(|| host.documents()).map_err(RecordsError::from);
        let (entries, digests, allowances) = futures_util::try_join!(
            documents,
            SharedDocument::read(host, digests::KEY),
            SharedDocument::read(host, allowances::KEY),
        )?;
        records.digests = digests;
        records.allowances = allowances;
        loaded.digests.clone_from(&records.digests.value.digests);
        if records.can_persist() {
            records.load_graphs(&entries, &mut loaded).await?;
        }
        loaded.inbox = records.read_inbox(&entries).await?;
        Ok((records, loaded))
    }

    /// Lists the graphs and tries to take over each open one.
    async fn load_graphs(
        &mut self,
        documents: &[StateDocument],
        loaded: &mut LoadedRecords,
    ) -> Result<(), RecordsError> {
        for document in documents {
            let Some(id) = document.key.strip_prefix(GRAPHS) else {
                continue;
            };
            let id = GraphId(id.to_owned());
            let version = version_of(Some(&document.summary));
            if version > VERSION {
                let why = RestoreError::Version(version).to_string();
                loaded.lost.push((id, why));
            } else if let Some(summary) = parsed(document.summary.clone()) {
                self.archive.entries.push(GraphEntry { id, summary });
            }
        }
        self.archive.entries.sort_by_key(|entry| {
            let closed = entry.summary.closed.as_ref();
            closed.map_or(entry.summary.opened, |closed| closed.at)
        });
        let entries = self.archive.entries.iter();
        let open = entries.filter(|entry| entry.summary.closed.is_none());
        let open: Vec<_> = open.map(|entry| entry.id.clone()).collect();
        for id in open {
            match self.adopt(&id).await? {
                Adoption::Mine(resumed) => loaded.mine.push(*resumed),
                Adoption::Busy { run } => loaded.busy.push((id, run)),
                Adoption::Gone => {}
                Adoption::Lost(why) => loaded.lost.push((id, why)),
            }
        }
        Ok(())
    }

    /// Takes over a graph unless a live run drives it.
    pub async fn adopt(&mut self, id: &GraphId) -> Result<Adoption, RecordsError> {
        self.needs_documents()?;
        self.driven.held.remove(id);
        self.others.remove(id);
        let key = key_of(id);
        for _ in 0..ROUNDS {
            let Some(stored) = with_retries(|| self.host.document(&key)).await? else {
                return Ok(Adoption::Gone);
            };
            let (version, is_leased) = (stored.version, stored.lease.is_some());
            let version_of_record = version_of(stored.summary.as_ref());
            if version_of_record > VERSION {
                let why = RestoreError::Version(version_of_record).to_string();
                return Ok(Adoption::Lost(why));
            }
            let summary = stored.summary.and_then(parsed::<GraphSummary>);
            let Some(mut summary) = summary.filter(|summary| summary.closed.is_none()) else {
                return Ok(Adoption::Gone);
            };
            // The owner is written with the lease.
            let before = summary.owner().to_owned();
            if is_leased && before != self.me.run {
                self.show(id).await?;
                return Ok(Adoption::Busy { run: before });
            }
            summary.take_over(&self.me.run);
            // Conditional write: of several runs, only one wins the graph.
            let document = summary.document();
            match with_retries(|| self.host.put_document(&key, &document, Some(version))).await {
                Ok(_) => {
                    return self.resume(id, summary, &before).await;
                }
                Err(error) if is_version_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Adoption::Busy { run: String::new() })
    }

    /// Caches facts about a graph of another run.
    async fn show(&mut self, id: &GraphId) -> Result<(), RecordsError> {
        let Some(head) = self.head(id).await? else {
            return Ok(());
        };
        let keys = head.stored.keys().cloned();
        let mut bodies = read_bodies(&self.host, &key_of(id), keys).await?;
        if let Ok(graph) = restore(head.stored, &mut |name| bodies.remove(name)) {
            let facts = KnownGraph {
                open: true,
                ..KnownGraph::from(&graph)
            };
            self.others.insert(id.clone(), facts);
        }
        Ok(())
    }

    async fn head(&self, id: &GraphId) -> Result<Option<GraphHead>, RecordsError> {
        let mut bodies = read_bodies(&self.host, &key_of(id), [HEAD.to_owned()]).await?;
        Ok(bodies.remove(HEAD).and_then(parsed))
    }

    /// Restores a graph after its take-over. Closes a graph with missing bodies.
    async fn resume(
        &mut self,
        id: &GraphId,
        summary: GraphSummary,
        before: &str,
    ) -> Result<Adoption, RecordsError> {
        let Some(head) = self.head(id).await? else {
            return self.give_up(id, summary, "its head is missing").await;
        };
        let written: BTreeSet<_> = head.stored.keys().cloned().collect();
        let observed = self.unseen_observations(&head);
        let source = [SOURCE.to_owned()];
        let all = written.iter().chain(&observed).chain(&source).cloned();
        let mut bodies = read_bodies(&self.host, &key_of(id), all).await?;
        let source = bodies.remove(SOURCE);
        let turns = observed.iter().filter_map(|name| bodies.remove(name));
        let observations = turns.filter_map(parsed).collect();
        let restored = restore(head.stored.clone(), &mut |name| bodies.remove(name));
        let mut graph = match restored {
            Ok(graph) => graph,
            Err(error @ RestoreError::Version(_)) => return Ok(Adoption::Lost(error.to_string())),
            Err(error) => return self.give_up(id, summary, &error.to_string()).await,
        };
        graph.settings.standing = self.standing();
        let facts = RecoveryFacts {
            asks: &head.asks,
            ended: &runs_that_ended(&self.host, &head, before).await?,
            now: self.now,
        };
        let mut found = RecoveryFindings::of(&graph, &facts);
        if self.now.saturating_sub(summary.opened) > LONGEST {
            found.events.push(GraphEvent::Deadline);
        }
        let diagnostics =
            source.and_then(|mut source| source.get_mut("diagnostics").map(Value::take));
        let held = DrivenGraph {
            head,
            summary,
            written,
        };
        self.driven.held.insert(id.clone(), held);
        Ok(Adoption::Mine(Box::new(Resumed {
            graph,
            diagnostics: diagnostics.and_then(parsed).unwrap_or_default(),
            observations,
            found,
        })))
    }

    /// Closes a graph that cannot be restored, for this reason.
    async fn give_up(
        &mut self,
        id: &GraphId,
        summary: GraphSummary,
        why: &str,
    ) -> Result<Adoption, RecordsError> {
        self.close_lost(id, summary).await?;
        Ok(Adoption::Lost(why.to_owned()))
    }

    /// Bodies with observations before the current state, by runs that stored no turns.
    fn unseen_observations(&self, head: &GraphHead) -> Vec<String> {
        let digests = &self.digests.value.digests;
        let has_digest = |run: &str| digests.iter().any(|digest| digest.run == run);
        let is_wanted = |one: &&Observation| {
            one.seq < head.stored.graph.seq && one.run != self.me.run && !has_digest(&one.run)
        };
        let wanted = head.observations.iter().filter(is_wanted);
        wanted.map(|one| one.body.clone()).collect()
    }
}

/// Parses a part of a record. A damaged one counts as absent.
fn parsed<T: DeserializeOwned>(value: Value) -> Option<T> {
    let parsed = serde_json::from_value(value);
    parsed
        .inspect_err(|error| tracing::warn!(error = %error, "a stored graph is damaged and counts as absent"))
        .ok()
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

fn refusal(me: &RunIdentity) -> Option<&'static str> {
    match me {
        RunIdentity {
            has_conversation: false,
            ..
        } => Some("the event has no conversation: graphs end with this run"),
        RunIdentity {
            has_state: false, ..
        } => Some("the agent has no access to the conversation's state: graphs end with this run"),
        RunIdentity {
            has_runs: false, ..
        } => Some("the agent has no access to the status of runs: graphs end with this run"),
        _ => None,
    }
}
