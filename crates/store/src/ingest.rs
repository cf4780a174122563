//! Ingest: dedupe, decision and all rows of an accepted event in one transaction (contracts §3).

use std::sync::Arc;

use domain::event::ConversationIdentity;
use protocol::id::{AgentId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, DatabaseTransaction, EntityTrait, ExprTrait, QueryFilter,
    QueryOrder, QuerySelect,
};
use uuid::Uuid;

use crate::agents::{AgentRecord, agent_record};
use crate::connect::Store;
use crate::entity::{agents, conversations, events, runners, runs};
use crate::error::{StoreError, parsed};
use crate::ledger::{TranscriptWrite, write_transcript};
use crate::writer::Work;

/// An agent that might win, with what is known of its runner.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub agent: AgentRecord,
    pub runner: Option<crate::runners::RunnerRecord>,
}

/// A run that is active in the event's conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveRun {
    pub run_id: RunId,
    pub agent_id: AgentId,
}

/// What a decision may look at, read under the conversation's lock.
#[derive(Debug)]
pub struct Facts {
    pub candidates: Vec<Candidate>,
    /// Oldest first.
    pub active: Vec<ActiveRun>,
}

/// What shall be stored.
#[derive(Clone, Debug)]
pub enum Plan {
    /// Nothing at all: the caller answers with a 4xx or 5xx of its own.
    Refuse,
    /// The event alone.
    Keep { answer: String },
    /// The event and its run.
    Start { run: Box<NewRun>, answer: String },
}

/// The row of a new run.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    pub agent_id: AgentId,
    pub agent_version: i64,
    pub runner_id: RunnerId,
    pub endpoint_id: EndpointId,
    pub deadline_at: i64,
    /// The agent's specification, frozen, as JSON.
    pub agent_spec: String,
    pub snapshot: String,
    pub snapshot_sha256: String,
    pub user_message: Option<UserMessage>,
}

/// The user's transcript item of a message event.
#[derive(Clone, Debug)]
pub struct UserMessage {
    pub id: Uuid,
    pub content: Option<String>,
    pub content_json: String,
    pub attachment_refs: String,
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

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Ingested, StoreError> {
        if let Some(known) = self.find_known(tx).await? {
            return Ok(known);
        }
        let conversation = match &self.conversation {
            Some(identity) => Some(self.lock_conversation(tx, identity).await?),
            None => None,
        };
        let key = conversation.as_ref().map(|row| row.key.clone());
        let facts = self.facts(tx, key.as_deref()).await?;
        let (run, answer) = match (self.decide)(&facts) {
            Plan::Refuse => return Err(StoreError::Refused),
            Plan::Keep { answer } => (None, answer),
            Plan::Start { run, answer } => (Some(run), answer),
        };
        let event_seq = conversation.map(|row| row.last_event_seq);
        self.insert_event(tx, key.as_deref(), event_seq, &answer)
            .await?;
        if let Some(run) = run {
            self.insert_run(tx, key.as_deref(), &run).await?;
        }
        Ok(Ingested::Stored { answer })
    }
}

