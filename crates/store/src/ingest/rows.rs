//! Rows of ingested events: gathered first, written together.

use std::collections::{BTreeMap, HashMap, HashSet};

use protocol::id::RunId;
use sea_orm::{DbBackend, Value};
use uuid::Uuid;

use crate::actor_tokens::forget_other_actor;
use crate::conversation::{InterruptedRun, cancel_all};
use crate::error::StoreError;
use crate::generations::{BegunGeneration, begin_generations};
use crate::model::ingest::{AnyIngest, ConversationPosition, IngestPlan, Ingested};
use crate::model::new_run::NewRun;
use crate::new_run::{Begin, RunEvent, RunRow, insert_runs, user_item};
use crate::shared_parts::StoredParts;
use crate::sql::{PLAN_FENCE, Sql, SqlRow, executed, inserted, returned};
use crate::steering::absorb;
use crate::transcript::{TranscriptRow, write_transcripts};

/// Locks the conversations of events, each once. Returns the locks in the order of the events with a
/// conversation.
pub(super) async fn lock_conversations(
    tx: &impl Sql,
    ingests: &[&AnyIngest],
) -> Result<Vec<ConversationPosition>, StoreError> {
    let mut rows: Vec<_> = ingests
        .iter()
        .filter_map(|ingest| {
            let identity = ingest.conversation_identity()?;
            Some((identity, ingest.new_conversation_key))
        })
        .collect();
    let wanted: Vec<_> = rows.iter().map(|(identity, _)| identity.clone()).collect();
    // All replicas lock in this order.
    rows.sort();
    let mut locked = HashMap::new();
    for row in count_events(tx, rows).await? {
        let identity = [
            row.text("workspace_id")?,
            row.text("bot_id")?,
            row.text("conversation_id")?,
            row.text("thread_id")?,
        ];
        locked.insert(identity, read_position(&row)?);
    }
    let found = wanted.iter().map(|identity| {
        locked.remove(identity).ok_or_else(|| StoreError::Corrupt {
            column: "conversations.conversation_id",
            row: identity.join(" "),
        })
    });
    found.collect()
}

/// Indexes of the events whose conversations have live runs.
pub(super) async fn busy_events(
    tx: &impl Sql,
    ingests: &[&AnyIngest],
) -> Result<HashSet<usize>, StoreError> {
    let rows = ingests.iter().zip(0_i64..).filter_map(|(ingest, index)| {
        let identity = ingest.conversation_identity()?.map(Value::from);
        let [workspace, bot, conversation, thread] = identity;
        Some([workspace, bot, conversation, thread, index.into()])
    });
    let busy = format!(
        "SELECT ?5 AS place FROM rows WHERE EXISTS (SELECT 1 FROM runs r WHERE r.finished_at IS NULL \
         AND r.conversation_key = (SELECT c.key FROM conversations c WHERE c.workspace_id = ?1 \
         AND c.bot_id = ?2 AND c.conversation_id = ?3 AND c.thread_id = ?4) {PLAN_FENCE})"
    );
    let found = returned(tx, rows.collect(), &busy).await?;
    let indexes = found.iter().map(|row| row.number("place"));
    let indexes = indexes.map(|index| Ok(usize::try_from(index?).unwrap_or(usize::MAX)));
    indexes.collect()
}

const CONVERSATION_COLUMNS: &str = "key, workspace_id, bot_id, conversation_id, thread_id, last_event_seq, \
    last_transcript_seq, version";

/// Counts an event in each conversation, and creates missing ones. Returns their rows.
async fn count_events(
    tx: &impl Sql,
    conversations: Vec<([String; 4], Uuid)>,
) -> Result<Vec<SqlRow>, StoreError> {
    let identities = conversations.iter();
    let identities: Vec<[Value; 4]> = identities
        .map(|(identity, _)| identity.clone().map(Value::from))
        .collect();
    let begun = conversations.into_iter().map(|(identity, key)| {
        let [workspace, bot, conversation, thread] = identity.map(Value::from);
        let key = key.to_string().into();
        [
            key,
            workspace,
            bot,
            conversation,
            thread,
            1_i64.into(),
            0_i64.into(),
            1_i64.into(),
        ]
    });
    let upsert = format!(
        "INSERT INTO conversations ({CONVERSATION_COLUMNS}) VALUES rows \
         ON CONFLICT (workspace_id, bot_id, conversation_id, thread_id) DO UPDATE SET \
         last_event_seq = conversations.last_event_seq + 1, version = conversations.version + 1"
    );
    // On `SQLite` a query costs less than `RETURNING`.
    if tx.backend() == DbBackend::Sqlite {
        executed(tx, begun.collect(), &upsert).await?;
        let sql = format!(
            "SELECT {CONVERSATION_COLUMNS} FROM rows, conversations WHERE workspace_id = ?1 AND bot_id = ?2 \
             AND conversation_id = ?3 AND thread_id = ?4"
        );
        return returned(tx, identities, &sql).await;
    }
    returned(
        tx,
        begun.collect(),
        &format!("{upsert} RETURNING {CONVERSATION_COLUMNS}"),
    )
    .await
}

