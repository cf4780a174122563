//! Highest deleted version of each state scope. New entries start above it, so a reader of an old version cannot
//! overwrite them.

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
        // One row for each scope: a row for each deleted key would grow without a bound.
        let table = "CREATE TABLE state_deleted (scope TEXT NOT NULL, scope_sha256 TEXT NOT NULL, \
                     version BIGINT NOT NULL, PRIMARY KEY (scope, scope_sha256))";
        run(manager, &[table]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE state_deleted"]).await
    }
}
