//! Counts of runs by status, with bounded work.

use protocol::id::WorkspaceId;
use protocol::run::RunStatus;
use sea_orm::sea_query::{Alias, Expr, Query, SelectStatement};
use sea_orm::{
    ConnectionTrait, DbErr, EntityTrait, QueryFilter, QueryOrder, QuerySelect, QueryTrait,
};

use super::filter::ResolvedFilter;
use super::lookup::RunSearch;
use super::{RunFilter, RunPosition, RunWindow};
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
        let counting = Query::select()
            .column(runs::Column::Status)
            .expr_as(Expr::cust("CAST(COUNT(*) AS BIGINT)"), Alias::new("n"))
            .from_subquery(self.newest(filter, rows), runs::Entity)
            .cond_where(filter.condition(self.workspace))
            .add_group_by([Expr::col(runs::Column::Status)])
            .to_owned();
        let counted = self.db.readers.query_all(&counting).await?;
        let counted = counted
            .iter()
            .map(|row| row.try_get_many("", &["status".to_owned(), "n".to_owned()]));
        let counted: Vec<(String, i64)> = counted.collect::<Result<_, DbErr>>()?;
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

    /// The newest `rows` runs of the part of the filter that an index serves. The limit bounds the scan: `PostgreSQL`
    /// would estimate a third of the table for a lower bound of the creation in a generic plan, and read all of it.
    fn newest(self, filter: &ResolvedFilter, rows: u64) -> SelectStatement {
        runs::Entity::find()
            .filter(filter.indexed().condition(self.workspace))
            .order_by_desc(runs::Column::CreatedAt)
            .order_by_desc(runs::Column::Id)
            .limit(rows)
            .into_query()
    }
}
