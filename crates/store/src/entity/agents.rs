//! An agent.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "agents")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub workspace_id: String,
    pub name: String,
    pub origin: String,
    pub enabled: bool,
    pub priority: i64,
    pub scope_kind: String,
    pub scope_bot: String,
    pub scope_conversation: String,
    pub runner_id: String,
    pub spec: String,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    /// JSON: faults that disable an agent of the config file.
    pub refused: Option<String>,
    pub updated_by: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
