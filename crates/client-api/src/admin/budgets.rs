//! Budgets and their use by the workspace.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use domain::budget::{
    Amount, Budget, BudgetReached, BudgetWindow, check_budget, check_budget_name,
};
use http::StatusCode;
use protocol::budget::{BudgetDefinition, BudgetScope};
use protocol::error::ErrorBody;
use protocol::principal::Principal;
use serde::Serialize;
use store::{BudgetSet, MAX_OVERRIDES, ResetBudget, SetBudget, UsedBudget};

use crate::principals::name_keys;
use runs::{BudgetChange, WorkspaceBudget};
use web::auth::AdminCaller;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::PathOf;
use web::state::ApiState;
use web::view::micros;

/// All budgets: first those of the configuration in its order, then others by name.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct BudgetList {
    items: Vec<BudgetView>,
}

/// A budget and its use in the current window.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct BudgetView {
    name: String,
    #[serde(flatten)]
    rule: BudgetRule,
    /// Limits of the configuration, which the API has replaced. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    configured: Option<Bounds>,
    /// Time of the last change by the API, in epoch seconds. Absent for source `configuration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<i64>,
    /// Credential of the last change by the API. Absent for source `configuration`.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_by: Option<Principal>,
    /// Time of the next reset in epoch seconds. Absent: it does not reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    resets_at: Option<i64>,
    /// The 100 subjects of this workspace with the highest use. Calls in progress count with their reservation.
    /// An unlisted subject has used less, or nothing.
    used: Vec<UsedBy>,
}

/// The rule of a budget in force.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct BudgetRule {
    /// Source of the budget: `configuration`, or `api` for one that `PUT /v1/budgets/{budget}` has set.
    source: &'static str,
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
    /// Effect on a call beyond the budget: `refuse`, or `pause` until a raise.
    on_reached: &'static str,
    /// For `pause`: maximum wait of a run in total. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_wait_seconds: Option<i64>,
}

/// A budget that limits a run.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct AppliedBudget {
    name: String,
    #[serde(flatten)]
    rule: BudgetRule,
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
    let mut items = Vec::new();
    for budget in state.runs.usage.budgets_in(&caller.workspace).await? {
        items.push(used_view(&state, &caller, budget).await?);
    }
    let principals = items.iter_mut().filter_map(|item| item.updated_by.as_mut());
    name_keys(&state, &caller.workspace, caller.role, principals.collect()).await?;
    Ok(Json(BudgetList { items }))
}

/// Retrieves a budget and its use in the current window.
#[utoipa::path(get, path = "/v1/budgets/{budget}", tag = "admin", security(("api_key" = [])),
    params(("budget" = String, Path, description = "The budget")), responses(
    (status = 200, description = "The budget", body = BudgetView),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such budget", body = ErrorBody)))]
pub(crate) async fn get_budget(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(name): PathOf<String>,
) -> ApiResult<Json<BudgetView>> {
    view_of(&state, &caller, &name).await.map(Json)
}

/// Sets a budget of this workspace, which replaces that of the configuration with its name.
///
/// All replicas apply it within a second. Use that is counted already stays counted: a limit below it refuses further
/// calls. A budget of another scope or window counts from zero. A workspace has at most 100 budgets of the API.
#[utoipa::path(put, path = "/v1/budgets/{budget}", tag = "admin", security(("api_key" = [])),
    params(("budget" = String, Path, description = "The budget: 1 to 255 bytes on one line")),
    request_body = BudgetDefinition, responses(
    (status = 200, description = "The budget in force", body = BudgetView),
    (status = 400, description = "The name or the body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "`details.reason`: too_many_budgets", body = ErrorBody)))]
pub(crate) async fn put_budget(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(name): PathOf<String>,
    JsonBody(spec): JsonBody<BudgetDefinition>,
) -> ApiResult<Json<BudgetView>> {
    if let Err(fault) = check_budget_name(&name) {
        return Err(ApiError::invalid_argument(format!(
            "the name of a budget {fault}"
        )));
    }
    let faults = check_budget(&spec);
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let stamp = caller.stamp(&state);
    let set = SetBudget {
        workspace: caller.workspace.clone(),
        name: name.clone(),
        spec,
        by: stamp.by.clone(),
        at: stamp.at,
    };
    match state.runs.usage.set_budget(set, stamp).await? {
        BudgetSet::Stored => view_of(&state, &caller, &name).await.map(Json),
        BudgetSet::Full => {
            let message = format!(
                "the workspace has {MAX_OVERRIDES} budgets of the API; delete one of them first"
            );
            Err(ApiError::conflict("too_many_budgets", message))
        }
    }
}

/// Deletes a budget of the API. One of the configuration with its name is in force again.
#[utoipa::path(delete, path = "/v1/budgets/{budget}", tag = "admin", security(("api_key" = [])),
    params(("budget" = String, Path, description = "The budget")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "The API has set no such budget", body = ErrorBody)))]
