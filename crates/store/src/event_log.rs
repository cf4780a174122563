//! Event log: all received events, with or without a run.

use protocol::id::{RunId, WorkspaceId};
use sea_orm::sea_query::Expr;
use sea_orm::{
    ColumnTrait, Condition, EntityTrait, ExprTrait, QueryFilter, QueryOrder, QuerySelect, Select,
};

use crate::conversation::{ConversationsOf, of_conversations};
use crate::entity::{events, raw_payloads};
use crate::error::{StoreError, parsed};
use crate::page::{PageBound, PageOf};
use crate::repositories::EventRepository;
use crate::runs::MAX_SCANNED;
use crate::sql::{Sql, padded};
use crate::steering::{DROPPED, steering_status};

/// Tolerance in milliseconds: a run may be older than the event that it takes up.
const CLOCK_TOLERANCE: i64 = 60_000;

/// A stored event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventRecord {
    pub event_id: String,
    /// The envelope as JSON.
    pub envelope: String,
    pub conversation_key: Option<String>,
    /// Sequence in its conversation.
    pub event_seq: Option<i64>,
    pub received_at: i64,
    /// The sender's answer, as JSON.
    pub answer: String,
    /// The run that absorbed it.
    pub steered_into: Option<RunId>,
    /// Its own run, created because the absorbing run did not pull it.
    pub taken_up_by: Option<RunId>,
    /// Steering status in that run: `queued`, `pulled` or `dropped`.
    pub steering: Option<String>,
}

/// Filter of an event list.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Exact types; all when empty.
    pub event_types: Vec<String>,
    pub conversations: Option<ConversationsOf>,
    /// One conversation, by its key.
    pub conversation_key: Option<String>,
    /// Only events of the conversation after this sequence.
    pub after_seq: Option<i64>,
}

/// Position of an event in a list, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPosition {
    pub received_at: i64,
    pub event_id: String,
}

/// A page of events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventsFound {
    pub records: Vec<EventRecord>,
    /// Start of the next page: after the last event, or at the end of the scan for rare types. `None`: the list is
    /// complete.
    pub next: Option<EventPosition>,
}

