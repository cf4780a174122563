//! Sums of calls by day (UTC), agent and resource. Each call is added with its record, so a report reads no calls.
//!
//! Each gateway process has rows of its own: replicas do not lock the rows of each other.

use std::ops::Range;

use domain::usage::TokenParts;
use protocol::id::{AgentId, WorkspaceId};
use sea_orm::{ConnectionTrait, Value};

use super::{TokenSums, UsedCall};
use crate::error::{StoreError, signed, unsigned};
use crate::repositories::UsageRepository;
use crate::sql::{Sql, SqlRow, padded};

const DAY_MS: i64 = 86_400_000;

/// Maximum agents or resources of a report. The use of further ones is one group.
const MAX_GROUPS: u64 = 20;

/// Columns that a call adds to.
const SUMS: [&str; 11] = [
    "runs",
    "resource_runs",
    "calls",
    "prompt_tokens",
    "completion_tokens",
    "cache_read_tokens",
    "cache_write_5m_tokens",
    "cache_write_1h_tokens",
    "reasoning_tokens",
    "cost_micros",
    "wall_ms",
];

/// Days and agents of a report.
#[derive(Clone, Debug)]
pub struct UsageDays {
    /// Days since 1970-01-01.
    pub days: Range<i64>,
    pub grouping: UsageGrouping,
    pub agent_id: Option<AgentId>,
    /// Only these agents, in addition to `agent_id`.
    pub agents: Option<Vec<AgentId>>,
}

/// Key of the groups of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageGrouping {
    /// All calls of an agent's runs.
    Agent,
    /// Model calls, by the id of the model.
    Model,
    /// Tool calls, by the name of the tool.
    Tool,
    /// Calls of knowledge bases, by their id.
    KnowledgeBase,
}

/// Use of one group on one day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageOfDay {
    /// Days since 1970-01-01.
    pub day: i64,
    /// Id of the agent or resource. `None`: all further ones.
    pub group: Option<String>,
    /// Runs with their first call on this day: of all their calls for an agent, of those to the resource otherwise.
    pub runs: u64,
    pub calls: u64,
    pub tokens: TokenParts,
    pub cost_micros: u64,
    pub wall_ms: u64,
}

impl UsageGrouping {
    /// Column of the key, and the kind of its calls.
    fn key(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::Agent => ("agent_id", None),
            Self::Model => ("resource", Some("model")),
            Self::Tool => ("resource", Some("tool")),
            Self::KnowledgeBase => ("resource", Some("knowledge")),
        }
    }

    /// Column with the number of runs.
    fn runs(self) -> &'static str {
        match self {
            Self::Agent => "runs",
            Self::Model | Self::Tool | Self::KnowledgeBase => "resource_runs",
        }
    }
}

/// Adds a call to the sums of its day. The call itself must not be recorded yet.
pub(super) async fn count(tx: &impl ConnectionTrait, call: &UsedCall) -> Result<(), StoreError> {
    let (sql, values) = adding(call);
    tx.execute_sql(sql, values).await
}

fn adding(call: &UsedCall) -> (String, Vec<Value>) {
    let tokens = &call.tokens;
    let mut values: Vec<Value> = vec![
        call.workspace.as_str().into(),
        call.at.div_euclid(DAY_MS).into(),
        call.agent_id.to_string().into(),
        call.kind.into(),
        call.resource.as_str().into(),
        call.gateway.as_str().into(),
        call.run_id.to_string().into(),
    ];
    values.extend(
        [
            tokens.prompt(),
            tokens.completion(),
            tokens.cache_read,
            tokens.cache_write_5m,
            tokens.cache_write_1h,
            tokens.reasoning,
            call.cost_micros,
            call.wall_ms,
        ]
        .map(|number| Value::from(signed(number))),
    );
    let added = SUMS.map(|sum| format!("{sum} = usage_days.{sum} + excluded.{sum}"));
    let sql = format!(
        "INSERT INTO usage_days (workspace_id, day, agent_id, kind, resource, gateway, {}) VALUES ($1, $2, $3, $4, $5, $6, \
         CASE WHEN EXISTS (SELECT 1 FROM usage_calls WHERE run_id = $7) THEN 0 ELSE 1 END, \
         CASE WHEN EXISTS (SELECT 1 FROM usage_calls WHERE run_id = $7 AND kind = $4 AND resource = $5) \
         THEN 0 ELSE 1 END, 1, $8, $9, $10, $11, $12, $13, $14, $15) \
         ON CONFLICT (workspace_id, day, agent_id, kind, resource, gateway) DO UPDATE SET {}",
        SUMS.join(", "),
        added.join(", "),
    );
    (sql, values)
}

/// Condition of a report, with its values.
struct ReportCondition {
    sql: String,
    values: Vec<Value>,
}

impl ReportCondition {
    fn of(workspace: &WorkspaceId, report: &UsageDays) -> Self {
        let mut condition = Self {
            sql: "workspace_id = $1 AND day >= $2 AND day < $3".to_owned(),
            values: vec![
                workspace.as_str().into(),
                report.days.start.into(),
                report.days.end.into(),
            ],
        };
        let (_, kind) = report.grouping.key();
        if let Some(kind) = kind {
            condition.add("kind", [kind.to_owned()]);
        }
        if let Some(agent) = report.agent_id {
            condition.add("agent_id", [agent.to_string()]);
        }
        if let Some(agents) = &report.agents {
            condition.add("agent_id", agents.iter().map(ToString::to_string));
        }
        condition
    }

