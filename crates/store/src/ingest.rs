//! Ingest: dedupe, decision and all rows of an accepted event in one transaction (contracts §3).

mod known;

use std::sync::Arc;

use domain::event::ConversationIdentity;
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{ActiveValue::Set, DatabaseTransaction, EntityTrait, ExprTrait};
use uuid::Uuid;

use crate::capacity::{Capacities, hold_capacity};
use crate::common::Common;
use crate::connect::Store;
use crate::conversation::{LiveRun, cancel_all, live_runs};
use crate::entity::{conversations, events, raw_payloads};
use crate::error::StoreError;
use crate::failpoint;
use crate::new_run::{Candidate, NewRun, RunEvent, UserMessage, insert_run, insert_user_message};
use crate::steering::absorb;
use crate::writer::Work;

/// What a decision may look at, read under the conversation's lock.
#[derive(Debug)]
pub struct Facts {
    pub candidates: Arc<[Candidate]>,
    /// Where the event stands, when it is one of a conversation.
    pub place: Option<Place>,
    /// The live runs of the event's conversation, oldest first.
    pub live: Vec<LiveRun>,
    pub capacities: Capacities,
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
    /// The event and its run, to be dispatched now.
    Start {
        run: Box<NewRun>,
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
    pub decide: Arc<dyn Fn(&Facts) -> Plan + Send + Sync>,
}

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
        for _ in 1..TRIES {
            match self.write(ingest.clone()).await {
                Err(StoreError::Refused) => return Ok(Ingested::Refused),
                // Another replica took the same key in this very moment: look again.
                Err(StoreError::Taken) => {}
                outcome => return outcome,
            }
        }
        self.write(ingest).await
    }
}

impl Work for Ingest {
    type Output = Ingested;
    const SAVEPOINT: bool = true;
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
        self.envelope.len() + self.raw.as_ref().map_or(0, String::len)
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
        let conversation = match &self.conversation {
            Some(identity) => Some(self.lock_conversation(tx, identity).await?),
            None => None,
        };
        // A conversation that begins has no runs.
        let lived = conversation.as_ref().filter(|row| row.version > 1);
        let facts = Facts {
            candidates: common.candidates(tx, &self.workspace).await?,
            live: live_runs(tx, lived.map(|row| row.key.as_str())).await?,
            place: conversation.map(|row| Place {
                conversation_key: row.key,
                event_seq: row.last_event_seq,
                transcript_before: row.last_transcript_seq,
            }),
            capacities,
        };
        let plan = (self.decide)(&facts);
        let place = facts.place.as_ref();
        let key = place.map(|place| place.conversation_key.as_str());
        let event_seq = place.map(|place| place.event_seq);
        let stored = self.carry_out(tx, plan, key, event_seq).await?;
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

impl Ingest {
    /// The conversation's row is the lock: written first, then read. Counts this event in it.
    async fn lock_conversation(
        &self,
        tx: &DatabaseTransaction,
        identity: &ConversationIdentity,
    ) -> Result<conversations::Model, StoreError> {
        let row = conversations::ActiveModel {
            key: Set(self.new_conversation_key.to_string()),
            workspace_id: Set(self.workspace.to_string()),
            bot_id: Set(identity.bot_id.clone()),
            conversation_id: Set(identity.conversation_id.clone()),
            thread_id: Set(identity.thread_id.clone()),
            last_event_seq: Set(1),
            last_transcript_seq: Set(0),
            version: Set(1),
        };
        let next = |column| Expr::col((conversations::Entity, column)).add(1);
        let on_conflict = OnConflict::columns([
            conversations::Column::WorkspaceId,
            conversations::Column::BotId,
            conversations::Column::ConversationId,
            conversations::Column::ThreadId,
        ])
        .value(
            conversations::Column::LastEventSeq,
            next(conversations::Column::LastEventSeq),
        )
        .value(
            conversations::Column::Version,
            next(conversations::Column::Version),
        )
        .to_owned();
        let row = conversations::Entity::insert(row)
            .on_conflict(on_conflict)
            .exec_with_returning(tx)
            .await?;
        Ok(row)
    }

    async fn carry_out(
        &self,
        tx: &DatabaseTransaction,
        plan: Plan,
        key: Option<&str>,
        event_seq: Option<i64>,
    ) -> Result<Ingested, StoreError> {
        let event = RunEvent {
            workspace: &self.workspace,
            event_id: &self.event_id,
            conversation_key: key,
            at: self.at,
        };
        let mut steered_into = None;
        let (heard, message, answer) = match plan {
            Plan::Refuse => return Err(StoreError::Refused),
            Plan::Keep { answer } => (None, None, answer),
            Plan::Start {
                run,
                message,
                answer,
            } => {
                insert_run(tx, &event, &run, RunStatus::Created).await?;
                (Some(run.id), message, answer)
            }
            Plan::Queue {
                run,
                message,
                cancel,
                answer,
            } => {
                cancel_all(tx, &cancel, self.at).await?;
                insert_run(tx, &event, &run, RunStatus::Queued).await?;
                (Some(run.id), message, answer)
            }
            Plan::Absorb {
                run,
                message,
                answer,
            } => {
                absorb(tx, run, &self.event_id, self.at).await?;
                steered_into = Some(run);
                (Some(run), message, answer)
            }
        };
        self.insert_event(tx, key, event_seq, steered_into, &answer)
            .await?;
        if let (Some(run), Some(message)) = (heard, message) {
            insert_user_message(tx, &event, run, &message).await?;
        }
        Ok(Ingested::Stored { answer })
    }

    async fn insert_event(
        &self,
        tx: &DatabaseTransaction,
        key: Option<&str>,
        event_seq: Option<i64>,
        steered_into: Option<RunId>,
        answer: &str,
    ) -> Result<(), StoreError> {
        let row = events::ActiveModel {
            workspace_id: Set(self.workspace.to_string()),
            event_id: Set(self.event_id.clone()),
            dedupe_key: Set(self.dedupe_key.clone()),
            body_sha256: Set(self.body_sha256.clone()),
            answer: Set(answer.to_owned()),
            event_type: Set(self.event_type.clone()),
            source: Set(self.source.clone()),
            bot_id: Set(self.bot_id.clone().unwrap_or_default()),
            conversation_key: Set(key.map(str::to_owned)),
            event_seq: Set(event_seq),
            envelope: Set(self.envelope.clone()),
            steered_into: Set(steered_into.map(|run| run.to_string())),
            received_at: Set(self.at),
        };
        events::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        if let Some(raw) = &self.raw {
            let row = raw_payloads::ActiveModel {
                workspace_id: Set(self.workspace.to_string()),
                event_id: Set(self.event_id.clone()),
                payload: Set(raw.clone()),
                created_at: Set(self.at),
            };
            raw_payloads::Entity::insert(row)
                .exec_without_returning(tx)
                .await?;
        }
        Ok(())
    }
}
