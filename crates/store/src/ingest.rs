//! Ingest: dedupe, decision and all rows of an accepted event in one transaction (contracts §3).

mod known;
mod rows;
mod together;

use std::sync::Arc;

use domain::event::ConversationIdentity;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::{DatabaseTransaction, EntityTrait};
use uuid::Uuid;

use crate::attempts::FirstAttempt;
use crate::bulk::{Done, Together};
use crate::capacity::{Capacities, hold_capacity};
use crate::children::{Childless, ParentOf};
use crate::common::Common;
use crate::connect::Store;
use crate::conversation::{LiveRun, live_runs};
use crate::entity::events;
use crate::error::StoreError;
use crate::failpoint;
use crate::interactions::{AnsweredBy, Unanswerable};
use crate::new_run::{Candidate, NewRun, UserMessage};
use crate::writer::Work;
use rows::{Rows, lock_conversations};

pub use known::EventKey;
pub(crate) use together::take_together;

/// What a decision may look at, read under the conversation's lock.
#[derive(Debug)]
pub struct Facts {
    pub candidates: Arc<[Candidate]>,
    /// Where the event stands, when it is one of a conversation.
    pub place: Option<Place>,
    /// The live runs of the event's conversation, oldest first.
    pub live: Vec<LiveRun>,
    pub capacities: Capacities,
    /// Why the question that the event answers can no longer be answered.
    pub unanswerable: Option<Unanswerable>,
    /// Why the parent of the child run that the event asks for starts none.
    pub childless: Option<Childless>,
}

/// The place of an event in its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The key of the conversation's row.
    pub conversation_key: String,
    pub event_seq: i64,
    /// The newest place of the transcript before the event's own message; 0 for none.
    pub transcript_before: i64,
}

/// What shall be stored.
#[derive(Clone, Debug)]
pub enum Plan {
    /// Nothing at all: the caller answers with a 4xx or 5xx of its own.
    Refuse,
    /// The event alone.
    Keep { answer: String },
    /// The event and its run, to be dispatched now. `attempt`: with this the run is dispatched by the same
    /// transaction, and its owner may POST as soon as it is committed.
    Start {
        run: Box<NewRun>,
        attempt: Option<Box<FirstAttempt>>,
        message: Option<UserMessage>,
        answer: String,
    },
    /// The event and its run, which waits behind the live ones; these of them are cancelled.
    Queue {
        run: Box<NewRun>,
        message: Option<UserMessage>,
        cancel: Vec<RunId>,
        answer: String,
    },
    /// The event, for a live run to pull.
    Absorb {
        run: RunId,
        message: Option<UserMessage>,
        answer: String,
    },
}

/// An event to be taken.
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
    /// The key of the conversation's row, should it be new.
    pub new_conversation_key: Uuid,
    /// The envelope as JSON.
    pub envelope: String,
    /// The platform's own payload as JSON, kept apart.
    pub raw: Option<String>,
    /// The most runs that may live in the workspace.
    pub most_runs: Option<u64>,
    pub at: i64,
    pub decide: Decide,
    /// The bytes that the decision brings along, roughly: a context that is ready.
    pub ready_bytes: usize,
    /// The question that the event answers.
    pub answers: Option<AnsweredBy>,
    /// The run that asks for a child run by the event.
    pub parent: Option<ParentOf>,
}

/// Decides about an event, each time that its transaction is tried.
pub type Decide = Arc<dyn Fn(&Facts) -> Plan + Send + Sync>;

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingested {
    /// Stored now.
    Stored { answer: String },
    /// The same was stored before: the first answer.
    Replayed { answer: String },
    /// The key was used with another body.
    Mismatch,
    /// The event id was used under another key.
    EventExists,
    /// The decision was to refuse; nothing is stored.
    Refused,
}

impl Store {
    /// Takes an event. Two senders of one key get one event: the later one gets the first answer.
    pub async fn ingest(&self, ingest: Ingest) -> Result<Ingested, StoreError> {
        const TRIES: usize = 3;
        let mut tries = 1;
        loop {
            match self.write(ingest.clone()).await {
                Err(StoreError::Refused) => return Ok(Ingested::Refused),
                // Another replica took the same key in this very moment: look again.
                Err(StoreError::Taken) if tries < TRIES => tries += 1,
                outcome => return outcome,
            }
        }
    }
}

impl Work for Ingest {
    type Output = Ingested;
    const SAVEPOINT: bool = true;
    const TAKES_EVENT: bool = true;
    const CHANGES_AGENTS: bool = false;

    /// Before every run, workspace by workspace: replicas that hold the capacity of several take turns.
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

    fn together(&self) -> Option<Together<'_>> {
        // Answers and child runs are rare: each needs its question, or its parent.
        let is_plain = self.answers.is_none() && self.parent.is_none();
        is_plain.then_some(Together::Ingest(self))
    }

    fn output_of(&self, done: Done) -> Option<Ingested> {
        match done {
            Done::Ingest(ingested) => Some(ingested),
            _ => None,
        }
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Ingested, StoreError> {
        self.apply_with(tx, &mut Common::default()).await
    }

    async fn apply_with(
        &self,
        tx: &DatabaseTransaction,
        common: &mut Common,
    ) -> Result<Ingested, StoreError> {
        if let Some(known) = self.find_known(tx).await? {
            return Ok(known);
        }
        let capacities = hold_capacity(tx, &self.workspace, self.most_runs).await?;
        let conversation = lock_conversations(tx, &[self]).await?.pop();
        // A conversation that begins has no runs.
        let lived = conversation.as_ref().filter(|row| row.version > 1);
        let facts = Facts {
            candidates: common.candidates(tx, &self.workspace).await?,
            live: live_runs(tx, lived.map(|row| row.place.conversation_key.as_str())).await?,
            place: conversation.map(|row| row.place),
            capacities,
            unanswerable: self.unanswerable(tx).await?,
            childless: self.childless(tx).await?,
        };
        let plan = (self.decide)(&facts);
        // While it waited for its conversation, another replica may have stored this very event: then the run that it
        // would be refused for may be its own.
        if matches!(plan, Plan::Refuse) && self.find_known(tx).await?.is_some() {
            return Err(StoreError::Taken);
        }
        let mut rows = Rows::default();
        let stored = rows.gather(tx, self, plan, facts.place.as_ref()).await?;
        rows.write(tx).await?;
        failpoint::pass("ingest.before_commit").await?;
        Ok(stored)
    }

    /// The answer names the run, which nobody else has made.
    async fn stands(
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
