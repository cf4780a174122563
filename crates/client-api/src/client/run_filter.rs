//! Filters of the list of runs and of their counts.

use protocol::id::{AgentId, ApiKeyId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::run::RunStatus;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{NumberRange, RunCounts, RunFilter};

use web::error::{ApiError, ApiResult};
use web::query::conversations_of;
use web::run_pages::statuses;

/// Maximum characters of a filter text. An idempotency key has no more, either.
const MAX_TEXT: usize = 255;
/// Maximum cost, in units of the currency. Its millionths fit the database's integers.
const MAX_COST: f64 = 1e12;

/// Filters of runs. A run matches all of them.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunFilterQuery {
    /// Statuses, separated by commas, at most 16.
    statuses: Option<String>,
    #[param(value_type = Option<String>)]
    agent_id: Option<AgentId>,
    #[param(value_type = Option<String>)]
    runner_id: Option<RunnerId>,
    #[param(value_type = Option<String>)]
    endpoint_id: Option<EndpointId>,
    /// Only child runs of this run.
    #[param(value_type = Option<String>)]
    parent_run_id: Option<RunId>,
    /// Only runs of conversations with this id.
    conversation_id: Option<String>,
    /// Only runs of this bot's conversation; empty for conversations without a bot. Needs `conversation_id`.
    bot_id: Option<String>,
    /// Only runs of this thread; empty for conversations without a thread. Needs `conversation_id`.
    thread_id: Option<String>,
    /// Only runs created at this time or later, in epoch seconds.
    created_after: Option<u64>,
    /// Only runs created before this time, in epoch seconds.
    created_before: Option<u64>,
    /// Only the run of the event with this `Idempotency-Key`, and its retries.
    #[param(min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
    /// Begin of a run id, at least 8 characters of it: only runs with such an id. If there is none, or if it has more
    /// than 1,000 ids: only runs whose id, event id or idempotency key begins with it.
    #[param(min_length = 1, max_length = 255)]
    text: Option<String>,
    /// Only runs that ended with this code in their `error`.
    #[param(min_length = 1, max_length = 255)]
    error_code: Option<String>,
    /// Only runs with this `status_reason`.
    #[param(min_length = 1, max_length = 255)]
    status_reason: Option<String>,
    /// Only runs with this API key as `posted_by`.
    #[param(value_type = Option<String>)]
    posted_by: Option<ApiKeyId>,
    /// Only ended runs with at least this `duration_ms`.
    min_duration_ms: Option<u64>,
    /// Only ended runs with at most this `duration_ms`.
    max_duration_ms: Option<u64>,
    /// Only runs whose usage costs at least this much so far, in the currency of the configured prices.
    #[param(minimum = 0)]
    min_cost: Option<f64>,
    /// Only runs whose usage costs at most this much so far.
    #[param(minimum = 0)]
    max_cost: Option<f64>,
}

impl RunFilterQuery {
    /// Workspace, route and filters of a list, for its cursors. Filters that older gateways did not have are left out
    /// if absent, so that cursors stay valid.
    pub(crate) fn cursor_list(&self, workspace: &WorkspaceId) -> String {
        let of = conversations_of(
            self.conversation_id.clone(),
            self.bot_id.clone(),
            self.thread_id.clone(),
        );
        let mut list = vec![
            json!("runs"),
            json!(workspace.as_str()),
            json!(self.statuses),
            json!(self.agent_id),
            json!(self.runner_id),
            // A conversation that is not valid fails the request later.
            json!(of.ok().flatten()),
        ];
        list.extend(self.parent_run_id.map(|parent| json!(parent)));
        let newer = [
            ("endpoint_id", json!(self.endpoint_id)),
            ("created_after", json!(self.created_after)),
            ("created_before", json!(self.created_before)),
            ("idempotency_key", json!(self.idempotency_key)),
            ("text", json!(self.text)),
            ("error_code", json!(self.error_code)),
            ("status_reason", json!(self.status_reason)),
            ("posted_by", json!(self.posted_by)),
            ("min_duration_ms", json!(self.min_duration_ms)),
            ("max_duration_ms", json!(self.max_duration_ms)),
            ("min_cost", json!(self.min_cost)),
            ("max_cost", json!(self.max_cost)),
        ];
        let set = newer.into_iter().filter(|(_, value)| !value.is_null());
        list.extend(set.map(|(name, value)| json!({name: value})));
        Value::Array(list).to_string()
    }

