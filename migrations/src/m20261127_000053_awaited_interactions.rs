//! Questions awaited by a live run, and their answers.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const COLUMNS: [&str; 5] = [
    "is_awaited BOOLEAN NOT NULL DEFAULT FALSE",
    "given_answer TEXT",
    "given_sha256 TEXT",
    "given_at BIGINT",
    "closed_at BIGINT",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let add = COLUMNS.map(|column| format!("ALTER TABLE interactions ADD COLUMN {column}"));
        run(manager, &add.each_ref().map(String::as_str)).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let name = |column: &str| column.split(' ').next().unwrap_or_default().to_owned();
        let drop =
            COLUMNS.map(|column| format!("ALTER TABLE interactions DROP COLUMN {}", name(column)));
        run(manager, &drop.each_ref().map(String::as_str)).await
    }
}
