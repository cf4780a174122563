//! Lists of questions, newest first or by expiry.

use protocol::id::{AgentId, RunId, WorkspaceId};
use sea_orm::Value;
use uuid::Uuid;

use super::{COLUMNS, FROM, InteractionRecord, record};
use crate::conversation::ConversationsOf;
use crate::error::{StoreError, parsed, signed};
use crate::page::{PageBound, TextPage};
use crate::repositories::InteractionRepository;
use crate::runs::MAX_SCANNED;
use crate::sql::{Sql, padded};

/// Status of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InteractionStatus {
    /// It accepts an answer.
    Open,
    Submitted,
    Expired,
    /// Its run was cancelled, or has a cancel request.
    Cancelled,
}

/// Filter of a list of questions.
#[derive(Clone, Debug, Default)]
pub struct InteractionFilter {
    pub run_id: Option<RunId>,
    /// Only questions of these agents.
    pub agents: Option<Vec<AgentId>>,
    pub conversations: Option<ConversationsOf>,
    /// Only questions with this status at `now`.
    pub status: Option<InteractionStatus>,
    /// Epoch milliseconds.
    pub now: i64,
    pub order: InteractionOrder,
}

/// Order of a list, and the question after which it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InteractionOrder {
    Newest {
        before: Option<Uuid>,
    },
    /// Unexpired questions that no live run has closed, next expiry first.
    Expiry {
        after: Option<ExpiryPosition>,
    },
}

impl Default for InteractionOrder {
    fn default() -> Self {
        Self::Newest { before: None }
    }
}

/// Position of a question in a list by expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpiryPosition {
    /// Epoch milliseconds.
    pub expires_at: i64,
    pub id: Uuid,
}

/// A page of questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InteractionsFound {
    pub records: Vec<InteractionRecord>,
    /// The next page begins after the last record, or at the end of the scan for rare matches. `None`: the list is
    /// complete.
    pub next: Option<InteractionOrder>,
}

/// Conditions of a statement, with their values.
struct Conditions {
    all: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    fn of(workspace: &WorkspaceId) -> Self {
        Self {
            all: Vec::new(),
            values: vec![workspace.as_str().into()],
        }
    }

    /// Adds a value, and returns its placeholder.
    fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("${}", self.values.len())
    }

    fn add(&mut self, condition: impl Into<String>) {
        self.all.push(condition.into());
    }

    /// Questions after the begin of the list, and up to `end`, inclusive.
    fn add_range(&mut self, filter: &InteractionFilter, end: Option<InteractionOrder>) {
        match filter.order {
            InteractionOrder::Newest { before } => {
                if let Some(before) = before {
                    let before = self.bind(before.to_string());
                    self.add(format!("i.id < {before}"));
                }
            }
            InteractionOrder::Expiry { after } => {
                // Matches the partial index by expiry.
                let now = self.bind(filter.now);
                self.add(format!(
                    "i.given_at IS NULL AND i.closed_at IS NULL AND i.expires_at > {now}"
                ));
                if let Some(ExpiryPosition { expires_at, id }) = after {
                    let (at, id) = (self.bind(expires_at), self.bind(id.to_string()));
                    // The first condition is an index range, the second excludes ties at its edge.
                    self.add(format!(
                        "i.expires_at >= {at} AND (i.expires_at > {at} OR i.id > {id})"
                    ));
                }
            }
        }
        match end {
            Some(InteractionOrder::Newest { before: Some(end) }) => {
                let end = self.bind(end.to_string());
                self.add(format!("i.id >= {end}"));
            }
            Some(InteractionOrder::Expiry {
                after: Some(ExpiryPosition { expires_at, id }),
            }) => {
                let (at, id) = (self.bind(expires_at), self.bind(id.to_string()));
                self.add(format!(
                    "i.expires_at <= {at} AND (i.expires_at < {at} OR i.id <= {id})"
                ));
            }
            _ => {}
        }
    }

    fn add_filter(&mut self, filter: &InteractionFilter) {
        if let Some(run) = filter.run_id {
            let run = self.bind(run.to_string());
            self.add(format!("i.run_id = {run}"));
        }
        if let Some(agents) = &filter.agents {
            // Clients choose the length of the list, and connections cache one statement per length.
            let agents = padded(agents.iter().map(ToString::to_string));
            let placeholders: Vec<_> = agents.into_iter().map(|id| self.bind(id)).collect();
            self.add(format!("r.agent_id IN ({})", placeholders.join(", ")));
        }
        if let Some(of) = &filter.conversations {
            let parts = [
                ("conversation_id", Some(&of.conversation_id)),
                ("bot_id", of.bot_id.as_ref()),
                ("thread_id", of.thread_id.as_ref()),
            ];
            let mut keys = "SELECT key FROM conversations WHERE workspace_id = $1".to_owned();
            for (column, value) in parts {
                if let Some(value) = value {
                    let value = self.bind(value.as_str());
                    keys = format!("{keys} AND {column} = {value}");
                }
            }
            self.add(format!("r.conversation_key IN ({keys})"));
        }
        if let Some(status) = filter.status {
            self.add_status(status, filter.now);
        }
    }

    fn add_status(&mut self, status: InteractionStatus, now: i64) {
        const IS_SUBMITTED: &str = "(e.event_id IS NOT NULL OR i.given_at IS NOT NULL)";
        // A question about a budget ends with its run.
        const IS_CANCELLED: &str = "(r.status = 'cancelled' OR r.cancel_requested_at IS NOT NULL \
            OR (i.budget IS NOT NULL AND r.finished_at IS NOT NULL))";
        if status == InteractionStatus::Submitted {
            return self.add(IS_SUBMITTED);
        }
        self.add(format!("NOT {IS_SUBMITTED}"));
        if status == InteractionStatus::Cancelled {
            return self.add(IS_CANCELLED);
        }
        let now = self.bind(now);
        let is_closed = format!("(i.closed_at IS NOT NULL OR i.expires_at <= {now})");
        let not = if status == InteractionStatus::Open {
            "NOT "
        } else {
            ""
        };
        self.add(format!("NOT {IS_CANCELLED} AND {not}{is_closed}"));
    }
}

