//! Counts live runs when a run is created, with an index of live runs only.

use std::collections::HashMap;

use domain::admission::Capacity;
use protocol::id::{AgentId, EndpointId, WorkspaceId};
use sea_orm::DbBackend;

use crate::error::{StoreError, parsed, unsigned};
use crate::model::new_run::NewRun;
use crate::model::registry::Candidate;
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
    /// Of the agents with a limit.
    pub agents: HashMap<AgentId, Capacity>,
}

impl Capacities {
    /// Capacity of an endpoint; unlimited without a limit.
    pub fn of(&self, endpoint: EndpointId) -> Capacity {
        self.endpoints.get(&endpoint).copied().unwrap_or_default()
    }

    /// Capacity of an agent; unlimited without a limit.
    pub fn of_agent(&self, agent: AgentId) -> Capacity {
        self.agents.get(&agent).copied().unwrap_or_default()
    }

    /// Adds a run.
    pub(crate) fn add(&mut self, run: &NewRun) {
        self.workspace.live += 1;
        if let Some(capacity) = self.endpoints.get_mut(&run.endpoint_id) {
            capacity.live += 1;
        }
        if let Some(capacity) = self.agents.get_mut(&run.agent_id) {
            capacity.live += 1;
        }
    }

    /// The same limits, with those of the agents.
    pub(crate) fn with_agents(self, candidates: &[Candidate]) -> Self {
        let limited = candidates.iter().filter_map(|candidate| {
            let agent = &candidate.agent;
            let limit = agent.spec.limits?.concurrency?;
            Some((agent.id, of_limit(limit.into())))
        });
        Self {
            agents: limited.collect(),
            ..self
        }
    }

    fn is_tight(&self) -> bool {
        let tight = |capacity: &Capacity| {
            let max_runs = capacity.limit.unwrap_or(u64::MAX);
            max_runs.saturating_sub(capacity.live) <= MARGIN
        };
        let mut parts = self.endpoints.values().chain(self.agents.values());
        tight(&self.workspace) || parts.any(tight)
    }
}

fn of_limit(limit: u64) -> Capacity {
    Capacity {
        live: 0,
        limit: Some(limit),
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
    count_live(tx, workspace, counted).await
}

/// Reads the limits of live runs, except those of agents. Nothing is counted.
pub(crate) async fn limits_of(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    max_runs: Option<u64>,
) -> Result<Capacities, StoreError> {
    let mut limits = Capacities::default();
    limits.workspace.limit = max_runs;
    let bounded =
        "SELECT id, max_runs FROM runner_endpoints WHERE workspace_id = $1 AND max_runs > 0";
    let own = vec![workspace.as_str().into()];
    for row in conn.query_sql(bounded.to_owned(), own).await? {
        let id = row.text("id")?;
        let max_runs = unsigned("runner_endpoints.max_runs", &id, row.number("max_runs")?)?;
        let id = parsed("runner_endpoints.id", &id, &id)?;
        limits.endpoints.insert(id, of_limit(max_runs));
    }
    Ok(limits)
}

/// Counts live runs for these limits, without a lock.
pub(crate) async fn count_live(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    mut capacities: Capacities,
) -> Result<Capacities, StoreError> {
    // Without a limit the count of live runs has no reader.
    if capacities.workspace.limit.is_some() || !capacities.endpoints.is_empty() {
        let live = live_runs_by(conn, workspace, "endpoint_id").await?;
        capacities.workspace.live = live.values().sum();
        for (id, endpoint) in &mut capacities.endpoints {
            endpoint.live = live.get(&id.to_string()).copied().unwrap_or(0);
        }
    }
    if !capacities.agents.is_empty() {
        let live = live_runs_by(conn, workspace, "agent_id").await?;
        for (id, agent) in &mut capacities.agents {
            agent.live = live.get(&id.to_string()).copied().unwrap_or(0);
        }
    }
    Ok(capacities)
}

/// Live runs of a workspace by the values of this column; without those where it is null.
pub(crate) async fn live_runs_by(
    conn: &impl Sql,
    workspace: &WorkspaceId,
    column: &'static str,
) -> Result<HashMap<String, u64>, StoreError> {
    let sql = format!(
        "SELECT {column} AS id, CAST(COUNT(*) AS BIGINT) AS live FROM runs WHERE workspace_id = $1 \
         AND finished_at IS NULL AND {column} IS NOT NULL GROUP BY {column}"
    );
    let rows = conn.query_sql(sql, vec![workspace.as_str().into()]).await?;
    let counts = rows.iter().map(|row| {
        let id = row.text("id")?;
        let live = unsigned("runs.live", &id, row.number("live")?)?;
        Ok((id, live))
    });
    counts.collect()
}
