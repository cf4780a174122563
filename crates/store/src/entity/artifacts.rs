//! Metadata of a file with its bytes in a blob store.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "artifacts")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub workspace_id: String,
    pub origin: String,
    pub status: String,
    pub run_id: Option<String>,
    pub agent_id: Option<String>,
    pub runner_id: Option<String>,
    pub conversation_key: Option<String>,
    pub event_id: Option<String>,
    pub sequence: Option<i64>,
    pub name: String,
    pub mime_type: String,
    pub size: i64,
    pub sha256: String,
    pub place: String,
    pub created_at: i64,
    pub expires_at: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
