//! The tables of the first release.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const COMMON: &str = include_str!("baseline/common.sql");

/// The tables that differ.
fn of_engine(manager: &SchemaManager<'_>) -> &'static str {
    match manager.get_database_backend() {
        DbBackend::Postgres => include_str!("baseline/postgres.sql"),
        _ => include_str!("baseline/sqlite.sql"),
    }
}

/// Names of the created tables, in order.
fn tables(script: &'static str) -> impl DoubleEndedIterator<Item = &'static str> {
    script.lines().filter_map(|line| {
        let table = line.strip_prefix("CREATE TABLE ");
        let table = table.or_else(|| line.strip_prefix("CREATE VIRTUAL TABLE "))?;
        table.split(' ').next()
    })
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        for script in [COMMON, of_engine(manager)] {
            // Unprepared, because a script has many statements.
            connection.execute_unprepared(script).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        let created = tables(COMMON).chain(tables(of_engine(manager)));
        // Children before their parents: foreign keys refuse the other order. FTS5 does not drop the last table, which
        // is that of a contentless index with stored columns.
        for table in created.rev().chain(["transcript_terms_content"]) {
            let statement = format!("DROP TABLE IF EXISTS {table}");
            connection.execute_unprepared(&statement).await?;
        }
        Ok(())
    }
}
