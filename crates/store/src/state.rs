//! Host-owned state. Runners access only the scopes frozen in their snapshot.

mod document;

use std::collections::BTreeSet;

use domain::normalize::StateUpdate;
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::{
    ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder, QuerySelect, Value,
};
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::entity::state_entries;
use crate::error::{StoreError, signed};
use crate::model::audit::AuditEntry;
use crate::model::state::{ScopeState, StateAccess, StateEntry, StatePart};
use crate::mutation::Mutation;
use crate::repositories::StateRepository;
use crate::shares::{KeyLimit, check_key_limits};
use crate::sql::{PLAN_FENCE, Sql, SqlRow, padded, returned, row_lock, text};
use secrets::digest::sha256_hex;

pub(crate) use document::delete_bodies_of_agent;
pub use document::{DocumentParts, EntryLease, STATE_BODIES, STATE_BODY_BYTES, StateSummary};

/// Maximum keys of one scope and owner.
pub const STATE_KEYS: u64 = 1000;

/// Limits of the state of one scope in a context.
const CONTEXT_KEYS: u64 = 100;
const CONTEXT_BYTES: usize = 256 * 1024;

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateRecord {
    pub key: String,
    /// JSON text.
    pub value: String,
    pub version: i64,
    /// JSON text for lists.
    pub summary: Option<String>,
    /// Only an unexpired lease of a live run.
    pub lease: Option<EntryLease>,
}

/// A write of a live run through the host API, with its audit row in the same transaction.
#[derive(Clone, Debug)]
pub struct StateChange {
    pub run_id: RunId,
    pub workspace: WorkspaceId,
    pub access: StateAccess,
    pub key: String,
    /// JSON text; `None` deletes.
    pub value: Option<String>,
    pub document: DocumentParts,
    /// Expected current version, if given.
    pub if_match: Option<i64>,
    pub audit: AuditEntry,
    pub at: i64,
}

/// Result of a state write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateWritten {
    Version(i64),
    Deleted,
    /// No such key to delete or to match.
    Absent,
    /// The current version differs.
    Mismatch(i64),
    /// The scope has the maximum number of keys.
    Full,
    /// The run, or its agent, has used its share of the scope's keys.
    ShareFull,
    /// Another live run has the lease.
    Leased(EntryLease),
    /// The write renews a lease that the run does not have. The current version.
    NotLeased(i64),
    /// `body_ids` at this index names no body.
    MissingBody(usize),
    /// The entry has the maximum number of bodies, or the scope that of their bytes.
    BodiesFull,
    /// The run has ended.
    RunEnded,
}

/// Reason to refuse a state update of a result.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum UpdateRefusal {
    #[error(transparent)]
    Full(#[from] KeyLimit),
    #[error("another run has the lease of the key")]
    Leased,
}

impl Mutation for StateChange {
    type Output = StateWritten;

    fn weight(&self) -> usize {
        self.document.body_bytes()
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        vec![AdvisoryKey::of(&self.access.identity)]
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<StateWritten, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(StateWritten::RunEnded);
        }
        // The audit row also proves an earlier commit, see `is_committed`, so refusals are audited, too.
        crate::audit::insert(tx, [&self.audit]).await?;
        let current = find_locked(tx, &self.access, &self.key).await?;
        if let Some(refused) = self.refusal(current.as_ref()) {
            return Ok(refused);
        }
        let Some(value) = &self.value else {
            let Some(current) = current else {
                return Ok(StateWritten::Absent);
            };
            // Before the delete: a new entry of this key must not reuse a version that a client may still hold.
            record_deleted(tx, &self.access, current.version).await?;
            document::delete_bodies(tx, self).await?;
            state_entries::Entity::delete_by_id(primary_key(&self.access, &self.key))
                .exec(tx)
                .await?;
            return Ok(StateWritten::Deleted);
        };
        let update = StateUpdate {
            scope: self.access.scope,
            identity: self.access.identity.clone(),
            key: self.key.clone(),
            value: value.clone(),
        };
        let plan = match document::plan_bodies(tx, self).await? {
            Ok(plan) => plan,
            Err(refused) => return Ok(refused),
        };
        let agent = match &current {
            Some(_) => None,
            None => match check_key_limits(tx, &self.access, self.run_id).await? {
                Ok(agent) => agent,
                Err(KeyLimit::Scope) => return Ok(StateWritten::Full),
                Err(KeyLimit::Share) => return Ok(StateWritten::ShareFull),
            },
        };
        let first = first_version(tx, &self.access).await?;
        let workspace = &self.workspace;
        let version = upsert(tx, workspace, self.run_id, agent, &update, first, self.at).await?;
        let had_parts = current.is_some_and(|one| one.summary.is_some() || one.lease.is_some());
        if had_parts || self.document != DocumentParts::default() {
            document::write_parts(tx, self, &plan).await?;
        }
        Ok(StateWritten::Version(version))
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> Result<bool, StoreError> {
        crate::audit::is_recorded(tx, &self.audit).await
    }
}