impl InteractionFilter {
    /// True when the limit of the page bounds the read, because an index serves the filter.
    fn has_index(&self) -> bool {
        let is_plain =
            self.conversations.is_none() && self.agents.is_none() && self.status.is_none();
        self.run_id.is_some() || is_plain
    }

    fn order(&self) -> &'static str {
        match self.order {
            InteractionOrder::Newest { .. } => "i.id DESC",
            InteractionOrder::Expiry { .. } => "i.expires_at, i.id",
        }
    }

    /// The order of the list after a question.
    fn after(&self, id: &str, expires_at: i64) -> Result<InteractionOrder, StoreError> {
        let id = parsed("interactions.id", id, id)?;
        Ok(match self.order {
            InteractionOrder::Newest { .. } => InteractionOrder::Newest { before: Some(id) },
            InteractionOrder::Expiry { .. } => InteractionOrder::Expiry {
                after: Some(ExpiryPosition { expires_at, id }),
            },
        })
    }
}

impl InteractionRepository<'_> {
    /// Questions of the workspace. With a filter by agent, conversation or status it scans at most [`MAX_SCANNED`]
    /// questions.
    pub async fn list_interactions(
        self,
        workspace: &WorkspaceId,
        filter: &InteractionFilter,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<InteractionsFound, StoreError> {
        let scan_end = self.interactions_scan_end(workspace, filter).await?;
        let mut only = Conditions::of(workspace);
        only.add_filter(filter);
        only.add_range(filter, scan_end);
        only.add(format!("i.id IS NOT NULL ORDER BY {}", filter.order()));
        let page = TextPage {
            columns: COLUMNS,
            from: FROM,
            owner: "i.workspace_id = $1",
            owner_values: vec![workspace.as_str().into()],
            key: ("i.id", "id"),
        };
        let conditions = only.all.join(" AND ");
        let rows = page.read(&self.db.readers, &conditions, only.values, bound.into());
        let found = rows.await?.try_map(|row| record(&row))?;
        let last = found.items.last().filter(|_| found.has_more);
        let next = match last {
            Some(last) => Some(filter.after(&last.id, last.expires_at)?),
            None => scan_end,
        };
        Ok(InteractionsFound {
            next,
            records: found.items,
        })
    }

    /// Last question of the scan, when more than [`MAX_SCANNED`] exist and no index serves the filter.
    async fn interactions_scan_end(
        self,
        workspace: &WorkspaceId,
        filter: &InteractionFilter,
    ) -> Result<Option<InteractionOrder>, StoreError> {
        if filter.has_index() {
            return Ok(None);
        }
        let mut only = Conditions::of(workspace);
        only.add("i.workspace_id = $1");
        only.add_range(filter, None);
        let offset = only.bind(signed(MAX_SCANNED - 1));
        let sql = format!(
            "SELECT i.id, i.expires_at FROM interactions i WHERE {} ORDER BY {} LIMIT 1 OFFSET {offset}",
            only.all.join(" AND "),
            filter.order()
        );
        let rows = self.db.readers.query_sql(sql, only.values).await?;
        let after = |id: String, expires_at| filter.after(&id, expires_at);
        rows.first()
            .map(|row| after(row.text("id")?, row.number("expires_at")?))
            .transpose()
    }
}
