//! Audit log: one row for each host API call, allowed or denied.

mod batched;
mod sums;

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::id::RunId;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait, QueryFilter,
    QueryOrder, Value,
};
use uuid::Uuid;

use crate::batch_op::{BatchOp, BatchResult};
use crate::database_clock::{millis, read_now};
use crate::entity::audit_entries;
use crate::error::{StoreError, signed, unsigned};
use crate::model::audit::{AuditEntry, AuditOutcome};
use crate::mutation::{BatchWork, Mutation};
use crate::page::{ListPage, PageBound, PageOf};
use crate::repositories::AuditRepository;
use crate::sql::{Sql, executed, inserted};

pub(crate) use batched::end_all;
pub use sums::AgentCalls;

/// A stored call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    pub id: String,
    pub action: String,
    pub resource: String,
    pub operation: String,
    /// `allow` or `deny`.
    pub decision: String,
    pub rule: String,
    /// The gateway's id of the answered question that the runner names as approval.
    pub interaction_id: Option<String>,
    pub bytes: u64,
    pub at: i64,
    /// Number of aggregated calls.
    pub calls: u64,
    /// `ok` or an error code; absent during the call, and for calls without a duration.
    pub outcome: Option<String>,
    pub duration_ms: Option<i64>,
    /// Ticket of a tool call.
    pub ticket: Option<String>,
    /// Effect of a tool call with a ticket, see [`domain::tool_call::CallEffect`].
    pub effect: Option<String>,
    /// Approval that a tool call used.
    pub approval_id: Option<String>,
    /// Type and id of the actor whose token a tool call used.
    pub on_behalf_of: Option<String>,
}

/// Inserts audit entries.
pub(crate) async fn insert(
    conn: &impl Sql,
    entries: impl IntoIterator<Item = &AuditEntry>,
) -> Result<(), StoreError> {
    let (mut own, mut shared) = (Vec::new(), BTreeMap::new());
    for entry in entries {
        if entry.is_shared {
            // A statement may change a row only once.
            let key = (entry.run_id.0, entry.id);
            let calls = shared.get(&key).map_or(0, |(_, calls)| *calls);
            shared.insert(key, (entry, calls + 1_i64));
        } else {
            own.push((entry, 1));
        }
    }
    let row = |(entry, calls): (&AuditEntry, i64)| -> [Value; 12] {
        [
            entry.id.to_string().into(),
            entry.workspace.to_string().into(),
            entry.run_id.to_string().into(),
            entry.action.into(),
            entry.resource.as_str().into(),
            entry.operation.into(),
            if entry.allowed { "allow" } else { "deny" }.into(),
            entry.rule.as_ref().into(),
            signed(entry.bytes).into(),
            entry.at.into(),
            calls.into(),
            entry.interaction_id.clone().into(),
        ]
    };
    let into = "audit_entries (id, workspace_id, run_id, action, resource, operation, decision, rule, bytes, at, \
        calls, interaction_id)";
    inserted(conn, into, own.into_iter().map(row).collect()).await?;
    // The conflict target must name a unique index: `SQLite` keys the table by run.
    let key = match conn.backend() {
        DbBackend::Sqlite => "run_id, id",
        _ => "id",
    };
    let counted = format!(
        "INSERT INTO {into} VALUES rows ON CONFLICT ({key}) DO UPDATE SET \
         calls = audit_entries.calls + excluded.calls, at = excluded.at"
    );
    executed(conn, shared.into_values().map(row).collect(), &counted).await
}

/// True when the entry is committed, and with it all rows of its transaction.
pub(crate) async fn is_recorded(
    conn: &impl ConnectionTrait,
    entry: &AuditEntry,
) -> Result<bool, StoreError> {
    let found = audit_entries::Entity::find_by_id(entry.id.to_string())
        .filter(audit_entries::Column::RunId.eq(entry.run_id.to_string()))
        .one(conn)
        .await?;
    Ok(found.is_some())
}

struct WriteAudit {
    entry: AuditEntry,
}

impl BatchWork for WriteAudit {
    type Output = ();

