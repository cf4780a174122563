//! Run documents: state entries with a summary, a lease and bodies. Each write is one transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::id::RunId;
use sea_orm::{DatabaseTransaction, Value};

use crate::database_clock::{lease_end_sql, millis};
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::model::state::StateAccess;
use crate::repositories::StateRepository;
use crate::shares::agent_of;
use crate::sql::{Sql, SqlRow, executed};
use crate::state::{StateChange, StateWritten, scope_of};
use secrets::digest::sha256_hex;

/// Maximum bodies of one entry.
pub const STATE_BODIES: usize = 4096;

/// Maximum bytes of all bodies of one scope and owner.
pub const STATE_BODY_BYTES: u64 = 256 << 20;

/// Condition on one entry; its parameters are those of `StateChange::primary_key`.
const OF_ENTRY: &str = "scope = $1 AND scope_sha256 = $2 AND key = $3";

/// Exclusive right of a live run to write an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryLease {
    pub run: RunId,
    /// Epoch milliseconds by the database clock.
    pub expires_at: i64,
}

/// Parts of a write in addition to its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentParts {
    /// JSON text for lists.
    pub summary: Option<String>,
    /// Lease of the run from now on; `None` releases it.
    pub lease: Option<Duration>,
    /// JSON texts by id, added or replaced.
    pub bodies: BTreeMap<String, String>,
    /// Ids of all bodies that the new version references, in addition to `bodies`; any other is deleted. `None`: all
    /// stay.
    pub body_ids: Option<Vec<String>>,
}

impl DocumentParts {
    /// Total bytes of the new bodies.
    pub fn body_bytes(&self) -> usize {
        self.bodies.values().map(String::len).sum()
    }
}

/// An entry with a summary, without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSummary {
    pub key: String,
    pub version: i64,
    /// JSON text.
    pub summary: String,
    /// Only an unexpired lease of a live run.
    pub lease: Option<EntryLease>,
}

/// Ids of the bodies that a write deletes.
pub(super) struct BodyPlan(BTreeSet<String>);

/// Decides which bodies a write deletes, or returns the exceeded limit.
pub(super) async fn plan_bodies(
    tx: &DatabaseTransaction,
    change: &StateChange,
) -> Result<Result<BodyPlan, StateWritten>, StoreError> {
    let parts = &change.document;
    if parts.bodies.is_empty() && parts.body_ids.is_none() {
        return Ok(Ok(BodyPlan(BTreeSet::new())));
    }
    let key = change.primary_key().to_vec();
    let sql = format!("SELECT body_id FROM state_bodies WHERE {OF_ENTRY}");
    let rows = tx.query_sql(sql, key.clone()).await?;
    let ids = rows.iter().map(|row| row.text("body_id"));
    let mut ids = ids.collect::<Result<BTreeSet<_>, _>>()?;
    ids.retain(|id| !parts.bodies.contains_key(id));
    let mut gone = BTreeSet::new();
    if let Some(referenced) = &parts.body_ids {
        let is_body = |id: &String| ids.contains(id) || parts.bodies.contains_key(id);
        if let Some(index) = referenced.iter().position(|id| !is_body(id)) {
            return Ok(Err(StateWritten::MissingBody(index)));
        }
        let referenced: BTreeSet<_> = referenced.iter().collect();
        gone = ids.extract_if(.., |id| !referenced.contains(id)).collect();
    }
    let sql = "SELECT CAST(COALESCE(SUM(bytes), 0) AS BIGINT) AS bytes FROM state_bodies \
        WHERE scope = $1 AND scope_sha256 = $2";
    let rows = tx.query_sql(sql.to_owned(), key[..2].to_vec()).await?;
    let stored = rows.first().map_or(Ok(0), |row| row.number("bytes"))?;
    let stored = unsigned("state_bodies.bytes", &change.key, stored)?;
    let new = parts.body_bytes();
    let is_full = ids.len() + parts.bodies.len() > STATE_BODIES
        || new > 0 && stored + new as u64 > STATE_BODY_BYTES;
    Ok(if is_full {
        Err(StateWritten::BodiesFull)
    } else {
        Ok(BodyPlan(gone))
    })
}

/// Writes the parts of an entry that is written already.
pub(super) async fn write_parts(
    tx: &DatabaseTransaction,
    change: &StateChange,
    plan: &BodyPlan,
) -> Result<(), StoreError> {
    let parts = &change.document;
    let row = |id: &str| {
        let [scope, scope_sha256, key] = change.primary_key();
        [scope, scope_sha256, key, id.into()]
    };
    let gone = plan.0.iter().map(|id| row(id)).collect();
    let sql = "DELETE FROM state_bodies WHERE (scope, scope_sha256, key, body_id) IN (SELECT ?1, ?2, ?3, ?4 FROM rows)";
    executed(tx, gone, sql).await?;
    if !parts.bodies.is_empty() {
        let agent = agent_of(tx, change.run_id).await?;
        let rows = parts.bodies.iter().map(|(id, value)| {
            let [scope, scope_sha256, key, id] = row(id);
            let bytes = signed(value.len() as u64).into();
            let value = value.as_str().into();
            [
                scope,
                scope_sha256,
                key,
                id,
                bytes,
                agent.clone().into(),
                value,
            ]
        });
        let sql = "INSERT INTO state_bodies (scope, scope_sha256, key, body_id, bytes, agent_id, value) VALUES rows \
            ON CONFLICT (scope, scope_sha256, key, body_id) DO UPDATE SET bytes = excluded.bytes, \
            agent_id = excluded.agent_id, value = excluded.value";
        executed(tx, rows.collect(), sql).await?;
    }
    let lease_end = lease_end_sql(tx.backend(), "$6");
    let sql = format!(
        "UPDATE state_entries SET summary = $4, lease_run_id = $5, lease_expires_at = {lease_end} WHERE {OF_ENTRY}"
    );
    let run = parts.lease.map(|_| change.run_id.to_string());
    let values: [Value; 3] = [
        parts.summary.clone().into(),
        run.into(),
        millis(parts.lease.unwrap_or_default()).into(),
    ];
    tx.execute_sql(sql, with(change.primary_key().to_vec(), values))
        .await
}

