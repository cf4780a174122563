//! Expired artifacts: claimed, their bytes deleted, then their rows.

use std::time::Duration;

use sea_orm::sea_query::{Expr, ExprTrait};
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder,
    QuerySelect,
};
use uuid::Uuid;

use super::{DELETING, READY};
use crate::database_clock::{database_now, lease_end};
use crate::entity::artifacts;
use crate::error::{StoreError, parsed};
use crate::mutation::Mutation;
use crate::repositories::ArtifactRepository;
use crate::sql::skip_locked;

/// Maximum artifacts per sweep.
const SWEEP: u64 = 16;
/// Lease of a claim; afterwards another process may claim it.
const CLAIM: Duration = Duration::from_mins(5);

/// An expired artifact with bytes to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredArtifact {
    pub id: Uuid,
    pub location: String,
}

struct Claim;

impl Mutation for Claim {
    type Output = Vec<ExpiredArtifact>;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        let backend = tx.get_database_backend();
        let query = artifacts::Entity::find()
            .select_only()
            .column(artifacts::Column::Id)
            .column(artifacts::Column::Place)
            .filter(Expr::col(artifacts::Column::ExpiresAt).lte(database_now(backend)))
            .order_by_asc(artifacts::Column::ExpiresAt)
            .limit(SWEEP);
        let found: Vec<(String, String)> = skip_locked(tx, query).into_tuple().all(tx).await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let ids = found.iter().map(|(id, _)| id.clone());
        artifacts::Entity::update_many()
            .col_expr(artifacts::Column::Status, Expr::value(DELETING))
            // The claim is a lease: after a crash another process claims the row again.
            .col_expr(artifacts::Column::ExpiresAt, lease_end(backend, CLAIM))
            .filter(artifacts::Column::Id.is_in(ids))
            .exec(tx)
            .await?;
        let claimed = found.into_iter().map(|(id, location)| {
            Ok(ExpiredArtifact {
                id: parsed("artifacts.id", &id, &id)?,
                location,
            })
        });
        claimed.collect()
    }
}

struct DeleteArtifactRows(Vec<Uuid>);

impl Mutation for DeleteArtifactRows {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        artifacts::Entity::delete_many()
            .filter(artifacts::Column::Id.is_in(self.0.iter().map(Uuid::to_string)))
            // Only claimed rows: the bytes of others still exist.
            .filter(artifacts::Column::Status.eq(DELETING))
            .exec(tx)
            .await?;
        Ok(())
    }
}

/// Expires the uploads of pruned runs.
pub(crate) async fn expire_of_runs(
    tx: &DatabaseTransaction,
    runs: &[String],
) -> Result<(), StoreError> {
    let now = database_now(tx.get_database_backend());
    artifacts::Entity::update_many()
        .col_expr(artifacts::Column::ExpiresAt, now)
        .filter(artifacts::Column::RunId.is_in(runs.iter().map(String::as_str)))
        // Rows in another state have their own expiry: uploads in progress time out, deletions have a claim.
        .filter(artifacts::Column::Status.eq(READY))
        .exec(tx)
        .await?;
    Ok(())
}

impl ArtifactRepository<'_> {
    /// Claims a batch of artifacts expired by the database clock. The caller deletes their bytes, then calls
    /// [`Self::delete_artifact_rows`].
    pub async fn claim_expired_artifacts(self) -> Result<Vec<ExpiredArtifact>, StoreError> {
        self.db.write(Claim).await
    }

    /// Deletes the rows of artifacts without bytes.
    pub async fn delete_artifact_rows(self, ids: Vec<Uuid>) -> Result<(), StoreError> {
        self.db.write(DeleteArtifactRows(ids)).await
    }
}
