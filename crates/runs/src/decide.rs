//! The decision about an event, as the store asks for it under the conversation's lock: pure code.

mod aside;
mod callable;
mod foresight;
mod message;
mod promote_next;

use std::sync::{Arc, Mutex, PoisonError};

use domain::admission::{Admission, admit};
use domain::artifact::has_artifacts;
use domain::authorization::{AuthorizationSnapshot, Granted, Subject};
use domain::binding::{Resolution, resolve};
use domain::canonical::canonical_json;
use domain::event::conversation_of;
use domain::run::deadline;
use domain::state::Owner;
use domain::trace::TraceParent;
use protocol::admin::AgentSpec;
use protocol::event::{EventAccepted, EventEnvelope, MESSAGE_RECEIVED};
use protocol::id::{AgentId, EndpointId, RunId, WorkspaceId};
use protocol::run::RunStatus;
use store::{
    Candidate, Decide, DecisionFacts, EndpointAddress, FirstAttempt, IngestPlan, NewRun,
    SharedParts, UserMessage, occupancy, sha256_hex,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::children::ChildOf;
use crate::known_agents::KnownAgent;
use crate::live::Entered;
use crate::prepare::{Beginning, Fresh};
use crate::start::StartError;
use crate::{Inner, Runs};
use callable::{callable, check_capacity, peers_among, unavailable};
use foresight::Foreseen;
use message::user_message;

pub(super) use aside::Aside;
pub(crate) use foresight::LastMet;
pub(crate) use message::transcript_text;
pub(super) use promote_next::promote_next;

impl Runs {
    /// Decides about a new event. What can be made before is made now, and not while the store asks. Gives the bytes
    /// of it, too.
    pub(super) async fn decider(
        &self,
        workspace: &WorkspaceId,
        event_id: String,
        (event, only, child, trace_parent, at): (
            Arc<EventEnvelope>,
            Option<AgentId>,
            Option<ChildOf>,
            Option<TraceParent>,
            i64,
        ),
        aside: Aside,
    ) -> (Decide, usize) {
        let asked = Asked {
            inner: Arc::clone(&self.0),
            workspace: workspace.clone(),
            event_id,
            message: user_message(&event, Uuid::now_v7()),
            event,
            only,
            child,
            trace_parent,
            run_id: RunId(Uuid::now_v7()),
        };
        let foreseen = Foreseen::of(&asked.deciding()).await;
        let bytes = foreseen.as_ref().map_or(0, Foreseen::bytes);
        let foreseen = Mutex::new(foreseen);
        let decide = move |facts: &DecisionFacts| {
            let deciding = asked.deciding();
            let last_met = &asked.inner.last_met;
            last_met.remember(&asked.workspace, &facts.candidates);
            let foreseen = foreseen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let decided = deciding.decide(facts, foreseen);
            let mut left = aside.left();
            left.renew();
            match decided {
                Ok((plan, made)) => {
                    match &plan {
                        IngestPlan::Queue { cancel, .. } => left.cancelled.clone_from(cancel),
                        IngestPlan::Start { run, attempt, .. } => {
                            let fresh =
                                |made| Fresh::of(&deciding, &asked.event, run, (made, facts, at));
                            left.fresh = made.map(fresh);
                            if let Some(fresh) = left.fresh.as_mut().filter(|_| attempt.is_some()) {
                                fresh.entered = Some(Entered::enter(&asked.inner, run.id));
                            }
                        }
                        IngestPlan::Refuse
                        | IngestPlan::Keep { .. }
                        | IngestPlan::Absorb { .. } => {}
                    }
                    plan
                }
                Err(reason) => {
                    left.refused = Some(reason);
                    IngestPlan::Refuse
                }
            }
        };
        (Arc::new(decide), bytes)
    }
}

/// What is kept of an event until the store asks about it, and for as often as it asks.
struct Asked {
    inner: Arc<Inner>,
    workspace: WorkspaceId,
    event_id: String,
    event: Arc<EventEnvelope>,
    only: Option<AgentId>,
    child: Option<ChildOf>,
    trace_parent: Option<TraceParent>,
    run_id: RunId,
    message: Option<UserMessage>,
}

impl Asked {
    fn deciding(&self) -> Deciding<'_> {
        Deciding {
            inner: &self.inner,
            workspace: &self.workspace,
            event_id: &self.event_id,
            event: &self.event,
            only: self.only,
            child: self.child.as_ref(),
            trace_parent: self.trace_parent,
            run_id: self.run_id,
            message: self.message.as_ref(),
            was_accepted: false,
        }
    }
}

