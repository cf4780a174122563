//! Wakes: a run wakes its agent later. A wake is one occurrence, whose event is stored with the request.

use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::schedule::{MAX_AGENT_WAKES, OccurrenceStatus};
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::occurrences::{WAKE, read_status};
use crate::error::{StoreError, parsed, signed};
use crate::mutation::Mutation;
use crate::sql::Sql;
use crate::state::lock_live_run;

/// The keys of wakes are unique in a scope: a conversation of an agent, or a run without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeScope {
    pub workspace: WorkspaceId,
    pub agent: AgentId,
    pub name: String,
}

impl WakeScope {
    /// The scope of a run.
    pub fn of(run: &domain::run::Run) -> Self {
        Self {
            workspace: run.workspace.clone(),
            agent: run.agent_id,
            name: match &run.conversation_key {
                Some(key) => format!("conversation:{key}"),
                None => format!("run:{}", run.id),
            },
        }
    }
}

/// A wake. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WakeRecord {
    pub id: Uuid,
    pub key: String,
    pub due_at: i64,
    pub status: OccurrenceStatus,
    pub created_at: i64,
}

struct StoredWake {
    record: WakeRecord,
    request_sha256: String,
    tries: i64,
}

async fn find(
    tx: &impl Sql,
    scope: &WakeScope,
    key: &str,
) -> Result<Option<StoredWake>, StoreError> {
    let sql = "SELECT w.id, w.due_at, w.created_at, w.request_sha256, o.status, o.tries FROM agent_wakes w \
               JOIN schedule_occurrences o ON o.owner_id = w.id \
               WHERE w.agent_id = $1 AND w.scope = $2 AND w.wake_key = $3 AND w.workspace_id = $4";
    let values = vec![
        scope.agent.to_string().into(),
        scope.name.as_str().into(),
        key.into(),
        scope.workspace.as_str().into(),
    ];
    let found = tx.query_sql(sql.to_owned(), values).await?;
    let Some(row) = found.first() else {
        return Ok(None);
    };
    let id = row.text("id")?;
    Ok(Some(StoredWake {
        record: WakeRecord {
            key: key.to_owned(),
            due_at: row.number("due_at")?,
            status: read_status(&id, row)?,
            created_at: row.number("created_at")?,
            id: parsed("agent_wakes.id", &id, &id)?,
        },
        request_sha256: row.text("request_sha256")?,
        tries: row.number("tries")?,
    }))
}

/// Stores a wake of a live run.
#[derive(Clone, Debug)]
pub struct RequestWake {
    pub scope: WakeScope,
    pub run_id: RunId,
    pub id: Uuid,
    pub key: String,
    pub request_sha256: String,
    /// The envelope as JSON.
    pub event: String,
    /// Epoch milliseconds.
    pub due_at: i64,
    pub at: i64,
}

/// Result of [`RequestWake`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeStored {
    /// Stored now or by an earlier request with the same key.
    Stored(WakeRecord),
    /// Another request has the same key.
    Mismatch,
    /// The agent has [`MAX_AGENT_WAKES`] pending ones.
    Full,
    RunEnded,
}

impl Mutation for RequestWake {
    type Output = WakeStored;
    const SAVEPOINT: bool = true;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        self.event.len()
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<WakeStored, StoreError> {
        // The lock orders the requests of a run, and its end.
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(WakeStored::RunEnded);
        }
        // Found also after a commit whose reply was lost.
        if let Some(earlier) = find(tx, &self.scope, &self.key).await? {
            let is_cancelled = earlier.record.status == OccurrenceStatus::Cancelled;
            if !is_cancelled && earlier.request_sha256 != self.request_sha256 {
                return Ok(WakeStored::Mismatch);
            }
            if !is_cancelled {
                return Ok(WakeStored::Stored(earlier.record));
            }
            // The key of a cancelled wake is free again.
            let id = earlier.record.id.to_string();
            for sql in [
                "DELETE FROM schedule_occurrences WHERE owner_id = $1",
                "DELETE FROM agent_wakes WHERE id = $1",
            ] {
                tx.execute_sql(sql.to_owned(), vec![id.as_str().into()])
                    .await?;
            }
        }
        let agent = self.scope.agent.to_string();
        // Requests of other runs at the same time can exceed the limit by one each.
        let count = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM schedule_occurrences \
                     WHERE agent_id = $1 AND status = 'pending'";
        let count = tx.query_sql(count.to_owned(), vec![agent.as_str().into()]);
        let count = count.await?.first().map_or(Ok(0), |row| row.number("n"))?;
        if count >= signed(MAX_AGENT_WAKES) {
            return Ok(WakeStored::Full);
        }
        let id = self.id.to_string();
        let wake = "INSERT INTO agent_wakes (id, workspace_id, agent_id, scope, wake_key, request_sha256, event, \
                    due_at, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)";
        let values = vec![
            id.as_str().into(),
            self.scope.workspace.as_str().into(),
            agent.as_str().into(),
            self.scope.name.as_str().into(),
            self.key.as_str().into(),
            self.request_sha256.as_str().into(),
            self.event.as_str().into(),
            self.due_at.into(),
            self.at.into(),
        ];
        tx.execute_sql(wake.to_owned(), values).await?;
        let occurrence = format!(
            "INSERT INTO schedule_occurrences (owner_id, due_at, kind, agent_id, number, status, free_at, tries, \
             lease_epoch) VALUES ($1, $2, '{WAKE}', $3, 1, 'pending', $2, 0, 0)"
        );
        let values = vec![id.into(), self.due_at.into(), agent.into()];
        tx.execute_sql(occurrence, values).await?;
        Ok(WakeStored::Stored(WakeRecord {
            id: self.id,
            key: self.key.clone(),
            due_at: self.due_at,
            status: OccurrenceStatus::Pending,
            created_at: self.at,
        }))
    }
}

/// Cancels a wake that no replica has begun to trigger.
pub struct CancelWake {
    pub scope: WakeScope,
    pub key: String,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of [`CancelWake`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WakeCancelled {
    /// Cancelled now or before.
    Cancelled(WakeRecord),
    /// Its event is stored, or may be.
    TooLate,
    Unknown,
}

impl Mutation for CancelWake {
    type Output = WakeCancelled;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<WakeCancelled, StoreError> {
        let Some(StoredWake { record, tries, .. }) = find(tx, &self.scope, &self.key).await? else {
            return Ok(WakeCancelled::Unknown);
        };
        if record.status == OccurrenceStatus::Cancelled {
            return Ok(WakeCancelled::Cancelled(record));
        }
        // A replica that has begun cannot be stopped: its event may be stored.
        if tries > 0 {
            return Ok(WakeCancelled::TooLate);
        }
        let sql = "UPDATE schedule_occurrences SET status = 'cancelled', finished_at = $1 WHERE owner_id = $2 \
                   AND status = 'pending' AND tries = 0 RETURNING owner_id";
        let values = vec![self.at.into(), record.id.to_string().into()];
        Ok(if tx.query_sql(sql.to_owned(), values).await?.is_empty() {
            // A replica has claimed it since.
            WakeCancelled::TooLate
        } else {
            WakeCancelled::Cancelled(WakeRecord {
                status: OccurrenceStatus::Cancelled,
                ..record
            })
        })
    }
}
