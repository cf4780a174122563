//! A message of a conversation.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "transcript_items")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub conversation_key: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub seq: i64,
    pub id: String,
    pub run_id: String,
    pub event_id: String,
    pub role: String,
    pub item_type: String,
    pub content: Option<String>,
    pub content_json: Option<String>,
    pub attachment_refs: String,
    pub created_at: i64,
    /// Version of its index terms; 0: not indexed.
    pub terms_version: i64,
    /// The author: the actor of its event, as JSON. Missing for the assistant, and in rows of an older gateway.
    pub author: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
