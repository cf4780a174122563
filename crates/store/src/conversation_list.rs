//! List of conversations, by their newest event.

use std::collections::HashMap;

use protocol::id::WorkspaceId;
use sea_orm::Value;

use crate::error::{StoreError, signed};
use crate::event_log::EventPosition;
use crate::page::PageBound;
use crate::repositories::ConversationRepository;
use crate::runs::{MAX_SCANNED, input_texts};
use crate::sql::{PLAN_FENCE, Sql, SqlRow, returned};

/// A conversation and its newest event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConversationRecord {
    pub conversation_id: String,
    /// `''` without a bot.
    pub bot_id: String,
    /// `''` without a thread.
    pub thread_id: String,
    /// Number of its events.
    pub events: i64,
    /// Number of its transcript items.
    pub messages: i64,
    /// True while one of its runs has not ended.
    pub is_busy: bool,
    pub newest: EventPosition,
    /// The first characters of the newest event's input text.
    pub input: Option<String>,
}

/// A page of conversations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversationsFound {
    pub conversations: Vec<ConversationRecord>,
    /// Start of the next page: after the last conversation, or at the end of the scan. `None`: the list is complete.
    pub next: Option<EventPosition>,
}

/// An event of the scan.
struct ScannedEvent {
    position: EventPosition,
    /// Its conversation, if it is the newest event there.
    newest_of: Option<String>,
}

/// Maximum bytes of a record: ids of at most 512 characters each, and the text.
const RECORD_BYTES: usize = 4096;

/// Events of the first read. Each further read doubles.
const FIRST_READ: u64 = 256;

impl ConversationRepository<'_> {
    /// Conversations of the workspace, those with the newest events first, after `position`. Scans at most
    /// 10,000 events. An input has at most `characters` characters.
    pub async fn list_conversations(
        self,
        workspace: &WorkspaceId,
        after: Option<EventPosition>,
        bound: impl Into<PageBound<'_>>,
        characters: u32,
    ) -> Result<ConversationsFound, StoreError> {
        let bound = bound.into();
        let limit = usize::try_from(bound.limit).unwrap_or(usize::MAX);
        // Reserved before the read, so concurrent lists cannot exceed the memory of the process.
        bound.budget.take(limit.saturating_mul(RECORD_BYTES))?;
        let mut newest: Vec<(EventPosition, String)> = Vec::new();
        let (mut after, mut size, mut scanned) = (after, FIRST_READ, 0);
        let next = 'scan: loop {
            let events = self.newest_events(workspace, after.as_ref(), size).await?;
            let is_end = (events.len() as u64) < size;
            for event in events {
                if let Some(key) = event.newest_of {
                    if newest.len() == limit {
                        // One conversation more than the page holds: the next page continues after the last scanned
                        // event.
                        break 'scan after;
                    }
                    newest.push((event.position.clone(), key));
                }
                after = Some(event.position);
            }
            scanned += size;
            if is_end {
                break None;
            }
            if scanned >= MAX_SCANNED {
                break after;
            }
            size = (size * 2).min(MAX_SCANNED - scanned);
        };
        Ok(ConversationsFound {
            conversations: self.records(workspace, newest, characters).await?,
            next,
        })
    }

    /// A part of the event log, newest first.
    async fn newest_events(
        self,
        workspace: &WorkspaceId,
        after: Option<&EventPosition>,
        limit: u64,
    ) -> Result<Vec<ScannedEvent>, StoreError> {
        let mut values: Vec<Value> = vec![workspace.as_str().into(), signed(limit).into()];
        let mut older = "";
        if let Some(EventPosition {
            received_at,
            event_id,
        }) = after
        {
            older = "AND e.received_at <= $3 AND (e.received_at < $3 OR e.event_id < $4)";
            values.extend([(*received_at).into(), event_id.as_str().into()]);
        }
        // `received_at >= 0` selects the partial index `events_newest`. A join could read all conversations.
        let sql = format!(
            "SELECT e.event_id, e.received_at, (SELECT c.key FROM conversations c \
             WHERE c.key = e.conversation_key AND c.last_event_seq = e.event_seq {PLAN_FENCE}) AS newest_of \
             FROM events e WHERE e.workspace_id = $1 AND e.received_at >= 0 {older} \
             ORDER BY e.received_at DESC, e.event_id DESC LIMIT $2"
        );
        let rows = self.db.readers.query_sql(sql, values).await?;
        let read = |row: &SqlRow| {
            Ok(ScannedEvent {
                position: EventPosition {
                    received_at: row.number("received_at")?,
                    event_id: row.text("event_id")?,
                },
                newest_of: row.text_if_any("newest_of")?,
            })
        };
        rows.iter().map(read).collect()
    }

    async fn records(
        self,
        workspace: &WorkspaceId,
        newest: Vec<(EventPosition, String)>,
        characters: u32,
    ) -> Result<Vec<ConversationRecord>, StoreError> {
        let events = newest.iter().map(|(event, _)| event.event_id.as_str());
        let mut inputs = input_texts(&self.db.readers, workspace, events, characters).await?;
        let keys = newest.iter().map(|(_, key)| [key.as_str().into()]);
        let sql = format!(
            "SELECT c.key, c.conversation_id, c.bot_id, c.thread_id, c.last_event_seq, \
             c.last_transcript_seq, EXISTS (SELECT 1 FROM runs r WHERE r.conversation_key = c.key \
             AND r.finished_at IS NULL {PLAN_FENCE}) AS is_busy \
             FROM rows, conversations c WHERE c.key = ?1"
        );
        let rows = returned(&self.db.readers, keys.collect(), &sql).await?;
        let named = rows.into_iter().map(|row| Ok((row.text("key")?, row)));
        let rows = named.collect::<Result<HashMap<_, _>, StoreError>>()?;
        let mut records = Vec::with_capacity(newest.len());
        for (event, key) in newest {
            // A missing row was deleted between the two reads.
            if let Some(row) = rows.get(&key) {
                records.push(ConversationRecord {
                    conversation_id: row.text("conversation_id")?,
                    bot_id: row.text("bot_id")?,
                    thread_id: row.text("thread_id")?,
                    events: row.number("last_event_seq")?,
                    messages: row.number("last_transcript_seq")?,
                    is_busy: row.flag("is_busy")?,
                    input: inputs.remove(&event.event_id),
                    newest: event,
                });
            }
        }
        Ok(records)
    }
}
