//! Shares of quotas: no run and no agent takes all of what several share.

use protocol::id::RunId;
use protocol::resources::StorageArea;
use sea_orm::{ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QuerySelect};

use crate::entity::runs;
use crate::error::StoreError;

/// The agent of a run.
pub(crate) async fn agent_of(
    tx: &DatabaseTransaction,
    run: RunId,
) -> Result<Option<String>, StoreError> {
    let agent = runs::Entity::find()
        .select_only()
        .column(runs::Column::AgentId)
        .filter(runs::Column::Id.eq(run.to_string()))
        .into_tuple()
        .one(tx)
        .await?;
    Ok(agent)
}

/// The most bytes of one run, and of all runs of one agent, in an area of so many bytes.
pub(crate) fn of_area(area: StorageArea, bytes: u64) -> (u64, u64) {
    let most = bytes / 4 * 3;
    match area {
        // All agents write there.
        StorageArea::Workspace => (bytes / 4, bytes / 2),
        // All agents of one plugin write there.
        StorageArea::Plugin => (most, most),
        // One agent writes there.
        StorageArea::Binding => (most, bytes),
    }
}
