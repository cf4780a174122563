//! Events absorbed by an active run, until it pulls them.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // `n` orders the pulls; the unique key makes a repeated absorption harmless.
        let statement = "CREATE TABLE steering_items (
            run_id TEXT NOT NULL, n BIGINT NOT NULL, event_id TEXT NOT NULL, status TEXT NOT NULL,
            at BIGINT NOT NULL, PRIMARY KEY (run_id, n), UNIQUE (run_id, event_id))";
        run(manager, &[statement]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE steering_items"]).await
    }
}
