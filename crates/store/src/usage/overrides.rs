//! Budgets that the API sets in a workspace. They replace those of the configuration with the same name.

use domain::budget::Budget;
use domain::canonical::canonical_json;
use protocol::budget::BudgetDefinition;
use protocol::id::WorkspaceId;
use protocol::principal::Principal;
use sea_orm::DatabaseTransaction;

use super::LOCK;
use crate::error::{StoreError, parsed_json};
use crate::mutation::Mutation;
use crate::repositories::UsageRepository;
use crate::runs::principal_if_any;
use crate::sql::{Sql, SqlRow};

/// Maximum budgets of the API in a workspace: each call checks all of them.
pub const MAX_OVERRIDES: usize = 100;

/// A budget of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetOverride {
    pub budget: Budget,
    /// Epoch milliseconds.
    pub updated_at: i64,
    pub updated_by: Option<Principal>,
}

/// Sets a budget of a workspace.
#[derive(Clone, Debug)]
pub struct SetBudget {
    pub workspace: WorkspaceId,
    pub name: String,
    /// Without faults.
    pub spec: BudgetDefinition,
    pub by: Principal,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of [`SetBudget`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetSet {
    Stored,
    /// The workspace has [`MAX_OVERRIDES`] other budgets of the API.
    Full,
}

impl Mutation for SetBudget {
    type Output = BudgetSet;

    const CHANGES_AGENTS: bool = false;

    // Orders concurrent calls, so that they count each other's rows.
    fn lock(&self) -> Option<String> {
        Some(LOCK.to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<BudgetSet, StoreError> {
        let sql = "SELECT COUNT(*) AS others FROM budget_overrides WHERE workspace_id = $1 AND name <> $2";
        let values = vec![self.workspace.as_str().into(), self.name.as_str().into()];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        let others = rows.first().map_or(Ok(0), |row| row.number("others"))?;
        if usize::try_from(others).is_ok_and(|others| others >= MAX_OVERRIDES) {
            return Ok(BudgetSet::Full);
        }
        let sql = "INSERT INTO budget_overrides (workspace_id, name, spec, updated_at, updated_by) \
            VALUES ($1, $2, $3, $4, $5) ON CONFLICT (workspace_id, name) DO UPDATE SET spec = excluded.spec, \
            updated_at = excluded.updated_at, updated_by = excluded.updated_by";
        let values = vec![
            self.workspace.as_str().into(),
            self.name.as_str().into(),
            canonical_json(&self.spec).into(),
            self.at.into(),
            self.by.stored().into(),
        ];
        tx.execute_sql(sql.to_owned(), values).await?;
        Ok(BudgetSet::Stored)
    }
}

/// Deletes a budget of the API. False: there is none with this name.
#[derive(Clone, Debug)]
pub struct ResetBudget {
    pub workspace: WorkspaceId,
    pub name: String,
}

impl Mutation for ResetBudget {
    type Output = bool;

    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let sql =
            "DELETE FROM budget_overrides WHERE workspace_id = $1 AND name = $2 RETURNING name";
        let values = vec![self.workspace.as_str().into(), self.name.as_str().into()];
        Ok(!tx.query_sql(sql.to_owned(), values).await?.is_empty())
    }
}

impl UsageRepository<'_> {
    /// Budgets of the API in a workspace, by name; at most [`MAX_OVERRIDES`].
    pub async fn budget_overrides(
        self,
        workspace: &WorkspaceId,
    ) -> Result<Vec<BudgetOverride>, StoreError> {
        let sql = "SELECT name, spec, updated_at, updated_by FROM budget_overrides WHERE workspace_id = $1";
        let values = vec![workspace.as_str().into()];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let mut found = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        // Sorted here, because the databases collate differently.
        found.sort_by(|one, other| one.budget.name.cmp(&other.budget.name));
        Ok(found)
    }
}

fn read(row: &SqlRow) -> Result<BudgetOverride, StoreError> {
    let name = row.text("name")?;
    let spec: BudgetDefinition = parsed_json("budget_overrides.spec", &name, &row.text("spec")?)?;
    let by = row.text_if_any("updated_by")?;
    Ok(BudgetOverride {
        updated_at: row.number("updated_at")?,
        updated_by: principal_if_any("budget_overrides.updated_by", &name, by.as_deref())?,
        budget: Budget::of(name, &spec),
    })
}
