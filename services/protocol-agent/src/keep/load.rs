//! The start of a run: what is stored, and which graphs become its own.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::diagnostic::Diagnostic;
use action_graph::graph::Millis;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::{Node, Output, State};
use action_graph::record::{RestoreError, restore};
use action_graph::rules::KnownGraph;
use action_graph::schedule::Event;
use action_graph::transcript::Turn;
use protocol::run::RunStatus;
use serde_json::Value;

use crate::failpoint::reach;
use crate::keep::allowances::{self, Allowances};
use crate::keep::bodies::Bodies;
use crate::keep::digests::{self, Ring};
use crate::keep::document::{Document, Read, is_outrun, named, read};
use crate::keep::error::KeepError;
use crate::keep::head::Head;
use crate::keep::host::{KeepHost, tried};
use crate::keep::index::{self, Index, Open};
use crate::keep::reconcile::{Facts, findings};
use crate::keep::save::{DrivenGraphs, HEADS, Held, head_key};
use crate::keep::{Adopted, Approvals, GraphArchive, Inbox, Keep, Loaded, Me, Resumed};

/// Heads of a conversation that are looked at.
const MOST: u32 = 32;
/// The longest time of a graph: 7 days. It is over then, with what is done.
const LONGEST: Millis = 7 * 24 * 60 * 60 * 1_000;
/// Take-overs of one graph that others may win in a row.
const ROUNDS: usize = 4;

/// A stored head.
enum Found {
    Here(Box<Head>, i64),
    Absent,
    Lost(String),
}

impl<H: KeepHost> Keep<H> {
    /// Reads the records of the conversation, and takes over every open graph whose run is over. The first thing of a
    /// run. Without a conversation or a grant nothing is read, and every durable graph is refused.
    pub async fn load(host: H, me: Me, now: Millis) -> Result<(Self, Loaded), KeepError> {
        let conversation = me.conversation.clone().unwrap_or_default();
        let bodies = Bodies::new(host.clone(), &conversation);
        let mut keep = Self {
            refused: refusal(&me),
            ring: Document::absent(digests::KEY),
            others: BTreeMap::new(),
            now,
            approvals: Approvals {
                host: host.clone(),
                me: me.clone(),
                document: Document::absent(allowances::KEY),
            },
            archive: GraphArchive {
                host: host.clone(),
                bodies: bodies.clone(),
                index: Document::absent(index::KEY),
                read: BTreeMap::new(),
                now,
            },
            driven: DrivenGraphs {
                host: host.clone(),
                me: me.clone(),
                bodies,
                held: BTreeMap::new(),
            },
            inbox: Inbox {
                host: host.clone(),
                me: me.clone(),
                now,
            },
            host,
            me,
        };
        let mut loaded = Loaded::default();
        if keep.me.needs_state().is_err() {
            return Ok((keep, loaded));
        }
        let host = &keep.host;
        let (index, ring, allowances, keys) = futures_util::try_join!(
            Document::<Index>::read(host, index::KEY, &conversation),
            Document::<Ring>::read(host, digests::KEY, &conversation),
            Document::<Allowances>::read(host, allowances::KEY, &conversation),
            async { Ok(tried(|| host.state_list("apd.", MOST * 2)).await?.keys) },
        )?;
        loaded.digests.clone_from(&ring.value.digests);
        keep.ring = ring;
        keep.archive.index = index;
        keep.approvals.document = allowances;
        if keep.can_persist() {
            keep.load_graphs(&keys, &mut loaded).await?;
        }
        loaded.inbox = keep.inbox.read(&keys).await?;
        Ok((keep, loaded))
    }

