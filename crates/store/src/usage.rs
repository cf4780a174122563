//! Budget usage of external calls: reserved before a call, settled after it. Reservations of unsettled calls
//! expire.

mod days;
mod overrides;
mod reserved;

use std::collections::HashMap;

use domain::budget::{Amount, Budget};
use domain::usage::TokenParts;
use protocol::budget::BudgetScope;
use protocol::id::{AgentId, RunId, WorkspaceId};
use sea_orm::sea_query::{Expr, ExprTrait as _, Func, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait,
    FromQueryResult, QueryFilter, QueryOrder, QuerySelect,
};
use uuid::Uuid;

use crate::entity::{budget_usage, usage_calls};
use crate::error::{StoreError, signed, unsigned};
use crate::mutation::Mutation;
use crate::repositories::UsageRepository;
use crate::sql::returned;

pub use days::{UsageDays, UsageGrouping, UsageOfDay};
pub use overrides::{BudgetOverride, BudgetSet, MAX_OVERRIDES, ResetBudget, SetBudget};
pub use reserved::{BudgetRefusal, ReserveBudget};

/// Name of the advisory lock: on `PostgreSQL` one replica at a time changes the sums of budgets.
const LOCK: &str = "budgets";
/// Maximum subjects in a list of one budget.
const SUBJECTS: u64 = 100;

/// A budget to which a call counts, with subject and window.
#[derive(Clone, Debug)]
pub struct BudgetLine {
    pub budget: Budget,
    /// Workspace, `/`, and id of the run, agent or endpoint.
    pub subject: String,
    pub window_start: i64,
    pub resets_at: Option<i64>,
}

/// Actual usage of one call.
#[derive(Clone, Debug)]
pub struct UsedCall {
    pub id: Uuid,
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub agent_id: AgentId,
    /// Name of the gateway process that records the call.
    pub gateway: String,
    /// `model`, `tool` or `knowledge`.
    pub kind: &'static str,
    pub resource: String,
    pub outcome: &'static str,
    pub tokens: TokenParts,
    /// The gateway counted the tokens, because the provider did not.
    pub is_estimate: bool,
    pub cost_micros: u64,
    pub wall_ms: u64,
    pub at: i64,
}

/// Records a call and replaces its reservation by its actual usage.
#[derive(Clone, Debug)]
pub struct SettleUsage {
    pub call: UsedCall,
    pub lines: Vec<BudgetLine>,
    pub reserved: Amount,
}

/// Calls of one run to one model, tool or knowledge base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageOfRun {
    pub kind: String,
    pub resource: String,
    pub calls: u64,
    pub tokens: TokenParts,
    /// Number of calls with estimated tokens.
    pub estimated_calls: u64,
    pub cost_micros: u64,
    pub wall_ms: u64,
}

/// Key of one row of sums.
#[derive(Clone, Copy)]
struct SumKey<'a> {
    budget: &'a str,
    subject: &'a str,
    window_start: i64,
}

impl BudgetLine {
    fn sum(&self) -> SumKey<'_> {
        SumKey {
            budget: &self.budget.name,
            subject: &self.subject,
            window_start: self.window_start,
        }
    }
}

impl UsedCall {
    fn amount(&self) -> Amount {
        Amount {
            calls: 1,
            tokens: self.tokens.prompt() + self.tokens.completion(),
            cost_micros: self.cost_micros,
            wall_ms: self.wall_ms,
        }
    }
}

impl Mutation for SettleUsage {
    type Output = ();

    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        (!self.lines.is_empty()).then(|| LOCK.to_owned())
    }

    fn order(&self) -> Uuid {
        self.call.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let call = &self.call;
        let row = usage_calls::ActiveModel {
            id: Set(call.id.to_string()),
            workspace_id: Set(call.workspace.to_string()),
            run_id: Set(call.run_id.to_string()),
            kind: Set(call.kind.to_owned()),
            resource: Set(call.resource.clone()),
            outcome: Set(call.outcome.to_owned()),
            prompt_tokens: Set(signed(call.tokens.prompt())),
            completion_tokens: Set(signed(call.tokens.completion())),
            cache_read_tokens: Set(signed(call.tokens.cache_read)),
            cache_write_5m_tokens: Set(signed(call.tokens.cache_write_5m)),
            cache_write_1h_tokens: Set(signed(call.tokens.cache_write_1h)),
            reasoning_tokens: Set(signed(call.tokens.reasoning)),
            is_estimate: Set(i64::from(call.is_estimate)),
            cost_micros: Set(signed(call.cost_micros)),
            wall_ms: Set(signed(call.wall_ms)),
            at: Set(call.at),
        };
        // The sums count a run at its first call, so they precede the row of the call.
        days::count(tx, call).await?;
        usage_calls::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        if self.lines.is_empty() {
            return Ok(());
        }
        let taken = reserved::take(tx, call.id).await?;
        for line in &self.lines {
            let reserved = if taken.contains(&(line.budget.name.clone(), line.subject.clone())) {
                self.reserved
            } else {
                Amount::default()
            };
            add(tx, line.sum(), call.amount(), reserved).await?;
        }
        Ok(())
    }

    async fn is_committed(&self, tx: &DatabaseTransaction, (): &()) -> Result<bool, StoreError> {
        let found = usage_calls::Entity::find_by_id(self.call.id.to_string())
            .one(tx)
            .await?;
        Ok(found.is_some())
    }
}

