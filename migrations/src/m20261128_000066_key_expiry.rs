//! Expiry and last use of API keys.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE api_keys ADD COLUMN expires_at BIGINT",
    "ALTER TABLE api_keys ADD COLUMN last_used_at BIGINT",
];

const DOWN: &[&str] = &[
    "ALTER TABLE api_keys DROP COLUMN last_used_at",
    "ALTER TABLE api_keys DROP COLUMN expires_at",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
