//! Conversations: lock, live runs, promotion of the next run (`docs/protocol.md`, Conversation policies).

use std::collections::{BTreeSet, HashMap, HashSet};

use domain::admission::{ActiveRun, ConversationLoad};
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::principal::{Principal, PrincipalKind};
use protocol::run::RunStatus;
use sea_orm::{
    ColumnTrait, Condition, DbBackend, EntityTrait, QueryFilter, QuerySelect, QueryTrait,
};

use uuid::Uuid;

use crate::entity::conversations;
use crate::error::{StoreError, parsed, unsigned};
use crate::model::ingest::ConversationRun;
use crate::sql::{PLAN_FENCE, Sql, SqlRow, executed, returned, text, text_array};
use crate::steering::QUEUED;

/// Occupancy of the conversation for one agent. `live`: oldest first.
pub fn occupancy(live: &[ConversationRun], agent: AgentId) -> ConversationLoad {
    let own = || live.iter().filter(|run| run.agent_id == agent);
    ConversationLoad {
        active: own()
            .filter(|run| run.status != RunStatus::Queued)
            .map(|run| ActiveRun {
                run_id: run.run_id,
                running: run.status == RunStatus::Running,
                cancel_requested: run.cancel_requested,
                steering: run.steering,
            })
            .collect(),
        queued: own().filter(|run| run.status == RunStatus::Queued).count() as u64,
    }
}

/// The oldest queued run of each agent without an active run. `live`: the runs of one conversation, oldest first.
pub fn promotable(live: &[ConversationRun]) -> Vec<RunId> {
    let mut seen = HashSet::new();
    let queued = live.iter().filter(|run| run.status == RunStatus::Queued);
    queued
        .filter(|run| {
            let is_active = |other: &ConversationRun| {
                other.agent_id == run.agent_id && other.status != RunStatus::Queued
            };
            seen.insert(run.agent_id) && !live.iter().any(is_active)
        })
        .map(|run| run.run_id)
        .collect()
}

/// Conversations with one id, for all bots and threads or for one. `''` means no bot, or no thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ConversationsOf {
    pub conversation_id: String,
    pub bot_id: Option<String>,
    pub thread_id: Option<String>,
}

impl ConversationsOf {
    fn condition(&self) -> Condition {
        let (bot_id, thread_id) = (self.bot_id.as_deref(), self.thread_id.as_deref());
        Condition::all()
            .add(conversations::Column::ConversationId.eq(self.conversation_id.as_str()))
            .add_option(bot_id.map(|bot| conversations::Column::BotId.eq(bot)))
            .add_option(thread_id.map(|thread| conversations::Column::ThreadId.eq(thread)))
    }
}

/// Filter for the requested conversations: by id, by key, or both. `None`: no filter was requested.
///
/// A key belongs to one workspace. A workspace condition in addition would let a database scan the entire workspace,
/// newest first.
pub(crate) fn of_conversations(
    key: impl ColumnTrait,
    workspace: &WorkspaceId,
    conversations: Option<&ConversationsOf>,
    conversation_key: Option<&str>,
) -> Option<Condition> {
    let of_id = conversations.map(|of| {
        let keys = conversations::Entity::find()
            .select_only()
            .column(conversations::Column::Key)
            .filter(conversations::Column::WorkspaceId.eq(workspace.as_str()))
            .filter(of.condition());
        key.in_subquery(keys.into_query())
    });
    let of_key = conversation_key.map(|own| key.eq(own));
    let is_requested = of_id.is_some() || of_key.is_some();
    is_requested.then(|| Condition::all().add_option(of_id).add_option(of_key))
}

/// Locks conversations in the order of events and returns their newest transcript sequences.
///
/// `OFFSET 0` keeps each lookup separate. A joined plan of an empty table scans it, and stays cached as the table
/// grows.
const LOCK: &str = "SELECT l.key, l.last_transcript_seq FROM \
    (SELECT f.key FROM unnest(CAST($1 AS text[])) AS k (key), LATERAL \
        (SELECT * FROM conversations c WHERE c.key = k.key OFFSET 0) AS f \
        ORDER BY f.workspace_id COLLATE \"C\", f.bot_id COLLATE \"C\", f.conversation_id COLLATE \"C\", \
        f.thread_id COLLATE \"C\" OFFSET 0) AS s, \
    LATERAL (SELECT c.key, c.last_transcript_seq FROM conversations c WHERE c.key = s.key \
        FOR NO KEY UPDATE) AS l";