    /// Looks at each open graph that the index or the keys of heads name.
    async fn load_graphs(&mut self, keys: &[String], loaded: &mut Loaded) -> Result<(), KeepError> {
        let heads = keys.iter().filter_map(|key| key.strip_prefix(HEADS));
        let heads: BTreeSet<_> = heads.map(|id| GraphId(id.to_owned())).collect();
        let index = &self.archive.index.value;
        let named: Vec<_> = index.open.iter().map(|one| one.id.clone()).collect();
        let is_named = |id: &&GraphId| !named.contains(id);
        let nameless: Vec<_> = heads.iter().filter(is_named).cloned().collect();
        let (mut found, mut absent) = (Vec::new(), Vec::new());
        for id in named.into_iter().chain(nameless) {
            if self.archive.is_closed(&id) {
                let key = head_key(&id);
                tried(|| self.host.state_delete(&key)).await?;
                continue;
            }
            match self.adopt(&id).await? {
                Adopted::Mine(resumed) => loaded.mine.push(*resumed),
                Adopted::Busy { run } => loaded.busy.push((id.clone(), run)),
                Adopted::Gone => absent.push(id),
                Adopted::Lost(why) => loaded.lost.push((id, why)),
            }
        }
        loaded
            .mine
            .sort_by_key(|one| self.driven.held[&one.graph.id].head.opened);
        for (id, held) in &self.driven.held {
            found.push(Open {
                id: id.clone(),
                run: self.me.run.clone(),
                at: held.head.opened,
            });
        }
        let now = self.now;
        let mend = |index: &mut Index| Ok(index.mend(&found, &absent) | index.forget(now));
        self.archive.index.change(&self.host, mend).await
    }

