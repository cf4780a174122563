//! Ids of all runs that a filter matches, for acts on many runs.

use protocol::id::{RunId, WorkspaceId};
use sea_orm::{EntityTrait, QueryFilter, QueryOrder, QuerySelect};

use super::filter::RunFilter;
use super::lookup::RunSearch;
use super::{MAX_SCANNED, RunPosition, RunWindow, scanned, without_ties};
use crate::entity::runs;
use crate::error::{StoreError, parsed};
use crate::repositories::LeaseRepository;

/// Ids of one query.
const PAGE: u64 = 1000;
/// Maximum queries of one search. Without an index each scans [`MAX_SCANNED`] runs.
const MAX_QUERIES: usize = 50;

impl LeaseRepository<'_> {
    /// Ids of the runs that match, newest first. `None`: more than `max`, or the scan takes too long.
    pub async fn find_matching_ids(
        self,
        workspace: &WorkspaceId,
        filter: &RunFilter,
        max: usize,
    ) -> Result<Option<Vec<RunId>>, StoreError> {
        let db = self.db;
        let search = RunSearch { db, workspace };
        let resolved = search.resolve(filter).await?;
        let mut ids = Vec::new();
        let mut window = RunWindow::default();
        for _ in 0..MAX_QUERIES {
            let filter = resolved.clone().created_within(super::range_of(&window));
            let scan_end = if filter.has_index() {
                None
            } else {
                let rows = filter.scan_limit(MAX_SCANNED);
                search.scan_end(&filter, &window, rows).await?
            };
            let found: Vec<(i64, String)> = runs::Entity::find()
                .select_only()
                .column(runs::Column::CreatedAt)
                .column(runs::Column::Id)
                .filter(scanned(&filter, workspace, scan_end, &window))
                .filter(without_ties(&window))
                .order_by_desc(runs::Column::CreatedAt)
                .order_by_desc(runs::Column::Id)
                .limit(PAGE)
                .into_tuple()
                .all(&db.readers)
                .await?;
            let is_full = found.len() as u64 == PAGE;
            let mut last = None;
            for (created_at, id) in found {
                let run_id = parsed("runs.id", &id, &id)?;
                last = Some(RunPosition { created_at, run_id });
                ids.push(run_id);
            }
            if ids.len() > max {
                return Ok(None);
            }
            let next = if is_full { last } else { scan_end };
            let Some(next) = next else {
                return Ok(Some(ids));
            };
            window.before = Some(next);
        }
        Ok(None)
    }
}
