//! Quota shares: limits per run and agent within a shared quota.

use protocol::id::RunId;
use protocol::resources::{StateScope, StorageArea};

use crate::error::{StoreError, signed};
use crate::model::state::StateAccess;
use crate::sql::{Sql, text};
use crate::state::{STATE_KEYS, scope_of};

/// The agent of a run.
pub(crate) async fn agent_of(tx: &impl Sql, run: RunId) -> Result<Option<String>, StoreError> {
    let sql = "SELECT agent_id FROM runs WHERE id = $1";
    let rows = tx.query_sql(sql.to_owned(), vec![text(run)]).await?;
    rows.first().map(|row| row.text("agent_id")).transpose()
}

/// Maximum bytes per run and per agent in an area with this quota.
pub(crate) fn of_area(area: StorageArea, bytes: u64) -> (u64, u64) {
    let three_quarters = bytes / 4 * 3;
    match area {
        // Shared by all agents.
        StorageArea::Workspace => (bytes / 4, bytes / 2),
        // Shared by all agents of one plugin.
        StorageArea::Plugin => (three_quarters, three_quarters),
        // Used by one agent.
        StorageArea::Binding => (three_quarters, bytes),
    }
}

/// Maximum keys created per run and per agent in a scope.
fn of_scope(scope: StateScope) -> (u64, u64) {
    match scope {
        // Shared by all agents of one runner.
        StateScope::Runner => (STATE_KEYS / 2, STATE_KEYS / 4 * 3),
        // Used by one agent.
        StateScope::Conversation
        | StateScope::Actor
        | StateScope::Subject
        | StateScope::Binding => (STATE_KEYS / 4 * 3, STATE_KEYS),
    }
}

/// Reason to refuse a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyLimit {
    #[error("a scope has at most {STATE_KEYS} keys")]
    Scope,
    #[error("the run, or its agent, has used its share of the {STATE_KEYS} keys of the scope")]
    Share,
}

/// Checks the limits for a new key and returns the run's agent. Existing keys need no check.
pub(crate) async fn check_key_limits(
    tx: &impl Sql,
    access: &StateAccess,
    run: RunId,
) -> Result<Result<Option<String>, KeyLimit>, StoreError> {
    let agent = agent_of(tx, run).await?;
    let sql = "SELECT COUNT(*) AS made, COUNT(CASE WHEN created_run_id = $1 THEN 1 END) AS of_run, \
        COUNT(CASE WHEN agent_id = $2 THEN 1 END) AS of_agent \
        FROM state_entries WHERE scope = $3 AND scope_sha256 = $4";
    let mut values = vec![text(run), agent.clone().into()];
    values.extend(scope_of(access));
    let rows = tx.query_sql(sql.to_owned(), values).await?;
    let Some(row) = rows.first() else {
        return Ok(Ok(agent));
    };
    let (max_of_run, max_of_agent) = of_scope(access.scope);
    let is_full = |column, max| Ok::<_, StoreError>(row.number(column)? >= signed(max));
    if is_full("made", STATE_KEYS)? {
        return Ok(Err(KeyLimit::Scope));
    }
    if is_full("of_run", max_of_run)? || is_full("of_agent", max_of_agent)? {
        return Ok(Err(KeyLimit::Share));
    }
    Ok(Ok(agent))
}
