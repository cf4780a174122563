//! Lease of a reservation, held by the process of the call. When that process dies, the reservation is released
//! before the run ends. Older rows have no lease and end with their runs.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Nullable: older reservations have no lease and end with their runs.
        let column = "ALTER TABLE budget_reservations ADD COLUMN lease_expires_at BIGINT";
        run(manager, &[column]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &["ALTER TABLE budget_reservations DROP COLUMN lease_expires_at"],
        )
        .await
    }
}
