//! Filter of run lists and counts, as SQL conditions.

use domain::run::FailureCode;
use protocol::id::{AgentId, ApiKeyId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, ExprTrait as _, SimpleExpr};
use sea_orm::{ColumnTrait, Condition};

use crate::conversation::{ConversationsOf, of_conversations};
use crate::entity::runs;
use crate::sql::padded;

/// Prefix of the dedupe key of an event with an idempotency key.
pub(super) const KEY_PREFIX: &str = "key:";

/// Maximum runs of one request with a look-up in another table for each: events for a text, calls for a cost.
const MAX_JOINED: u64 = 5000;

/// Filter of a run list. Times are epoch milliseconds.
#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub statuses: Vec<RunStatus>,
    pub agent_id: Option<AgentId>,
    /// Only runs of these agents, in addition to `agent_id`.
    pub agents: Option<Vec<AgentId>>,
    pub runner_id: Option<RunnerId>,
    pub endpoint_id: Option<EndpointId>,
    pub conversations: Option<ConversationsOf>,
    /// One conversation, by its key.
    pub conversation_key: Option<String>,
    /// Only child runs of this run.
    pub parent_run_id: Option<RunId>,
    /// Creation: `min` inclusive, `max` exclusive.
    pub created: NumberRange,
    /// Only the run of the event with this idempotency key, and its retries.
    pub idempotency_key: Option<String>,
    /// Begin of a run id; if no run id begins with it, of an event id or idempotency key.
    pub text: Option<String>,
    /// Code of the error of a run that did not complete.
    pub error_code: Option<String>,
    pub status_reason: Option<String>,
    /// Only runs that this key posted, answered or retried.
    pub posted_by: Option<ApiKeyId>,
    /// Milliseconds from start to end, inclusive. Only ended runs match a bound.
    pub duration_ms: NumberRange,
    /// Cost in millionths, inclusive.
    pub cost_micros: NumberRange,
}

/// Lower and upper bound of a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumberRange {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

impl NumberRange {
    fn is_set(self) -> bool {
        self.min.is_some() || self.max.is_some()
    }

    /// The numbers within both ranges.
    pub(super) fn narrowed(self, other: Self) -> Self {
        let max = [self.max, other.max].into_iter().flatten().min();
        Self {
            min: Ord::max(self.min, other.min),
            max,
        }
    }

    /// `column` within the bounds, both inclusive.
    fn inclusive(self, column: &SimpleExpr) -> Condition {
        Condition::all()
            .add_option(self.min.map(|min| column.clone().gte(min)))
            .add_option(self.max.map(|max| column.clone().lte(max)))
    }
}

/// A filter whose lookups by key and by text are done.
#[derive(Clone)]
pub(super) struct ResolvedFilter {
    pub(super) filter: RunFilter,
    /// Only these runs of the workspace, found by id or key.
    pub(super) ids: Option<Vec<RunId>>,
}

impl ResolvedFilter {
    /// The filter for runs that were also created within `range`.
    pub(super) fn created_within(mut self, range: NumberRange) -> Self {
        self.filter.created = self.filter.created.narrowed(range);
        self
    }

    /// Maximum rows that one request scans, if no index serves the filter.
    pub(super) fn scan_limit(&self, rows: u64) -> u64 {
        if self.filter.cost_micros.is_set() || self.filter.text.is_some() {
            std::cmp::min(rows, MAX_JOINED)
        } else {
            rows
        }
    }

    /// True when an index serves the filter: live runs of the workspace, all runs of an agent or a conversation, some
    /// runs by id.
    pub(super) fn has_index(&self) -> bool {
        let filter = &self.filter;
        // A run has few child runs.
        if self.ids.is_some() || filter.parent_run_id.is_some() {
            return true;
        }
        let is_scanned = filter.runner_id.is_some()
            || filter.endpoint_id.is_some()
            || filter.text.is_some()
            || filter.error_code.is_some()
            || filter.status_reason.is_some()
            || filter.posted_by.is_some()
            || filter.duration_ms.is_set()
            || filter.cost_micros.is_set();
        // One agent has an index, and narrows the list to its runs.
        let agents_are_scanned = filter.agents.is_some() && filter.agent_id.is_none();
        match &*filter.statuses {
            _ if is_scanned || agents_are_scanned => false,
            [] => true,
            _ => self.is_live_of_workspace(),
        }
    }

    /// True if the partial index of live runs serves the filter.
    pub(super) fn is_live_of_workspace(&self) -> bool {
        let filter = &self.filter;
        let is_of_workspace = filter.agent_id.is_none()
            && filter.conversations.is_none()
            && filter.conversation_key.is_none();
        is_of_workspace
            && !filter.statuses.is_empty()
            && filter.statuses.iter().all(|status| !status.is_terminal())
    }