pub(crate) async fn delete_budget(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(name): PathOf<String>,
) -> ApiResult<StatusCode> {
    let stamp = caller.stamp(&state);
    let reset = ResetBudget {
        workspace: caller.workspace,
        name: name.clone(),
    };
    if state.runs.usage.reset_budget(reset, stamp).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found("budget of the API", name))
    }
}

/// The budget with this name.
async fn view_of(state: &ApiState, caller: &AdminCaller, name: &str) -> ApiResult<BudgetView> {
    let budgets = state.runs.usage.budgets_in(&caller.workspace).await?;
    let found = budgets.into_iter().find(|one| one.budget.name == name);
    let found = found.ok_or_else(|| ApiError::not_found("budget", name))?;
    let mut view = used_view(state, caller, found).await?;
    let principals = view.updated_by.iter_mut().collect();
    name_keys(state, &caller.workspace, caller.role, principals).await?;
    Ok(view)
}

/// A budget with its use in the current window, without names of keys.
async fn used_view(
    state: &ApiState,
    caller: &AdminCaller,
    budget: WorkspaceBudget,
) -> ApiResult<BudgetView> {
    let now = state.runs.clock().now_ms();
    let (window_start, resets_at) = budget.budget.window.around(now);
    let usage = state.runs.store().usage();
    let used = usage
        .used_of(&caller.workspace, &budget.budget.name, window_start)
        .await?;
    let ids = used.iter().map(UsedBudget::subject_id);
    // Names come from their tables: the usage rows have ids only, and objects may be renamed.
    let names = usage
        .names_of_subjects(&caller.workspace, budget.budget.scope, ids)
        .await?;
    Ok(BudgetView::of(budget, resets_at, used, names))
}

impl BudgetView {
    fn of(
        budget: WorkspaceBudget,
        resets_at: Option<i64>,
        used: Vec<UsedBudget>,
        mut names: HashMap<String, String>,
    ) -> Self {
        let used = used.into_iter().map(|used| {
            let name = names.remove(used.subject_id());
            UsedBy::of(&budget.budget, &used, name)
        });
        let replaced = budget.replaced.as_ref();
        Self {
            rule: BudgetRule::of(&budget),
            configured: replaced.map(|replaced| Bounds::left(replaced, Amount::default())),
            resets_at: resets_at.map(|at| at.div_euclid(1000)),
            used: used.collect(),
            updated_at: budget
                .change
                .as_ref()
                .map(|change| change.at.div_euclid(1000)),
            updated_by: budget.change.and_then(|BudgetChange { by, .. }| by),
            name: budget.budget.name,
        }
    }
}

impl BudgetRule {
    fn of(WorkspaceBudget { budget, change, .. }: &WorkspaceBudget) -> Self {
        let (on_reached, max_wait_ms) = match budget.reached {
            BudgetReached::Refuse => ("refuse", None),
            BudgetReached::Pause { max_wait_ms } => ("pause", Some(max_wait_ms)),
        };
        Self {
            on_reached,
            max_wait_seconds: max_wait_ms.map(|wait| wait.div_euclid(1000)),
            source: match change {
                Some(_) => "api",
                None => "configuration",
            },
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
        }
    }
}

impl AppliedBudget {
    pub(super) fn of(budget: &WorkspaceBudget) -> Self {
        Self {
            name: budget.budget.name.clone(),
            rule: BudgetRule::of(budget),
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
