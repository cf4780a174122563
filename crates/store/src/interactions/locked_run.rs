//! The lock on the row of a run, which orders its questions, answers and platform actions with its end.

use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::{ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QuerySelect};

use crate::entity::runs;
use crate::error::StoreError;
use crate::sql::locked;

/// State of a run with a locked row.
pub(super) enum LockedRun {
    Lives,
    Cancelled,
    Ended,
}

pub(super) async fn lock_run(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
    run: RunId,
) -> Result<Option<LockedRun>, StoreError> {
    let query = runs::Entity::find_by_id(run.to_string())
        .select_only()
        .column(runs::Column::Status)
        .column(runs::Column::CancelRequestedAt)
        .column(runs::Column::FinishedAt)
        .filter(runs::Column::WorkspaceId.eq(workspace.as_str()));
    let found: Option<(String, Option<i64>, Option<i64>)> =
        locked(tx, query).into_tuple().one(tx).await?;
    Ok(found.map(|(status, cancel_requested_at, finished_at)| {
        let was_cancelled = status == RunStatus::Cancelled.as_str();
        if was_cancelled || cancel_requested_at.is_some() {
            LockedRun::Cancelled
        } else if finished_at.is_some() {
            LockedRun::Ended
        } else {
            LockedRun::Lives
        }
    }))
}
