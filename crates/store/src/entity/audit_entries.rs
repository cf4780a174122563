//! An audited host API call, allowed or denied.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "audit_entries")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub id: String,
    pub workspace_id: String,
    pub run_id: String,
    pub action: String,
    pub resource: String,
    pub operation: String,
    pub decision: String,
    pub rule: String,
    pub bytes: i64,
    pub at: i64,
    pub outcome: Option<String>,
    pub duration_ms: Option<i64>,
    pub calls: i64,
    pub interaction_id: Option<String>,
    pub ticket: Option<String>,
    pub effect: Option<String>,
    pub approval_id: Option<String>,
    pub on_behalf_of: Option<String>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
