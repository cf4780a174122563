//! Steering: events absorbed by an active run. Each is queued, then pulled once, or dropped at the run's end.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::id::{RunId, WorkspaceId};
use sea_orm::{ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QuerySelect};
use uuid::Uuid;

use crate::entity::steering_items;
use crate::error::{StoreError, signed};
use crate::failpoint;
use crate::model::append::SteeredEvent;
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::readers::Readers;
use crate::sql::{PLAN_FENCE, Sql, executed, returned, text};
use crate::state::lock_live_run;

pub(crate) const QUEUED: &str = "queued";
pub(crate) const PULLED: &str = "pulled";
pub(crate) const DROPPED: &str = "dropped";

/// Maximum bytes of envelopes per pull; the rest waits for the next pull.
pub const PULL_BYTES: usize = 4 * 1024 * 1024;

/// Pulls the oldest absorbed events of a live run, each at most once. A retry returns the events of the earlier
/// try, so a lost commit reply loses nothing.
#[derive(Debug)]
pub struct PullSteering {
    run_id: RunId,
    workspace: WorkspaceId,
    limit: u64,
    audit: AuditEntry,
    /// Events of the last try, committed or not.
    taken: Mutex<Option<Vec<SteeredEvent>>>,
}

impl PullSteering {
    /// Pulls at most `limit` events, for the call recorded by `audit`.
    pub fn new(limit: u64, audit: AuditEntry) -> Self {
        Self {
            run_id: audit.run_id,
            workspace: audit.workspace.clone(),
            limit,
            audit,
            taken: Mutex::default(),
        }
    }

    fn taken(&self) -> MutexGuard<'_, Option<Vec<SteeredEvent>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mutation for PullSteering {
    /// `None`: the run has ended.
    type Output = Option<Vec<SteeredEvent>>;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        let before = self.taken().take();
        if before.is_some() && crate::audit::is_recorded(tx, &self.audit).await? {
            self.taken().clone_from(&before);
            return Ok(before);
        }
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(None);
        }
        crate::audit::insert(tx, [&self.audit]).await?;
        let workspace = &self.workspace;
        let taken = take(tx, workspace, self.run_id, self.limit, PULL_BYTES, PULLED).await?;
        self.taken().replace(taken.clone());
        failpoint::pass("steering.before_commit").await?;
        Ok(Some(taken))
    }
}

/// Steering status of an absorbed event.
pub(crate) async fn steering_status(
    readers: &Readers,
    run: &str,
    event_id: &str,
) -> Result<Option<String>, StoreError> {
    let status = steering_items::Entity::find()
        .select_only()
        .column(steering_items::Column::Status)
        .filter(steering_items::Column::RunId.eq(run))
        .filter(steering_items::Column::EventId.eq(event_id))
        .into_tuple()
        .one(readers)
        .await?;
    Ok(status)
}

/// Queues an event for a run. The caller holds the conversation's lock.
pub(crate) async fn absorb(
    tx: &impl Sql,
    run: RunId,
    event_id: &str,
    at: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO steering_items (run_id, n, event_id, status, at) \
        SELECT $1, COUNT(*) + 1, $2, $3, $4 FROM steering_items WHERE run_id = $1";
    let values = vec![
        run.to_string().into(),
        event_id.into(),
        QUEUED.into(),
        at.into(),
    ];
    tx.execute_sql(sql.to_owned(), values).await
}

/// Subset of these runs with unpulled events.
pub(crate) async fn with_unpulled_among(
    tx: &impl Sql,
    runs: impl Iterator<Item = RunId>,
) -> Result<HashSet<String>, StoreError> {
    let left = format!(
        "SELECT ?1 AS id FROM rows WHERE EXISTS (SELECT 1 FROM steering_items s \
         WHERE s.run_id = ?1 AND s.status = '{QUEUED}' {PLAN_FENCE})"
    );
    let found = returned(
        tx,
        runs.map(|run| [run.to_string().into()]).collect(),
        &left,
    )
    .await?;
    found.iter().map(|row| row.text("id")).collect()
}

/// Drops the unpulled events of an ending run and returns them for new runs.
pub(crate) async fn drop_unpulled(
    tx: &impl Sql,
    workspace: &WorkspaceId,
    run: RunId,
) -> Result<Vec<SteeredEvent>, StoreError> {
    let all = u64::from(u16::MAX);
    take(tx, workspace, run, all, usize::MAX, DROPPED).await
}

async fn take(
    tx: &impl Sql,
    workspace: &WorkspaceId,
    run: RunId,
    limit: u64,
    bytes: usize,
    status: &str,
) -> Result<Vec<SteeredEvent>, StoreError> {
    let find = "SELECT s.n, s.event_id, s.at, e.envelope FROM steering_items s \
        LEFT JOIN events e ON e.workspace_id = $1 AND e.event_id = s.event_id \
        WHERE s.run_id = $2 AND s.status = $3 ORDER BY s.n LIMIT $4";
    let values = vec![
        workspace.as_str().into(),
        text(run),
        QUEUED.into(),
        signed(limit).into(),
    ];
    let (mut taken, mut numbers) = (Vec::new(), Vec::new());
    let mut remaining_bytes = bytes;
    for item in tx.query_sql(find.to_owned(), values).await? {
        let envelope = item.text_if_any("envelope")?;
        let envelope = envelope.ok_or_else(|| StoreError::Corrupt {
            column: "steering_items.event_id",
            row: run.to_string(),
        })?;
        if envelope.len() > remaining_bytes && !taken.is_empty() {
            break;
        }
        remaining_bytes = remaining_bytes.saturating_sub(envelope.len());
        numbers.push([text(run), item.number("n")?.into(), status.into()]);
        taken.push(SteeredEvent {
            event_id: item.text("event_id")?,
            envelope,
            at: item.number("at")?,
        });
    }
    let update = "UPDATE steering_items SET status = ?3 FROM rows WHERE run_id = ?1 AND n = ?2";
    executed(tx, numbers, update).await?;
    Ok(taken)
}
