//! Skills registered by runs for later runs of their agent.

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
            manager,
            &[
                "CREATE TABLE agent_skills (
                agent_id TEXT NOT NULL, skill_name TEXT NOT NULL, workspace_id TEXT NOT NULL,
                description TEXT NOT NULL, content TEXT NOT NULL, files TEXT NOT NULL,
                sha256 TEXT NOT NULL, version BIGINT NOT NULL, run_id TEXT NOT NULL,
                registered_at BIGINT NOT NULL,
                PRIMARY KEY (agent_id, skill_name))",
                "CREATE INDEX agent_skills_workspace ON agent_skills (workspace_id)",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE agent_skills"]).await
    }
}
