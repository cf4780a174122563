//! One conversation: its lock, its live runs, and who comes next (contracts §4).

use std::collections::{BTreeSet, HashMap, HashSet};

use domain::admission::{ActiveRun, Occupancy};
use protocol::id::{AgentId, RunId};
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait, QueryFilter,
    QueryOrder, QuerySelect,
};

use crate::entity::{events, runs, steering_items};
use crate::error::{StoreError, parsed};
use crate::rows::{executed, returned};
use crate::steering::QUEUED;

/// A run of the conversation that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveRun {
    pub run_id: RunId,
    pub agent_id: AgentId,
    pub status: RunStatus,
    pub cancel_requested: bool,
    /// Events that it absorbed and has not pulled.
    pub steering: u64,
}

/// How busy the conversation is for one agent. `live`: oldest first.
pub fn occupancy(live: &[LiveRun], agent: AgentId) -> Occupancy {
    let own = || live.iter().filter(|run| run.agent_id == agent);
    Occupancy {
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

/// Takes the locks of conversations, in one order: whoever decides about one writes its row first.
/// `SQLite` has one writer, which is lock enough.
pub(crate) async fn lock_all(
    tx: &DatabaseTransaction,
    keys: impl Iterator<Item = &str>,
) -> Result<(), StoreError> {
    if tx.get_database_backend() == DbBackend::Sqlite {
        return Ok(());
    }
    let keys: BTreeSet<_> = keys.collect();
    let lock = |values: &str| {
        format!(
            "UPDATE conversations SET version = version + 1 FROM ({values}) AS v \
             WHERE key = v.column1"
        )
    };
    executed(tx, keys.into_iter().map(|key| [key.into()]).collect(), lock).await
}

const LIVE: [RunStatus; 4] = [
    RunStatus::Created,
    RunStatus::Queued,
    RunStatus::Claimed,
    RunStatus::Running,
];

/// Those of these conversations in which runs live.
pub(crate) async fn busy_among(
    tx: &impl ConnectionTrait,
    keys: impl Iterator<Item = &str>,
) -> Result<HashSet<String>, StoreError> {
    among(tx, keys, "'created', 'queued', 'claimed', 'running'").await
}

/// Those of these conversations in which runs wait for their turn.
pub(crate) async fn waiting_among(
    tx: &impl ConnectionTrait,
    keys: impl Iterator<Item = &str>,
) -> Result<HashSet<String>, StoreError> {
    among(tx, keys, "'queued'").await
}

async fn among(
    tx: &impl ConnectionTrait,
    keys: impl Iterator<Item = &str>,
    statuses: &str,
) -> Result<HashSet<String>, StoreError> {
    let among = |values: &str| {
        format!(
            "SELECT v.column1 AS key FROM ({values}) AS v WHERE EXISTS (SELECT 1 FROM runs r \
             WHERE r.conversation_key = v.column1 AND r.status IN ({statuses}))"
        )
    };
    let found = returned(tx, keys.map(|key| [key.into()]).collect(), among).await?;
    let keys = found.iter().map(|row| Ok(row.try_get("", "key")?));
    keys.collect()
}

/// The live runs of the conversation, in the order of their events: counted under the conversation's
/// lock, whatever the clocks of the replicas say.
pub(crate) async fn live_runs(
    tx: &impl ConnectionTrait,
    key: Option<&str>,
) -> Result<Vec<LiveRun>, StoreError> {
    let Some(key) = key else {
        return Ok(Vec::new());
    };
    let mut rows: Vec<LiveRow> = runs::Entity::find()
        .select_only()
        .column(runs::Column::Id)
        .column(runs::Column::EventId)
        .column(runs::Column::AgentId)
        .column(runs::Column::Status)
        .column(runs::Column::CancelRequestedAt)
        .filter(runs::Column::ConversationKey.eq(key))
        .filter(runs::Column::Status.is_in(LIVE.map(RunStatus::as_str)))
        .order_by_asc(runs::Column::CreatedAt)
        .order_by_asc(runs::Column::Id)
        .into_tuple()
        .all(tx)
        .await?;
    if rows.len() > 1 {
        let places = places(tx, key, &rows).await?;
        rows.sort_by_key(|row| places.get(&row.1).copied());
    }
    let waiting = steering_waiting(tx, rows.iter().map(|row| row.0.clone()).collect()).await?;
    rows.into_iter()
        .map(|(run, _, agent, status, cancel_requested_at)| {
            Ok(LiveRun {
                run_id: parsed("runs.id", &run, &run)?,
                agent_id: parsed("runs.agent_id", &run, &agent)?,
                status: RunStatus::parse(&status).ok_or_else(|| StoreError::Corrupt {
                    column: "runs.status",
                    row: run.clone(),
                })?,
                cancel_requested: cancel_requested_at.is_some(),
                steering: waiting.get(&run).copied().unwrap_or(0),
            })
        })
        .collect()
}

/// Run, event, agent, status, when a cancel was asked for.
type LiveRow = (String, String, String, String, Option<i64>);

/// The place of each run's event in the conversation.
async fn places(
    tx: &impl ConnectionTrait,
    key: &str,
    rows: &[LiveRow],
) -> Result<HashMap<String, i64>, StoreError> {
    let names = rows.iter().map(|row| row.1.clone());
    let found: Vec<(String, Option<i64>)> = events::Entity::find()
        .select_only()
        .column(events::Column::EventId)
        .column(events::Column::EventSeq)
        .filter(events::Column::ConversationKey.eq(key))
        .filter(events::Column::EventId.is_in(names))
        .into_tuple()
        .all(tx)
        .await?;
    let placed = found.into_iter();
    Ok(placed
        .filter_map(|(event, seq)| Some((event, seq?)))
        .collect())
}

async fn steering_waiting(
    tx: &impl ConnectionTrait,
    ids: Vec<String>,
) -> Result<HashMap<String, u64>, StoreError> {
    if ids.is_empty() {
        return Ok(HashMap::new());
    }
    let rows: Vec<String> = steering_items::Entity::find()
        .select_only()
        .column(steering_items::Column::RunId)
        .filter(steering_items::Column::RunId.is_in(ids))
        .filter(steering_items::Column::Status.eq(QUEUED))
        .into_tuple()
        .all(tx)
        .await?;
    let mut waiting = HashMap::new();
    for run in rows {
        *waiting.entry(run).or_insert(0) += 1;
    }
    Ok(waiting)
}

/// Writes the wish to cancel for live runs.
pub(crate) async fn cancel_all(
    tx: &DatabaseTransaction,
    ids: &[RunId],
    at: i64,
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    runs::Entity::update_many()
        .col_expr(runs::Column::CancelRequestedAt, Expr::value(at))
        .filter(runs::Column::Id.is_in(ids.iter().map(ToString::to_string)))
        .filter(runs::Column::CancelRequestedAt.is_null())
        .exec(tx)
        .await?;
    Ok(())
}

/// Lets the oldest waiting run of each agent go of which none is active any more. The caller holds the
/// conversation's lock.
pub(crate) async fn promote_next(
    tx: &DatabaseTransaction,
    key: &str,
) -> Result<Vec<RunId>, StoreError> {
    let live = live_runs(tx, Some(key)).await?;
    let mut seen = HashSet::new();
    let mut promoted = Vec::new();
    for run in live.iter().filter(|run| run.status == RunStatus::Queued) {
        let busy =
            |other: &LiveRun| other.agent_id == run.agent_id && other.status != RunStatus::Queued;
        if !seen.insert(run.agent_id) || live.iter().any(busy) {
            continue;
        }
        runs::Entity::update_many()
            .col_expr(
                runs::Column::Status,
                Expr::value(RunStatus::Created.as_str()),
            )
            .filter(runs::Column::Id.eq(run.run_id.to_string()))
            .filter(runs::Column::Status.eq(RunStatus::Queued.as_str()))
            .exec(tx)
            .await?;
        promoted.push(run.run_id);
    }
    Ok(promoted)
}
