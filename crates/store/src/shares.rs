//! Shares of quotas: no run and no agent takes all of what several share.

use protocol::id::RunId;
use protocol::resources::{StateScope, StorageArea};
use sea_orm::{ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QuerySelect};

use crate::entity::runs;
use crate::error::{StoreError, signed};
use crate::sql::Sql;
use crate::state::{STATE_KEYS, StateAccess, scope_of};

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

/// The most keys that one run, and all runs of one agent, make in a scope of state.
fn of_scope(scope: StateScope) -> (u64, u64) {
    match scope {
        // All agents of one runner write there.
        StateScope::Runner => (STATE_KEYS / 2, STATE_KEYS / 4 * 3),
        // One agent writes there.
        StateScope::Conversation
        | StateScope::Actor
        | StateScope::Subject
        | StateScope::Binding => (STATE_KEYS / 4 * 3, STATE_KEYS),
    }
}

/// Why a run makes no key more in a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ScopeFull {
    #[error("a scope has at most {STATE_KEYS} keys")]
    Whole,
    #[error("the run, or its agent, has made its share of the {STATE_KEYS} keys of the scope")]
    Share,
}

/// The agent of a run that may make one key more in a scope. Keys that are there can be written all the same.
pub(crate) async fn room_for_key(
    tx: &DatabaseTransaction,
    access: &StateAccess,
    run: RunId,
) -> Result<Result<Option<String>, ScopeFull>, StoreError> {
    let agent = agent_of(tx, run).await?;
    let sql = "SELECT COUNT(*) AS made, COUNT(CASE WHEN created_run_id = $3 THEN 1 END) AS of_run, \
        COUNT(CASE WHEN agent_id = $4 THEN 1 END) AS of_agent \
        FROM state_entries WHERE scope = $1 AND scope_sha256 = $2";
    let mut values = scope_of(access);
    values.push(run.to_string().into());
    values.push(agent.clone().into());
    let rows = tx.query_sql(sql.to_owned(), values).await?;
    let Some(row) = rows.first() else {
        return Ok(Ok(agent));
    };
    let (most_of_run, most_of_agent) = of_scope(access.scope);
    let is_full = |column, most| Ok::<_, StoreError>(row.number(column)? >= signed(most));
    if is_full("made", STATE_KEYS)? {
        return Ok(Err(ScopeFull::Whole));
    }
    if is_full("of_run", most_of_run)? || is_full("of_agent", most_of_agent)? {
        return Ok(Err(ScopeFull::Share));
    }
    Ok(Ok(agent))
}
