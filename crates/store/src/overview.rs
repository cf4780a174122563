//! Activity counts for metrics.

use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, Func, Query};
use sea_orm::{ColumnTrait, ConnectionTrait};

use crate::entity::runs;
use crate::error::StoreError;
use crate::repositories::RunRepository;

/// Maximum count of runs per status.
const MAX_COUNTED: u64 = 10_000;

impl RunRepository<'_> {
    /// Unfinished runs by status, up to 10,000 each.
    pub async fn count_active_runs(self) -> Result<Vec<(RunStatus, u32)>, StoreError> {
        let mut counts = Vec::new();
        for status in [RunStatus::Created, RunStatus::Queued, RunStatus::Running] {
            let some = Query::select()
                .column(runs::Column::Status)
                .from(runs::Entity)
                .and_where(runs::Column::FinishedAt.is_null())
                .and_where(runs::Column::Status.eq(status.as_str()))
                .limit(MAX_COUNTED)
                .to_owned();
            let count = Query::select()
                .expr_as(Func::count(Expr::val(1)), "n")
                .from_subquery(some, "some")
                .to_owned();
            let row = self.db.readers.query_one(&count).await?;
            let n = row.map(|row| row.try_get::<i64>("", "n")).transpose()?;
            counts.push((status, n.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)));
        }
        Ok(counts)
    }
}
