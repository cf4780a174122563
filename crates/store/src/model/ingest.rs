//! An event to ingest, the input of its decision, and the outcome.

use std::any::Any;
use std::sync::Arc;

use domain::event::ConversationIdentity;
use protocol::child_run::MAX_CHILD_RUNS;
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::run::RunStatus;
use uuid::Uuid;

use crate::capacity::Capacities;
use crate::error::StoreError;
use crate::generations::ConversationGenerations;
use crate::model::new_run::{FirstAttempt, NewRun, UserMessage};
use crate::model::registry::Candidate;
use crate::model::state::{ScopeState, StateAccess};

/// Input of a decision, read under the conversation's lock.
#[derive(Debug)]
pub struct DecisionFacts {
    pub candidates: Arc<[Candidate]>,
    /// Position of the event, if it has a conversation.
    pub position: Option<ConversationPosition>,
    /// Live runs of the event's conversation, oldest first.
    pub live: Vec<ConversationRun>,
    /// Generations of the event's conversation.
    pub generations: ConversationGenerations,
    pub capacities: Capacities,
    /// Set when the event answers a question that no longer accepts answers.
    pub unanswerable: Option<Unanswerable>,
    /// Set when the parent may not start the requested child run.
    pub child_refused: Option<ChildRefused>,
}

/// Position of an event in its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationPosition {
    /// Key of the conversation's row.
    pub conversation_key: String,
    pub event_seq: i64,
    /// Newest transcript sequence before the event's own message; 0 for none.
    pub transcript_before: i64,
}

/// Outcome of a decision: the rows to store.
#[derive(Clone, Debug)]
pub enum IngestPlan {
    /// Nothing: the caller answers with a 4xx or 5xx of its own.
    Refuse,
    /// The event without a run.
    Keep { answer: String },
    /// The event and its run, for dispatch now. With `attempt` the same transaction dispatches the run, and its
    /// owner may POST after the commit.
    Start {
        run: Box<NewRun>,
        attempt: Option<Box<FirstAttempt>>,
        message: Option<UserMessage>,
        answer: String,
    },
    /// The event and its run, queued after the live ones. Cancels the runs in `cancel`.
    Queue {
        run: Box<NewRun>,
        message: Option<UserMessage>,
        cancel: Vec<RunId>,
        answer: String,
    },
    /// The event, steered into a live run.
    Absorb {
        run: RunId,
        message: Option<UserMessage>,
        answer: String,
    },
}

/// An event to ingest.
#[derive(Clone)]
pub struct Ingest<D: ?Sized> {
    pub workspace: WorkspaceId,
    pub event_id: String,
    pub dedupe_key: String,
    pub body_sha256: String,
    pub event_type: String,
    pub source: String,
    pub bot_id: Option<String>,
    pub conversation: Option<ConversationIdentity>,
    /// Key of the conversation's row, if it is new.
    pub new_conversation_key: Uuid,
    /// The envelope as JSON.
    pub envelope: String,
    /// The platform's own payload as JSON, stored separately.
    pub raw: Option<String>,
    pub actor: EventActor,
    /// Maximum live runs of the workspace.
    pub max_live_runs: Option<u64>,
    pub at: i64,
    /// The question that the event answers.
    pub answers: Option<AnsweredBy>,
    /// The parent, when the event requests a child run.
    pub parent: Option<ParentAttempt>,
    /// Last, so that a batch takes events with decisions of any type.
    pub decide: D,
}

/// Actor of an event.
#[derive(Clone, Debug, Default)]
pub struct EventActor {
    /// Type and id; empty: it has no id.
    pub name: String,
    /// Its sealed token, stored with a run of the event's own.
    pub token: Option<SealedActorToken>,
}

/// Sealed token of the actor for whom a run calls tools.
#[derive(Clone, Debug)]
pub struct SealedActorToken {
    /// Type and id; of a child run, those of its parent's actor.
    pub actor: String,
    pub sealed: String,
}

/// An event with a decision of any type.
pub(crate) type AnyIngest = Ingest<dyn DecideAny>;