    /// Takes a graph over, unless a live run drives it: at the start of a run, after a lost lease, or when the run
    /// that drove it may have ended since.
    pub async fn adopt(&mut self, id: &GraphId) -> Result<Adopted, KeepError> {
        self.needs_storage()?;
        self.driven.held.remove(id);
        self.others.remove(id);
        for _ in 0..ROUNDS {
            let (mut head, version) = match self.find(id).await? {
                Found::Here(head, version) => (head, version),
                Found::Lost(why) => return Ok(Adopted::Lost(why)),
                Found::Absent => return self.absent(id).await,
            };
            let owner = head.stored.owner.clone();
            let is_mine = owner.run == self.me.run && owner.attempt <= self.me.attempt;
            if !is_mine && is_live(&self.host, &owner.run).await? {
                self.show(id, *head).await?;
                return Ok(Adopted::Busy { run: owner.run });
            }
            head.take_over(&self.me.run, self.me.attempt);
            let value = named(&self.me.conversation(), &*head);
            let key = head_key(id);
            match tried(|| self.host.state_put(&key, value.clone(), Some(version))).await {
                Ok(version) => {
                    reach("adopt.taken").await;
                    return self.resume(id, *head, version, &owner.run).await;
                }
                Err(error) if is_outrun(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Adopted::Busy { run: String::new() })
    }

    /// Remembers what a graph of another run looks like.
    async fn show(&mut self, id: &GraphId, head: Head) -> Result<(), KeepError> {
        let mut bodies = self.driven.bodies.read_all(id, head.names()).await?;
        bodies.extend(head.inline);
        let restored = restore(head.stored, &self.me.conversation(), &mut |name| {
            bodies.remove(name)
        });
        if let Ok(graph) = restored {
            let known = KnownGraph::from(&graph);
            self.others.insert(
                id.clone(),
                KnownGraph {
                    open: true,
                    ..known
                },
            );
        }
        Ok(())
    }

    /// An index entry without a head: its run may be about to write it.
    async fn absent(&self, id: &GraphId) -> Result<Adopted, KeepError> {
        let mut open = self.archive.index.value.open.iter();
        match open.find(|one| one.id == *id) {
            Some(one) if one.run != self.me.run && is_live(&self.host, &one.run).await? => {
                let run = one.run.clone();
                Ok(Adopted::Busy { run })
            }
            _ => Ok(Adopted::Gone),
        }
    }

    /// Restores a graph that is this run's now. One whose bodies are gone is closed.
    async fn resume(
        &mut self,
        id: &GraphId,
        head: Head,
        version: i64,
        before: &str,
    ) -> Result<Adopted, KeepError> {
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
        let held = Held {
            head,
            version: Some(version),
            written: names,
        };
        let mut graph = match restored {
            Ok(graph) => graph,
            Err(RestoreError::Version(version)) => {
                return Ok(Adopted::Lost(RestoreError::Version(version).to_string()));
            }
            Err(error) => {
                self.driven.held.insert(id.clone(), held);
                self.close_lost(id).await?;
                return Ok(Adopted::Lost(error.to_string()));
            }
        };
        graph.settings.standing = self.approvals.standing();
        let outputs = outputs_of_running(&self.driven.bodies, &graph).await?;
        let ended = runs_that_ended(&self.host, &held.head, before).await?;
        let mut facts = Facts {
            outputs,
            asks: &held.head.asks,
            ended: &ended,
            now: self.now,
        };
        let mut findings = findings(&graph, &mut facts);
        if self.now.saturating_sub(held.head.opened) > LONGEST {
            findings.events.push(Event::Deadline);
        }
        let observations = self.observations(id, &held.head, graph.seq).await?;
        let diagnostics = diagnostics(&self.driven.bodies, id, &held.head.source).await?;
        self.driven.held.insert(id.clone(), held);
        Ok(Adopted::Mine(Box::new(Resumed {
            graph,
            diagnostics,
            observations,
            events: findings.events,
            children: findings.children,
            timers: findings.timers,
            asks: findings.asks,
            unasked: findings.unasked,
        })))
    }

    async fn find(&self, id: &GraphId) -> Result<Found, KeepError> {
        let key = head_key(id);
        let Some(entry) = tried(|| self.host.state_get(&key)).await? else {
            return Ok(Found::Absent);
        };
        Ok(match read(entry.value, &self.me.conversation()) {
            Read::Here(head) => Found::Here(head, entry.version),
            Read::Later(version) => Found::Lost(RestoreError::Version(version).to_string()),
            Read::Absent => Found::Absent,
        })
    }

    /// Observations before this transition, by runs that left no turns.
    async fn observations(
        &self,
        id: &GraphId,
        head: &Head,
        seq: u64,
    ) -> Result<Vec<Turn>, KeepError> {
        let has_digest = |run: &str| {
            let mut digests = self.ring.value.digests.iter();
            digests.any(|digest| digest.run == run)
        };
        let is_wanted = |one: &&crate::keep::head::Observation| {
            one.seq < seq && one.run != self.me.run && !has_digest(&one.run)
        };
        let mut turns = Vec::new();
        for observation in head.observations.iter().filter(is_wanted) {
            let body = self.driven.bodies.read(id, &observation.body).await?;
            turns.extend(body.and_then(|body| serde_json::from_value::<Turn>(body).ok()));
        }
        Ok(turns)
    }
}

/// A run that is not found has ended and was removed.
async fn is_live(host: &impl KeepHost, run: &str) -> Result<bool, KeepError> {
    let status = tried(|| host.run_status(run)).await?;
    Ok(status.is_some_and(|status| !status.is_terminal()))
}

/// A run that is not found has ended and was removed.
async fn has_completed(host: &impl KeepHost, run: &str) -> Result<bool, KeepError> {
    let status = tried(|| host.run_status(run)).await?;
    Ok(matches!(status, Some(RunStatus::Completed) | None))
}

/// Runs whose questions were surely sent and are not answered: those that completed, unless the run that drove the
/// graph after them died. That one may have had the answer.
async fn runs_that_ended(
    host: &impl KeepHost,
    head: &Head,
    before: &str,
) -> Result<BTreeSet<String>, KeepError> {
    let mut ended = BTreeSet::new();
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
    bodies: &Bodies<impl KeepHost>,
    id: &GraphId,
    body: &str,
) -> Result<Vec<Diagnostic>, KeepError> {
    let body = bodies.read(id, body).await?;
    let list = body.and_then(|mut body| body.get_mut("diagnostics").map(Value::take));
    let list = list.and_then(|list| serde_json::from_value(list).ok());
    Ok(list.unwrap_or_default())
}

/// Outputs of running attempts that were stored before their head.
async fn outputs_of_running(
    bodies: &Bodies<impl KeepHost>,
    graph: &action_graph::Graph,
) -> Result<BTreeMap<(ActionId, u32), Output>, KeepError> {
    let is_running = |node: &&Node| node.state == State::Running;
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

fn refusal(me: &Me) -> Option<&'static str> {
    match me {
        Me {
            conversation: None, ..
        } => Some("the event has no conversation: graphs end with this run"),
        Me {
            has_state: false, ..
        } => Some("the agent has no access to the conversation's state: graphs end with this run"),
        Me {
            has_storage: false, ..
        } => {
            Some("the agent has no access to its own storage or to runs: graphs end with this run")
        }
        _ => None,
    }
}
