//! Sealed signing keys and their rotation.

use domain::signing_key::{KeyPurpose, KeyTimes, RotationCause, RotationPlan, plan_rotation};
use sea_orm::sea_query::{Expr, ExprTrait};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter,
    QueryOrder,
};

use crate::database_clock::database_now;
use crate::entity::{signing_keys, workspaces};
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::AccessRepository;

/// A signing key. `secret` is sealed under the master key and never printed.
#[derive(Clone)]
pub struct SigningKeyRecord {
    pub purpose: KeyPurpose,
    pub times: KeyTimes,
    pub secret: String,
}

/// Plans a key rotation and stores the new key if due. Locks the workspaces' rows, so concurrent replicas see
/// each other's rotation.
#[derive(Clone)]
pub struct RotateKey {
    pub purpose: KeyPurpose,
    pub kid: String,
    /// Sealed.
    pub secret: String,
    pub occasion: RotationCause,
    pub at: i64,
}

impl Mutation for RotateKey {
    type Output = RotationPlan;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<RotationPlan, StoreError> {
        workspaces::Entity::update_many()
            .col_expr(
                workspaces::Column::Name,
                Expr::col(workspaces::Column::Name),
            )
            .exec(tx)
            .await?;
        let existing: Vec<KeyTimes> = list(tx)
            .await?
            .into_iter()
            .filter(|record| record.purpose == self.purpose)
            .map(|record| record.times)
            .collect();
        let plan = plan_rotation(self.purpose, &existing, self.occasion, self.at);
        match &plan {
            RotationPlan::NotDue
            | RotationPlan::AlreadyScheduled { .. }
            | RotationPlan::TooMany => {}
            RotationPlan::ScheduleSuccessor { retired, .. } => {
                for key in retired {
                    retire(tx, key).await?;
                }
                self.insert(tx, &existing).await?;
            }
            RotationPlan::Replace { withdrawn } => {
                signing_keys::Entity::delete_many()
                    .filter(signing_keys::Column::Kid.is_in(withdrawn))
                    .exec(tx)
                    .await?;
                self.insert(tx, &existing).await?;
            }
        }
        Ok(plan)
    }
}

impl RotateKey {
    async fn insert(
        &self,
        tx: &DatabaseTransaction,
        existing: &[KeyTimes],
    ) -> Result<(), StoreError> {
        // Keys are ordered by creation, regardless of replica clocks.
        let newest = existing.last().map_or(i64::MIN, |key| key.created_at);
        let row = signing_keys::ActiveModel {
            kid: Set(self.kid.clone()),
            purpose: Set(self.purpose.as_str().to_owned()),
            secret: Set(self.secret.clone()),
            created_at: Set(Ord::max(self.at, newest.saturating_add(1))),
            sign_until: Set(None),
            verify_until: Set(None),
        };
        signing_keys::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        Ok(())
    }
}

async fn retire(tx: &DatabaseTransaction, key: &KeyTimes) -> Result<(), StoreError> {
    use signing_keys::Column;
    signing_keys::Entity::update_many()
        .col_expr(Column::SignUntil, Expr::value(key.sign_until))
        .col_expr(Column::VerifyUntil, Expr::value(key.verify_until))
        .filter(Column::Kid.eq(key.kid.as_str()))
        .exec(tx)
        .await?;
    Ok(())
}

/// Deletes expired keys by the database clock, so a replica with a fast clock deletes no valid key.
#[derive(Clone, Copy, Debug)]
pub struct DeleteExpiredKeys;

impl Mutation for DeleteExpiredKeys {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let now = database_now(tx.get_database_backend());
        signing_keys::Entity::delete_many()
            .filter(Expr::col(signing_keys::Column::VerifyUntil).lte(now))
            .exec(tx)
            .await?;
        Ok(())
    }
}

impl AccessRepository<'_> {
    /// The signing keys of all purposes, oldest first.
    pub async fn list_signing_keys(self) -> Result<Vec<SigningKeyRecord>, StoreError> {
        list(&self.db.readers).await
    }
}

pub(crate) async fn list(conn: &impl ConnectionTrait) -> Result<Vec<SigningKeyRecord>, StoreError> {
    let rows = signing_keys::Entity::find()
        .order_by_asc(signing_keys::Column::CreatedAt)
        .order_by_asc(signing_keys::Column::Kid)
        .all(conn)
        .await?;
    rows.into_iter().map(record).collect()
}

fn record(row: signing_keys::Model) -> Result<SigningKeyRecord, StoreError> {
    let Some(purpose) = KeyPurpose::parse(&row.purpose) else {
        let column = "signing_keys.purpose";
        return Err(StoreError::Corrupt {
            column,
            row: row.kid,
        });
    };
    Ok(SigningKeyRecord {
        purpose,
        times: KeyTimes {
            kid: row.kid,
            created_at: row.created_at,
            sign_until: row.sign_until,
            verify_until: row.verify_until,
        },
        secret: row.secret,
    })
}
