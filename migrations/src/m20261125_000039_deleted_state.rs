//! The highest version that was deleted of each scope of state: what is written there anew begins above it, so that
//! nobody who read what was there before overwrites it.

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
        let table = "CREATE TABLE state_deleted (scope TEXT NOT NULL, scope_sha256 TEXT NOT NULL, \
                     version BIGINT NOT NULL, PRIMARY KEY (scope, scope_sha256))";
        run(manager, &[table]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE state_deleted"]).await
    }
}