/// Takes back the count of refused events, so that they leave no rows. Their conversations are locked.
pub(super) async fn uncount_events(
    tx: &impl Sql,
    positions: &[&ConversationPosition],
) -> Result<(), StoreError> {
    let begun = positions.iter().filter(|position| position.event_seq == 1);
    for position in begun {
        let delete = "DELETE FROM conversations WHERE key = $1 AND version = 1";
        let key = position.conversation_key.as_str().into();
        tx.execute_sql(delete.to_owned(), vec![key]).await?;
    }
    let keys = positions.iter();
    let keys = keys.map(|position| [position.conversation_key.as_str().into()]);
    let uncount = "UPDATE conversations SET last_event_seq = last_event_seq - 1, version = version - 1 \
                   FROM rows WHERE key = ?1";
    executed(tx, keys.collect(), uncount).await
}

fn begun_by<'a>(row: &RunRow<'a>) -> Option<BegunGeneration<'a>> {
    Some(BegunGeneration {
        conversation_key: row.event.conversation_key?,
        agent: row.run.agent_id,
        generation: row.run.begun?,
        at: row.event.at,
    })
}

impl AnyIngest {
    /// Workspace and id.
    fn primary_key(&self) -> (&str, &str) {
        (self.workspace.as_str(), &self.event_id)
    }

    /// Identity of the event's conversation; its order is the lock order.
    pub(crate) fn conversation_identity(&self) -> Option<[String; 4]> {
        let identity = self.conversation.as_ref()?;
        Some([
            self.workspace.to_string(),
            identity.bot_id.clone(),
            identity.conversation_id.clone(),
            identity.thread_id.clone(),
        ])
    }
}

fn read_position(row: &SqlRow) -> Result<ConversationPosition, StoreError> {
    Ok(ConversationPosition {
        conversation_key: row.text("key")?,
        event_seq: row.number("last_event_seq")?,
        transcript_before: row.number("last_transcript_seq")?,
    })
}

/// Rows to write.
#[derive(Default)]
pub(super) struct Rows<'a> {
    runs: Vec<(RunEvent<'a>, Box<NewRun>, Begin)>,
    cancels: Vec<InterruptedRun>,
    /// Sorted by workspace and id, the write order of all replicas.
    events: BTreeMap<(&'a str, &'a str), [Value; 13]>,
    raw: Vec<[Value; 4]>,
    /// Sealed tokens of actors, by run.
    actor_tokens: Vec<[Value; 3]>,
    messages: Vec<TranscriptRow>,
    /// Newest transcript sequence of each conversation with a message.
    last_sequences: HashMap<String, i64>,
    /// Expired dedupe keys of earlier events, by the event that uses each again.
    freed_keys: HashMap<(&'a str, &'a str), [Value; 3]>,
    /// Those that an accepted event uses.
    freed: Vec<[Value; 3]>,
}

impl<'a> Rows<'a> {
    /// Frees the expired key of an earlier event if `ingest` is accepted: a refused event must not free it.
    pub(super) fn free_key(&mut self, ingest: &'a AnyIngest, earlier: String) {
        // Cannot collide with a client's key, which is ASCII.
        let freed = format!("†{earlier}");
        let row = [
            ingest.workspace.as_str().into(),
            earlier.into(),
            freed.into(),
        ];
        self.freed_keys.insert(ingest.primary_key(), row);
    }

