//! A skill registered by a run for later runs of its agent.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "agent_skills")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub agent_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub skill_name: String,
    pub workspace_id: String,
    pub description: String,
    pub content: String,
    pub files: String,
    pub sha256: String,
    pub version: i64,
    pub run_id: String,
    pub registered_at: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
