//! Reservation of one budget for one call in progress.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "budget_reservations")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub call_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub budget: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub subject: String,
    pub window_start: i64,
    pub run_id: String,
    pub calls: i64,
    pub tokens: i64,
    pub cost_micros: i64,
    pub wall_ms: i64,
    /// Database clock, epoch milliseconds. `None`: written by an older gateway.
    pub lease_expires_at: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