    /// Statuses that match, in the order of a run's life.
    pub(super) fn counted_statuses(&self) -> impl Iterator<Item = RunStatus> {
        let statuses = &self.filter.statuses;
        let is_counted = move |status: &RunStatus| statuses.is_empty() || statuses.contains(status);
        RunStatus::ALL.into_iter().filter(is_counted)
    }

    /// The filter for live runs only. Without any live status it is no filter of live runs.
    pub(super) fn live(&self) -> Self {
        let live = self
            .counted_statuses()
            .filter(|status| !status.is_terminal());
        Self {
            filter: RunFilter {
                statuses: live.collect(),
                ..self.filter.clone()
            },
            ids: self.ids.clone(),
        }
    }

    /// The part of the filter that an index serves.
    pub(super) fn indexed(&self) -> Self {
        let filter = &self.filter;
        let statuses = if self.is_live_of_workspace() {
            filter.statuses.clone()
        } else {
            Vec::new()
        };
        Self {
            filter: RunFilter {
                statuses,
                agent_id: filter.agent_id,
                conversations: filter.conversations.clone(),
                conversation_key: filter.conversation_key.clone(),
                parent_run_id: filter.parent_run_id,
                created: filter.created,
                ..RunFilter::default()
            },
            ids: self.ids.clone(),
        }
    }

    /// Runs of the workspace that match.
    pub(super) fn condition(&self, workspace: &WorkspaceId) -> Condition {
        let filter = &self.filter;
        let own = of_conversations(
            runs::Column::ConversationKey,
            workspace,
            filter.conversations.as_ref(),
            filter.conversation_key.as_deref(),
        );
        // The ids were read with the workspace. Its condition would let a database scan the workspace, newest first.
        let by_id = self.ids.as_ref().map(|ids| {
            let ids = ids.iter().map(ToString::to_string);
            runs::Column::Id.is_in(padded(ids))
        });
        let own = own.or_else(|| by_id.is_some().then(Condition::all));
        let own = own.unwrap_or_else(|| runs::Column::WorkspaceId.eq(workspace.as_str()).into());
        let reason = filter.status_reason.as_deref();
        own.add_option(by_id)
            .add_option(self.status_condition())
            .add(id_conditions(filter))
            .add(created_within(filter.created))
            .add_option(filter.text.as_deref().map(begins_with))
            .add_option(filter.error_code.as_deref().map(failed_with))
            .add_option(reason.map(|reason| runs::Column::StatusReason.eq(reason)))
            .add(took(filter.duration_ms))
            .add(cost_within(filter.cost_micros))
    }

    fn status_condition(&self) -> Option<Condition> {
        let statuses = &self.filter.statuses;
        if statuses.is_empty() {
            return None;
        }
        let names = statuses.iter().map(|status| status.as_str());
        let all = Condition::all().add(runs::Column::Status.is_in(padded(names)));
        // Matches the partial index of live runs.
        let is_live = statuses.iter().all(|status| !status.is_terminal());
        Some(all.add_option(is_live.then(|| runs::Column::FinishedAt.is_null())))
    }
}

fn id_conditions(filter: &RunFilter) -> Condition {
    let agent = filter.agent_id.map(|id| id.to_string());
    let agents = filter.agents.as_ref().map(|agents| {
        let agents = agents.iter().map(ToString::to_string);
        runs::Column::AgentId.is_in(padded(agents))
    });
    let parent = filter.parent_run_id.map(|id| id.to_string());
    let runner = filter.runner_id.as_ref().map(ToString::to_string);
    let endpoint = filter.endpoint_id.map(|id| id.to_string());
    let key = filter.posted_by.map(|id| id.to_string());
    Condition::all()
        .add_option(agent.map(|id| runs::Column::AgentId.eq(id)))
        .add_option(agents)
        .add_option(parent.map(|id| runs::Column::ParentRunId.eq(id)))
        .add_option(runner.map(|id| runs::Column::RunnerId.eq(id)))
        .add_option(endpoint.map(|id| runs::Column::EndpointId.eq(id)))
        .add_option(key.map(|id| runs::Column::PostedBy.eq(id)))
}

fn created_within(NumberRange { min, max }: NumberRange) -> Condition {
    let at = runs::Column::CreatedAt;
    let is_created = match (min, max) {
        // With two comparisons `SQLite` takes the index of the workspace for the runs of one agent.
        (Some(min), Some(max)) => Some(at.between(min, max.saturating_sub(1))),
        (Some(min), None) => Some(at.gte(min)),
        (None, Some(max)) => Some(at.lt(max)),
        (None, None) => None,
    };
    Condition::all().add_option(is_created)
}

