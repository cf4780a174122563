//! Uploads: begun with a reservation, written in chunks, finished by naming the content. No transaction waits
//! for the network.

use std::time::Duration;

use protocol::id::RunId;
use sea_orm::sea_query::{Expr, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter,
    QuerySelect,
};
use uuid::Uuid;

use super::{AreaAccess, Quota, area_lock, discard, find_row, freed_at_once, usage, within_shares};
use crate::database_clock::{lease_end, millis, read_now};
use crate::entity::{storage_blobs, storage_chunks, storage_garbage};
use crate::error::{StoreError, signed};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::state::lock_live_run;

/// Result of a step of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UploadStep {
    Written,
    /// The quota of the area is used up.
    Full,
    /// The run, or its agent, has used its share of the area.
    ShareFull,
    /// The run has ended.
    RunEnded,
    /// Timed out and abandoned.
    Expired,
    /// The condition on the existing blob failed; nothing changed.
    Unmet,
}

/// Condition of a write on the existing blob of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutIf {
    /// No blob exists.
    Absent,
    /// The blob has this SHA-256, lower-case hex.
    Matches(String),
}

impl PutIf {
    fn holds(&self, before: Option<&storage_blobs::Model>) -> bool {
        match self {
            Self::Absent => before.is_none(),
            Self::Matches(sha256) => before.is_some_and(|blob| blob.sha256 == *sha256),
        }
    }
}

/// Reserves quota for a content of more than one chunk.
#[derive(Clone, Debug)]
pub struct BeginUpload {
    pub run_id: RunId,
    pub access: AreaAccess,
    pub quota: Quota,
    pub content_id: Uuid,
    /// Maximum bytes of the content.
    pub reserved: u64,
    /// Timeout without a chunk.
    pub timeout: Duration,
}

impl Mutation for BeginUpload {
    type Output = UploadStep;

    fn lock(&self) -> Option<String> {
        Some(area_lock(&self.access))
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<UploadStep, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(UploadStep::RunEnded);
        }
        let used = usage(tx, &self.access).await?;
        if used.bytes.saturating_add(self.reserved) > self.quota.bytes {
            return Ok(UploadStep::Full);
        }
        let (quota, reserved) = (self.quota.bytes, self.reserved);
        let shared = within_shares(tx, &self.access, quota, self.run_id, reserved, 0);
        let Ok(agent) = shared.await? else {
            return Ok(UploadStep::ShareFull);
        };
        let row = storage_garbage::ActiveModel {
            content_id: Set(self.content_id.to_string()),
            workspace_id: Set(self.access.workspace.to_string()),
            area: Set(self.access.area.as_str().to_owned()),
            owner: Set(self.access.owner.clone()),
            size: Set(signed(self.reserved)),
            expires_at: Set(read_now(tx).await? + millis(self.timeout)),
            run_id: Set(Some(self.run_id.to_string())),
            agent_id: Set(agent),
        };
        storage_garbage::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        Ok(UploadStep::Written)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &UploadStep,
    ) -> Result<bool, StoreError> {
        let begun = storage_garbage::Entity::find_by_id(self.content_id.to_string());
        Ok(begun.one(tx).await?.is_some())
    }
}

/// Writes a chunk of a begun upload.
#[derive(Clone, Debug)]
pub struct WriteChunk {
    pub run_id: RunId,
    pub content_id: Uuid,
    /// From 0.
    pub n: u64,
    pub bytes: Vec<u8>,
    /// Timeout until the next chunk.
    pub timeout: Duration,
}

impl Mutation for WriteChunk {
    type Output = UploadStep;