/// Locks conversations in the order used by events. No lock on `SQLite`, which has one writer.
pub(crate) async fn lock_all(
    tx: &impl Sql,
    keys: impl Iterator<Item = &str>,
) -> Result<(), StoreError> {
    let keys: BTreeSet<_> = keys.collect();
    if tx.backend() == DbBackend::Sqlite || keys.is_empty() {
        return Ok(());
    }
    tx.execute_sql(LOCK.to_owned(), vec![text_array(keys)])
        .await
}

/// Locks them, too, and returns the newest transcript sequence of each.
pub(crate) async fn lock_transcripts(
    tx: &impl Sql,
    keys: BTreeSet<&str>,
) -> Result<HashMap<String, i64>, StoreError> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let locked = if tx.backend() == DbBackend::Sqlite {
        let find = "SELECT key, last_transcript_seq FROM rows, conversations WHERE key = ?1";
        let keys = keys.into_iter().map(|key| [key.into()]);
        returned(tx, keys.collect(), find).await?
    } else {
        tx.query_sql(LOCK.to_owned(), vec![text_array(keys)])
            .await?
    };
    let last = locked
        .iter()
        .map(|row| Ok((row.text("key")?, row.number("last_transcript_seq")?)));
    last.collect()
}

/// Subset of these conversations with queued runs.
pub(crate) async fn waiting_among(
    tx: &impl Sql,
    keys: impl Iterator<Item = &str>,
) -> Result<HashSet<String>, StoreError> {
    let among = format!(
        "SELECT ?1 AS key FROM rows WHERE EXISTS (SELECT 1 FROM runs r WHERE r.conversation_key = ?1 \
         AND r.finished_at IS NULL AND r.status = 'queued' {PLAN_FENCE})"
    );
    let found = returned(tx, keys.map(|key| [key.into()]).collect(), &among).await?;
    found.iter().map(|row| row.text("key")).collect()
}

/// Live runs of the conversation, in the order of their events.
pub(crate) async fn live_runs(
    tx: &impl Sql,
    key: Option<&str>,
) -> Result<Vec<ConversationRun>, StoreError> {
    let Some(key) = key else {
        return Ok(Vec::new());
    };
    let live = "SELECT id, workspace_id, event_id, agent_id, status, cancel_requested_at, \
                last_sequence FROM runs \
                WHERE conversation_key = $1 AND finished_at IS NULL ORDER BY created_at, id";
    let mut rows = tx.query_sql(live.to_owned(), vec![key.into()]).await?;
    // Creation times come from several replicas; the event's sequence was set under the conversation's lock.
    if rows.len() > 1 {
        let sequences = event_sequences(tx, &rows).await?;
        rows.sort_by_cached_key(|row| sequences.get(&row.text("event_id").ok()?).copied());
    }
    let ids = rows.iter().map(|row| row.text("id"));
    let waiting = steering_waiting(tx, ids.collect::<Result<_, _>>()?).await?;
    let read = |row: &SqlRow| {
        let (run, agent) = (row.text("id")?, row.text("agent_id")?);
        Ok(ConversationRun {
            run_id: parsed("runs.id", &run, &run)?,
            agent_id: parsed("runs.agent_id", &run, &agent)?,
            status: RunStatus::parse(&row.text("status")?).ok_or_else(|| StoreError::Corrupt {
                column: "runs.status",
                row: run.clone(),
            })?,
            cancel_requested: row.number_if_any("cancel_requested_at")?.is_some(),
            steering: waiting.get(&run).copied().unwrap_or(0),
            last_sequence: unsigned("runs.last_sequence", &run, row.number("last_sequence")?)?,
        })
    };
    rows.iter().map(read).collect()
}

/// Sequence of each run's event in the conversation.
async fn event_sequences(
    tx: &impl Sql,
    rows: &[SqlRow],
) -> Result<HashMap<String, i64>, StoreError> {
    let events = rows.iter().map(|row| {
        Ok([
            row.text("event_id")?.into(),
            row.text("workspace_id")?.into(),
        ])
    });
    let placed = "SELECT e.event_id, e.event_seq FROM rows, events e \
                  WHERE e.workspace_id = ?2 AND e.event_id = ?1";
    let events = events.collect::<Result<_, StoreError>>()?;
    let mut sequences = HashMap::new();
    for row in returned(tx, events, placed).await? {
        if let Some(sequence) = row.number_if_any("event_seq")? {
            sequences.insert(row.text("event_id")?, sequence);
        }
    }
    Ok(sequences)
}

