//! Covering index for the storage usage of an owner. Databases migrated before the storage migration contained
//! it lack it.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    // One transaction, so a killed process leaves no partial change.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let statement = "CREATE INDEX IF NOT EXISTS storage_blobs_usage \
             ON storage_blobs (workspace_id, area, owner, size, key)";
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
        Ok(())
    }

    // The storage migration creates it, too, and drops it with its table.
    async fn down(&self, _manager: &SchemaManager) -> Result<(), DbErr> {
        Ok(())
    }
}