impl StateChange {
    /// Checks lease and version.
    fn refusal(&self, current: Option<&StateRecord>) -> Option<StateWritten> {
        let lease = current.and_then(|found| found.lease);
        match (lease, self.if_match, current) {
            (Some(lease), ..) if lease.run != self.run_id => Some(StateWritten::Leased(lease)),
            (_, Some(_), None) => Some(StateWritten::Absent),
            (_, Some(wanted), Some(found)) if wanted != found.version => {
                Some(StateWritten::Mismatch(found.version))
            }
            // A late writer must not take a lost lease back without the current version.
            (None, None, Some(found)) if self.document.lease.is_some() => {
                Some(StateWritten::NotLeased(found.version))
            }
            _ => None,
        }
    }
}

/// Locks the row of a live run, so its end commits before or after this transaction. False: the run has ended.
pub(crate) async fn lock_live_run(tx: &impl Sql, run: RunId) -> Result<bool, StoreError> {
    Ok(lock_live_run_at(tx, run).await?.is_some())
}

/// The same; returns the last sequence of its ledger. `None`: the run has ended.
pub(crate) async fn lock_live_run_at(tx: &impl Sql, run: RunId) -> Result<Option<i64>, StoreError> {
    let lock = "UPDATE runs SET last_sequence = last_sequence WHERE id = $1 AND status = $2 \
                RETURNING last_sequence";
    let values = vec![text(run), RunStatus::Running.as_str().into()];
    let locked = tx.query_sql(lock.to_owned(), values).await?;
    locked
        .first()
        .map(|row| row.number("last_sequence"))
        .transpose()
}

/// Writes a state update from a runner's result, or returns the reason to refuse it.
pub(crate) async fn apply_update(
    tx: &impl Sql,
    workspace: &WorkspaceId,
    run_id: RunId,
    update: &StateUpdate,
    at: i64,
) -> Result<Result<(), UpdateRefusal>, StoreError> {
    let access = StateAccess {
        scope: update.scope,
        identity: update.identity.clone(),
    };
    let agent = match find_locked(tx, &access, &update.key).await? {
        Some(found) if found.lease.is_some_and(|lease| lease.run != run_id) => {
            return Ok(Err(UpdateRefusal::Leased));
        }
        Some(_) => None,
        None => match check_key_limits(tx, &access, run_id).await? {
            Ok(agent) => agent,
            Err(full) => return Ok(Err(full.into())),
        },
    };
    let first = first_version(tx, &access).await?;
    upsert(tx, workspace, run_id, agent, update, first, at).await?;
    Ok(Ok(()))
}

/// First version of a new entry: above all deleted versions of the scope, so a version never returns with
/// another value.
async fn first_version(tx: &impl Sql, access: &StateAccess) -> Result<i64, StoreError> {
    let sql = "SELECT version FROM state_deleted WHERE scope = $1 AND scope_sha256 = $2";
    let rows = tx.query_sql(sql.to_owned(), scope_of(access)).await?;
    Ok(rows.first().map_or(Ok(0), |row| row.number("version"))? + 1)
}

async fn record_deleted(
    tx: &DatabaseTransaction,
    access: &StateAccess,
    version: i64,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO state_deleted (scope, scope_sha256, version) VALUES ($1, $2, $3) \
        ON CONFLICT (scope, scope_sha256) DO UPDATE SET version = CASE \
        WHEN state_deleted.version < $3 THEN $3 ELSE state_deleted.version END";
    let mut values = scope_of(access);
    values.push(version.into());
    tx.execute_sql(sql.to_owned(), values).await
}

pub(crate) fn scope_of(access: &StateAccess) -> Vec<Value> {
    let digest = sha256_hex(access.identity.as_bytes());
    vec![access.scope.as_str().into(), digest.into()]
}

