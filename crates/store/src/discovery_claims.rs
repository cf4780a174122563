//! Discovery claims: one replica checks an endpoint at a time.

use protocol::id::EndpointId;
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, DatabaseTransaction, EntityTrait, ExprTrait, QueryFilter, QueryOrder, QuerySelect,
};

use crate::endpoints::{EndpointRecord, endpoint_record};
use crate::entity::runner_endpoints;
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::EndpointRepository;

/// Pause of an endpoint with an unreadable row.
const UNREADABLE_PAUSE_MS: i64 = 5 * 60 * 1000;

/// Claims the next check of an endpoint by compare-and-set on its time.
#[derive(Clone, Debug)]
struct ClaimCheck {
    endpoint_id: String,
    seen: i64,
    until: i64,
}

impl Mutation for ClaimCheck {
    type Output = bool;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        // Compare-and-set: of two replicas that saw the same time, only one claims the check.
        let claimed = runner_endpoints::Entity::update_many()
            .col_expr(
                runner_endpoints::Column::NextCheckAt,
                Expr::value(self.until),
            )
            .filter(runner_endpoints::Column::Id.eq(self.endpoint_id.as_str()))
            .filter(runner_endpoints::Column::NextCheckAt.eq(self.seen))
            .exec(tx)
            .await?;
        Ok(claimed.rows_affected == 1)
    }
}

/// Minimum time from a check to one that a failed run requests.
const CHECK_PAUSE_MS: i64 = 5_000;

/// Makes the check of a healthy endpoint due soon, after a run could not be posted to it at `at`.
#[derive(Clone, Debug)]
pub struct CheckSoon {
    pub endpoint_id: EndpointId,
    pub at: i64,
}

impl Mutation for CheckSoon {
    type Output = ();

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let is_old = runner_endpoints::Column::AskedAt.lt(self.at - CHECK_PAUSE_MS);
        // A recent check still gets its pause: many failed runs cause one check.
        let after_pause = Expr::col(runner_endpoints::Column::AskedAt).add(CHECK_PAUSE_MS);
        let due = Expr::case(is_old, self.at).finally(after_pause);
        runner_endpoints::Entity::update_many()
            .col_expr(runner_endpoints::Column::NextCheckAt, due.into())
            .filter(runner_endpoints::Column::Id.eq(self.endpoint_id.to_string()))
            .filter(runner_endpoints::Column::Health.eq("healthy"))
            // A check that is due earlier stays.
            .filter(runner_endpoints::Column::NextCheckAt.gt(self.at + CHECK_PAUSE_MS))
            // Registered manifests are never discovered.
            .filter(runner_endpoints::Column::Manifests.is_null())
            .exec(tx)
            .await?;
        Ok(())
    }
}

impl EndpointRepository<'_> {
    /// Enabled endpoints of all workspaces with a check due, the longest due first. An unreadable row is skipped
    /// and postponed for five minutes.
    pub async fn due_endpoints(
        self,
        now: i64,
        limit: u64,
    ) -> Result<Vec<EndpointRecord>, StoreError> {
        let rows = runner_endpoints::Entity::find()
            .filter(runner_endpoints::Column::Enabled.eq(true))
            .filter(runner_endpoints::Column::NextCheckAt.lte(now))
            .order_by_asc(runner_endpoints::Column::NextCheckAt)
            .order_by_asc(runner_endpoints::Column::Id)
            .limit(limit)
            .all(&self.db.readers)
            .await?;
        let mut due = Vec::with_capacity(rows.len());
        for row in rows {
            let (endpoint_id, seen) = (row.id.clone(), row.next_check_at);
            match endpoint_record(row) {
                Ok(record) => due.push(record),
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "unreadable endpoint row skipped by discovery, next check in 5 min"
                    );
                    // Postponed, or the row would take a slot of each pass.
                    let until = now + UNREADABLE_PAUSE_MS;
                    let later = ClaimCheck {
                        endpoint_id,
                        seen,
                        until,
                    };
                    self.db.write(later).await?;
                }
            }
        }
        Ok(due)
    }

    /// Claims the check of a due endpoint until `until`; false when another replica has it.
    pub async fn claim_check(
        self,
        endpoint: &EndpointRecord,
        until: i64,
    ) -> Result<bool, StoreError> {
        self.db
            .write(ClaimCheck {
                endpoint_id: endpoint.id.to_string(),
                seen: endpoint.next_check_at,
                until,
            })
            .await
    }
}