/// Adds to sums and subtracts from them; returns the new sums.
async fn add(
    tx: &impl ConnectionTrait,
    of: SumKey<'_>,
    more: Amount,
    less: Amount,
) -> Result<Amount, StoreError> {
    use budget_usage::Column;
    let delta = |more: u64, less: u64| signed(more).saturating_sub(signed(less));
    let deltas = [
        (Column::Calls, delta(more.calls, less.calls)),
        (Column::Tokens, delta(more.tokens, less.tokens)),
        (
            Column::CostMicros,
            delta(more.cost_micros, less.cost_micros),
        ),
        (Column::WallMs, delta(more.wall_ms, less.wall_ms)),
    ];
    let row = budget_usage::ActiveModel {
        budget: Set(of.budget.to_owned()),
        subject: Set(of.subject.to_owned()),
        window_start: Set(of.window_start),
        calls: Set(deltas[0].1),
        tokens: Set(deltas[1].1),
        cost_micros: Set(deltas[2].1),
        wall_ms: Set(deltas[3].1),
    };
    let mut on_conflict =
        OnConflict::columns([Column::Budget, Column::Subject, Column::WindowStart]);
    for (column, delta) in deltas {
        let now = Expr::col((budget_usage::Entity, column));
        on_conflict.value(column, now.add(delta));
    }
    let now = budget_usage::Entity::insert(row)
        .on_conflict(on_conflict)
        .exec_with_returning(tx)
        .await?;
    Ok(amount_of(&now))
}

#[derive(FromQueryResult)]
#[expect(clippy::struct_field_names, reason = "columns of usage_calls")]
struct TokenSums {
    prompt_tokens: i64,
    completion_tokens: i64,
    cache_read_tokens: i64,
    cache_write_5m_tokens: i64,
    cache_write_1h_tokens: i64,
    reasoning_tokens: i64,
}

impl TokenSums {
    fn parts(&self, of: &str) -> Result<TokenParts, StoreError> {
        let read = |value| unsigned("usage_calls", of, value);
        let (cache_read, reasoning) = (self.cache_read_tokens, self.reasoning_tokens);
        let (short, long) = (self.cache_write_5m_tokens, self.cache_write_1h_tokens);
        Ok(TokenParts {
            input: read(self.prompt_tokens - cache_read - short - long)?,
            cache_read: read(cache_read)?,
            cache_write_5m: read(short)?,
            cache_write_1h: read(long)?,
            output: read(self.completion_tokens - reasoning)?,
            reasoning: read(reasoning)?,
        })
    }
}

/// A model call of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelCall {
    /// Id of the model that was called.
    pub model: String,
    pub tokens: TokenParts,
}

#[derive(FromQueryResult)]
struct ModelCallRow {
    id: String,
    resource: String,
    #[sea_orm(nested)]
    tokens: TokenSums,
}

#[derive(FromQueryResult)]
struct UsageSums {
    kind: String,
    resource: String,
    calls: i64,
    #[sea_orm(nested)]
    tokens: TokenSums,
    estimated_calls: i64,
    cost_micros: i64,
    wall_ms: i64,
}