pub(super) struct Deciding<'a> {
    pub(super) inner: &'a Inner,
    pub(super) workspace: &'a WorkspaceId,
    pub(super) event_id: &'a str,
    pub(super) event: &'a EventEnvelope,
    /// Nobody else can have the event: it answers this agent.
    pub(super) only: Option<AgentId>,
    /// Of an event that asks for a child run: its parent.
    pub(super) child: Option<&'a ChildOf>,
    /// The span that the event came with, if that is to be kept.
    pub(super) trace_parent: Option<TraceParent>,
    pub(super) run_id: RunId,
    /// What the event adds to its conversation.
    pub(super) message: Option<&'a UserMessage>,
    /// Its sender was told that it is taken: a runner that nobody lists at the moment is asked all the same.
    pub(super) was_accepted: bool,
}

/// What a run of an agent would be.
pub(super) struct Judged {
    pub(super) known: Arc<KnownAgent>,
    pub(super) endpoint_id: EndpointId,
    pub(super) snapshot: AuthorizationSnapshot,
    granted: Arc<Granted>,
    /// Of the texts of a run what is alike in others.
    shared: SharedParts,
    /// The event can be pulled into another run.
    pub(super) steerable: bool,
}

/// What a new run is made from.
pub(super) struct Made {
    pub(super) snapshot: AuthorizationSnapshot,
    /// The agent's specification, frozen.
    pub(super) spec: Arc<AgentSpec>,
    steerable: bool,
    pub(super) interruptible: bool,
    /// How its runner is called.
    pub(super) endpoint: Option<Arc<EndpointAddress>>,
    /// With what it can be dispatched at once.
    pub(super) beginning: Option<Beginning>,
}

