//! The index by which alone it is summed what an owner keeps. Databases that were migrated before it was
//! added to the migration of storage have not got it.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    // Whole or not at all, also where a process that is killed would leave half of it.
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

    // The migration of storage makes it, too, and drops it with its table.
    async fn down(&self, _manager: &SchemaManager) -> Result<(), DbErr> {
        Ok(())
    }
}
