//! An unnamed content and its expiry.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "storage_garbage")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub content_id: String,
    pub workspace_id: String,
    pub area: String,
    pub owner: String,
    pub size: i64,
    pub expires_at: i64,
    pub run_id: Option<String>,
    pub agent_id: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