impl Deciding<'_> {
    /// What shall be stored, and what the run was made from when there is one. `foreseen`: a run that was made
    /// before.
    pub(super) fn decide(
        &self,
        facts: &DecisionFacts,
        foreseen: Option<Foreseen>,
    ) -> Result<(IngestPlan, Option<Made>), StartError> {
        if let Some(why) = facts.unanswerable {
            return Err(StartError::Unanswerable(why));
        }
        if let Some(why) = facts.child_refused {
            return Err(StartError::ChildRefused(why));
        }
        let Some(winner) = self.winner(&facts.candidates)? else {
            let answer = self.no_agent();
            return Ok((IngestPlan::Keep { answer }, None));
        };
        let foreseen = foreseen.and_then(|foreseen| foreseen.for_winner(self, facts, winner));
        let (run, mut made) = match foreseen {
            Some(made) => made,
            None => self.new_run(winner, &facts.candidates)?,
        };
        let occupancy = occupancy(&facts.live, winner.agent.id);
        let message = self.message.cloned();
        let run = Box::new(run);
        let admission = admit(winner.agent.spec.concurrency, made.steerable, &occupancy);
        if admission.makes_run() {
            check_capacity(&facts.capacities, run.endpoint_id)?;
        }
        let plan = match admission {
            Admission::Start => {
                let answer = self.accepted(run.id, RunStatus::Created, None);
                let attempt = made.beginning.as_mut().map(|beginning| {
                    // Before the database's clock is asked: ours ends first.
                    beginning.asked_at = Some(Instant::now());
                    Box::new(FirstAttempt {
                        owner: self.inner.owner.clone(),
                        lease: self.inner.limits.lease,
                        context: Arc::clone(&beginning.context),
                    })
                });
                IngestPlan::Start {
                    run,
                    attempt,
                    message,
                    answer,
                }
            }
            Admission::Queue => self.queue(run, message, Vec::new()),
            Admission::Interrupt(cancel) => self.queue(run, message, cancel),
            Admission::Absorb(active) => {
                let mut live = facts.live.iter();
                let stood = live.find(|run| run.run_id == active);
                let stood = stood.map_or(0, |run| run.last_sequence);
                let answer = self.accepted(active, RunStatus::Running, Some(stood));
                IngestPlan::Absorb {
                    run: active,
                    message,
                    answer,
                }
            }
            Admission::Busy(active) => return Err(StartError::RunActive(active)),
            Admission::QueueFull => return Err(StartError::QueueFull),
        };
        Ok((plan, Some(made)))
    }

    /// The one agent that gets the event, if any wants it.
    fn winner<'f>(&self, candidates: &'f [Candidate]) -> Result<Option<&'f Candidate>, StartError> {
        if let Some(agent) = self.only {
            let asked = candidates.iter().find(|one| one.agent.id == agent);
            let gone = || match self.child {
                Some(_) => StartError::CalledAgentGone,
                None => StartError::AgentGone,
            };
            return asked.map(Some).ok_or_else(gone);
        }
        match resolve(candidates, |one| &one.agent.spec, self.event) {
            Resolution::Nobody => Ok(None),
            Resolution::Tie(names) => Err(StartError::BindingConflict(names)),
            Resolution::Winner(winner) => Ok(Some(winner)),
        }
    }

    fn queue(
        &self,
        run: Box<NewRun>,
        message: Option<UserMessage>,
        cancel: Vec<RunId>,
    ) -> IngestPlan {
        let answer = self.accepted(run.id, RunStatus::Queued, None);
        IngestPlan::Queue {
            run,
            message,
            cancel,
            answer,
        }
    }

    /// The run of a winner, and what it is made from.
    fn new_run(
        &self,
        winner: &Candidate,
        candidates: &[Candidate],
    ) -> Result<(NewRun, Made), StartError> {
        let spec = &winner.agent.spec;
        let judged = self.judge(winner, candidates)?;
        let snapshot = judged.granted.text_of(&judged.snapshot);
        let now = self.inner.clock.now_ms();
        let most = i64::try_from(self.inner.limits.max_deadline.as_millis()).unwrap_or(i64::MAX);
        let frozen = &judged.known.frozen;
        let deadline_at = deadline(frozen.config.get(domain::form::TIMEOUT), now, most);
        let run = NewRun {
            id: self.run_id,
            trace_parent: self.trace_parent,
            parent_run_id: self.child.map(|child| child.snapshot.run_id),
            agent_id: winner.agent.id,
            agent_version: winner.agent.version,
            runner_id: spec.runner_id.clone(),
            endpoint_id: judged.endpoint_id,
            deadline_at: self
                .child
                .map_or(deadline_at, |child| deadline_at.min(child.deadline_at)),
            agent_spec: Arc::clone(&judged.known.frozen_json),
            snapshot_sha256: sha256_hex(snapshot.as_bytes()),
            snapshot: snapshot.into(),
            shared: judged.shared,
        };
        let made = Made {
            snapshot: judged.snapshot,
            spec: Arc::clone(&judged.known.frozen),
            steerable: judged.steerable,
            interruptible: judged.known.manifest.capabilities.interrupt,
            endpoint: winner.endpoint.clone(),
            beginning: None,
        };
        Ok((run, made))
    }

    /// What a run of this agent may touch, if its runner can be called.
    pub(super) fn judge(
        &self,
        winner: &Candidate,
        candidates: &[Candidate],
    ) -> Result<Judged, StartError> {
        let known = winner.runner.as_ref().filter(|_| self.was_accepted);
        let runner = known.map_or_else(|| callable(winner), Ok)?;
        let known = self.inner.agents.know(winner, runner).ok_or_else(|| {
            unavailable(winner, "its manifest cannot be read; refresh its endpoint")
        })?;
        let manifest = &known.manifest;
        let conversation = conversation_of(self.event);
        let peers = peers_among(winner, candidates);
        let parent = self.child.map(ChildOf::grant);
        let subject = Subject {
            run_id: self.run_id,
            agent_version: winner.agent.version,
            endpoint_id: runner.endpoint_id,
            event_id: self.event_id,
            has_prompt: self
                .event
                .adapter
                .as_ref()
                .is_some_and(|adapter| !adapter.prompt.is_empty()),
            shows_interactions: self.event.delivery.interactions.is_some(),
            has_artifacts: self.event.input.as_ref().is_some_and(has_artifacts),
            registered_skills: &winner.skills,
            peers: &peers,
            parent: parent.as_ref(),
            owner: Owner {
                workspace: self.workspace,
                runner: &manifest.id,
                agent: winner.agent.id,
                bot_id: self.event.bot_id.as_deref(),
                conversation: conversation.as_ref(),
                actor: self.event.actor.as_ref(),
                subject: self.event.subject.as_ref(),
            },
        };
        let (granted, shared) = known.grant(&self.inner.catalog.load_full(), &subject);
        Ok(Judged {
            snapshot: granted.snapshot(&subject),
            granted,
            shared,
            steerable: manifest.capabilities.steering && self.event.event_type == MESSAGE_RECEIVED,
            endpoint_id: runner.endpoint_id,
            known,
        })
    }

    /// `stood`: the newest event of the live run that absorbs this one.
    fn accepted(&self, run: RunId, status: RunStatus, stood: Option<u64>) -> String {
        canonical_json(&EventAccepted {
            event_id: self.event_id.to_owned(),
            run_id: Some(run),
            run_url: Some(format!("/v1/runs/{run}")),
            status: Some(status),
            steered: stood.is_some(),
            last_sequence: stood,
            reason: None,
        })
    }

    fn no_agent(&self) -> String {
        canonical_json(&EventAccepted {
            event_id: self.event_id.to_owned(),
            run_id: None,
            run_url: None,
            status: None,
            steered: false,
            last_sequence: None,
            reason: Some("no_agent".to_owned()),
        })
    }
}
