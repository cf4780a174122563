//! Pauses by operators. A row holds the dispatch of runs in status `created`.
//!
//! The statement of each dispatch checks the rows. While a pause is resuming, a mark moves over the creation times of
//! the held runs: runs created up to it are dispatched.

use std::collections::HashMap;

use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::pause::PauseMode;
use protocol::principal::Principal;
use sea_orm::{DatabaseTransaction, Value};

use crate::database_clock::read_now;
use crate::error::{StoreError, parsed};
use crate::mutation::Mutation;
use crate::repositories::AgentRepository;
use crate::runs::principal_if_any;
use crate::sql::{PLAN_FENCE, Sql, SqlRow, row_lock};

/// Maximum pauses. Further ones are refused.
pub const MAX_PAUSES: u64 = 1000;
/// Maximum held runs that are counted.
const MAX_COUNTED: u64 = 10_000;
/// Milliseconds whose unused rate a resume may catch up.
const BURST_MS: i64 = 1000;

/// Condition for a run that a pause holds, in a statement on `runs`.
pub(crate) fn held() -> String {
    format!(
        "EXISTS (SELECT 1 FROM pauses p WHERE p.scope IN \
         ('all', 'workspace:' || runs.workspace_id, 'agent:' || runs.agent_id) \
         AND (p.mode <> 'resuming' OR p.released_through < runs.created_at) {PLAN_FENCE})"
    )
}

/// Runs that a pause concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseScope {
    All,
    Workspace(WorkspaceId),
    Agent {
        workspace: WorkspaceId,
        agent: AgentId,
    },
}

impl PauseScope {
    /// Key of its row. `held` builds the same keys from a run.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::All => "all".to_owned(),
            Self::Workspace(workspace) => format!("workspace:{workspace}"),
            Self::Agent { agent, .. } => format!("agent:{agent}"),
        }
    }

    pub fn workspace(&self) -> Option<&WorkspaceId> {
        match self {
            Self::All => None,
            Self::Workspace(workspace) | Self::Agent { workspace, .. } => Some(workspace),
        }
    }

    pub fn agent(&self) -> Option<AgentId> {
        match self {
            Self::All | Self::Workspace(_) => None,
            Self::Agent { agent, .. } => Some(*agent),
        }
    }

    /// True for runs of this agent.
    pub fn covers(&self, workspace: &WorkspaceId, agent: AgentId) -> bool {
        self.workspace().is_none_or(|own| own == workspace)
            && self.agent().is_none_or(|own| own == agent)
    }

    /// Condition for runs of the scope. Its parameters begin with the number `first`.
    fn condition(&self, first: usize) -> String {
        match self {
            Self::All => String::new(),
            Self::Workspace(_) => format!("AND workspace_id = ${first}"),
            Self::Agent { .. } => {
                format!("AND workspace_id = ${first} AND agent_id = ${}", first + 1)
            }
        }
    }

    fn values(&self) -> impl Iterator<Item = Value> {
        let workspace = self.workspace().map(|id| id.as_str().into());
        let agent = self.agent().map(|id| id.to_string().into());
        workspace.into_iter().chain(agent)
    }
}

/// A pause in effect. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseRecord {
    pub scope: PauseScope,
    pub mode: PauseMode,
    pub reason: Option<String>,
    pub paused_by: Principal,
    pub paused_at: i64,
    /// Set while resuming.
    pub runs_per_second: Option<u32>,
    /// While resuming, runs created up to this time are not held.
    pub released_through: i64,
}

impl PauseRecord {
    /// True if it holds a run of its scope that was created at this time.
    pub fn holds(&self, created_at: i64) -> bool {
        self.mode != PauseMode::Resuming || self.released_through < created_at
    }
}

/// Sets a pause, also in the middle of its resume. False: the workspace has [`MAX_PAUSES`] other pauses of agents.
pub struct SetPause(pub PauseRecord);