    /// Adds the rows of a decision; none for a refusal. Writes steering items at once.
    pub(super) async fn gather(
        &mut self,
        tx: &impl Sql,
        ingest: &'a AnyIngest,
        plan: IngestPlan,
        position: Option<&'a ConversationPosition>,
    ) -> Result<Ingested, StoreError> {
        let event = RunEvent {
            workspace: &ingest.workspace,
            event_id: &ingest.event_id,
            conversation_key: position.map(|position| position.conversation_key.as_str()),
            at: ingest.at,
        };
        let mut steered_into = None;
        let (receiver, message, answer) = match plan {
            IngestPlan::Refuse => return Ok(Ingested::Refused),
            IngestPlan::Keep { answer } => (None, None, answer),
            IngestPlan::Start {
                run,
                attempt,
                message,
                answer,
            } => {
                let begin = attempt.map_or(Begin::Created, Begin::Dispatched);
                (Some(self.run(ingest, event, run, begin)), message, answer)
            }
            IngestPlan::Queue {
                run,
                message,
                cancel,
                answer,
            } => {
                let cancels = cancel.into_iter().map(|run| InterruptedRun {
                    run,
                    event_id: ingest.event_id.clone(),
                    at: ingest.at,
                });
                self.cancels.extend(cancels);
                let queued = self.run(ingest, event, run, Begin::Queued);
                (Some(queued), message, answer)
            }
            IngestPlan::Absorb {
                run,
                message,
                answer,
            } => {
                absorb(tx, run, &ingest.event_id, ingest.at).await?;
                forget_other_actor(tx, run, &ingest.actor.name).await?;
                steered_into = Some(run);
                (Some(run), message, answer)
            }
        };
        let freed = self.freed_keys.remove(&ingest.primary_key());
        self.freed.extend(freed);
        self.event(ingest, position, steered_into, &answer);
        let item = message.and_then(|message| user_item(&event, message));
        if let Some((run, item)) = receiver.zip(item) {
            let at = ingest.at;
            let last = position.map(|position| position.transcript_before);
            let key = item.conversation_key.clone();
            self.last_sequences.insert(key, last.unwrap_or_default());
            self.messages.push(TranscriptRow { run, item, at });
        }
        Ok(Ingested::Stored { answer })
    }

    fn run(
        &mut self,
        ingest: &AnyIngest,
        event: RunEvent<'a>,
        run: Box<NewRun>,
        begin: Begin,
    ) -> RunId {
        let id = run.id;
        let token = ingest.actor.token.as_ref().map(|token| {
            let (actor, sealed) = (token.actor.as_str(), token.sealed.as_str());
            [id.to_string().into(), actor.into(), sealed.into()]
        });
        self.actor_tokens.extend(token);
        self.runs.push((event, run, begin));
        id
    }

    fn event(
        &mut self,
        ingest: &'a AnyIngest,
        position: Option<&ConversationPosition>,
        steered_into: Option<RunId>,
        answer: &str,
    ) {
        let row = [
            ingest.workspace.as_str().into(),
            ingest.event_id.as_str().into(),
            ingest.dedupe_key.as_str().into(),
            ingest.body_sha256.as_str().into(),
            answer.into(),
            ingest.event_type.as_str().into(),
            ingest.source.as_str().into(),
            ingest.bot_id.clone().unwrap_or_default().into(),
            position
                .map(|position| position.conversation_key.clone())
                .into(),
            position.map(|position| position.event_seq).into(),
            ingest.envelope.as_str().into(),
            steered_into.map(|run| run.to_string()).into(),
            ingest.at.into(),
        ];
        self.events.insert(ingest.primary_key(), row);
        self.raw.extend(ingest.raw.as_deref().map(|raw| {
            let (workspace, event) = (ingest.workspace.as_str(), ingest.event_id.as_str());
            [workspace.into(), event.into(), raw.into(), ingest.at.into()]
        }));
    }

    /// Writes all rows. Messages belong to distinct conversations.
    pub(super) async fn write(self, tx: &impl Sql, parts: &StoredParts) -> Result<(), StoreError> {
        let runs: Vec<_> = self
            .runs
            .iter()
            .map(|(event, run, begin)| RunRow {
                event: *event,
                run,
                begin,
            })
            .collect();
        cancel_all(tx, self.cancels).await?;
        insert_runs(tx, &runs, parts).await?;
        begin_generations(tx, runs.iter().filter_map(begun_by)).await?;
        let free =
            "UPDATE events SET dedupe_key = ?3 FROM rows WHERE workspace_id = ?1 AND event_id = ?2";
        executed(tx, self.freed, free).await?;
        let into = "events (workspace_id, event_id, dedupe_key, body_sha256, answer, event_type, \
            source, bot_id, conversation_key, event_seq, envelope, steered_into, received_at)";
        inserted(tx, into, self.events.into_values().collect()).await?;
        let into = "raw_payloads (workspace_id, event_id, payload, created_at)";
        inserted(tx, into, self.raw).await?;
        inserted(tx, "actor_tokens (run_id, actor, token)", self.actor_tokens).await?;
        write_transcripts(tx, self.messages, self.last_sequences).await
    }
}
