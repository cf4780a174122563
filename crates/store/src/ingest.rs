//! Ingest: dedupe, decision and all rows of an accepted event in one transaction (contracts §3).

mod batched;
mod known;
mod rows;

use std::sync::Arc;

use domain::event::ConversationIdentity;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::{DatabaseTransaction, EntityTrait};
use uuid::Uuid;

use crate::attempts::FirstAttempt;
use crate::batch::{BatchOp, BatchResult};
use crate::capacity::{Capacities, lock_capacity};
use crate::children::{ChildRefused, ParentRun};
use crate::conversation::{ConversationRun, live_runs};
use crate::entity::events;
use crate::error::StoreError;
use crate::failpoint;
use crate::interactions::{AnsweredBy, Unanswerable};
use crate::new_run::{Candidate, NewRun, UserMessage};
use crate::repositories::EventRepository;
use crate::tx_cache::TxCache;
use crate::writer::Mutation;
use rows::{Rows, lock_conversations};

pub(crate) use batched::ingest_batch;
pub use known::EventKey;

/// Input of a decision, read under the conversation's lock.
#[derive(Debug)]
pub struct DecisionFacts {
    pub candidates: Arc<[Candidate]>,
    /// Position of the event, if it has a conversation.
    pub place: Option<ConversationPosition>,
    /// Live runs of the event's conversation, oldest first.
    pub live: Vec<ConversationRun>,
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
    /// The event and its run, queued behind the live ones. Cancels the runs in `cancel`.
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
pub struct Ingest {
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
    /// Maximum live runs of the workspace.
    pub max_live_runs: Option<u64>,
    pub at: i64,
    pub decide: Decide,
    /// Approximate bytes that the decision adds: a prepared context.
    pub ready_bytes: usize,
    /// The question that the event answers.
    pub answers: Option<AnsweredBy>,
    /// The parent, when the event requests a child run.
    pub parent: Option<ParentRun>,
}

/// Decides on an event; called in each try of the transaction.
pub type Decide = Arc<dyn Fn(&DecisionFacts) -> IngestPlan + Send + Sync>;

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

impl EventRepository<'_> {
    /// Ingests an event. A duplicate key returns the answer of the first event.
    pub async fn ingest(self, ingest: Ingest) -> Result<Ingested, StoreError> {
        const TRIES: usize = 3;
        let mut tries = 1;
        loop {
            match self.db.write(ingest.clone()).await {
                Err(StoreError::Refused) => return Ok(Ingested::Refused),
                // Another replica stored the same key concurrently: retry.
                Err(StoreError::Taken) if tries < TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }
}

impl Mutation for Ingest {
    type Output = Ingested;
    const SAVEPOINT: bool = true;
    const TAKES_EVENT: bool = true;
    const CHANGES_AGENTS: bool = false;

    /// Sorts before all runs, and by workspace, so replicas lock several capacities in one order.
    fn order(&self) -> Uuid {
        let bytes = self.workspace.as_str().bytes();
        let place = bytes.fold(0_u64, |place, byte| {
            place.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        Uuid::from_u64_pair(0, place)
    }

    fn weight(&self) -> usize {
        self.envelope.len() + self.raw.as_ref().map_or(0, String::len) + self.ready_bytes
    }

    fn batched(&self) -> Option<BatchOp<'_>> {
        // Answers and child runs are rare, and need their question or parent.
        let is_plain = self.answers.is_none() && self.parent.is_none();
        is_plain.then_some(BatchOp::Ingest(self))
    }

    fn output_of(&self, done: BatchResult) -> Option<Ingested> {
        match done {
            BatchResult::Ingest(ingested) => Some(ingested),
            _ => None,
        }
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Ingested, StoreError> {
        self.apply_with(tx, &mut TxCache::default()).await
    }

    async fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        tx_cache: &mut TxCache,
    ) -> Result<Ingested, StoreError> {
        if let Some(known) = self.find_known(tx).await? {
            return Ok(known);
        }
        let capacities = lock_capacity(tx, &self.workspace, self.max_live_runs).await?;
        let conversation = lock_conversations(tx, &[self]).await?.pop();
        // A new conversation has no runs.
        let lived = conversation.as_ref().filter(|row| row.version > 1);
        let facts = DecisionFacts {
            candidates: tx_cache.candidates(tx, &self.workspace).await?,
            live: live_runs(tx, lived.map(|row| row.place.conversation_key.as_str())).await?,
            place: conversation.map(|row| row.place),
            capacities,
            unanswerable: self.unanswerable(tx).await?,
            child_refused: self.child_refused(tx).await?,
        };
        let plan = (self.decide)(&facts);
        // Another replica may have stored this event while this one waited for the conversation. The run that
        // causes the refusal may then be its own.
        if matches!(plan, IngestPlan::Refuse) && self.find_known(tx).await?.is_some() {
            return Err(StoreError::Taken);
        }
        let mut rows = Rows::default();
        let stored = rows.gather(tx, self, plan, facts.place.as_ref()).await?;
        rows.write(tx).await?;
        failpoint::pass("ingest.before_commit").await?;
        Ok(stored)
    }

    /// The answer contains the run id, which is unique to this try.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        told: &Self::Output,
    ) -> Result<bool, StoreError> {
        let Ingested::Stored { answer: told } = told else {
            return Ok(false);
        };
        let key = (self.workspace.to_string(), self.event_id.clone());
        let event = events::Entity::find_by_id(key).one(tx).await?;
        Ok(event.is_some_and(|event| event.answer == *told))
    }
}