impl EventRepository<'_> {
    pub async fn find_event(
        self,
        workspace: &WorkspaceId,
        event_id: &str,
    ) -> Result<Option<EventRecord>, StoreError> {
        let key = (workspace.to_string(), event_id.to_owned());
        match events::Entity::find_by_id(key)
            .one(&self.db.readers)
            .await?
        {
            Some(row) => self.event_record(row).await.map(Some),
            None => Ok(None),
        }
    }

    /// The event of a row, with its steering status.
    async fn event_record(self, row: events::Model) -> Result<EventRecord, StoreError> {
        let steering = match &row.steered_into {
            None => None,
            Some(run) => steering_status(&self.db.readers, run, &row.event_id).await?,
        };
        // Only a dropped event can get a run of its own.
        let taken_up_by = match steering.as_deref() {
            Some(DROPPED) => self.run_created_for(&row).await?,
            _ => None,
        };
        to_record(row, steering, taken_up_by)
    }

    /// The run created for an absorbed event after the absorbing run dropped it.
    async fn run_created_for(self, event: &events::Model) -> Result<Option<RunId>, StoreError> {
        let (Some(key), Some(absorbed)) = (&event.conversation_key, &event.steered_into) else {
            return Ok(None);
        };
        let sql = "SELECT id FROM runs WHERE conversation_key = $1 AND created_at >= $2 AND event_id = $3 \
                   AND id <> $4 ORDER BY created_at LIMIT 1";
        let values = vec![
            key.as_str().into(),
            // The other run's end may be timed just before; replica clocks differ.
            (event.received_at - CLOCK_TOLERANCE).into(),
            event.event_id.as_str().into(),
            absorbed.as_str().into(),
        ];
        let found = self.db.readers.query_sql(sql.to_owned(), values).await?;
        let run = found.first().map(|row| row.text("id")).transpose()?;
        run.map(|run| parsed("runs.id", &event.event_id, &run))
            .transpose()
    }

    /// The platform's own payload of an event, as JSON, if any.
    pub async fn find_raw_payload(
        self,
        workspace: &WorkspaceId,
        event_id: &str,
    ) -> Result<Option<String>, StoreError> {
        let key = (workspace.to_string(), event_id.to_owned());
        let row = raw_payloads::Entity::find_by_id(key)
            .one(&self.db.readers)
            .await?;
        Ok(row.map(|row| row.payload))
    }

    /// Events of the workspace, newest first, after `position`. With a type filter it scans at most
    /// [`MAX_SCANNED`] events.
    pub async fn list_events(
        self,
        workspace: &WorkspaceId,
        filter: &EventFilter,
        after: Option<&EventPosition>,
        bound: impl Into<PageBound<'_>>,
    ) -> Result<EventsFound, StoreError> {
        let own = of_conversations(
            events::Column::ConversationKey,
            workspace,
            filter.conversations.as_ref(),
            filter.conversation_key.as_deref(),
        );
        let own = own.unwrap_or_else(|| of_workspace(workspace));
        let mut query = events::Entity::find().filter(own);
        if let Some(seq) = filter.after_seq {
            query = query.filter(events::Column::EventSeq.gt(seq));
        }
        if let Some(position) = after {
            query = query.filter(is_older(position));
        }
        let mut scan_end = None;
        if !filter.event_types.is_empty() {
            // Without this bound a list of a rare type would scan the entire log.
            scan_end = self.events_scan_end(query.clone()).await?;
            query = query.filter(events::Column::EventType.is_in(padded(&filter.event_types)));
        }
        if let Some(end) = &scan_end {
            query = query.filter(is_seen(end));
        }
        let rows = PageOf {
            rows: query
                .order_by_desc(events::Column::ReceivedAt)
                .order_by_desc(events::Column::EventId),
            key: events::Column::EventId,
            owner: events::Column::WorkspaceId.eq(workspace.as_str()).into(),
            without: None,
        };
        let rows = rows.read::<String>(&self.db.readers, bound.into()).await?;
        let has_more = rows.has_more;
        let mut records = Vec::with_capacity(rows.items.len());
        for row in rows.items {
            records.push(self.event_record(row).await?);
        }
        let last = records.last().map(|record| EventPosition {
            received_at: record.received_at,
            event_id: record.event_id.clone(),
        });
        // At the end of the scan a page may be short or empty; the client continues from there.
        let next = if has_more { last } else { scan_end };
        Ok(EventsFound { records, next })
    }

    /// Last event of the scan, when more than [`MAX_SCANNED`] match.
    async fn events_scan_end(
        self,
        all: Select<events::Entity>,
    ) -> Result<Option<EventPosition>, StoreError> {
        let last: Option<(i64, String)> = all
            .select_only()
            .column(events::Column::ReceivedAt)
            .column(events::Column::EventId)
            .order_by_desc(events::Column::ReceivedAt)
            .order_by_desc(events::Column::EventId)
            .offset(MAX_SCANNED - 1)
            .limit(1)
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        Ok(last.map(|(received_at, event_id)| EventPosition {
            received_at,
            event_id,
        }))
    }
}

/// All events of a workspace. The second condition is always true and matches the partial index `events_newest`.
/// That index serves lists, and no lookup by key or id.
fn of_workspace(workspace: &WorkspaceId) -> Condition {
    Condition::all()
        .add(events::Column::WorkspaceId.eq(workspace.as_str()))
        .add(Expr::cust("received_at >= 0"))
}

fn is_older(position: &EventPosition) -> Condition {
    let (at, id) = (events::Column::ReceivedAt, events::Column::EventId);
    let edge = at
        .lt(position.received_at)
        .or(id.lt(position.event_id.as_str()));
    // The first condition is an index range, the second excludes ties at its edge.
    Condition::all().add(at.lte(position.received_at)).add(edge)
}

/// Events up to the end of the scan, inclusive.
fn is_seen(end: &EventPosition) -> Condition {
    let (at, id) = (events::Column::ReceivedAt, events::Column::EventId);
    let edge = at.gt(end.received_at).or(id.gte(end.event_id.as_str()));
    Condition::all().add(at.gte(end.received_at)).add(edge)
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
