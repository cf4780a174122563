//! Pages of the event log, for clients and runners.

use protocol::JsonObject;
use protocol::event::{AgentEventRecord, EventEnvelope};
use protocol::id::WorkspaceId;
use protocol::run::Page;
use serde_json::json;
use store::{EventFilter, EventPosition, EventRecord, StoreError};

use crate::error::ApiResult;
use crate::query::{names_of, page_limit};
use crate::response_memory::ResponseMemory;
use crate::state::ApiState;
use keys::cursor::{CursorKind, InvalidCursor};

/// Maximum characters of a summary.
const SUMMARY_CHARACTERS: usize = 1000;

/// Filters, cursor and size of a page of the log.
#[derive(Debug, Default)]
pub struct EventLogRange {
    /// Exact event types, separated by commas.
    pub event_types: Option<String>,
    pub before_cursor: Option<String>,
    pub limit: Option<u64>,
}

/// Reads a page of the log. `of` selects the conversations.
pub async fn page_events(
    state: &ApiState,
    workspace: &WorkspaceId,
    part: EventLogRange,
    of: EventFilter,
    memory: &ResponseMemory,
) -> ApiResult<Page<AgentEventRecord>> {
    let limit = page_limit(part.limit)?;
    // Part of the signature: a cursor is valid with the same filters only.
    let list = json!([
        "events",
        workspace.as_str(),
        of.conversations,
        part.event_types,
        of.conversation_key,
    ])
    .to_string();
    let cursors = state.runs.cursors();
    let after = match &part.before_cursor {
        None => None,
        Some(cursor) => Some(position(&cursors.decode(
            CursorKind::Events,
            &list,
            cursor,
        )?)?),
    };
    let filter = EventFilter {
        event_types: names_of("event_types", part.event_types.as_deref())?,
        ..of
    };
    let store = state.runs.store();
    let found = store
        .events()
        .list_events(workspace, &filter, after.as_ref(), memory.page(limit))
        .await?;
    let cursor = |received_at: i64, event_id: &str| {
        let bytes = position_bytes(received_at, event_id);
        cursors.encode(CursorKind::Events, &list, &bytes)
    };
    let mut items = Vec::with_capacity(found.records.len());
    for record in found.records {
        let cursor = cursor(record.received_at, &record.event_id);
        items.push(view(workspace, record, Some(cursor))?);
    }
    let next = found.next.as_ref();
    Ok(Page {
        items,
        // From the scan, not from the last item: a page without matches has a position, too.
        has_more: next.is_some(),
        next_cursor: next.map(|next| cursor(next.received_at, &next.event_id)),
        prev_cursor: None,
        total_count: None,
    })
}

/// A position as bytes of a cursor.
pub fn position_bytes(received_at: i64, event_id: &str) -> Vec<u8> {
    let mut bytes = received_at.to_be_bytes().to_vec();
    bytes.extend_from_slice(event_id.as_bytes());
    bytes
}

/// The position in the bytes of a cursor.
pub fn position(bytes: &[u8]) -> Result<EventPosition, InvalidCursor> {
    let (received_at, event_id) = bytes.split_first_chunk::<8>().ok_or(InvalidCursor)?;
    Ok(EventPosition {
        received_at: i64::from_be_bytes(*received_at),
        event_id: String::from_utf8(event_id.to_vec()).map_err(|_| InvalidCursor)?,
    })
}

/// Converts an event to its API form, without the raw payload.
pub fn view(
    workspace: &WorkspaceId,
    record: EventRecord,
    cursor: Option<String>,
) -> Result<AgentEventRecord, StoreError> {
    let event: EventEnvelope =
        serde_json::from_str(&record.envelope).map_err(|_| StoreError::Corrupt {
            column: "events.envelope",
            row: record.event_id.clone(),
        })?;
    let (conversation_id, thread_id) = event
        .conversation
        .map_or((None, None), |talk| (talk.conversation_id, talk.thread_id));
    let mut metadata = JsonObject::new();
    if let Some(run) = record.steered_into {
        metadata.insert("steered_into".to_owned(), json!(run));
        let status = match record.steering.as_deref() {
            Some("pulled") => "injected",
            Some(other) => other,
            None => "dropped",
        };
        let mut steering = json!({"status": status});
        if let Some(own) = record.taken_up_by {
            steering["run_id"] = json!(own);
        }
        metadata.insert("steering".to_owned(), steering);
    }
    let text = event.input.and_then(|input| input.text);
    Ok(AgentEventRecord {
        event_id: record.event_id,
        event_type: event.event_type,
        event_time: event.event_time,
        source: event.source,
        bot_id: event.bot_id,
        workspace_id: Some(workspace.to_string()),
        conversation_id,
        thread_id,
        actor_type: event.actor.as_ref().map(|actor| actor.actor_type.clone()),
        actor_id: event
            .actor
            .as_ref()
            .and_then(|actor| actor.actor_id.clone()),
        actor_name: event.actor.and_then(|actor| actor.actor_name),
        subject_type: event
            .subject
            .as_ref()
            .map(|subject| subject.subject_type.clone()),
        subject_id: event.subject.and_then(|subject| subject.subject_id),
        input_summary: text.map(|text| summary(&text)),
        input_ref: None,
        raw_ref: event.raw_ref.and_then(|raw| raw.ref_id.or(raw.storage_key)),
        seq: record.event_seq,
        cursor,
        created_at: record.received_at.div_euclid(1000),
        metadata,
    })
}

fn summary(text: &str) -> String {
    if text.chars().count() <= SUMMARY_CHARACTERS {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(SUMMARY_CHARACTERS - 3).collect();
    short.push_str("...");
    short
}
