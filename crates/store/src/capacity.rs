//! How many runs live, counted where they are made: by an index that holds the live ones alone.

use std::collections::HashMap;

use domain::admission::Capacity;
use protocol::id::{EndpointId, WorkspaceId};
use sea_orm::DbBackend;

use crate::error::{StoreError, parsed, unsigned};
use crate::sql::Sql;

/// With more places free than this, nobody is overrun by what other replicas commit in this very
/// moment: eight of them with a full batch each. Then no lock is taken.
const MARGIN: u64 = 8192;

/// How many runs live, and how many may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacities {
    /// Of the workspace; not counted where nothing is bounded.
    pub workspace: Capacity,
    /// Of the endpoints that have a bound.
    pub endpoints: HashMap<EndpointId, Capacity>,
}

impl Capacities {
    /// What an endpoint may have: without a bound, anything.
    pub fn of(&self, endpoint: EndpointId) -> Capacity {
        self.endpoints.get(&endpoint).copied().unwrap_or_default()
    }

    /// One run more, at this endpoint.
    pub(crate) fn add(&mut self, endpoint: EndpointId) {
        self.workspace.live += 1;
        if let Some(capacity) = self.endpoints.get_mut(&endpoint) {
            capacity.live += 1;
        }
    }

    fn is_bounded(&self) -> bool {
        self.workspace.most.is_some() || !self.endpoints.is_empty()
    }

    fn is_tight(&self) -> bool {
        let tight = |capacity: &Capacity| {
            let most = capacity.most.unwrap_or(u64::MAX);
            most.saturating_sub(capacity.live) <= MARGIN
        };
        tight(&self.workspace) || self.endpoints.values().any(tight)
    }
}

/// Counts, and keeps what is counted true until the commit: of several replicas one at a time makes
/// runs in a workspace whose bound is near. Comes before every other lock of its transaction.
pub(crate) async fn hold_capacity(
    tx: &impl Sql,
    workspace: &WorkspaceId,
    most: Option<u64>,
) -> Result<Capacities, StoreError> {
    let counted = count_live(tx, workspace, most).await?;
    // `SQLite` has one writer anyway.
    if tx.backend() != DbBackend::Postgres || !counted.is_tight() {
        return Ok(counted);
    }
    let lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
    let name = format!("live runs of {workspace}");
    tx.execute_sql(lock.to_owned(), vec![name.into()]).await?;
    count_live(tx, workspace, most).await
}

/// Counts what lives now.
pub(crate) async fn count_live(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    most: Option<u64>,
) -> Result<Capacities, StoreError> {
    let mut capacities = Capacities::default();
    capacities.workspace.most = most;
    let bounded =
        "SELECT id, max_runs FROM runner_endpoints WHERE workspace_id = $1 AND max_runs > 0";
    let own = || vec![workspace.as_str().into()];
    for row in conn.query_sql(bounded.to_owned(), own()).await? {
        let id = row.text("id")?;
        let most = unsigned("runner_endpoints.max_runs", &id, row.number("max_runs")?)?;
        let capacity = Capacity {
            live: 0,
            most: Some(most),
        };
        let id = parsed("runner_endpoints.id", &id, &id)?;
        capacities.endpoints.insert(id, capacity);
    }
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
