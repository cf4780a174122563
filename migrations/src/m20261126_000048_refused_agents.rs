//! Faults that disable an agent of the config file, found by its runner's schema.

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
        // Nullable: an agent without faults has none.
        run(manager, &["ALTER TABLE agents ADD COLUMN refused TEXT"]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["ALTER TABLE agents DROP COLUMN refused"]).await
    }
}