    fn add(&mut self, column: &str, texts: impl IntoIterator<Item = String>) {
        let list = self.bind(texts);
        self.sql = format!("{} AND {column} IN ({list})", self.sql);
    }

    /// Adds texts, and returns their placeholders.
    fn bind(&mut self, texts: impl IntoIterator<Item = String>) -> String {
        let placeholder = |text: String| {
            self.values.push(text.into());
            format!("${}", self.values.len())
        };
        let placeholders: Vec<_> = padded(texts).into_iter().map(placeholder).collect();
        placeholders.join(", ")
    }
}

/// The groups with the highest cost.
fn costliest(workspace: &WorkspaceId, report: &UsageDays) -> (String, Vec<Value>) {
    let ReportCondition { sql, values } = ReportCondition::of(workspace, report);
    let (key, _) = report.grouping.key();
    let sql = format!(
        "SELECT {key} AS usage_group FROM usage_days WHERE {sql} GROUP BY {key} \
         ORDER BY SUM(cost_micros) DESC, SUM(prompt_tokens + completion_tokens) DESC, SUM(calls) DESC, {key} \
         LIMIT {MAX_GROUPS}"
    );
    (sql, values)
}

/// Sums of `groups` and of all others, by day.
fn by_day(
    workspace: &WorkspaceId,
    report: &UsageDays,
    groups: Vec<String>,
) -> (String, Vec<Value>) {
    let mut condition = ReportCondition::of(workspace, report);
    let (key, _) = report.grouping.key();
    let listed = condition.bind(groups);
    // PostgreSQL widens the type of a sum.
    let sums = SUMS.map(|sum| format!("CAST(SUM({sum}) AS BIGINT) AS {sum}"));
    let sql = format!(
        "SELECT day, CASE WHEN {key} IN ({listed}) THEN {key} END AS usage_group, {} FROM usage_days WHERE {} \
         GROUP BY 1, 2 ORDER BY 1",
        sums.join(", "),
        condition.sql,
    );
    (sql, condition.values)
}

impl UsageRepository<'_> {
    /// Use by day of the groups with the highest cost, and of all others together.
    pub async fn usage_by_day(
        self,
        workspace: &WorkspaceId,
        report: &UsageDays,
    ) -> Result<Vec<UsageOfDay>, StoreError> {
        let groups = self.costliest_groups(workspace, report).await?;
        if groups.is_empty() {
            return Ok(Vec::new());
        }
        let (sql, values) = by_day(workspace, report, groups);
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.iter().map(|row| read(row, report.grouping)).collect()
    }

    async fn costliest_groups(
        self,
        workspace: &WorkspaceId,
        report: &UsageDays,
    ) -> Result<Vec<String>, StoreError> {
        let (sql, values) = costliest(workspace, report);
        let rows = self.db.readers.query_sql(sql, values).await?;
        rows.iter().map(|row| row.text("usage_group")).collect()
    }
}

fn read(row: &SqlRow, grouping: UsageGrouping) -> Result<UsageOfDay, StoreError> {
    let group = row.text_if_any("usage_group")?;
    let of = group.clone().unwrap_or_default();
    let sum = |column| unsigned("usage_days", &of, row.number(column)?);
    let tokens = TokenSums {
        prompt_tokens: row.number("prompt_tokens")?,
        completion_tokens: row.number("completion_tokens")?,
        cache_read_tokens: row.number("cache_read_tokens")?,
        cache_write_5m_tokens: row.number("cache_write_5m_tokens")?,
        cache_write_1h_tokens: row.number("cache_write_1h_tokens")?,
        reasoning_tokens: row.number("reasoning_tokens")?,
    };
    Ok(UsageOfDay {
        day: row.number("day")?,
        runs: sum(grouping.runs())?,
        calls: sum("calls")?,
        tokens: tokens.parts(&of)?,
        cost_micros: sum("cost_micros")?,
        wall_ms: sum("wall_ms")?,
        group,
    })
}

#[cfg(test)]
mod tests {
    use protocol::id::RunId;
    use uuid::Uuid;

    use super::*;
    use crate::sql::sqlite_plan;

    #[tokio::test]
    async fn sqlite_statements_search_indexes() {
        let workspace = WorkspaceId("w".to_owned());
        let report = UsageDays {
            days: 1..2,
            grouping: UsageGrouping::Model,
            agent_id: Some(AgentId(Uuid::nil())),
            agents: Some(vec![AgentId(Uuid::nil())]),
        };
        let call = UsedCall {
            id: Uuid::nil(),
            workspace: workspace.clone(),
            run_id: RunId(Uuid::nil()),
            agent_id: AgentId(Uuid::nil()),
            gateway: "g".to_owned(),
            kind: "model",
            resource: "m".to_owned(),
            outcome: "ok",
            tokens: TokenParts::default(),
            is_estimate: false,
            cost_micros: 0,
            wall_ms: 0,
            at: 0,
        };
        let days = "sqlite_autoindex_usage_days_1 (workspace_id=? AND day>? AND day<?)";
        for ((sql, values), index) in [
            (costliest(&workspace, &report), days),
            (by_day(&workspace, &report, vec!["m".to_owned()]), days),
            (adding(&call), "usage_calls_run (run_id=?)"),
        ] {
            let plan = sqlite_plan(&sql, values).await;
            assert!(
                plan.contains(index) && !plan.contains("SCAN usage"),
                "{plan}"
            );
        }
    }
}
