//! Counts of runs by status, with bounded work.

use protocol::id::WorkspaceId;
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{EntityTrait, QueryFilter, QuerySelect};

use super::filter::ResolvedFilter;
use super::lookup::RunSearch;
use super::{RunFilter, RunPosition, RunWindow, scanned};
use crate::entity::runs;
use crate::error::{StoreError, unsigned};
use crate::repositories::RunRepository;

/// Maximum runs that one count reads.
const MAX_READ: u64 = 10_000;

/// Number of runs of one status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusCount {
    pub status: RunStatus,
    pub count: u64,
    /// False: there may be more, older ones.
    pub is_exact: bool,
}

/// Counts of all statuses of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCounts {
    pub statuses: Vec<StatusCount>,
    /// Creation of the oldest counted run, epoch milliseconds, if older runs were not counted.
    pub since: Option<i64>,
}

impl RunRepository<'_> {
    /// Counts the runs that match by status, among the newest [`MAX_READ`]. Live runs have an index and are counted
    /// among the newest [`MAX_READ`] live runs.
    pub async fn count_by_status(
        self,
        workspace: &WorkspaceId,
        filter: &RunFilter,
    ) -> Result<RunCounts, StoreError> {
        let db = self.db;
        let search = RunSearch { db, workspace };
        let filter = search.resolve(filter).await?;
        let all = search.count_newest(&filter).await?;
        let live = filter.live();
        if all.since.is_none() || !live.is_live_of_workspace() {
            return Ok(all);
        }
        let live = search.count_newest(&live).await?;
        let again = |counted: StatusCount| {
            let mut again = live.statuses.iter();
            let again = again.find(|again| again.status == counted.status);
            again.copied().unwrap_or(counted)
        };
        Ok(RunCounts {
            statuses: all.statuses.into_iter().map(again).collect(),
            since: all.since,
        })
    }
}

impl RunSearch<'_> {
    async fn count_newest(self, filter: &ResolvedFilter) -> Result<RunCounts, StoreError> {
        let (window, rows) = (RunWindow::default(), filter.scan_limit(MAX_READ));
        let end = self.scan_end(filter, &window, rows).await?;
        let counting = runs::Entity::find()
            .select_only()
            .column(runs::Column::Status)
            .column_as(Expr::cust("CAST(COUNT(*) AS BIGINT)"), "n")
            .filter(scanned(filter, self.workspace, end, &window))
            .group_by(runs::Column::Status);
        let counted: Vec<(String, i64)> = counting.into_tuple().all(&self.db.readers).await?;
        let mut statuses = Vec::new();
        for status in filter.counted_statuses() {
            let of_status = counted.iter().find(|(name, _)| name == status.as_str());
            let count = of_status.map_or(0, |(_, count)| *count);
            statuses.push(StatusCount {
                status,
                count: unsigned("count of runs", status.as_str(), count)?,
                is_exact: end.is_none(),
            });
        }
        let since = end.map(|RunPosition { created_at, .. }| created_at);
        Ok(RunCounts { statuses, since })
    }
}
