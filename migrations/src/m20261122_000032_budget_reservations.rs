//! Reservations of calls in progress: those of unsettled calls are released with the run.

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
        // One row for each budget of a call: settling subtracts exactly what was reserved.
        let table = "CREATE TABLE budget_reservations (call_id TEXT NOT NULL, budget TEXT NOT NULL, \
             subject TEXT NOT NULL, window_start BIGINT NOT NULL, run_id TEXT NOT NULL, \
             calls BIGINT NOT NULL, tokens BIGINT NOT NULL, cost_micros BIGINT NOT NULL, \
             wall_ms BIGINT NOT NULL, PRIMARY KEY (call_id, budget))";
        run(manager, &[table]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE budget_reservations"]).await
    }
}
