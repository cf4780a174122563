//! Run queries: find, list, count.

mod counts;
mod filter;
mod inputs;
mod labels;
mod lookup;
mod matching;
mod owners;
mod rows;

use std::time::Duration;

use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::sea_query::{Alias, Expr, Func, Query};
use sea_orm::{
    ColumnTrait, Condition, ConnectionTrait, EntityTrait, ExprTrait, Order, QueryFilter,
    QueryOrder, QuerySelect, QueryTrait,
};

use crate::database_clock::ago;
use crate::entity::runs;
use crate::error::{StoreError, parsed};
use crate::page::{ListPage, PageBound, PageOf, ReadBudget};
use crate::pauses::held;
use crate::repositories::RunRepository;
use filter::ResolvedFilter;
use lookup::RunSearch;

pub use counts::{RunCounts, StatusCount};
pub use filter::{NumberRange, RunFilter};
pub use inputs::StoredRunInputs;
pub use labels::RunLabels;
pub(crate) use labels::input_texts;
pub(crate) use lookup::retry_of;
pub use owners::RunOwner;
pub(crate) use rows::{principal_if_any, readable, to_domain};

/// Range and direction of a run list.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunWindow<'a> {
    /// Only runs older than this one.
    pub before: Option<RunPosition>,
    /// Only runs newer than this one.
    pub after: Option<RunPosition>,
    /// True: oldest first; false: newest first.
    pub forward: bool,
    pub limit: u64,
    /// Maximum bytes of a page; the first row is always included.
    pub bytes: usize,
    pub budget: ReadBudget<'a>,
}

/// A page of runs.
#[derive(Clone, Debug, Default)]
pub struct RunsFound {
    pub runs: Vec<Run>,
    /// Start of the next page: after the last run, or at the end of the scan for a selective filter. `None`:
    /// the list is complete.
    pub next: Option<RunPosition>,
}

/// Position of a run in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunPosition {
    pub created_at: i64,
    pub run_id: RunId,
}

/// Maximum rows scanned by one request for a filter without an index.
pub(crate) const MAX_SCANNED: u64 = 10_000;

/// Maximum of a count: its cost grows with the result.
const MAX_COUNTED: u64 = 1000;

impl RunRepository<'_> {
    /// A run of the workspace.
    pub async fn find_run(
        self,
        workspace: &WorkspaceId,
        id: RunId,
    ) -> Result<Option<Run>, StoreError> {
        find(&self.db.readers, workspace, id).await
    }

    /// A run of any workspace; the caller checks access.
    pub async fn find_run_anywhere(self, id: RunId) -> Result<Option<Run>, StoreError> {
        let model = runs::Entity::find_by_id(id.to_string())
            .one(&self.db.readers)
            .await?;
        model.map(to_domain).transpose()
    }

    /// Runs of the workspace within a window.
    pub async fn list_runs(
        self,
        workspace: &WorkspaceId,
        filter: &RunFilter,
        window: &RunWindow<'_>,
    ) -> Result<RunsFound, StoreError> {
        let db = self.db;
        let search = RunSearch { db, workspace };
        let filter = search.resolve(filter).await?;
        let filter = filter.created_within(range_of(window));
        let scan_end = if filter.has_index() {
            None
        } else {
            let rows = filter.scan_limit(MAX_SCANNED);
            search.scan_end(&filter, window, rows).await?
        };
        let query = runs::Entity::find()
            .filter(scanned(&filter, workspace, scan_end, window))
            .filter(without_ties(window));
        let page = PageOf {
            rows: query
                .order_by(runs::Column::CreatedAt, order_of(window))
                .order_by(runs::Column::Id, order_of(window)),
            key: runs::Column::Id,
            owner: Condition::all(),
            without: None,
        };
        let bound = PageBound {
            limit: window.limit,
            bytes: window.bytes,
            budget: window.budget,
        };
        let found = page.read::<String>(&self.db.readers, bound).await?;
        let ListPage { items, has_more } = found.try_map(to_domain)?;
        let last = items.last().map(|run| RunPosition {
            created_at: run.created_at,
            run_id: run.id,
        });
        Ok(RunsFound {
            next: if has_more { last } else { scan_end },
            runs: items,
        })
    }

    /// Number of runs of the workspace; `None`: more than 1000, or a scan of more than [`MAX_SCANNED`].
    pub async fn count_runs(
        self,
        workspace: &WorkspaceId,
        filter: &RunFilter,
    ) -> Result<Option<u64>, StoreError> {
        let db = self.db;
        let search = RunSearch { db, workspace };
        let filter = search.resolve(filter).await?;
        if !filter.has_index() {
            let (all, rows) = (RunWindow::default(), filter.scan_limit(MAX_SCANNED));
            if search.scan_end(&filter, &all, rows).await?.is_some() {
                return Ok(None);
            }
        }
        let some = runs::Entity::find()
            .select_only()
            .column(runs::Column::Id)
            .filter(filter.condition(workspace))
            .limit(MAX_COUNTED + 1)
            .into_query();
        let count = Func::count(Expr::cust("*")).cast_as(Alias::new("bigint"));
        let counting = Query::select()
            .expr_as(count, Alias::new("n"))
            .from_subquery(some, Alias::new("some_runs"))
            .to_owned();
        let row = self.db.readers.query_one(&counting).await?;
        let n: i64 = row.map_or(Ok(0), |row| row.try_get("", "n"))?;
        Ok(u64::try_from(n).ok().filter(|n| *n <= MAX_COUNTED))
    }

    /// Runs that wait for dispatch, created at least `age` ago, oldest first; all for `None`. Without the runs that a
    /// pause holds.
    pub async fn created_runs(
        self,
        age: Option<Duration>,
        limit: u64,
    ) -> Result<Vec<Run>, StoreError> {
        let backend = self.db.readers.get_database_backend();
        let created = Expr::col(runs::Column::CreatedAt);
        let is_old = age.map(|age| created.lte(ago(backend, age)));
        let models = runs::Entity::find()
            .filter(runs::Column::FinishedAt.is_null())
            .filter(runs::Column::Status.eq(RunStatus::Created.as_str()))
            .filter(Condition::all().add_option(is_old))
            .filter(
                // A cancelled run must end, also in a pause.
                Condition::any()
                    .add(runs::Column::CancelRequestedAt.is_not_null())
                    .add(Expr::cust(held()).not()),
            )
            .order_by_asc(runs::Column::CreatedAt)
            .limit(limit)
            .all(&self.db.readers)
            .await?;
        Ok(readable(models))
    }

    /// Queued and held runs created more than `patience` ago, by the database clock.
    pub async fn overdue_runs(
        self,
        patience: Duration,
        limit: u64,
    ) -> Result<Vec<Run>, StoreError> {
        let backend = self.db.readers.get_database_backend();
        let (created, status) = (Expr::col(runs::Column::CreatedAt), runs::Column::Status);
        let models = runs::Entity::find()
            .filter(runs::Column::FinishedAt.is_null())
            .filter(
                Condition::any()
                    .add(status.eq(RunStatus::Queued.as_str()))
                    .add(
                        Condition::all()
                            .add(status.eq(RunStatus::Created.as_str()))
                            .add(Expr::cust(held())),
                    ),
            )
            .filter(created.lt(ago(backend, patience)))
            .order_by_asc(runs::Column::CreatedAt)
            .limit(limit)
            .all(&self.db.readers)
            .await?;
        Ok(readable(models))
    }
}