/// Writes a value and returns its new version. A new entry starts with `first` and counts for this run and
/// agent.
pub(crate) async fn upsert(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    run_id: RunId,
    agent: Option<String>,
    update: &StateUpdate,
    first: i64,
    at: i64,
) -> Result<i64, StoreError> {
    let upsert = "INSERT INTO state_entries (scope, scope_sha256, key, workspace_id, value, version, run_id, \
        updated_at, created_run_id, agent_id) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
        ON CONFLICT (scope, scope_sha256, key) DO UPDATE SET value = excluded.value, \
        run_id = excluded.run_id, updated_at = excluded.updated_at, version = state_entries.version + 1 \
        RETURNING version";
    let values = vec![
        update.scope.as_str().into(),
        sha256_hex(update.identity.as_bytes()).into(),
        update.key.as_str().into(),
        workspace.as_str().into(),
        update.value.as_str().into(),
        first.into(),
        text(run_id),
        at.into(),
        text(run_id),
        agent.into(),
    ];
    let rows = conn.query_sql(upsert.to_owned(), values).await?;
    rows.first().map_or(Ok(first), |row| row.number("version"))
}

fn primary_key(access: &StateAccess, key: &str) -> (String, String, String) {
    let digest = sha256_hex(access.identity.as_bytes());
    (access.scope.as_str().to_owned(), digest, key.to_owned())
}

async fn find(
    conn: &impl Sql,
    access: &StateAccess,
    key: &str,
) -> Result<Option<StateRecord>, StoreError> {
    read_record(conn, access, key, "").await
}

/// Finds an entry and locks it until the commit.
pub(crate) async fn find_locked(
    tx: &impl Sql,
    access: &StateAccess,
    key: &str,
) -> Result<Option<StateRecord>, StoreError> {
    read_record(tx, access, key, row_lock(tx)).await
}

async fn read_record(
    conn: &impl Sql,
    access: &StateAccess,
    key: &str,
    lock: &str,
) -> Result<Option<StateRecord>, StoreError> {
    let sql = format!(
        "SELECT value, version, summary, lease_run_id, lease_expires_at FROM state_entries \
         WHERE scope = $1 AND scope_sha256 = $2 AND key = $3 {lock}"
    );
    let mut values = scope_of(access);
    values.push(key.into());
    let rows = conn.query_sql(sql, values).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let (leased_by, until) = (
        row.text_if_any("lease_run_id")?,
        row.number_if_any("lease_expires_at")?,
    );
    Ok(Some(StateRecord {
        key: key.to_owned(),
        value: row.text("value")?,
        version: row.number("version")?,
        summary: row.text_if_any("summary")?,
        lease: document::valid_lease(conn, leased_by.as_deref(), until).await?,
    }))
}

/// State for the contexts of several runs, each with its scopes. Scopes without entries are left out.
pub(crate) async fn context_states(
    conn: &impl Sql,
    contexts: &[Vec<StateAccess>],
) -> Result<Vec<Vec<ScopeState>>, StoreError> {
    let numbered = contexts.iter().enumerate();
    let scopes =
        numbered.flat_map(|(context, scopes)| scopes.iter().map(move |one| (context, one)));
    let scopes: Vec<_> = scopes.collect();
    let mut states: Vec<_> = contexts.iter().map(|_| Vec::new()).collect();
    for index in filled_among(conn, scopes.iter().map(|(_, access)| *access)).await? {
        let (context, access) = scopes[index];
        states[context].push(context_part(conn, access).await?);
    }
    Ok(states)
}

/// Indexes of the scopes with entries.
async fn filled_among(
    conn: &impl Sql,
    scopes: impl Iterator<Item = &StateAccess>,
) -> Result<BTreeSet<usize>, StoreError> {
    let rows = scopes.zip(0_i64..).map(|(access, index)| {
        [
            access.scope.as_str().into(),
            sha256_hex(access.identity.as_bytes()).into(),
            index.into(),
        ]
    });
    let filled = format!(
        "SELECT ?3 AS place FROM rows WHERE EXISTS (SELECT 1 FROM state_entries s \
         WHERE s.scope = ?1 AND s.scope_sha256 = ?2 {PLAN_FENCE})"
    );
    // A power of two, so few statements cover all sizes.
    let found = returned(conn, padded(rows), &filled).await?;
    let indexes = found.iter().map(|row| row.number("place"));
    let indexes = indexes.map(|index| Ok(usize::try_from(index?).unwrap_or(usize::MAX)));
    indexes.collect()
}

