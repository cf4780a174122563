//! Who touched what: a row for each host API call, allowed or denied.

use std::borrow::Cow;

use protocol::id::{RunId, WorkspaceId};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter,
    QueryOrder,
};
use uuid::Uuid;

use crate::bulk::{Done, Together};
use crate::connect::Store;
use crate::entity::audit_entries;
use crate::error::{StoreError, signed, unsigned};
use crate::page::{Found, PageBound, PageOf};
use crate::sql::{Sql, inserted};
use crate::writer::Work;

/// One call, as the audit keeps it. Never a value, a token or a text of a user.
#[derive(Clone, Debug)]
pub struct AuditEntry {
    /// A `UUIDv7`: the order of a run's entries.
    pub id: Uuid,
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub action: &'static str,
    pub resource: String,
    pub operation: &'static str,
    pub allowed: bool,
    pub rule: Cow<'static, str>,
    pub bytes: u64,
    pub at: i64,
}

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
    pub bytes: u64,
    pub at: i64,
    /// `ok` or an error's code; absent while the call goes on, and for calls that end at once.
    pub outcome: Option<String>,
    pub duration_ms: Option<i64>,
}

/// How a call that had been allowed ended.
#[derive(Clone, Debug)]
pub struct AuditOutcome {
    /// The call's entry.
    pub id: Uuid,
    pub run_id: RunId,
    /// Bytes that went to the runner.
    pub bytes: u64,
    /// `ok`, or the code of the error.
    pub outcome: &'static str,
    pub duration_ms: i64,
}

/// Records calls.
pub(crate) async fn insert(
    conn: &impl Sql,
    entries: impl IntoIterator<Item = &AuditEntry>,
) -> Result<(), StoreError> {
    let rows = entries.into_iter().map(|entry| {
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
        ]
    });
    let into = "audit_entries (id, workspace_id, run_id, action, resource, operation, decision, rule, bytes, at)";
    inserted(conn, into, rows.collect()).await
}

/// Whether a call is recorded: then all that was written with it stands.
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

impl Work for WriteAudit {
    type Output = ();

    const CHANGES_AGENTS: bool = false;

    fn together(&self) -> Option<Together<'_>> {
        Some(Together::Audit(&self.entry))
    }

    fn output_of(&self, done: Done) -> Option<()> {
        matches!(done, Done::Audited).then_some(())
    }

    fn order(&self) -> Uuid {
        self.entry.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        insert(tx, std::slice::from_ref(&self.entry)).await
    }

    async fn stands(&self, tx: &DatabaseTransaction, (): &()) -> Result<bool, StoreError> {
        is_recorded(tx, &self.entry).await
    }
}

struct WriteOutcome(AuditOutcome);

impl Work for WriteOutcome {
    type Output = ();

    const CHANGES_AGENTS: bool = false;

    fn together(&self) -> Option<Together<'_>> {
        Some(Together::Audited(&self.0))
    }

    fn output_of(&self, done: Done) -> Option<()> {
        matches!(done, Done::Audited).then_some(())
    }

    fn order(&self) -> Uuid {
        self.0.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let Self(end) = self;
        let ended = audit_entries::ActiveModel {
            bytes: Set(signed(end.bytes)),
            outcome: Set(Some(end.outcome.to_owned())),
            duration_ms: Set(Some(end.duration_ms)),
            ..Default::default()
        };
        audit_entries::Entity::update_many()
            .set(ended)
            .filter(audit_entries::Column::RunId.eq(end.run_id.to_string()))
            .filter(audit_entries::Column::Id.eq(end.id.to_string()))
            .exec(tx)
            .await?;
        Ok(())
    }

    /// Written twice, it says the same.
    async fn stands(&self, _: &DatabaseTransaction, (): &()) -> Result<bool, StoreError> {
        Ok(false)
    }
}

impl Store {
    /// Queues what came of a call whose entry was queued before.
    pub async fn audit_outcome(&self, outcome: AuditOutcome) -> Result<(), StoreError> {
        self.write_later(WriteOutcome(outcome)).await
    }

    /// Queues an audit row. A full queue makes the caller wait; while the database is away the row is
    /// kept in memory, see [`Store::write_later`].
    pub async fn audit(&self, entry: AuditEntry) -> Result<(), StoreError> {
        self.write_later(WriteAudit { entry }).await
    }

    /// The calls of a run after `after`, in their order.
    pub async fn list_audit(
        &self,
        run: RunId,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<Found<AuditRecord>, StoreError> {
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
        let found = page.read::<String>(&self.readers, bound.into()).await?;
        let record = |row: audit_entries::Model| {
            Ok(AuditRecord {
                bytes: unsigned("audit_entries.bytes", &row.id, row.bytes)?,
                id: row.id,
                action: row.action,
                resource: row.resource,
                operation: row.operation,
                decision: row.decision,
                rule: row.rule,
                at: row.at,
                outcome: row.outcome,
                duration_ms: row.duration_ms,
            })
        };
        found.try_map(record)
    }
}
