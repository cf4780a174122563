//! The event log: what came in, whoever wanted it.

use protocol::id::{RunId, WorkspaceId};
use sea_orm::{ColumnTrait, Condition, EntityTrait, ExprTrait, QueryFilter, QueryOrder};

use crate::connect::Store;
use crate::conversation::{ConversationsOf, of_conversations};
use crate::entity::{events, raw_payloads};
use crate::error::{StoreError, parsed};
use crate::page::{Found, PageBound, PageOf};
use crate::sql::{Sql, padded};
use crate::steering::DROPPED;

/// Milliseconds by which a run may be older than the event that it takes up.
const AROUND_ENDS: i64 = 60_000;

/// A stored event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRecord {
    pub event_id: String,
    /// The envelope as JSON.
    pub envelope: String,
    pub conversation_key: Option<String>,
    /// The place in its conversation.
    pub event_seq: Option<i64>,
    pub received_at: i64,
    /// What its sender was told, as JSON.
    pub answer: String,
    /// The run that absorbed it.
    pub steered_into: Option<RunId>,
    /// The run of its own that it got, since that one has not pulled it.
    pub taken_up_by: Option<RunId>,
    /// What became of it there: `queued`, `pulled` or `dropped`.
    pub steering: Option<String>,
}

/// Which events a list shows.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Exact types; all when empty.
    pub event_types: Vec<String>,
    pub conversations: Option<ConversationsOf>,
    /// One conversation, by its key.
    pub conversation_key: Option<String>,
}

/// The place of an event in a list, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPosition {
    pub received_at: i64,
    pub event_id: String,
}

impl Store {
    /// An event of the workspace.
    pub async fn find_event(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
    ) -> Result<Option<EventRecord>, StoreError> {
        let key = (workspace.to_string(), event_id.to_owned());
        match events::Entity::find_by_id(key).one(&self.readers).await? {
            Some(row) => self.event_record(row).await.map(Some),
            None => Ok(None),
        }
    }

    /// The event of a row, with what became of it.
    async fn event_record(&self, row: events::Model) -> Result<EventRecord, StoreError> {
        let steering = match &row.steered_into {
            None => None,
            Some(run) => self.steering_status(run, &row.event_id).await?,
        };
        let taken_up_by = match steering.as_deref() {
            Some(DROPPED) => self.run_that_took_up(&row).await?,
            _ => None,
        };
        to_record(row, steering, taken_up_by)
    }

    /// The run of its own that an event got which another run had absorbed and not pulled.
    async fn run_that_took_up(&self, event: &events::Model) -> Result<Option<RunId>, StoreError> {
        let (Some(key), Some(absorbed)) = (&event.conversation_key, &event.steered_into) else {
            return Ok(None);
        };
        let sql = "SELECT id FROM runs WHERE conversation_key = $1 AND created_at >= $2 AND event_id = $3 \
                   AND id <> $4 ORDER BY created_at LIMIT 1";
        let values = vec![
            key.as_str().into(),
            // The end of the other run may have been told just before; and clocks of replicas differ.
            (event.received_at - AROUND_ENDS).into(),
            event.event_id.as_str().into(),
            absorbed.as_str().into(),
        ];
        let found = self.readers.query_sql(sql.to_owned(), values).await?;
        let run = found.first().map(|row| row.text("id")).transpose()?;
        run.map(|run| parsed("runs.id", &event.event_id, &run))
            .transpose()
    }

    /// The platform's own payload of an event, as JSON, when it came with one.
    pub async fn find_raw_payload(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
    ) -> Result<Option<String>, StoreError> {
        let key = (workspace.to_string(), event_id.to_owned());
        let row = raw_payloads::Entity::find_by_id(key)
            .one(&self.readers)
            .await?;
        Ok(row.map(|row| row.payload))
    }

    /// Events of the workspace, newest first, after `position`.
    pub async fn list_events(
        &self,
        workspace: &WorkspaceId,
        filter: &EventFilter,
        after: Option<&EventPosition>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<Found<EventRecord>, StoreError> {
        let own = of_conversations(
            events::Column::ConversationKey,
            workspace,
            filter.conversations.as_ref(),
            filter.conversation_key.as_deref(),
        );
        let own = own.unwrap_or_else(|| events::Column::WorkspaceId.eq(workspace.as_str()).into());
        let mut query = events::Entity::find().filter(own);
        if !filter.event_types.is_empty() {
            query = query.filter(events::Column::EventType.is_in(padded(&filter.event_types)));
        }
        if let Some(position) = after {
            let same = events::Column::ReceivedAt
                .eq(position.received_at)
                .and(events::Column::EventId.lt(position.event_id.as_str()));
            let older = events::Column::ReceivedAt.lt(position.received_at);
            query = query.filter(Condition::any().add(older).add(same));
        }
        let rows = PageOf {
            rows: query
                .order_by_desc(events::Column::ReceivedAt)
                .order_by_desc(events::Column::EventId),
            key: events::Column::EventId,
            owner: events::Column::WorkspaceId.eq(workspace.as_str()).into(),
            without: None,
        };
        let rows = rows.read::<String>(&self.readers, bound.into()).await?;
        let mut found = Found {
            items: Vec::with_capacity(rows.items.len()),
            has_more: rows.has_more,
        };
        for row in rows.items {
            found.items.push(self.event_record(row).await?);
        }
        Ok(found)
    }
}

fn to_record(
    row: events::Model,
    steering: Option<String>,
    taken_up_by: Option<RunId>,
) -> Result<EventRecord, StoreError> {
    let steered_into = row.steered_into.as_deref();
    Ok(EventRecord {
        taken_up_by,
        steered_into: steered_into
            .map(|run| parsed("events.steered_into", &row.event_id, run))
            .transpose()?,
        steering,
        event_id: row.event_id,
        envelope: row.envelope,
        conversation_key: row.conversation_key,
        event_seq: row.event_seq,
        received_at: row.received_at,
        answer: row.answer,
    })
}