    fn order(&self) -> Uuid {
        self.entry.run_id.0
    }

    fn op(&self) -> BatchOp<'_> {
        BatchOp::Audit(&self.entry)
    }

    fn output_of(&self, _done: BatchResult) -> Option<()> {
        Some(())
    }

    async fn is_committed(&self, tx: &DatabaseTransaction, (): &()) -> Result<bool, StoreError> {
        is_recorded(tx, &self.entry).await
    }
}

/// Idempotent, so a retry is harmless.
struct WriteOutcome(AuditOutcome);

impl BatchWork for WriteOutcome {
    type Output = ();

    fn order(&self) -> Uuid {
        self.0.run_id.0
    }

    fn op(&self) -> BatchOp<'_> {
        BatchOp::Audited(&self.0)
    }

    fn output_of(&self, _done: BatchResult) -> Option<()> {
        Some(())
    }
}

/// Deletes entries of old calls.
struct SweepAudit {
    age: Duration,
}

/// Maximum entries per transaction.
const OLD_ENTRIES: u64 = 1000;

impl Mutation for SweepAudit {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let before = read_now(tx).await? - millis(self.age);
        // Run ids start with their time, so an index finds old entries.
        let first_younger = Uuid::from_u128(u128::from(before.max(0).unsigned_abs()) << 80);
        // Replicas sweep concurrently: each skips the rows of the others.
        let ours = match tx.get_database_backend() {
            DbBackend::Postgres => "FOR UPDATE SKIP LOCKED",
            _ => "",
        };
        // `at` is checked, too: the time in a run's id is that of its creation, and its calls may be recent.
        let delete = format!(
            "DELETE FROM audit_entries WHERE (run_id, id) IN (SELECT run_id, id FROM audit_entries \
             WHERE run_id < $1 AND at < $2 ORDER BY run_id, id LIMIT {OLD_ENTRIES} {ours}) RETURNING id"
        );
        let values = vec![first_younger.to_string().into(), before.into()];
        Ok(tx.query_sql(delete, values).await?.len() as u64)
    }
}

impl AuditRepository<'_> {
    /// Deletes a batch of entries older than `age`; returns their number.
    pub async fn sweep_audit(self, age: Duration) -> Result<u64, StoreError> {
        self.db.write(SweepAudit { age }).await
    }

    /// Queues the outcome of a call with a queued entry.
    pub async fn audit_outcome(self, outcome: AuditOutcome) -> Result<(), StoreError> {
        self.db.write_later(WriteOutcome(outcome)).await
    }

    /// Queues an audit row. Waits while the queue is full. During a database outage the row stays in memory, see
    /// [`crate::Store::write_later`].
    pub async fn audit(self, entry: AuditEntry) -> Result<(), StoreError> {
        self.db.write_later(WriteAudit { entry }).await
    }

    /// Calls of a run after `after`, in order.
    pub async fn list_audit(
        self,
        run: RunId,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<AuditRecord>, StoreError> {
        let own = audit_entries::Column::RunId.eq(run.to_string());
        let page = PageOf {
            rows: audit_entries::Entity::find()
                .filter(own.clone())
                .filter(audit_entries::Column::Id.gt(after.unwrap_or_default()))
                .order_by_asc(audit_entries::Column::Id),
            key: audit_entries::Column::Id,
            owner: own.into(),
            without: None,
        };
        let found = page.read::<String>(&self.db.readers, bound.into()).await?;
        let record = |row: audit_entries::Model| {
            Ok(AuditRecord {
                bytes: unsigned("audit_entries.bytes", &row.id, row.bytes)?,
                calls: unsigned("audit_entries.calls", &row.id, row.calls)?,
                id: row.id,
                action: row.action,
                resource: row.resource,
                operation: row.operation,
                decision: row.decision,
                rule: row.rule,
                interaction_id: row.interaction_id,
                at: row.at,
                outcome: row.outcome,
                duration_ms: row.duration_ms,
                ticket: row.ticket,
                effect: row.effect,
                approval_id: row.approval_id,
                on_behalf_of: row.on_behalf_of,
            })
        };
        found.try_map(record)
    }
}
