//! A state value of a scope.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "state_entries")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub scope: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub scope_sha256: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub key: String,
    pub workspace_id: String,
    pub value: String,
    pub version: i64,
    /// The run of the last write.
    pub run_id: String,
    pub updated_at: i64,
    /// The run that created the key, and its agent. `None`: written by an older gateway, counts for no share.
    pub created_run_id: Option<String>,
    pub agent_id: Option<String>,
    /// JSON text for lists.
    pub summary: Option<String>,
    /// The exclusive writer. The lease ends with its run.
    pub lease_run_id: Option<String>,
    pub lease_expires_at: Option<i64>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
