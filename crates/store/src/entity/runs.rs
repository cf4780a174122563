//! A run.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "runs")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub workspace_id: String,
    pub event_id: String,
    pub agent_id: String,
    pub agent_version: i64,
    pub runner_id: String,
    pub endpoint_id: String,
    pub conversation_key: Option<String>,
    pub status: String,
    pub status_reason: Option<String>,
    pub attempt: i64,
    pub lease_owner: Option<String>,
    #[sea_orm(column_name = "lease_epoch")]
    pub fencing_token: i64,
    pub lease_expires_at: Option<i64>,
    pub last_sequence: i64,
    pub deadline_at: i64,
    pub cancel_requested_at: Option<i64>,
    pub snapshot_sha256: String,
    pub output: Option<String>,
    pub error: Option<String>,
    pub usage: Option<String>,
    pub metadata: String,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
    pub pruned_at: Option<i64>,
    pub trace_parent: Option<String>,
    pub parent_run_id: Option<String>,
    pub retry_of: Option<String>,
    pub retry_from: Option<i64>,
    pub posted_by: Option<String>,
    pub cancelled_by: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