impl Mutation for SetPause {
    type Output = bool;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let pause = &self.0;
        let key = pause.scope.key();
        // Workspaces bound the other scopes, and agents of one workspace must not use up the pauses of another.
        if let PauseScope::Agent { workspace, .. } = &pause.scope {
            let others = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM pauses \
                WHERE scope <> $1 AND workspace_id = $2 AND agent_id IS NOT NULL";
            let values = vec![key.as_str().into(), workspace.as_str().into()];
            let others = tx.query_sql(others.to_owned(), values).await?;
            let others = others.first().map_or(Ok(0), |row| row.number("n"))?;
            if u64::try_from(others).unwrap_or(0) >= MAX_PAUSES {
                return Ok(false);
            }
        }
        let set = "INSERT INTO pauses (scope, workspace_id, agent_id, mode, reason, paused_by, paused_at, \
                   released_at, released_through) VALUES ($1, $2, $3, $4, $5, $6, $7, 0, 0) \
                   ON CONFLICT (scope) DO UPDATE SET mode = excluded.mode, reason = excluded.reason, \
                   paused_by = excluded.paused_by, paused_at = excluded.paused_at, runs_per_second = NULL, \
                   released_at = 0, released_through = 0";
        let workspace = pause.scope.workspace().map(ToString::to_string);
        let agent = pause.scope.agent().map(|agent| agent.to_string());
        let values = vec![
            key.into(),
            workspace.into(),
            agent.into(),
            pause.mode.as_str().into(),
            pause.reason.clone().into(),
            pause.paused_by.stored().into(),
            pause.paused_at.into(),
        ];
        tx.execute_sql(set.to_owned(), values).await?;
        Ok(true)
    }
}

/// Begins to release the runs of a pause, or changes the rate. `None`: there is no such pause.
pub struct ResumePause {
    pub scope: PauseScope,
    pub runs_per_second: u32,
}

impl Mutation for ResumePause {
    type Output = Option<PauseRecord>;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Option<PauseRecord>, StoreError> {
        // The first run is due at once.
        let released_at = read_now(tx).await? - BURST_MS / i64::from(self.runs_per_second.max(1));
        let update = format!(
            "UPDATE pauses SET mode = 'resuming', runs_per_second = $2, released_at = $3 \
             WHERE scope = $1 RETURNING {COLUMNS}"
        );
        let values = vec![
            self.scope.key().into(),
            i64::from(self.runs_per_second).into(),
            released_at.into(),
        ];
        let found = tx.query_sql(update, values).await?;
        found.first().map(read_pause).transpose()
    }
}

/// Releases the held runs that are due, and deletes the pause after the last one. Replicas take turns by a lock on the
/// row, so the rate is that of all of them.
pub struct ReleaseHeld(pub PauseScope);

/// Result of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleasedRuns {
    /// Runs to dispatch, oldest first.
    pub runs: Vec<RunInScope>,
    /// The pause is over.
    pub is_last: bool,
}

/// A run of a paused scope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunInScope {
    pub id: RunId,
    pub workspace: WorkspaceId,
}

impl Mutation for ReleaseHeld {
    type Output = ReleasedRuns;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ReleasedRuns, StoreError> {
        let (scope, key) = (&self.0, self.0.key());
        let find = format!(
            "SELECT runs_per_second, released_at, released_through FROM pauses \
             WHERE scope = $1 AND mode = 'resuming' {}",
            row_lock(tx)
        );
        let found = tx.query_sql(find, vec![key.as_str().into()]).await?;
        let Some(row) = found.first() else {
            return Ok(ReleasedRuns::default());
        };
        let per_second = row.number_if_any("runs_per_second")?.unwrap_or(1).max(1);
        let since = row.number("released_at")?;
        let step = ReleaseStep::of(since, read_now(tx).await?, per_second);
        if step.at == since {
            return Ok(ReleasedRuns::default());
        }
        let mut through = row.number("released_through")?;
        let mut released = ReleasedRuns::default();
        if step.runs > 0 {
            let next = format!(
                "SELECT id, workspace_id, created_at FROM runs WHERE finished_at IS NULL AND status = 'created' \
                 AND created_at > $1 {} ORDER BY created_at, id LIMIT {}",
                scope.condition(2),
                step.runs
            );
            let values = [through.into()].into_iter().chain(scope.values());
            let rows = tx.query_sql(next, values.collect()).await?;
            let Some(last) = rows.last() else {
                let delete = "DELETE FROM pauses WHERE scope = $1".to_owned();
                tx.execute_sql(delete, vec![key.into()]).await?;
                released.is_last = true;
                return Ok(released);
            };
            through = last.number("created_at")?;
            released.runs = rows.iter().map(read_run).collect::<Result<_, _>>()?;
        }
        let update = "UPDATE pauses SET released_at = $2, released_through = $3 WHERE scope = $1";
        let values = vec![key.into(), step.at.into(), through.into()];
        tx.execute_sql(update.to_owned(), values).await?;
        Ok(released)
    }
}

/// Runs that are due at a rate.
#[derive(Debug, PartialEq, Eq)]
struct ReleaseStep {
    runs: i64,
    /// Time up to which the rate is used, in epoch milliseconds.
    at: i64,
}

