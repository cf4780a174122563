//! Blob storage. Contents are stored in chunks, so memory use stays bounded. A name moves to a new content in
//! one transaction, and readers of the old one can finish.

mod upload;

use std::time::Duration;

use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::resources::StorageArea;
use sea_orm::sea_query::{Alias, Expr, ExprTrait, Func, SimpleExpr};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, Condition, ConnectionTrait, DatabaseTransaction, EntityTrait,
    QueryFilter, QueryOrder, QuerySelect, Value,
};
use uuid::Uuid;

use crate::database_clock::{database_now, millis, read_now};
use crate::entity::{storage_blobs, storage_chunks, storage_garbage};
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::repositories::StateRepository;
use crate::shares;
use crate::sql::Sql;
use crate::state::lock_live_run;

pub use upload::{AbandonUpload, BeginUpload, FinishUpload, PutIf, UploadStep, WriteChunk};

/// Chunk size in bytes. A content has chunks 0..n of this size; the last one may be shorter.
pub const CHUNK_BYTES: usize = 256 * 1024;

/// A replaced content stays readable for this long.
const READABLE_FOR: Duration = Duration::from_mins(2);

/// Contents per transaction: each may have 10 MiB, and other writes wait.
const SWEEP: u64 = 4;

/// An area of one owner: the same name of another owner is another blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaAccess {
    pub workspace: WorkspaceId,
    pub area: StorageArea,
    /// Plugin, agent, or `''` for the workspace itself.
    pub owner: String,
}

impl AreaAccess {
    pub(crate) fn of_agent(workspace: &WorkspaceId, agent: AgentId) -> Self {
        Self {
            workspace: workspace.clone(),
            area: StorageArea::Binding,
            owner: agent.to_string(),
        }
    }
}

/// Quota of one owner in one area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub bytes: u64,
    pub keys: u64,
}

/// A stored blob, without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobRecord {
    pub content_id: Uuid,
    pub size: u64,
    /// Lower-case hex.
    pub sha256: String,
    pub content_type: String,
    pub updated_at: i64,
}

/// Deletes a name on behalf of a live run.
#[derive(Clone, Debug)]
pub struct DeleteBlob {
    pub run_id: RunId,
    pub access: AreaAccess,
    pub key: String,
    pub audit: AuditEntry,
}

/// Result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlobDeleted {
    Deleted,
    Absent,
    RunEnded,
}

impl Mutation for DeleteBlob {
    type Output = BlobDeleted;

    fn lock(&self) -> Option<String> {
        Some(area_lock(&self.access))
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<BlobDeleted, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(BlobDeleted::RunEnded);
        }
        crate::audit::insert(tx, [&self.audit]).await?;
        let Some(blob) = find_row(tx, &self.access, &self.key).await? else {
            return Ok(BlobDeleted::Absent);
        };
        storage_blobs::Entity::delete_by_id(primary_key(&self.access, &self.key))
            .exec(tx)
            .await?;
        discard(tx, &self.access, &blob).await?;
        Ok(BlobDeleted::Deleted)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> Result<bool, StoreError> {
        crate::audit::is_recorded(tx, &self.audit).await
    }
}

/// Advisory lock of an area: counts stay valid until the commit.
pub(crate) fn area_lock(access: &AreaAccess) -> String {
    let (workspace, area) = (&access.workspace, access.area.as_str());
    format!("storage {workspace} {area} {}", access.owner)
}

fn primary_key(access: &AreaAccess, key: &str) -> (String, String, String, String) {
    let area = access.area.as_str().to_owned();
    let workspace = access.workspace.to_string();
    (workspace, area, access.owner.clone(), key.to_owned())
}

async fn find_row(
    conn: &impl ConnectionTrait,
    access: &AreaAccess,
    key: &str,
) -> Result<Option<storage_blobs::Model>, StoreError> {
    let query = storage_blobs::Entity::find_by_id(primary_key(access, key));
    Ok(query.one(conn).await?)
}

/// Bytes freed at once when a blob is replaced: only small blobs are.
fn freed_at_once(blob: &storage_blobs::Model) -> u64 {
    let size = u64::try_from(blob.size).unwrap_or(0);
    if size <= CHUNK_BYTES as u64 { size } else { 0 }
}