/// The decision on one event. It does no I/O, because the conversation is locked. Each try of the transaction decides
/// again.
pub trait DecideEvent: Send + Sync + 'static {
    /// Effects that the caller carries out after the commit.
    type Effects: Send + Sync + 'static;

    /// Decides on the event.
    fn decide(&self, facts: &DecisionFacts) -> EventDecision<Self::Effects>;

    /// The first attempt of the run that starts, from the state for its context.
    fn dispatch(&self, effects: &mut Self::Effects, state: &[ScopeState]) -> Option<FirstAttempt>;
}

/// A decision with its effects.
#[derive(Debug)]
pub struct EventDecision<E> {
    pub plan: IngestPlan,
    pub effects: E,
    /// Scopes for the context of a run that this commit dispatches. `None`: a later commit dispatches it.
    pub context_scopes: Option<Vec<StateAccess>>,
}

/// Effects of any type.
pub(crate) type AnyEffects = Box<dyn Any + Send + Sync>;

/// [`DecideEvent`] without its type of effects.
pub trait DecideAny: Send + Sync {
    fn decide_any(&self, facts: &DecisionFacts) -> EventDecision<AnyEffects>;

    fn dispatch_any(&self, effects: &mut AnyEffects, state: &[ScopeState]) -> Option<FirstAttempt>;
}

impl<D: DecideEvent> DecideAny for D {
    fn decide_any(&self, facts: &DecisionFacts) -> EventDecision<AnyEffects> {
        let EventDecision {
            plan,
            effects,
            context_scopes,
        } = self.decide(facts);
        EventDecision {
            plan,
            effects: Box::new(effects),
            context_scopes,
        }
    }

    fn dispatch_any(&self, effects: &mut AnyEffects, state: &[ScopeState]) -> Option<FirstAttempt> {
        self.dispatch(effects.downcast_mut()?, state)
    }
}

/// Outcome of an ingest, with the effects of its last decision.
#[derive(Debug)]
pub struct IngestOutcome<E> {
    /// After an error the commit may still be in the database, with these effects.
    pub ingested: Result<Ingested, StoreError>,
    /// `None`: no decision was made, for example on a duplicate.
    pub effects: Option<E>,
}

/// Result of an ingest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingested {
    /// Stored now.
    Stored { answer: String },
    /// A duplicate: the answer of the first event.
    Replayed { answer: String },
    /// The key was used with another body.
    Mismatch,
    /// The event id was used with another key.
    EventExists,
    /// The decision was to refuse; nothing is stored.
    Refused,
}

/// An unfinished run of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConversationRun {
    pub run_id: RunId,
    pub agent_id: AgentId,
    pub status: RunStatus,
    pub cancel_requested: bool,
    /// Absorbed events not yet pulled.
    pub steering: u64,
    /// Sequence of the newest event in its ledger; 0 for none.
    pub last_sequence: u64,
}

/// The parent of a requested child run.
#[derive(Clone, Copy, Debug)]
pub struct ParentAttempt {
    pub run_id: RunId,
    /// The requesting attempt: a later attempt has another token.
    pub attempt: u32,
}

/// Reason to refuse a child run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChildRefused {
    /// Or another attempt has begun.
    #[error("the run has ended and starts no child run")]
    Ended,
    #[error("the run was cancelled and starts no child run")]
    Cancelled,
    #[error(
        "the run has started {} child runs, and no more may; do the rest itself",
        MAX_CHILD_RUNS
    )]
    TooMany,
}

/// Question and link of an incoming answer.
#[derive(Clone, Debug)]
pub struct AnsweredBy {
    pub interaction: String,
    /// Hex SHA-256 of the link's token; `None`: sent with an API key.
    pub token_sha256: Option<String>,
}

/// Reason to refuse an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswerable {
    /// For an answer as an event: the run awaits it, or has received one. See [`crate::DeliverAnswer`].
    Awaited,
    /// The asking run was cancelled or has a cancel request.
    Cancelled,
    /// Received after `expires_at`.
    Expired,
    /// A newer link replaced this one.
    LinkReplaced,
}