impl ReleaseStep {
    fn of(since: i64, now: i64, per_second: i64) -> Self {
        // The clock may step back, and a stopped replica must not cause a burst.
        let since = since.clamp(now - BURST_MS, now);
        let runs = (now - since) * per_second / 1000;
        Self {
            runs,
            // The fraction of a run stays.
            at: since + runs * 1000 / per_second,
        }
    }
}

const COLUMNS: &str = "scope, workspace_id, agent_id, mode, reason, paused_by, paused_at, runs_per_second, \
     released_through";

fn read_pause(row: &SqlRow) -> Result<PauseRecord, StoreError> {
    let key = row.text("scope")?;
    let corrupt = |column| StoreError::Corrupt {
        column,
        row: key.clone(),
    };
    let workspace = row.text_if_any("workspace_id")?.map(WorkspaceId);
    let agent = row.text_if_any("agent_id")?;
    let scope = match (workspace, agent) {
        (None, _) => PauseScope::All,
        (Some(workspace), None) => PauseScope::Workspace(workspace),
        (Some(workspace), Some(agent)) => PauseScope::Agent {
            workspace,
            agent: parsed("pauses.agent_id", &key, &agent)?,
        },
    };
    let paused_by = row.text("paused_by")?;
    let paused_by = principal_if_any("pauses.paused_by", &key, Some(&paused_by))?;
    let rate = row.number_if_any("runs_per_second")?;
    Ok(PauseRecord {
        mode: PauseMode::parse(&row.text("mode")?).ok_or_else(|| corrupt("pauses.mode"))?,
        reason: row.text_if_any("reason")?,
        paused_by: paused_by.ok_or_else(|| corrupt("pauses.paused_by"))?,
        paused_at: row.number("paused_at")?,
        runs_per_second: rate.and_then(|rate| u32::try_from(rate).ok()),
        released_through: row.number("released_through")?,
        scope,
    })
}

fn read_run(row: &SqlRow) -> Result<RunInScope, StoreError> {
    let id = row.text("id")?;
    Ok(RunInScope {
        id: parsed("runs.id", &id, &id)?,
        workspace: WorkspaceId(row.text("workspace_id")?),
    })
}

impl AgentRepository<'_> {
    /// All pauses, oldest first.
    pub async fn all_pauses(self) -> Result<Vec<PauseRecord>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM pauses ORDER BY paused_at, scope");
        let found = self.db.readers.query_sql(sql, Vec::new()).await?;
        found.iter().map(read_pause).collect()
    }

    /// Held runs of the workspace by agent, at most 10,000 in total.
    pub async fn count_held(
        self,
        workspace: &WorkspaceId,
    ) -> Result<HashMap<AgentId, u64>, StoreError> {
        let sql = format!(
            "SELECT h.agent_id, CAST(COUNT(*) AS BIGINT) AS n FROM (SELECT runs.agent_id FROM runs \
             WHERE workspace_id = $1 AND finished_at IS NULL AND status = 'created' AND {} \
             LIMIT {MAX_COUNTED}) h GROUP BY h.agent_id",
            held()
        );
        let values = vec![workspace.as_str().into()];
        let found = self.db.readers.query_sql(sql, values).await?;
        let read = |row: &SqlRow| {
            let agent = row.text("agent_id")?;
            let count = u64::try_from(row.number("n")?).unwrap_or(0);
            Ok((parsed("runs.agent_id", &agent, &agent)?, count))
        };
        found.iter().map(read).collect()
    }

    /// Running runs of a scope without a cancel request, oldest first.
    pub async fn running_runs(
        self,
        scope: &PauseScope,
        limit: u64,
    ) -> Result<Vec<RunInScope>, StoreError> {
        let sql = format!(
            "SELECT id, workspace_id FROM runs WHERE finished_at IS NULL AND status = 'running' \
             AND cancel_requested_at IS NULL {} ORDER BY created_at, id LIMIT {limit}",
            scope.condition(1)
        );
        let found = self.db.readers.query_sql(sql, scope.values().collect());
        found.await?.iter().map(read_run).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_at_rate_without_bursts() {
        let step = |since, now, per_second| {
            let step = ReleaseStep::of(since, now, per_second);
            (step.runs, step.at)
        };
        assert_eq!(step(10_000, 10_000, 5), (0, 10_000));
        assert_eq!(step(10_000, 10_199, 5), (0, 10_000));
        assert_eq!(step(10_000, 10_250, 5), (1, 10_200));
        assert_eq!(step(10_000, 11_000, 5), (5, 11_000));
        // A replica that was stopped for a minute.
        assert_eq!(step(10_000, 70_000, 5), (5, 70_000));
        // The clock has stepped back.
        assert_eq!(step(10_000, 4000, 5), (0, 4000));
    }
}
