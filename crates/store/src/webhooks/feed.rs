//! Messages in the order of their positions, for readers without an address.

use domain::api_key::AgentReach;
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::webhook::WebhookEventType;

use crate::error::{StoreError, parsed, signed, unsigned};
use crate::repositories::Notifications;
use crate::sql::{Sql as _, SqlRow};

/// Messages that a page reads at most, for readers of few agents.
const SCANNED: u64 = 1000;

pub(super) const MESSAGE_COLUMNS: &str = "m.position, m.id, m.workspace_id, m.event_type, m.run_id, m.agent_id, \
     m.subject, m.created_at";

/// A message with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRecord {
    pub position: u64,
    pub id: String,
    pub workspace: WorkspaceId,
    pub kind: WebhookEventType,
    pub run_id: Option<RunId>,
    pub agent_id: Option<AgentId>,
    /// Id of the question or endpoint, or name of the budget.
    pub subject: Option<String>,
    /// Epoch milliseconds.
    pub created_at: i64,
}

/// Messages after a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagesFound {
    pub items: Vec<MessageRecord>,
    /// Position up to which messages were read.
    pub through: u64,
    pub has_more: bool,
}

/// Positions of all messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedBounds {
    /// The last message.
    pub last: u64,
    /// The last message that was deleted; 0: none.
    pub deleted_through: u64,
}

impl Notifications<'_> {
    /// Messages of a workspace after a position, oldest first, as far as the reader reaches their agents. A message
    /// without an agent needs the reach of all.
    pub async fn messages_after(
        self,
        workspace: &WorkspaceId,
        reach: &AgentReach,
        after: u64,
        limit: u64,
    ) -> Result<MessagesFound, StoreError> {
        let read = match reach {
            AgentReach::All => limit,
            AgentReach::Only(_) => SCANNED,
        };
        // One more shows whether another follows.
        let sql = format!(
            "SELECT {MESSAGE_COLUMNS} FROM webhook_messages m WHERE m.workspace_id = $1 AND m.position > $2 \
             ORDER BY m.position LIMIT {}",
            read + 1
        );
        let values = vec![workspace.as_str().into(), signed(after).into()];
        let rows = self.db.readers.query_sql(sql, values).await?;
        let mut found = MessagesFound {
            items: Vec::new(),
            through: after,
            has_more: false,
        };
        for (number, row) in (0_u64..).zip(&rows) {
            if number == read || found.items.len() as u64 == limit {
                found.has_more = true;
                break;
            }
            let message = read_message(row)?;
            found.through = message.position;
            let is_reached = match message.agent_id {
                Some(agent) => reach.reaches(agent),
                None => *reach == AgentReach::All,
            };
            if is_reached {
                found.items.push(message);
            }
        }
        Ok(found)
    }

    /// Positions of the first and last message.
    pub async fn feed_bounds(self) -> Result<FeedBounds, StoreError> {
        let sql = "SELECT position, deleted_through FROM webhook_feed WHERE id = 1".to_owned();
        let found = self.db.readers.query_sql(sql, Vec::new()).await?;
        let read = |column: &str| {
            let value = found.first().map_or(Ok(0), |row| row.number(column))?;
            unsigned("webhook_feed", column, value)
        };
        Ok(FeedBounds {
            last: read("position")?,
            deleted_through: read("deleted_through")?,
        })
    }
}

pub(super) fn event_type(row: &SqlRow, id: &str) -> Result<WebhookEventType, StoreError> {
    WebhookEventType::parse(&row.text("event_type")?).ok_or_else(|| StoreError::Corrupt {
        column: "webhook_messages.event_type",
        row: id.to_owned(),
    })
}

pub(super) fn read_message(row: &SqlRow) -> Result<MessageRecord, StoreError> {
    let id = row.text("id")?;
    let (run_id, agent_id) = (row.text_if_any("run_id")?, row.text_if_any("agent_id")?);
    Ok(MessageRecord {
        position: unsigned("webhook_messages.position", &id, row.number("position")?)?,
        workspace: WorkspaceId(row.text("workspace_id")?),
        kind: event_type(row, &id)?,
        run_id: run_id
            .map(|run| parsed("webhook_messages.run_id", &id, &run))
            .transpose()?,
        agent_id: agent_id
            .map(|agent| parsed("webhook_messages.agent_id", &id, &agent))
            .transpose()?,
        subject: row.text_if_any("subject")?,
        created_at: row.number("created_at")?,
        id,
    })
}