    fn weight(&self) -> usize {
        self.bytes.len()
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<UploadStep, StoreError> {
        // Update first, so the sweep comes before or after.
        let held = storage_garbage::Entity::update_many()
            .col_expr(
                storage_garbage::Column::ExpiresAt,
                lease_end(tx.get_database_backend(), self.timeout),
            )
            .filter(storage_garbage::Column::ContentId.eq(self.content_id.to_string()))
            .exec(tx)
            .await?;
        if held.rows_affected == 0 {
            return Ok(UploadStep::Expired);
        }
        insert_chunk(tx, self.content_id, self.n, &self.bytes).await?;
        Ok(UploadStep::Written)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &UploadStep,
    ) -> Result<bool, StoreError> {
        let key = (self.content_id.to_string(), signed(self.n));
        let written = storage_chunks::Entity::find_by_id(key).select_only();
        let written = written.column(storage_chunks::Column::N);
        let n: Option<i64> = written.into_tuple().one(tx).await?;
        Ok(n.is_some())
    }
}

async fn insert_chunk(
    tx: &DatabaseTransaction,
    content: Uuid,
    n: u64,
    bytes: &[u8],
) -> Result<(), StoreError> {
    let row = storage_chunks::ActiveModel {
        content_id: Set(content.to_string()),
        n: Set(signed(n)),
        bytes: Set(bytes.to_vec()),
    };
    storage_chunks::Entity::insert(row)
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

/// Abandons an upload; the next sweep frees its reservation. Records the denied call.
#[derive(Clone, Debug)]
pub struct AbandonUpload {
    pub run_id: RunId,
    pub content_id: Uuid,
    pub audit: AuditEntry,
}

impl Mutation for AbandonUpload {
    type Output = ();

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        storage_garbage::Entity::update_many()
            .col_expr(storage_garbage::Column::ExpiresAt, Expr::value(0_i64))
            .col_expr(storage_garbage::Column::Size, Expr::value(0_i64))
            .filter(storage_garbage::Column::ContentId.eq(self.content_id.to_string()))
            .exec(tx)
            .await?;
        crate::audit::insert(tx, [&self.audit]).await
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &Self::Output,
    ) -> Result<bool, StoreError> {
        crate::audit::is_recorded(tx, &self.audit).await
    }
}

/// Writes the last chunk and moves the name to the content.
#[derive(Clone, Debug)]
pub struct FinishUpload {
    pub run_id: RunId,
    pub access: AreaAccess,
    pub quota: Quota,
    pub key: String,
    pub content_id: Uuid,
    /// Number of the last chunk; 0: the only one, without a begun upload.
    pub last: u64,
    pub bytes: Vec<u8>,
    pub size: u64,
    /// Lower-case hex.
    pub sha256: String,
    pub content_type: String,
    /// Checked in the same transaction.
    pub condition: Option<PutIf>,
    pub audit: AuditEntry,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for FinishUpload {
    type Output = UploadStep;

    fn lock(&self) -> Option<String> {
        Some(area_lock(&self.access))
    }

    fn weight(&self) -> usize {
        self.bytes.len()
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<UploadStep, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(UploadStep::RunEnded);
        }
        let before = find_row(tx, &self.access, &self.key).await?;
        let content = self.content_id.to_string();
        if before
            .as_ref()
            .is_some_and(|blob| blob.content_id == content)
        {
            // A retry after a lost commit reply.
            return Ok(UploadStep::Written);
        }
        let condition = self.condition.as_ref();
        if condition.is_some_and(|condition| !condition.holds(before.as_ref())) {
            return Ok(UploadStep::Unmet);
        }
        if self.last > 0 {
            let begun = storage_garbage::Entity::delete_by_id(content.as_str())
                .exec(tx)
                .await?;
            // The reservation already counted these bytes.
            if begun.rows_affected == 0 {
                return Ok(UploadStep::Expired);
            }
        }
        let used = usage(tx, &self.access).await?;
        let is_new = u64::from(before.is_none());
        let freed = before.as_ref().map_or(0, freed_at_once);
        let retained_bytes = used.bytes.saturating_sub(freed);
        if retained_bytes.saturating_add(self.size) > self.quota.bytes
            || used.keys + is_new > self.quota.keys
        {
            return self.give_up(tx, UploadStep::Full).await;
        }
        let of_run = before
            .as_ref()
            .filter(|blob| blob.run_id == self.run_id.to_string());
        let (quota, freed) = (self.quota.bytes, of_run.map_or(0, freed_at_once));
        let shared = within_shares(tx, &self.access, quota, self.run_id, self.size, freed);
        let Ok(agent) = shared.await? else {
            return self.give_up(tx, UploadStep::ShareFull).await;
        };
        insert_chunk(tx, self.content_id, self.last, &self.bytes).await?;
        if let Some(before) = &before {
            discard(tx, &self.access, before).await?;
        }
        self.point(tx, agent).await?;
        crate::audit::insert(tx, [&self.audit]).await?;
        Ok(UploadStep::Written)
    }
}

impl FinishUpload {
    async fn give_up(
        &self,
        tx: &DatabaseTransaction,
        full: UploadStep,
    ) -> Result<UploadStep, StoreError> {
        super::delete_chunks(tx, &self.content_id.to_string()).await?;
        Ok(full)
    }

    async fn point(
        &self,
        tx: &DatabaseTransaction,
        agent: Option<String>,
    ) -> Result<(), StoreError> {
        let row = storage_blobs::ActiveModel {
            workspace_id: Set(self.access.workspace.to_string()),
            area: Set(self.access.area.as_str().to_owned()),
            owner: Set(self.access.owner.clone()),
            key: Set(self.key.clone()),
            content_id: Set(self.content_id.to_string()),
            size: Set(signed(self.size)),
            sha256: Set(self.sha256.clone()),
            content_type: Set(self.content_type.clone()),
            run_id: Set(self.run_id.to_string()),
            agent_id: Set(agent),
            updated_at: Set(self.at),
        };
        let on_conflict = OnConflict::columns([
            storage_blobs::Column::WorkspaceId,
            storage_blobs::Column::Area,
            storage_blobs::Column::Owner,
            storage_blobs::Column::Key,
        ])
        .update_columns([
            storage_blobs::Column::ContentId,
            storage_blobs::Column::Size,
            storage_blobs::Column::Sha256,
            storage_blobs::Column::ContentType,
            storage_blobs::Column::RunId,
            storage_blobs::Column::AgentId,
            storage_blobs::Column::UpdatedAt,
        ])
        .to_owned();
        storage_blobs::Entity::insert(row)
            .on_conflict(on_conflict)
            .exec_without_returning(tx)
            .await?;
        Ok(())
    }
}
