//! Full-text index of transcripts. Queries on `terms` differ per database.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "transcript_terms")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub conversation_key: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub seq: i64,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
