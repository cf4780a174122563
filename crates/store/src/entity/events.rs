//! An ingested event.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "events")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub workspace_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub event_id: String,
    pub dedupe_key: String,
    pub body_sha256: String,
    pub answer: String,
    pub event_type: String,
    pub source: String,
    pub bot_id: String,
    pub conversation_key: Option<String>,
    pub event_seq: Option<i64>,
    pub envelope: String,
    pub steered_into: Option<String>,
    pub received_at: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
