//! A change of an endpoint's health or runners.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "endpoint_health")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub endpoint_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub n: i64,
    pub at: i64,
    pub health: String,
    pub reason: Option<String>,
    pub latency_ms: Option<i64>,
    pub accepted: i64,
    pub incompatible: i64,
    pub rejected: i64,
    pub added: i64,
    pub changed: i64,
    pub removed: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