impl UsageRepository<'_> {
    /// Usage of a run by model, tool and knowledge base.
    pub async fn usage_of_run(self, run: RunId) -> Result<Vec<UsageOfRun>, StoreError> {
        use usage_calls::Column;
        // PostgreSQL widens the type of a sum.
        let sum = |column: Column| Expr::col(column).sum().cast_as("BIGINT");
        let rows = usage_calls::Entity::find()
            .select_only()
            .columns([Column::Kind, Column::Resource])
            .column_as(Column::Id.count(), "calls")
            .column_as(sum(Column::PromptTokens), "prompt_tokens")
            .column_as(sum(Column::CompletionTokens), "completion_tokens")
            .column_as(sum(Column::CacheReadTokens), "cache_read_tokens")
            .column_as(sum(Column::CacheWrite5mTokens), "cache_write_5m_tokens")
            .column_as(sum(Column::CacheWrite1hTokens), "cache_write_1h_tokens")
            .column_as(sum(Column::ReasoningTokens), "reasoning_tokens")
            .column_as(sum(Column::IsEstimate), "estimated_calls")
            .column_as(sum(Column::CostMicros), "cost_micros")
            .column_as(sum(Column::WallMs), "wall_ms")
            .filter(Column::RunId.eq(run.to_string()))
            .group_by(Column::Kind)
            .group_by(Column::Resource)
            .order_by_asc(Column::Kind)
            .order_by_asc(Column::Resource)
            .into_model::<UsageSums>()
            .all(&self.db.readers)
            .await?;
        let read = |sums: UsageSums| {
            let sum = |value| unsigned("usage_calls", &sums.resource, value);
            Ok(UsageOfRun {
                calls: sum(sums.calls)?,
                tokens: sums.tokens.parts(&sums.resource)?,
                estimated_calls: sum(sums.estimated_calls)?,
                cost_micros: sum(sums.cost_micros)?,
                wall_ms: sum(sums.wall_ms)?,
                kind: sums.kind,
                resource: sums.resource.clone(),
            })
        };
        rows.into_iter().map(read).collect()
    }

    /// These model calls of a run, by their id.
    pub async fn model_calls(
        self,
        run: RunId,
        ids: impl Iterator<Item = &str>,
    ) -> Result<HashMap<String, ModelCall>, StoreError> {
        use usage_calls::Column;
        let rows = usage_calls::Entity::find()
            .filter(Column::RunId.eq(run.to_string()))
            .filter(Column::Kind.eq("model"))
            .filter(Column::Id.is_in(ids))
            .into_model::<ModelCallRow>()
            .all(&self.db.readers)
            .await?;
        let read = |row: ModelCallRow| {
            let call = ModelCall {
                tokens: row.tokens.parts(&row.id)?,
                model: row.resource,
            };
            Ok((row.id, call))
        };
        rows.into_iter().map(read).collect()
    }

    /// Usage of a budget in one window by the subjects of a workspace, the largest first.
    pub async fn used_of(
        self,
        workspace: &WorkspaceId,
        budget: &str,
        window_start: i64,
    ) -> Result<Vec<UsedBudget>, StoreError> {
        use budget_usage::Column;
        let own = format!("{workspace}/");
        let length = i32::try_from(own.chars().count()).unwrap_or(i32::MAX);
        // Not LIKE: in SQLite it ignores case, and `_` matches any character.
        let begins = Func::cust("SUBSTR")
            .arg(Expr::col(Column::Subject))
            .arg(1)
            .arg(length);
        let rows = budget_usage::Entity::find()
            .filter(Column::Budget.eq(budget))
            .filter(Column::WindowStart.eq(window_start))
            .filter(Expr::expr(begins).eq(own))
            .order_by_desc(Column::Tokens)
            .order_by_desc(Column::Calls)
            .order_by_asc(Column::Subject)
            .limit(SUBJECTS)
            .all(&self.db.readers)
            .await?;
        Ok(rows.into_iter().map(UsedBudget::of).collect())
    }

    /// Names of the agents or endpoints with these ids. Runs and workspaces have no names.
    pub async fn names_of_subjects(
        self,
        workspace: &WorkspaceId,
        scope: BudgetScope,
        ids: impl Iterator<Item = &str>,
    ) -> Result<HashMap<String, String>, StoreError> {
        let table = match scope {
            BudgetScope::Agent => "agents",
            BudgetScope::Endpoint => "runner_endpoints",
            BudgetScope::Run | BudgetScope::Workspace => return Ok(HashMap::new()),
        };
        let sql = format!(
            "SELECT s.id, s.name FROM rows, {table} s WHERE s.id = ?1 AND s.workspace_id = ?2"
        );
        let ids = ids.map(|id| [id.into(), workspace.as_str().into()]);
        let found = returned(&self.db.readers, ids.collect(), &sql).await?;
        let named = found
            .iter()
            .map(|row| Ok((row.text("id")?, row.text("name")?)));
        named.collect()
    }
}

/// Usage of a budget by one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedBudget {
    /// Workspace, `/`, and id of the run, agent or endpoint.
    pub subject: String,
    pub used: Amount,
}

impl UsedBudget {
    /// Id of the run, agent, endpoint or workspace.
    pub fn subject_id(&self) -> &str {
        let id = self.subject.split_once('/').map(|(_, id)| id);
        id.unwrap_or(&self.subject)
    }

    fn of(row: budget_usage::Model) -> Self {
        Self {
            used: amount_of(&row),
            subject: row.subject,
        }
    }
}

fn amount_of(row: &budget_usage::Model) -> Amount {
    let sum = |value: i64| u64::try_from(value).unwrap_or(0);
    Amount {
        calls: sum(row.calls),
        tokens: sum(row.tokens),
        cost_micros: sum(row.cost_micros),
        wall_ms: sum(row.wall_ms),
    }
}