    /// The filter, within `agents` if the caller is restricted to them.
    pub(crate) fn checked(self, agents: Option<Vec<AgentId>>) -> ApiResult<RunFilter> {
        let seconds = |at: u64| signed(at).saturating_mul(1000);
        Ok(RunFilter {
            statuses: statuses(self.statuses.as_deref())?,
            // One agent has an index.
            agent_id: self.agent_id.or(match agents.as_deref() {
                Some([only]) => Some(*only),
                _ => None,
            }),
            agents,
            runner_id: self.runner_id,
            endpoint_id: self.endpoint_id,
            conversations: conversations_of(self.conversation_id, self.bot_id, self.thread_id)?,
            conversation_key: None,
            parent_run_id: self.parent_run_id,
            created: bounds(
                "/created_after",
                self.created_after.map(seconds),
                self.created_before.map(seconds),
            )?,
            idempotency_key: short("/idempotency_key", self.idempotency_key)?,
            text: short("/text", self.text)?,
            error_code: short("/error_code", self.error_code)?,
            status_reason: short("/status_reason", self.status_reason)?,
            posted_by: self.posted_by,
            duration_ms: bounds(
                "/min_duration_ms",
                self.min_duration_ms.map(signed),
                self.max_duration_ms.map(signed),
            )?,
            cost_micros: bounds(
                "/min_cost",
                micros("/min_cost", self.min_cost)?,
                micros("/max_cost", self.max_cost)?,
            )?,
        })
    }
}

/// Beyond the largest number of the database there is nothing to find.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn short(pointer: &str, text: Option<String>) -> ApiResult<Option<String>> {
    let is_long = |text: &String| text.chars().count() > MAX_TEXT;
    match text {
        Some(text) if is_long(&text) => {
            let message = format!("must have at most {MAX_TEXT} characters");
            Err(ApiError::invalid(pointer, message))
        }
        text => Ok(text),
    }
}

/// Range of a number. `pointer`: parameter of the lower bound.
fn bounds(pointer: &str, min: Option<i64>, max: Option<i64>) -> ApiResult<NumberRange> {
    if min.zip(max).is_some_and(|(min, max)| min > max) {
        let message = "must not be above its upper bound";
        return Err(ApiError::invalid(pointer, message));
    }
    Ok(NumberRange { min, max })
}

/// Converts a cost to millionths.
fn micros(pointer: &str, cost: Option<f64>) -> ApiResult<Option<i64>> {
    match cost {
        None => Ok(None),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the product is in range and rounded"
        )]
        Some(cost) if (0.0..=MAX_COST).contains(&cost) => Ok(Some((cost * 1e6).round() as i64)),
        Some(_) => Err(ApiError::invalid(pointer, "must be a number, 0 or above")),
    }
}

/// Counts of runs by status.
#[derive(Serialize, utoipa::ToSchema)]

pub(crate) struct CountsByStatus {
    /// One for each status that the filter allows.
    items: Vec<CountOfStatus>,
    /// Creation of the oldest counted run, in epoch seconds, if older runs were not counted. Null: all are counted.
    since: Option<i64>,
}

/// Number of runs of one status.
#[derive(Serialize, utoipa::ToSchema)]

pub(crate) struct CountOfStatus {
    status: RunStatus,
    count: u64,
    /// False: older runs may have this status, too.
    exact: bool,
}

impl From<RunCounts> for CountsByStatus {
    fn from(counts: RunCounts) -> Self {
        let items = counts.statuses.into_iter().map(|counted| CountOfStatus {
            status: counted.status,
            count: counted.count,
            exact: counted.is_exact,
        });
        Self {
            items: items.collect(),
            since: counts.since.map(|since| since.div_euclid(1000)),
        }
    }
}
