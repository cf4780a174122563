//! Lists of platform actions, newest first.

use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::platform_action::PlatformActionStatus;
use sea_orm::Value;

use super::{COLUMNS, FROM, PlatformActionRecord, record};
use crate::error::{StoreError, signed};
use crate::page::{PageBound, TextPage};
use crate::repositories::InteractionRepository;
use crate::runs::MAX_SCANNED;
use crate::sql::{Sql as _, padded, text};

/// Filter of a list of actions.
#[derive(Clone, Debug, Default)]
pub struct ActionFilter {
    pub run_id: Option<RunId>,
    /// Only actions of these agents.
    pub agents: Option<Vec<AgentId>>,
    /// Only actions with this status at `now`.
    pub status: Option<PlatformActionStatus>,
    /// Epoch milliseconds.
    pub now: i64,
    /// Only actions before this one.
    pub before: Option<ActionPosition>,
}

/// Position of an action in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionPosition {
    /// Epoch milliseconds.
    pub created_at: i64,
    pub id: String,
}

/// A page of actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionsFound {
    pub records: Vec<PlatformActionRecord>,
    /// The next page begins after it: the last record, or the end of the scan for rare matches. `None`: the list is
    /// complete.
    pub next: Option<ActionPosition>,
}

/// Conditions of a statement, with their values.
struct ActionConditions {
    all: Vec<String>,
    values: Vec<Value>,
}

const ORDER: &str = "ORDER BY a.created_at DESC, a.id DESC";

impl ActionConditions {
    /// Conditions that the indexes serve.
    fn of(workspace: &WorkspaceId, filter: &ActionFilter) -> Self {
        let mut only = Self {
            all: Vec::new(),
            values: vec![workspace.as_str().into()],
        };
        if let Some(run) = filter.run_id {
            let run = only.bind(text(run));
            only.all.push(format!("a.run_id = {run}"));
        }
        if filter.status == Some(PlatformActionStatus::Open) {
            // Matches the partial index of open actions.
            only.all.push("a.status = 'open'".to_owned());
        }
        if let Some(before) = &filter.before {
            let (at, id) = (only.bind(before.created_at), only.bind(before.id.as_str()));
            // The first condition is an index range, the second excludes ties at its edge.
            only.all.push(format!(
                "a.created_at <= {at} AND (a.created_at < {at} OR a.id < {id})"
            ));
        }
        only
    }

    /// Adds a value, and returns its placeholder.
    fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    /// Adds the other conditions of the filter.
    fn add_rest(&mut self, filter: &ActionFilter, scan_end: Option<&ActionPosition>) {
        if let Some(agents) = &filter.agents {
            let agents = padded(agents.iter().map(ToString::to_string));
            let placeholders: Vec<_> = agents.into_iter().map(|id| self.bind(id)).collect();
            // A key that reaches no agent sees nothing.
            self.all.push(if placeholders.is_empty() {
                "1 = 0".to_owned()
            } else {
                format!("r.agent_id IN ({})", placeholders.join(", "))
            });
        }
        if let Some(end) = scan_end {
            let (at, id) = (self.bind(end.created_at), self.bind(end.id.as_str()));
            self.all.push(format!(
                "a.created_at >= {at} AND (a.created_at > {at} OR a.id >= {id})"
            ));
        }
        if let Some(status) = filter.status {
            self.add_status(status, filter.now);
        }
    }

    /// The same rules as [`PlatformActionRecord::status_at`].
    fn add_status(&mut self, status: PlatformActionStatus, now: i64) {
        const WAITS: &str = "a.status IN ('awaiting_approval', 'open')";
        const CANCELLED: &str = "(r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL)";
        let name = status.as_str();
        let condition = match status {
            PlatformActionStatus::AwaitingApproval | PlatformActionStatus::Open => {
                let now = self.bind(now);
                format!("a.status = '{name}' AND NOT {CANCELLED} AND a.expires_at > {now}")
            }
            PlatformActionStatus::Claimed => {
                let now = self.bind(now);
                format!("a.status = 'claimed' AND a.expires_at > {now}")
            }
            PlatformActionStatus::Expired => {
                let now = self.bind(now);
                format!(
                    "(a.status = 'expired' OR (a.expires_at <= {now} AND (a.status = 'claimed' \
                     OR ({WAITS} AND NOT {CANCELLED}))))"
                )
            }
            PlatformActionStatus::Cancelled => format!("{WAITS} AND {CANCELLED}"),
            PlatformActionStatus::Done
            | PlatformActionStatus::Failed
            | PlatformActionStatus::Declined => format!("a.status = '{name}'"),
        };
        self.all.push(condition);
    }

    fn sql(&self) -> String {
        let mut all = self.all.clone();
        all.push(format!("a.id IS NOT NULL {ORDER}"));
        all.join(" AND ")
    }
}

impl InteractionRepository<'_> {
    /// Actions of the workspace. With a filter by agent or status it scans at most [`MAX_SCANNED`] actions.
    pub async fn list_platform_actions(
        self,
        workspace: &WorkspaceId,
        filter: &ActionFilter,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<ActionsFound, StoreError> {
        let scan_end = self.actions_scan_end(workspace, filter).await?;
        let mut only = ActionConditions::of(workspace, filter);
        only.add_rest(filter, scan_end.as_ref());
        let page = TextPage {
            columns: COLUMNS,
            from: FROM,
            owner: "a.workspace_id = $1",
            owner_values: vec![workspace.as_str().into()],
            key: ("a.id", "id"),
        };
        let conditions = only.sql();
        let rows = page.read(&self.db.readers, &conditions, only.values, bound.into());
        let found = rows.await?.try_map(|row| record(&row))?;
        let last = found.items.last().filter(|_| found.has_more);
        let next = match last {
            Some(last) => Some(ActionPosition {
                created_at: last.created_at,
                id: last.id.clone(),
            }),
            None => scan_end,
        };
        Ok(ActionsFound {
            next,
            records: found.items,
        })
    }

    /// Last action of the scan, when more than [`MAX_SCANNED`] exist and the filter needs a scan.
    async fn actions_scan_end(
        self,
        workspace: &WorkspaceId,
        filter: &ActionFilter,
    ) -> Result<Option<ActionPosition>, StoreError> {
        // A run has few actions.
        let is_plain = filter.agents.is_none() && filter.status.is_none();
        if filter.run_id.is_some() || is_plain {
            return Ok(None);
        }
        let mut only = ActionConditions::of(workspace, filter);
        let offset = only.bind(signed(MAX_SCANNED - 1));
        let sql = format!(
            "SELECT a.created_at, a.id FROM platform_actions a WHERE a.workspace_id = $1 AND {} LIMIT 1 OFFSET {offset}",
            only.sql()
        );
        let rows = self.db.readers.query_sql(sql, only.values).await?;
        let position = |row: &crate::sql::SqlRow| {
            Ok(ActionPosition {
                created_at: row.number("created_at")?,
                id: row.text("id")?,
            })
        };
        rows.first().map(position).transpose()
    }
}
