//! Calls of an agent's runs, summed by their target and decision.

use domain::authorization::advice::CallSum;
use protocol::id::{AgentId, WorkspaceId};
use protocol::resources::StateScope;

use crate::error::{StoreError, unsigned};
use crate::repositories::AuditRepository;
use crate::sql::{Sql, SqlRow};

/// Maximum runs that one sum covers.
const MAX_RUNS: u64 = 10_000;
/// Maximum sums of an agent.
const MAX_SUMS: usize = 5_000;

/// Audited calls of an agent's newest runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentCalls {
    /// Number of these runs, at most 10,000.
    pub runs: u64,
    /// False: older runs of the period, or further targets, are left out.
    pub is_complete: bool,
    /// At most 5,000, the largest first.
    pub sums: Vec<CallSum>,
}

impl AuditRepository<'_> {
    /// Sums the calls of the agent's runs that were created at `since` (epoch milliseconds) or later. Resources of state
    /// are scopes; calls whose grant does not depend on the resource have an empty one.
    pub async fn sum_agent_calls(
        self,
        workspace: &WorkspaceId,
        agent: AgentId,
        since: i64,
    ) -> Result<AgentCalls, StoreError> {
        let owned = |limit: u64| {
            format!(
                "SELECT id FROM runs WHERE workspace_id = $1 AND agent_id = $2 AND created_at >= $3 \
                 ORDER BY created_at DESC, id DESC LIMIT {limit}"
            )
        };
        let values = || {
            vec![
                workspace.as_str().into(),
                agent.to_string().into(),
                since.into(),
            ]
        };
        let count = format!(
            "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM ({}) AS newest",
            owned(MAX_RUNS + 1)
        );
        let counted = self.db.readers.query_sql(count, values()).await?;
        let runs = counted.first().map_or(Ok(0), |row| row.number("n"))?;
        let runs = unsigned("runs", "count", runs)?;
        let sql = format!(
            "SELECT a.action, {} AS target, a.operation, a.decision, MAX(a.rule) AS rule, \
             CAST(SUM(a.calls) AS BIGINT) AS calls, MIN(a.at) AS first_at, MAX(a.at) AS last_at \
             FROM ({}) AS newest JOIN audit_entries a ON a.run_id = newest.id \
             GROUP BY a.action, target, a.operation, a.decision ORDER BY calls DESC, a.action, target LIMIT {}",
            target(),
            owned(MAX_RUNS),
            MAX_SUMS + 1
        );
        let found = self.db.readers.query_sql(sql, values()).await?;
        let is_complete = runs <= MAX_RUNS && found.len() <= MAX_SUMS;
        let sums = found.iter().take(MAX_SUMS).map(read_sum);
        Ok(AgentCalls {
            runs: runs.min(MAX_RUNS),
            is_complete,
            sums: sums.collect::<Result<_, _>>()?,
        })
    }
}

/// The resource, as far as grants name it. Keys of state would make a sum of each call.
fn target() -> String {
    let scopes = StateScope::ALL.iter().map(|scope| {
        let scope = scope.as_str();
        format!("WHEN a.action LIKE 'state%' AND a.resource LIKE '{scope}%' THEN '{scope}' ")
    });
    format!(
        "CASE {}WHEN a.action IN ('call_tool', 'get_tool_detail', 'retrieve_knowledge_base') \
         OR a.action LIKE 'models%' OR a.action LIKE 'storage%' THEN a.resource ELSE '' END",
        scopes.collect::<String>()
    )
}

fn read_sum(row: &SqlRow) -> Result<CallSum, StoreError> {
    let action = row.text("action")?;
    Ok(CallSum {
        resource: row.text("target")?,
        operation: row.text("operation")?,
        allowed: row.text("decision")? == "allow",
        rule: row.text("rule")?,
        calls: unsigned("audit_entries.calls", &action, row.number("calls")?)?,
        first_at: row.number("first_at")?,
        last_at: row.number("last_at")?,
        action,
    })
}
