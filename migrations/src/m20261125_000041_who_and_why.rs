//! Author of a transcript item, and the reason of a rejected result.

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
        run(
            // Nullable: items of agents have no author, and rejections of older gateways no message.
            manager,
            &[
                "ALTER TABLE transcript_items ADD COLUMN author TEXT",
                "ALTER TABLE run_rejections ADD COLUMN message TEXT",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &[
                "ALTER TABLE run_rejections DROP COLUMN message",
                "ALTER TABLE transcript_items DROP COLUMN author",
            ],
        )
        .await
    }
}
