//! Usage of one budget by one subject in one window.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "budget_usage")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub budget: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub subject: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub window_start: i64,
    pub calls: i64,
    pub tokens: i64,
    pub cost_micros: i64,
    pub wall_ms: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
