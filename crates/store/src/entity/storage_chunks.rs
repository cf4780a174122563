//! A chunk of a content.

use sea_orm::entity::prelude::*;

#[derive(Clone, Debug, PartialEq, Eq, DeriveEntityModel)]
#[sea_orm(table_name = "storage_chunks")]
pub struct Model {
    #[sea_orm(primary_key, auto_increment = false)]
    pub content_id: String,
    #[sea_orm(primary_key, auto_increment = false)]
    pub n: i64,
    pub bytes: Vec<u8>,
}

#[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
pub enum Relation {}

impl ActiveModelBehavior for ActiveModel {}
