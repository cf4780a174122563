//! A tool call with a ticket.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "tool_calls")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub run_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub key: String,
    pub call_id: String,
    pub request_sha256: String,
    pub owner: String,
    pub expires_at: i64,
    pub result: Option<String>,
    pub at: i64,
    /// Expiry of a key shared within a conversation, epoch milliseconds.
    pub kept_until: Option<i64>,
    /// Newest attempt that made or repeated the call, for a key that the gateway has chosen.
    pub attempt: Option<i64>,
    /// Last ledger sequence of the run as the call began. NULL in rows of older gateways.
    pub after_sequence: Option<i64>,
    /// Approval that the call used.
    pub approval_id: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
