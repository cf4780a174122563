//! Workspaces.

use protocol::id::WorkspaceId;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder,
};

use crate::api_keys::ApiKeyRecord;
use crate::entity::{api_keys, workspaces};
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::page::{ListPage, PageBound, PageOf};
use crate::repositories::AccessRepository;

/// A workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceRecord {
    pub id: WorkspaceId,
    pub name: String,
    pub created_at: i64,
}

/// Stores a workspace with its first API key in one transaction. False: the id is taken. [`StoreError::Taken`]:
/// the key's public part is taken, or the id was taken concurrently.
#[derive(Clone, Debug)]
pub struct CreateWorkspace {
    pub workspace: WorkspaceRecord,
    pub key: ApiKeyRecord,
}

impl Mutation for CreateWorkspace {
    type Output = bool;
    const SAVEPOINT: bool = true;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let WorkspaceRecord {
            id,
            name,
            created_at,
        } = &self.workspace;
        let taken = workspaces::Entity::find_by_id(id.as_str()).one(tx).await?;
        if taken.is_some() {
            return Ok(false);
        }
        let row = workspaces::ActiveModel {
            id: Set(id.to_string()),
            name: Set(name.clone()),
            created_at: Set(*created_at),
        };
        workspaces::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        self.key.apply(tx).await?;
        Ok(true)
    }

    // The caller needs the key, even after a lost commit reply.
    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &bool,
    ) -> Result<bool, StoreError> {
        let key = api_keys::Entity::find_by_id(self.key.id.to_string());
        Ok(*output && key.one(tx).await?.is_some())
    }
}

impl AccessRepository<'_> {
    /// Workspaces after the id `after`, in id order.
    pub async fn list_workspaces(
        self,
        after: Option<&str>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<WorkspaceRecord>, StoreError> {
        let mut rows = workspaces::Entity::find().order_by_asc(workspaces::Column::Id);
        if let Some(after) = after {
            rows = rows.filter(workspaces::Column::Id.gt(after));
        }
        let page = PageOf {
            rows,
            key: workspaces::Column::Id,
            owner: workspaces::Column::Id.is_not_null().into(),
            without: None,
        };
        let found = page.read::<String>(&self.db.readers, bound.into()).await?;
        Ok(found.map(record))
    }

    /// The workspace with this id.
    pub async fn find_workspace(self, id: &str) -> Result<Option<WorkspaceRecord>, StoreError> {
        let row = workspaces::Entity::find_by_id(id)
            .one(&self.db.readers)
            .await?;
        Ok(row.map(record))
    }
}

fn record(row: workspaces::Model) -> WorkspaceRecord {
    WorkspaceRecord {
        id: WorkspaceId(row.id),
        name: row.name,
        created_at: row.created_at,
    }
}
