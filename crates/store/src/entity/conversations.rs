//! A conversation; its row is the conversation's lock.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "conversations")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub key: String,
    pub workspace_id: String,
    pub bot_id: String,
    pub conversation_id: String,
    pub thread_id: String,
    pub last_event_seq: i64,
    pub last_transcript_seq: i64,
    pub version: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