/// Runs whose id, event id or idempotency key begins with `text`. Compares characters: `LIKE` would need escapes, and
/// ignores case on `SQLite`.
fn begins_with(text: &str) -> Condition {
    let begin = |column: &str| {
        let length = text.chars().count();
        Expr::cust(format!("substr({column}, 1, {length})")).eq(text)
    };
    let key = format!("{KEY_PREFIX}{text}");
    // A scalar subquery: PostgreSQL may execute `EXISTS` as a hash of all events.
    let of_event = format!(
        "(SELECT substr(e.dedupe_key, 1, {}) FROM events e WHERE e.workspace_id = runs.workspace_id \
         AND e.event_id = runs.event_id)",
        key.chars().count()
    );
    Condition::any()
        .add(begin("runs.id"))
        .add(begin("runs.event_id"))
        .add(Expr::cust(of_event).eq(key))
}

/// Runs with this error code. It is the reason of a failed run; a cancelled run may have another reason.
fn failed_with(code: &str) -> Condition {
    let status = runs::Column::Status;
    let failed = Condition::all()
        .add(status.is_in([RunStatus::Failed.as_str(), RunStatus::Timeout.as_str()]))
        .add(runs::Column::StatusReason.eq(code));
    let is_cancelled =
        (code == FailureCode::Cancelled.as_str()).then(|| status.eq(RunStatus::Cancelled.as_str()));
    Condition::any().add(failed).add_option(is_cancelled)
}

fn took(duration: NumberRange) -> Condition {
    if !duration.is_set() {
        return Condition::all();
    }
    let took = Expr::cust("(runs.finished_at - runs.started_at)");
    // Clocks of replicas differ, so a duration may be negative. It is shown as 0.
    let duration = NumberRange {
        min: duration.min.filter(|min| *min > 0),
        ..duration
    };
    duration.inclusive(&took).add(took.is_not_null())
}

fn cost_within(cost: NumberRange) -> Condition {
    let total = "(SELECT CAST(COALESCE(SUM(u.cost_micros), 0) AS BIGINT) FROM usage_calls u WHERE u.run_id = runs.id)";
    cost.inclusive(&Expr::cust(total))
}

#[cfg(test)]
mod tests {
    use sea_orm::{
        DbBackend, EntityTrait as _, QueryFilter as _, QueryOrder as _, QueryTrait as _,
    };
    use uuid::Uuid;

    use super::*;
    use crate::sql::sqlite_plan;

    /// The plan of a list, as `SQLite` explains it.
    async fn plan(filter: RunFilter) -> String {
        let filter = ResolvedFilter { filter, ids: None };
        let page = NumberRange {
            min: Some(1),
            max: None,
        };
        let filter = filter.created_within(page);
        let query = runs::Entity::find()
            .filter(filter.condition(&WorkspaceId("w".to_owned())))
            .order_by_desc(runs::Column::CreatedAt)
            .order_by_desc(runs::Column::Id)
            .build(DbBackend::Sqlite);
        sqlite_plan(&query.to_string(), Vec::new()).await
    }

    #[tokio::test]
    async fn sqlite_lists_read_one_index_range_in_order() {
        let all = RunFilter::default();
        let bounds = NumberRange {
            min: Some(1),
            max: Some(2),
        };
        let scanned = RunFilter {
            statuses: vec![RunStatus::Failed],
            runner_id: Some("plugin:a/b/c".parse().unwrap()),
            endpoint_id: Some(EndpointId(Uuid::nil())),
            text: Some("order".to_owned()),
            error_code: Some("cancelled".to_owned()),
            status_reason: Some("cancelled".to_owned()),
            posted_by: Some(ApiKeyId(Uuid::nil())),
            duration_ms: bounds,
            cost_micros: bounds,
            created: bounds,
            ..all.clone()
        };
        let of_agent = RunFilter {
            agent_id: Some(AgentId(Uuid::nil())),
            ..scanned.clone()
        };
        let live = RunFilter {
            statuses: vec![RunStatus::Running],
            created: bounds,
            ..all.clone()
        };
        for (filter, index) in [
            (all, "runs_newest (workspace_id=? AND created_at>?)"),
            (
                scanned,
                "runs_newest (workspace_id=? AND created_at>? AND created_at<?)",
            ),
            (
                of_agent,
                "runs_of_agent (workspace_id=? AND agent_id=? AND created_at>? AND created_at<?)",
            ),
            (
                live,
                "runs_live_newest (workspace_id=? AND created_at>? AND created_at<?)",
            ),
        ] {
            let plan = plan(filter).await;
            assert!(plan.contains(index), "{plan}");
            assert!(
                !plan.contains("SCAN") && !plan.contains("TEMP B-TREE"),
                "{plan}"
            );
        }
    }
}
