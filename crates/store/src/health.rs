//! Health history of endpoints.

use protocol::id::EndpointId;
use sea_orm::{
    ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter, QueryOrder,
};

use crate::entity::endpoint_health;
use crate::error::{StoreError, signed, unsigned};
use crate::page::{ListPage, PageBound, PageOf};
use crate::repositories::EndpointRepository;

/// Maximum rows of history per endpoint; older rows are deleted.
const MAX_HEALTH_ROWS: i64 = 200;

/// A change of an endpoint's health or runners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthRecord {
    /// Increases with every row of the endpoint.
    pub n: u64,
    pub at: i64,
    pub health: String,
    pub reason: Option<String>,
    pub latency_ms: Option<i64>,
    pub accepted: u64,
    pub incompatible: u64,
    pub rejected: u64,
    pub added: u64,
    pub changed: u64,
    pub removed: u64,
}

/// Appends a row to an endpoint's history and deletes the oldest above the limit. The caller holds the
/// endpoint's row lock.
pub(crate) async fn write_health(
    tx: &DatabaseTransaction,
    row: endpoint_health::Model,
) -> Result<(), StoreError> {
    let last = endpoint_health::Entity::find()
        .filter(endpoint_health::Column::EndpointId.eq(row.endpoint_id.as_str()))
        .order_by_desc(endpoint_health::Column::N)
        .one(tx)
        .await?;
    // The caller's row lock prevents another writer from the same number.
    let n = last.map_or(0, |last| last.n) + 1;
    endpoint_health::Entity::delete_many()
        .filter(endpoint_health::Column::EndpointId.eq(row.endpoint_id.as_str()))
        .filter(endpoint_health::Column::N.lte(n - MAX_HEALTH_ROWS))
        .exec(tx)
        .await?;
    let row = endpoint_health::Model { n, ..row };
    endpoint_health::Entity::insert(endpoint_health::ActiveModel::from(row))
        .exec_without_returning(tx)
        .await?;
    Ok(())
}

/// Deletes the history of a deleted endpoint.
pub(crate) async fn delete_health(
    conn: &impl ConnectionTrait,
    endpoint: &str,
) -> Result<(), StoreError> {
    endpoint_health::Entity::delete_many()
        .filter(endpoint_health::Column::EndpointId.eq(endpoint))
        .exec(conn)
        .await?;
    Ok(())
}

impl EndpointRepository<'_> {
    /// The history of an endpoint's health, newest first, before row `before`.
    pub async fn list_health(
        self,
        endpoint: EndpointId,
        before: Option<u64>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ListPage<HealthRecord>, StoreError> {
        let before = before.map_or(i64::MAX, signed);
        let own = endpoint_health::Column::EndpointId.eq(endpoint.to_string());
        let page = PageOf {
            rows: endpoint_health::Entity::find()
                .filter(own.clone())
                .filter(endpoint_health::Column::N.lt(before))
                .order_by_desc(endpoint_health::Column::N),
            key: endpoint_health::Column::N,
            owner: own.into(),
            without: None,
        };
        let found = page.read::<i64>(&self.db.readers, bound.into()).await?;
        found.try_map(health_record)
    }
}

fn health_record(row: endpoint_health::Model) -> Result<HealthRecord, StoreError> {
    let count = |value| unsigned("endpoint_health", &row.endpoint_id, value);
    Ok(HealthRecord {
        n: count(row.n)?,
        at: row.at,
        accepted: count(row.accepted)?,
        incompatible: count(row.incompatible)?,
        rejected: count(row.rejected)?,
        added: count(row.added)?,
        changed: count(row.changed)?,
        removed: count(row.removed)?,
        health: row.health,
        reason: row.reason,
        latency_ms: row.latency_ms,
    })
}
