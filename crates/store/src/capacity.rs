//! Counts live runs when a run is created, with an index of live runs only.

use std::collections::HashMap;

use domain::admission::Capacity;
use protocol::id::{EndpointId, WorkspaceId};
use sea_orm::DbBackend;

use crate::error::{StoreError, parsed, unsigned};
use crate::sql::Sql;

/// With more free slots than this, no lock is needed: concurrent commits of eight replicas, each with a full
/// batch, cannot exceed the limit.
const MARGIN: u64 = 8192;

/// Live runs and their limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacities {
    /// Of the workspace; not counted without any limit.
    pub workspace: Capacity,
    /// Of the endpoints with a limit.
    pub endpoints: HashMap<EndpointId, Capacity>,
}

impl Capacities {
    /// Capacity of an endpoint; unlimited without a limit.
    pub fn of(&self, endpoint: EndpointId) -> Capacity {
        self.endpoints.get(&endpoint).copied().unwrap_or_default()
    }

    /// Adds a run at this endpoint.
    pub(crate) fn add(&mut self, endpoint: EndpointId) {
        self.workspace.live += 1;
        if let Some(capacity) = self.endpoints.get_mut(&endpoint) {
            capacity.live += 1;
        }
    }

    fn is_bounded(&self) -> bool {
        self.workspace.limit.is_some() || !self.endpoints.is_empty()
    }

    fn is_tight(&self) -> bool {
        let tight = |capacity: &Capacity| {
            let max_runs = capacity.limit.unwrap_or(u64::MAX);
            max_runs.saturating_sub(capacity.live) <= MARGIN
        };
        tight(&self.workspace) || self.endpoints.values().any(tight)
    }
}

/// Near a limit, counts live runs again so that the count stays valid until the commit. An advisory lock then
/// serialises replicas per workspace. Takes precedence over every other lock of the transaction.
pub(crate) async fn lock_capacity(
    tx: &impl Sql,
    workspace: &WorkspaceId,
    counted: Capacities,
) -> Result<Capacities, StoreError> {
    // `SQLite` has one writer. Far below a limit, concurrent commits cannot exceed it.
    if tx.backend() != DbBackend::Postgres || !counted.is_tight() {
        return Ok(counted);
    }
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
    let name = format!("live runs of {workspace}");
    tx.execute_sql(lock.to_owned(), vec![name.into()]).await?;
    // Another replica may have committed while this one waited for the lock.
    count_live(tx, workspace, counted.workspace.limit).await
}

/// Counts live runs without a lock.
pub(crate) async fn count_live(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    max_runs: Option<u64>,
) -> Result<Capacities, StoreError> {
    let mut capacities = Capacities::default();
    capacities.workspace.limit = max_runs;
    let bounded =
        "SELECT id, max_runs FROM runner_endpoints WHERE workspace_id = $1 AND max_runs > 0";
    let own = || vec![workspace.as_str().into()];
    for row in conn.query_sql(bounded.to_owned(), own()).await? {
        let id = row.text("id")?;
        let max_runs = unsigned("runner_endpoints.max_runs", &id, row.number("max_runs")?)?;
        let capacity = Capacity {
            live: 0,
            limit: Some(max_runs),
        };
        let id = parsed("runner_endpoints.id", &id, &id)?;
        capacities.endpoints.insert(id, capacity);
    }
    // Without any limit the count of live runs has no reader.
    if !capacities.is_bounded() {
        return Ok(capacities);
    }
    let live = "SELECT endpoint_id, CAST(COUNT(*) AS BIGINT) AS live FROM runs \
                WHERE workspace_id = $1 AND finished_at IS NULL GROUP BY endpoint_id";
    for row in conn.query_sql(live.to_owned(), own()).await? {
        let id = row.text("endpoint_id")?;
        let live = unsigned("runs.endpoint_id", &id, row.number("live")?)?;
        capacities.workspace.live += live;
        let id = parsed("runs.endpoint_id", &id, &id)?;
        if let Some(endpoint) = capacities.endpoints.get_mut(&id) {
            endpoint.live = live;
        }
    }
    Ok(capacities)
}
