//! Configured budgets and their use by the workspace.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use domain::budget::{Amount, Budget, BudgetScope, BudgetWindow};
use protocol::error::ErrorBody;
use serde::Serialize;
use store::UsedBudget;

use web::auth::AdminCaller;
use web::error::ApiResult;
use web::state::ApiState;
use web::view::micros;

/// All budgets in the order of the configuration.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct BudgetList {
    items: Vec<BudgetView>,
}

/// A budget and its use in the current window.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct BudgetView {
    name: String,
    /// Subject of the budget: `run`, `agent`, `endpoint` or `workspace`. The use of each subject is counted
    /// separately.
    scope: &'static str,
    /// The only subject of the budget. Absent: it applies to each subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    only: Option<String>,
    /// `hour`, `day` or `month` (UTC); `whole` for runs.
    window: &'static str,
    /// Limits of each subject in a window.
    most: Bounds,
    /// Time of the next reset in epoch seconds. Absent: it does not reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_at: Option<i64>,
    /// The 100 subjects of this workspace with the highest use. Calls in progress count with their reservation.
    /// An unlisted subject has used less, or nothing.
    used: Vec<UsedBy>,
}

/// Amounts for each limit of a budget. An absent one is not limited.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct Bounds {
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<u64>,
    /// In the currency of the configured prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
}

/// The use of one subject.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct UsedBy {
    /// Id of the run, agent, endpoint or workspace.
    id: String,
    /// Name of the agent or endpoint. Absent for other subjects and deleted ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    calls: u64,
    tokens: u64,
    cost: f64,
    seconds: f64,
    /// Limits of the budget minus this use; 0 if the use exceeds the limit.
    left: Bounds,
}

/// Lists the budgets and their use in the current window.
#[utoipa::path(get, path = "/v1/budgets", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = BudgetList),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_budgets(
    caller: AdminCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<BudgetList>> {
    let now = state.runs.clock().now_ms();
    let mut items = Vec::new();
    for budget in state.runs.budgets() {
        let (window_start, resets_at) = budget.window.around(now);
        let store = state.runs.store();
        let used = store
            .usage()
            .used_of(&caller.workspace, &budget.name, window_start)
            .await?;
        let ids = used.iter().map(UsedBudget::subject_id);
        // Names come from their tables: the usage rows have ids only, and objects may be renamed.
        let names = store
            .usage()
            .names_of_subjects(&caller.workspace, budget.scope, ids)
            .await?;
        items.push(BudgetView::of(budget, resets_at, used, names));
    }
    Ok(Json(BudgetList { items }))
}

impl BudgetView {
    fn of(
        budget: &Budget,
        resets_at: Option<i64>,
        used: Vec<UsedBudget>,
        mut names: HashMap<String, String>,
    ) -> Self {
        let used = used.into_iter().map(|used| {
            let name = names.remove(used.subject_id());
            UsedBy::of(budget, &used, name)
        });
        Self {
            name: budget.name.clone(),
            scope: match budget.scope {
                BudgetScope::Run => "run",
                BudgetScope::Agent => "agent",
                BudgetScope::Endpoint => "endpoint",
                BudgetScope::Workspace => "workspace",
            },
            only: budget.only.clone(),
            window: match budget.window {
                BudgetWindow::Lifetime => "whole",
                BudgetWindow::Hour => "hour",
                BudgetWindow::Day => "day",
                BudgetWindow::Month => "month",
            },
            most: Bounds::left(budget, Amount::default()),
            resets_at: resets_at.map(|at| at.div_euclid(1000)),
            used: used.collect(),
        }
    }
}

impl Bounds {
    /// Limits of a budget minus its use.
    fn left(budget: &Budget, used: Amount) -> Self {
        let left = |limit: Option<u64>, used| limit.map(|limit| limit.saturating_sub(used));
        Self {
            calls: left(budget.calls, used.calls),
            tokens: left(budget.tokens, used.tokens),
            cost: left(budget.cost_micros, used.cost_micros).map(micros),
            seconds: left(budget.wall_ms, used.wall_ms).map(seconds),
        }
    }
}

impl UsedBy {
    fn of(budget: &Budget, used_budget: &UsedBudget, name: Option<String>) -> Self {
        let id = used_budget.subject_id().to_owned();
        let Amount {
            calls,
            tokens,
            cost_micros,
            wall_ms,
        } = used_budget.used;
        Self {
            id,
            name,
            calls,
            tokens,
            cost: micros(cost_micros),
            seconds: seconds(wall_ms),
            left: Bounds::left(budget, used_budget.used),
        }
    }
}

fn seconds(wall_ms: u64) -> f64 {
    micros(wall_ms.saturating_mul(1000))
}
