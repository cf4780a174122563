//! A registered runner endpoint.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "runner_endpoints")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub workspace_id: String,
    pub name: String,
    pub origin: String,
    pub enabled: bool,
    pub base_url: String,
    pub mode: String,
    pub delta_mode: String,
    pub secret: String,
    pub headers: String,
    pub manifests: Option<String>,
    pub health: String,
    pub health_reason: Option<String>,
    pub findings: String,
    pub discovered_at: Option<i64>,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub next_check_at: i64,
    pub asked_at: i64,
    pub max_runs: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