impl RunSearch<'_> {
    /// Last run of a scan of `rows` runs; `None`: there are fewer.
    async fn scan_end(
        self,
        filter: &ResolvedFilter,
        window: &RunWindow<'_>,
        rows: u64,
    ) -> Result<Option<RunPosition>, StoreError> {
        let last: Option<(i64, String)> = runs::Entity::find()
            .filter(filter.indexed().condition(self.workspace))
            .filter(without_ties(window))
            .select_only()
            .column(runs::Column::CreatedAt)
            .column(runs::Column::Id)
            .order_by(runs::Column::CreatedAt, order_of(window))
            .order_by(runs::Column::Id, order_of(window))
            .offset(rows - 1)
            .limit(1)
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        let position = |(created_at, id): (i64, String)| {
            let run_id = parsed("runs.id", &id, &id)?;
            Ok(RunPosition { created_at, run_id })
        };
        last.map(position).transpose()
    }
}

fn order_of(window: &RunWindow<'_>) -> Order {
    if window.forward {
        Order::Asc
    } else {
        Order::Desc
    }
}

/// Times of creation within the window, with ties at its edges.
fn range_of(window: &RunWindow<'_>) -> NumberRange {
    NumberRange {
        min: window.after.map(|edge| edge.created_at),
        max: window.before.map(|edge| edge.created_at.saturating_add(1)),
    }
}

/// Excludes runs at the edges of the window that were created in the same millisecond.
fn without_ties(window: &RunWindow<'_>) -> Condition {
    let (at, id) = (runs::Column::CreatedAt, runs::Column::Id);
    let older = window
        .before
        .map(|RunPosition { created_at, run_id }| at.lt(created_at).or(id.lt(run_id.to_string())));
    let newer = window
        .after
        .map(|RunPosition { created_at, run_id }| at.gt(created_at).or(id.gt(run_id.to_string())));
    Condition::all().add_option(older).add_option(newer)
}

/// Runs of the filter up to the end of a scan, inclusive; all of them without an end.
fn scanned(
    filter: &ResolvedFilter,
    workspace: &WorkspaceId,
    end: Option<RunPosition>,
    window: &RunWindow<'_>,
) -> Condition {
    let Some(RunPosition { created_at, run_id }) = end else {
        return filter.condition(workspace);
    };
    let (at, id) = (runs::Column::CreatedAt, runs::Column::Id);
    let (range, without_ties) = if window.forward {
        let max = Some(created_at.saturating_add(1));
        let ties = at.lt(created_at).or(id.lte(run_id.to_string()));
        (NumberRange { min: None, max }, ties)
    } else {
        let min = Some(created_at);
        let ties = at.gt(created_at).or(id.gte(run_id.to_string()));
        (NumberRange { min, max: None }, ties)
    };
    let filter = filter.clone().created_within(range);
    filter.condition(workspace).add(without_ties)
}

pub(crate) async fn find(
    conn: &impl ConnectionTrait,
    workspace: &WorkspaceId,
    id: RunId,
) -> Result<Option<Run>, StoreError> {
    let model = runs::Entity::find_by_id(id.to_string())
        .filter(runs::Column::WorkspaceId.eq(workspace.as_str()))
        .one(conn)
        .await?;
    model.map(to_domain).transpose()
}