async fn context_part(conn: &impl Sql, access: &StateAccess) -> Result<ScopeState, StoreError> {
    let part = read_part(conn, access, CONTEXT_KEYS, CONTEXT_BYTES).await?;
    let scope = access.scope;
    Ok(ScopeState { scope, part })
}

/// See [`StateRepository::read_state`].
async fn read_part(
    conn: &impl Sql,
    access: &StateAccess,
    limit: u64,
    bytes: usize,
) -> Result<StatePart, StoreError> {
    let sql = "SELECT key, CAST(OCTET_LENGTH(value) AS BIGINT) AS bytes FROM state_entries \
               WHERE scope = $1 AND scope_sha256 = $2 AND summary IS NULL ORDER BY key LIMIT $3";
    // One more than the limit shows that entries are missing.
    let max_rows = signed(limit.saturating_add(1));
    let mut values = scope_of(access);
    values.push(max_rows.into());
    let found = conn.query_sql(sql.to_owned(), values).await?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut is_complete = found.len() <= limit;
    let (mut fitting, mut remaining_bytes) = (Vec::new(), bytes);
    for row in found.iter().take(limit) {
        let size = usize::try_from(row.number("bytes")?).unwrap_or(usize::MAX);
        let Some(left) = remaining_bytes.checked_sub(size) else {
            is_complete = false;
            continue;
        };
        remaining_bytes = left;
        let digest = sha256_hex(access.identity.as_bytes());
        fitting.push([
            row.text("key")?.into(),
            access.scope.as_str().into(),
            digest.into(),
        ]);
    }
    let sql = "SELECT s.key, s.value, s.version FROM rows, state_entries s \
               WHERE s.scope = ?2 AND s.scope_sha256 = ?3 AND s.key = ?1";
    let read = |row: &SqlRow| {
        Ok(StateEntry {
            key: row.text("key")?,
            value: row.text("value")?,
            version: row.number("version")?,
        })
    };
    let found = returned(conn, fitting, sql).await?;
    let mut entries: Vec<_> = found.iter().map(read).collect::<Result<_, StoreError>>()?;
    entries.sort_by(|one, other| one.key.cmp(&other.key));
    Ok(StatePart {
        entries,
        is_complete,
    })
}

impl StateRepository<'_> {
    pub async fn find_state(
        self,
        access: &StateAccess,
        key: &str,
    ) -> Result<Option<StateRecord>, StoreError> {
        find(&self.db.readers, access, key).await
    }

    /// State of these scopes for a context. Scopes without entries are left out.
    pub async fn context_state(
        self,
        scopes: &[StateAccess],
    ) -> Result<Vec<ScopeState>, StoreError> {
        let mut state = Vec::new();
        for index in filled_among(&self.db.point_reads, scopes.iter()).await? {
            state.push(context_part(&self.db.readers, &scopes[index]).await?);
        }
        Ok(state)
    }

    /// Entries of a scope without a summary in byte order of their keys: at most `limit`, with values of at most
    /// `bytes` in total. Skips entries that do not fit; then the part is incomplete.
    pub async fn read_state(
        self,
        access: &StateAccess,
        limit: u64,
        bytes: usize,
    ) -> Result<StatePart, StoreError> {
        read_part(&self.db.readers, access, limit, bytes).await
    }

    /// Keys of a scope with `prefix`, after `after`, in byte order, at most `limit`.
    pub async fn list_state_keys(
        self,
        access: &StateAccess,
        prefix: &str,
        after: &str,
        limit: u64,
    ) -> Result<Vec<String>, StoreError> {
        let mut query = state_entries::Entity::find()
            .select_only()
            .column(state_entries::Column::Key)
            .filter(state_entries::Column::Scope.eq(access.scope.as_str()))
            .filter(state_entries::Column::ScopeSha256.eq(sha256_hex(access.identity.as_bytes())))
            .filter(state_entries::Column::Key.gte(prefix))
            .filter(state_entries::Column::Key.gt(after));
        // Keys are ASCII in byte order, so DEL ends the range of a prefix.
        if !prefix.is_empty() {
            query = query.filter(state_entries::Column::Key.lt(format!("{prefix}\u{7f}")));
        }
        let keys = query
            .order_by_asc(state_entries::Column::Key)
            .limit(limit)
            .into_tuple()
            .all(&self.db.readers)
            .await?;
        Ok(keys)
    }
}
