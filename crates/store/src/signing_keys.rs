//! Sealed signing keys.

use sea_orm::sea_query::Expr;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder,
};

use crate::connect::Store;
use crate::entity::{signing_keys, workspaces};
use crate::error::StoreError;
use crate::writer::Work;

/// A signing key; `secret` is sealed under the master key.
#[derive(Clone, Debug)]
pub struct SigningKeyRecord {
    pub kid: String,
    pub purpose: String,
    pub secret: String,
    pub created_at: i64,
}

/// Makes the first signing key of a purpose; nothing when there is one. Replicas that start
/// together take turns at the workspaces' row, so that they end up with the same key.
impl Work for SigningKeyRecord {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        workspaces::Entity::update_many()
            .col_expr(
                workspaces::Column::Name,
                Expr::col(workspaces::Column::Name),
            )
            .exec(tx)
            .await?;
        let known = signing_keys::Entity::find()
            .filter(signing_keys::Column::Purpose.eq(self.purpose.as_str()))
            .one(tx)
            .await?;
        if known.is_some() {
            return Ok(());
        }
        let row = signing_keys::ActiveModel {
            kid: Set(self.kid.clone()),
            purpose: Set(self.purpose.clone()),
            secret: Set(self.secret.clone()),
            created_at: Set(self.created_at),
            sign_until: Set(None),
            verify_until: Set(None),
        };
        signing_keys::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        Ok(())
    }
}

impl Store {
    /// The signing keys of a purpose, newest first.
    pub async fn list_signing_keys(
        &self,
        purpose: &str,
    ) -> Result<Vec<SigningKeyRecord>, StoreError> {
        let rows = signing_keys::Entity::find()
            .filter(signing_keys::Column::Purpose.eq(purpose))
            .order_by_desc(signing_keys::Column::CreatedAt)
            .order_by_asc(signing_keys::Column::Kid)
            .all(&self.readers)
            .await?;
        Ok(rows
            .into_iter()
            .map(|row| SigningKeyRecord {
                kid: row.kid,
                purpose: row.purpose,
                secret: row.secret,
                created_at: row.created_at,
            })
            .collect())
    }
}
