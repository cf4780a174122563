//! The full-text index of transcripts. Its column `terms` is spoken to in each database's own words.

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
