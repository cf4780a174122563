//! Binding of client uploads to the first event that names them.

use protocol::id::WorkspaceId;
use sea_orm::sea_query::{Expr, ExprTrait};
use sea_orm::{ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter};
use uuid::Uuid;

use super::{ArtifactOrigin, ArtifactRecord, READY, record};
use crate::database_clock::database_now;
use crate::entity::artifacts;
use crate::error::StoreError;
use crate::mutation::Mutation;

/// Binds a client's artifact to an event that names it.
#[derive(Clone, Debug)]
pub struct BindArtifact {
    pub workspace: WorkspaceId,
    pub id: Uuid,
    pub event_id: String,
}

/// The result of [`BindArtifact`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bound to the event, now or before.
    Bound(Box<ArtifactRecord>),
    /// Not uploaded by a client: it stays with its run or event.
    NotUploaded,
    /// Bound to another event.
    Taken,
    /// Missing in the workspace, or expired.
    Absent,
}

impl Mutation for BindArtifact {
    type Output = Bound;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Bound, StoreError> {
        let client = ArtifactOrigin::Client.as_str();
        artifacts::Entity::update_many()
            .col_expr(
                artifacts::Column::EventId,
                Expr::value(self.event_id.as_str()),
            )
            .filter(artifacts::Column::Id.eq(self.id.to_string()))
            .filter(artifacts::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(artifacts::Column::Origin.eq(client))
            // The first event to commit gets the upload; for another one the row stays as it is.
            .filter(artifacts::Column::EventId.is_null())
            .exec(tx)
            .await?;
        let now = database_now(tx.get_database_backend());
        // Read back to tell the cases apart: missing, expired, foreign, or bound before by a retry.
        let row = artifacts::Entity::find_by_id(self.id.to_string())
            .filter(artifacts::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(artifacts::Column::Status.eq(READY))
            .filter(Expr::col(artifacts::Column::ExpiresAt).gt(now))
            .one(tx)
            .await?;
        Ok(match row {
            None => Bound::Absent,
            Some(row) if row.origin != client => Bound::NotUploaded,
            Some(row) if row.event_id.as_ref() != Some(&self.event_id) => Bound::Taken,
            Some(row) => Bound::Bound(Box::new(record(row)?)),
        })
    }
}

/// Unbinds an upload from an event that was not stored.
#[derive(Clone, Debug)]
pub struct UnbindArtifact {
    pub id: Uuid,
    pub event_id: String,
}

impl Mutation for UnbindArtifact {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        artifacts::Entity::update_many()
            .col_expr(artifacts::Column::EventId, Expr::value(None::<String>))
            .filter(artifacts::Column::Id.eq(self.id.to_string()))
            .filter(artifacts::Column::Origin.eq(ArtifactOrigin::Client.as_str()))
            // Only from this event: another event may have bound the upload meanwhile.
            .filter(artifacts::Column::EventId.eq(self.event_id.as_str()))
            .exec(tx)
            .await?;
        Ok(())
    }
}