/// Releases an unnamed content. A small one is read by one query and can be deleted at once.
async fn discard(
    tx: &DatabaseTransaction,
    access: &AreaAccess,
    blob: &storage_blobs::Model,
) -> Result<(), StoreError> {
    if freed_at_once(blob) > 0 || blob.size == 0 {
        return delete_chunks(tx, &blob.content_id).await;
    }
    let row = storage_garbage::ActiveModel {
        content_id: Set(blob.content_id.clone()),
        workspace_id: Set(access.workspace.to_string()),
        area: Set(access.area.as_str().to_owned()),
        owner: Set(access.owner.clone()),
        size: Set(blob.size),
        expires_at: Set(read_now(tx).await? + millis(READABLE_FOR)),
        run_id: Set(Some(blob.run_id.clone())),
        agent_id: Set(blob.agent_id.clone()),
    };
    storage_garbage::Entity::insert(row)
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

async fn delete_chunks(tx: &DatabaseTransaction, content: &str) -> Result<(), StoreError> {
    storage_chunks::Entity::delete_many()
        .filter(storage_chunks::Column::ContentId.eq(content))
        .exec(tx)
        .await?;
    Ok(())
}

/// Releases all contents of an owner's area. Requires the [`area_lock`].
pub(crate) async fn discard_area(
    tx: &DatabaseTransaction,
    access: &AreaAccess,
) -> Result<(), StoreError> {
    let at = read_now(tx).await? + millis(READABLE_FOR);
    let of_owner = "WHERE workspace_id = $1 AND area = $2 AND owner = $3";
    let moved = format!(
        "INSERT INTO storage_garbage (content_id, workspace_id, area, owner, size, expires_at) \
         SELECT content_id, workspace_id, area, owner, size, $4 FROM storage_blobs {of_owner}"
    );
    let mut values: Vec<Value> = vec![
        access.workspace.as_str().into(),
        access.area.as_str().into(),
        access.owner.as_str().into(),
        at.into(),
    ];
    tx.execute_sql(moved, values.clone()).await?;
    values.truncate(3);
    let names = format!("DELETE FROM storage_blobs {of_owner}");
    tx.execute_sql(names, values).await
}

/// Usage of an owner's area: contents, contents to be deleted, and names.
async fn usage(tx: &DatabaseTransaction, access: &AreaAccess) -> Result<Quota, StoreError> {
    usage_of(tx, access, None).await
}

/// Limits the usage to a run or an agent.
#[derive(Clone, Copy)]
enum UsageScope<'a> {
    Run(&'a str),
    Agent(&'a str),
}

/// The same for one run or agent.
async fn usage_of(
    tx: &DatabaseTransaction,
    access: &AreaAccess,
    part: Option<UsageScope<'_>>,
) -> Result<Quota, StoreError> {
    // The sum of BIGINT is NUMERIC on `PostgreSQL`.
    let sum = |column: SimpleExpr| {
        let total = Func::coalesce([Func::sum(column).into(), SimpleExpr::from(0)]);
        SimpleExpr::from(Func::cast_as(SimpleExpr::from(total), Alias::new("BIGINT")))
    };
    let (of_blobs, of_garbage) = match part {
        None => (Condition::all(), Condition::all()),
        Some(UsageScope::Run(run)) => (
            Condition::all().add(storage_blobs::Column::RunId.eq(run)),
            Condition::all().add(storage_garbage::Column::RunId.eq(run)),
        ),
        Some(UsageScope::Agent(agent)) => (
            Condition::all().add(storage_blobs::Column::AgentId.eq(agent)),
            Condition::all().add(storage_garbage::Column::AgentId.eq(agent)),
        ),
    };
    let (blob_bytes, keys): (i64, i64) = storage_blobs::Entity::find()
        .select_only()
        .expr_as(sum(Expr::col(storage_blobs::Column::Size)), "bytes")
        .column_as(storage_blobs::Column::Key.count(), "names")
        .filter(storage_blobs::Column::WorkspaceId.eq(access.workspace.as_str()))
        .filter(storage_blobs::Column::Area.eq(access.area.as_str()))
        .filter(storage_blobs::Column::Owner.eq(access.owner.as_str()))
        .filter(of_blobs)
        .into_tuple()
        .one(tx)
        .await?
        .unwrap_or_default();
    let waiting: Option<i64> = storage_garbage::Entity::find()
        .select_only()
        .expr_as(sum(Expr::col(storage_garbage::Column::Size)), "bytes")
        .filter(storage_garbage::Column::WorkspaceId.eq(access.workspace.as_str()))
        .filter(storage_garbage::Column::Area.eq(access.area.as_str()))
        .filter(storage_garbage::Column::Owner.eq(access.owner.as_str()))
        .filter(of_garbage)
        .into_tuple()
        .one(tx)
        .await?;
    Ok(Quota {
        bytes: unsigned(
            "storage_blobs.size",
            &access.owner,
            blob_bytes + waiting.unwrap_or(0),
        )?,
        keys: unsigned("storage_blobs.key", &access.owner, keys)?,
    })
}

/// Checks the shares of a run and its agent for `more` bytes in an area, and returns the agent. `freed`: bytes
/// of this run and agent released by the same commit. Each may have one blob regardless of its share.
async fn within_shares(
    tx: &DatabaseTransaction,
    access: &AreaAccess,
    area_bytes: u64,
    run: RunId,
    more: u64,
    freed: u64,
) -> Result<Result<Option<String>, ShareFull>, StoreError> {
    let (of_run, of_agent) = shares::of_area(access.area, area_bytes);
    let (id, agent) = (run.to_string(), shares::agent_of(tx, run).await?);
    let mut parts = vec![(UsageScope::Run(&id), of_run)];
    parts.extend(
        agent
            .as_deref()
            .map(|agent| (UsageScope::Agent(agent), of_agent)),
    );
    for (part, max_bytes) in parts {
        let used = usage_of(tx, access, Some(part)).await?.bytes;
        let used = used.saturating_sub(freed);
        if used > 0 && used.saturating_add(more) > max_bytes {
            return Ok(Err(ShareFull));
        }
    }
    Ok(Ok(agent))
}

/// A share of an area is used up.
struct ShareFull;

struct SweepStorage;

impl Mutation for SweepStorage {
    type Output = u64;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let now = database_now(tx.get_database_backend());
        let query = storage_garbage::Entity::find()
            .select_only()
            .column(storage_garbage::Column::ContentId)
            .filter(Expr::col(storage_garbage::Column::ExpiresAt).lt(now))
            .order_by_asc(storage_garbage::Column::ExpiresAt)
            .limit(SWEEP);
        let expired: Vec<String> = crate::sql::skip_locked(tx, query)
            .into_tuple()
            .all(tx)
            .await?;
        for content in &expired {
            let gone = storage_garbage::Entity::delete_by_id(content.as_str())
                .exec(tx)
                .await?;
            // Another replica, or the upload itself, may have deleted it.
            if gone.rows_affected == 1 {
                delete_chunks(tx, content).await?;
            }
        }
        Ok(expired.len() as u64)
    }
}

impl StateRepository<'_> {
    /// A blob, without its bytes.
    pub async fn find_blob(
        self,
        access: &AreaAccess,
        key: &str,
    ) -> Result<Option<BlobRecord>, StoreError> {
        let row = find_row(&self.db.readers, access, key).await?;
        row.map(|row| {
            Ok(BlobRecord {
                content_id: parsed("storage_blobs.content_id", &row.key, &row.content_id)?,
                size: unsigned("storage_blobs.size", &row.key, row.size)?,
                sha256: row.sha256,
                content_type: row.content_type,
                updated_at: row.updated_at,
            })
        })
        .transpose()
    }

    /// A chunk of a content, from 0; `None` after deletion.
    pub async fn read_chunk(self, content: Uuid, n: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let key = (content.to_string(), signed(n));
        let row = storage_chunks::Entity::find_by_id(key);
        let row = row.one(&self.db.readers).await?;
        Ok(row.map(|row| row.bytes))
    }

    /// Keys of an area with `prefix`, after `after`, in byte order.
    pub async fn list_blob_keys(
        self,
        access: &AreaAccess,
        prefix: &str,
        after: Option<&str>,
        limit: u64,
    ) -> Result<Vec<String>, StoreError> {
        let mut query = storage_blobs::Entity::find()
            .select_only()
            .column(storage_blobs::Column::Key)
            .filter(storage_blobs::Column::WorkspaceId.eq(access.workspace.as_str()))
            .filter(storage_blobs::Column::Area.eq(access.area.as_str()))
            .filter(storage_blobs::Column::Owner.eq(access.owner.as_str()))
            .filter(storage_blobs::Column::Key.gte(prefix));
        // Keys are ASCII in byte order, so DEL ends the range of a prefix.
        if !prefix.is_empty() {
            query = query.filter(storage_blobs::Column::Key.lt(format!("{prefix}\u{7f}")));
        }
        if let Some(after) = after {
            query = query.filter(storage_blobs::Column::Key.gt(after));
        }
        let keys = query
            .order_by_asc(storage_blobs::Column::Key)
            .limit(limit)
            .into_tuple()
            .all(&self.db.readers)
            .await?;
        Ok(keys)
    }

    /// Deletes a batch of unnamed contents that have expired by the database clock; returns their number.
    pub async fn sweep_storage(self) -> Result<u64, StoreError> {
        self.db.write(SweepStorage).await
    }
}