/// Deletes all bodies of an entry.
pub(super) async fn delete_bodies(
    tx: &DatabaseTransaction,
    change: &StateChange,
) -> Result<(), StoreError> {
    let sql = format!("DELETE FROM state_bodies WHERE {OF_ENTRY}");
    tx.execute_sql(sql, change.primary_key().to_vec()).await
}

/// Deletes the bodies that runs of an agent wrote, except in the scope that agents share.
pub(crate) async fn delete_bodies_of_agent(
    tx: &DatabaseTransaction,
    agent: &str,
) -> Result<(), StoreError> {
    let sql = "DELETE FROM state_bodies WHERE agent_id = $1 AND scope <> 'runner'";
    tx.execute_sql(sql.to_owned(), vec![agent.into()]).await
}

/// Lease of an entry, if it is valid.
pub(super) async fn valid_lease(
    conn: &impl Sql,
    run: Option<&str>,
    expires_at: Option<i64>,
) -> Result<Option<EntryLease>, StoreError> {
    let (Some(run), Some(expires_at)) = (run, expires_at) else {
        return Ok(None);
    };
    let now = lease_end_sql(conn.backend(), "0");
    let sql = format!("SELECT id FROM runs WHERE id = $1 AND finished_at IS NULL AND $2 > {now}");
    let rows = conn
        .query_sql(sql, vec![run.into(), expires_at.into()])
        .await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let run = parsed("state_entries.lease_run_id", run, run)?;
    Ok(Some(EntryLease { run, expires_at }))
}

impl StateChange {
    fn primary_key(&self) -> [Value; 3] {
        let identity = self.access.identity.as_bytes();
        [
            self.access.scope.as_str().into(),
            sha256_hex(identity).into(),
            self.key.as_str().into(),
        ]
    }
}

fn with<const N: usize>(mut values: Vec<Value>, more: [Value; N]) -> Vec<Value> {
    values.extend(more);
    values
}

impl StateRepository<'_> {
    /// Entries of a scope with a summary, from the first to the last key, in byte order.
    pub async fn list_state_summaries(
        self,
        access: &StateAccess,
        first: &str,
        last: &str,
    ) -> Result<Vec<StateSummary>, StoreError> {
        let readers = &self.db.readers;
        let now = lease_end_sql(readers.backend(), "0");
        // Bounded by the page of keys.
        let sql = format!(
            "SELECT e.key, e.version, e.summary, e.lease_expires_at, (SELECT r.id FROM runs r WHERE \
             r.id = e.lease_run_id AND r.finished_at IS NULL AND e.lease_expires_at > {now}) AS leased_by \
             FROM state_entries e WHERE e.scope = $1 AND e.scope_sha256 = $2 AND e.key >= $3 AND e.key <= $4 \
             AND e.summary IS NOT NULL ORDER BY e.key"
        );
        let values = with(scope_of(access), [first.into(), last.into()]);
        let rows = readers.query_sql(sql, values).await?;
        let read = |row: &SqlRow| {
            let key = row.text("key")?;
            let lease = match row.text_if_any("leased_by")? {
                Some(run) => Some(EntryLease {
                    run: parsed("state_entries.lease_run_id", &key, &run)?,
                    expires_at: row.number("lease_expires_at")?,
                }),
                None => None,
            };
            Ok(StateSummary {
                version: row.number("version")?,
                summary: row.text("summary")?,
                lease,
                key,
            })
        };
        rows.iter().map(read).collect()
    }

    /// Bytes of a body.
    pub async fn state_body_bytes(
        self,
        access: &StateAccess,
        key: &str,
        body_id: &str,
    ) -> Result<Option<u64>, StoreError> {
        let row = self.body_column(access, key, body_id, "bytes").await?;
        let read = |row: SqlRow| unsigned("state_bodies.bytes", key, row.number("bytes")?);
        row.map(read).transpose()
    }

    /// JSON text of a body.
    pub async fn find_state_body(
        self,
        access: &StateAccess,
        key: &str,
        body_id: &str,
    ) -> Result<Option<String>, StoreError> {
        let row = self.body_column(access, key, body_id, "value").await?;
        row.map(|row| row.text("value")).transpose()
    }

    async fn body_column(
        self,
        access: &StateAccess,
        key: &str,
        body_id: &str,
        column: &'static str,
    ) -> Result<Option<SqlRow>, StoreError> {
        let sql = format!("SELECT {column} FROM state_bodies WHERE {OF_ENTRY} AND body_id = $4");
        let values = with(scope_of(access), [key.into(), body_id.into()]);
        let rows = self.db.readers.query_sql(sql, values).await?;
        Ok(rows.into_iter().next())
    }
}