async fn steering_waiting(
    tx: &impl Sql,
    ids: Vec<String>,
) -> Result<HashMap<String, u64>, StoreError> {
    let waiting = "SELECT s.run_id FROM rows, steering_items s \
                   WHERE s.run_id = ?1 AND s.status = ?2";
    let ids = ids.into_iter().map(|id| [id.into(), QUEUED.into()]);
    let mut counts = HashMap::new();
    for row in returned(tx, ids.collect(), waiting).await? {
        *counts.entry(row.text("run_id")?).or_insert(0) += 1;
    }
    Ok(counts)
}

/// A live run that an event cancels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InterruptedRun {
    pub(crate) run: RunId,
    pub(crate) event_id: String,
    /// Epoch milliseconds.
    pub(crate) at: i64,
}

/// Marks live runs as cancelled. Locks them in the common order, because other replicas
/// write them, too.
pub(crate) async fn cancel_all(
    tx: &impl Sql,
    mut cancels: Vec<InterruptedRun>,
) -> Result<(), StoreError> {
    if cancels.is_empty() {
        return Ok(());
    }
    cancels.sort_unstable();
    let runs = cancels.iter().map(|interrupted| interrupted.run.0);
    lock_runs(tx, &runs.collect(), std::iter::empty()).await?;
    // Compared with the row's value: a constant condition makes a scan of an empty table look cheap.
    let cancel = "UPDATE runs SET cancel_requested_at = ?2, cancelled_by = COALESCE(cancelled_by, ?3) FROM rows \
                  WHERE id = ?1 AND COALESCE(cancel_requested_at, ?2) = ?2";
    let rows = cancels.into_iter().map(|interrupted| {
        let by = Principal::identified(PrincipalKind::Event, interrupted.event_id);
        [
            interrupted.run.to_string().into(),
            interrupted.at.into(),
            by.stored().into(),
        ]
    });
    executed(tx, rows.collect(), cancel).await
}

/// Locks these runs and the queued runs of these conversations, in id order. No lock on `SQLite`, which has one
/// writer.
pub(crate) async fn lock_runs(
    tx: &impl Sql,
    runs: &BTreeSet<Uuid>,
    conversations: impl Iterator<Item = &str>,
) -> Result<(), StoreError> {
    if tx.backend() == DbBackend::Sqlite || runs.is_empty() {
        return Ok(());
    }
    let hold = "SELECT l.id FROM \
        (SELECT id FROM (SELECT unnest(CAST($1 AS text[])) AS id UNION \
            SELECT q.id FROM unnest(CAST($2 AS text[])) AS k (key), LATERAL \
            (SELECT w.id FROM runs w WHERE w.conversation_key = k.key AND w.finished_at IS NULL \
            AND w.status = 'queued' OFFSET 0) AS q) AS named ORDER BY id COLLATE \"C\" OFFSET 0) AS s, \
        LATERAL (SELECT r.id FROM runs r WHERE r.id = s.id FOR NO KEY UPDATE) AS l";
    let ids: Vec<_> = runs.iter().map(ToString::to_string).collect();
    let ids = text_array(ids.iter().map(String::as_str));
    let values = vec![ids, text_array(conversations)];
    tx.execute_sql(hold.to_owned(), values).await
}

/// Promotes the oldest queued run of each agent without an active run. The caller holds the conversation's lock.
pub(crate) async fn promote_next(tx: &impl Sql, key: &str) -> Result<Vec<RunId>, StoreError> {
    let promoted = promotable(&live_runs(tx, Some(key)).await?);
    let [created, queued] = [RunStatus::Created, RunStatus::Queued].map(RunStatus::as_str);
    let rows = promoted.iter();
    let rows = rows.map(|run| [text(*run), created.into(), queued.into()]);
    let update = "UPDATE runs SET status = ?2 FROM rows WHERE id = ?1 AND status = ?3";
    executed(tx, rows.collect(), update).await?;
    Ok(promoted)
}