impl Ingest {
    async fn find_known(&self, tx: &DatabaseTransaction) -> Result<Option<Ingested>, StoreError> {
        let same_key = events::Entity::find()
            .filter(events::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(events::Column::DedupeKey.eq(self.dedupe_key.as_str()))
            .one(tx)
            .await?;
        if let Some(event) = same_key {
            let known = if event.body_sha256 == self.body_sha256 {
                Ingested::Replayed {
                    answer: event.answer,
                }
            } else {
                Ingested::Mismatch
            };
            return Ok(Some(known));
        }
        let key = (self.workspace.to_string(), self.event_id.clone());
        let same_id = events::Entity::find_by_id(key).one(tx).await?;
        Ok(same_id.map(|_| Ingested::EventExists))
    }

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

    async fn facts(
        &self,
        tx: &DatabaseTransaction,
        key: Option<&str>,
    ) -> Result<Facts, StoreError> {
        let enabled = agents::Entity::find()
            .filter(agents::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(agents::Column::Enabled.eq(true))
            .all(tx)
            .await?;
        let names = enabled.iter().map(|agent| agent.runner_id.clone());
        let known = runners::Entity::find()
            .filter(runners::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(runners::Column::RunnerId.is_in(names))
            .all(tx)
            .await?;
        let mut candidates = Vec::with_capacity(enabled.len());
        for agent in enabled {
            let runner = known
                .iter()
                .find(|runner| runner.runner_id == agent.runner_id);
            let runner = runner
                .cloned()
                .map(crate::runners::runner_record)
                .transpose()?;
            candidates.push(Candidate {
                agent: agent_record(agent)?,
                runner,
            });
        }
        Ok(Facts {
            candidates,
            active: active_runs(tx, key).await?,
        })
    }

    async fn insert_event(
        &self,
        tx: &DatabaseTransaction,
        key: Option<&str>,
        event_seq: Option<i64>,
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
            steered_into: Set(None),
            received_at: Set(self.at),
        };
        events::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        Ok(())
    }

    async fn insert_run(
        &self,
        tx: &DatabaseTransaction,
        key: Option<&str>,
        run: &NewRun,
    ) -> Result<(), StoreError> {
        let row = runs::ActiveModel {
            id: Set(run.id.to_string()),
            workspace_id: Set(self.workspace.to_string()),
            event_id: Set(self.event_id.clone()),
            agent_id: Set(run.agent_id.to_string()),
            agent_version: Set(run.agent_version),
            runner_id: Set(run.runner_id.to_string()),
            endpoint_id: Set(run.endpoint_id.to_string()),
            conversation_key: Set(key.map(str::to_owned)),
            status: Set(RunStatus::Created.as_str().to_owned()),
            status_reason: Set(None),
            attempt: Set(0),
            lease_owner: Set(None),
            lease_epoch: Set(0),
            lease_expires_at: Set(None),
            last_sequence: Set(0),
            deadline_at: Set(run.deadline_at),
            cancel_requested_at: Set(None),
            agent_spec: Set(run.agent_spec.clone()),
            snapshot: Set(run.snapshot.clone()),
            snapshot_sha256: Set(run.snapshot_sha256.clone()),
            output: Set(None),
            error: Set(None),
            usage: Set(None),
            metadata: Set("{}".to_owned()),
            created_at: Set(self.at),
            started_at: Set(None),
            finished_at: Set(None),
        };
        runs::Entity::insert(row).exec_without_returning(tx).await?;
        if let (Some(key), Some(message)) = (key, &run.user_message) {
            let item = TranscriptWrite {
                id: message.id,
                conversation_key: key.to_owned(),
                event_id: self.event_id.clone(),
                role: "user",
                content: message.content.clone(),
                content_json: message.content_json.clone(),
                attachment_refs: message.attachment_refs.clone(),
            };
            write_transcript(tx, run.id, &item, self.at).await?;
        }
        Ok(())
    }
}

async fn active_runs(
    tx: &DatabaseTransaction,
    key: Option<&str>,
) -> Result<Vec<ActiveRun>, StoreError> {
    let Some(key) = key else {
        return Ok(Vec::new());
    };
    let live = [
        RunStatus::Created,
        RunStatus::Queued,
        RunStatus::Claimed,
        RunStatus::Running,
    ];
    let rows: Vec<(String, String)> = runs::Entity::find()
        .select_only()
        .column(runs::Column::Id)
        .column(runs::Column::AgentId)
        .filter(runs::Column::ConversationKey.eq(key))
        .filter(runs::Column::Status.is_in(live.map(RunStatus::as_str)))
        .order_by_asc(runs::Column::CreatedAt)
        .into_tuple()
        .all(tx)
        .await?;
    rows.into_iter()
        .map(|(run, agent)| {
            Ok(ActiveRun {
                run_id: parsed("runs.id", &run, &run)?,
                agent_id: parsed("runs.agent_id", &run, &agent)?,
            })
        })
        .collect()
}
