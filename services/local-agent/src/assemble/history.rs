//! Conversation history from the gateway.

use std::collections::HashSet;

use protocol::context::AgentRunContext;
use protocol::history::TranscriptItem;
use protocol::message::{Message, MessageContent};
use protocol::run::Page;
use runner_kit::HostError;
use runner_kit::host::{HistoryPageQuery, PageDirection};

use crate::config::{Config, PictureLimits};
use crate::context::budget::RequestBudget;
use crate::context::checkpoint::Checkpoint;
use crate::context::estimate;
use crate::context::pictures;
use crate::host::LocalAgentHost;
use crate::model::without_thinking;

use super::survivable;

/// Pages per run. A longer conversation continues after its next summary.
const MAX_PAGES: usize = 64;
/// Maximum page size of the host API.
const PAGE_ITEMS: u32 = 100;
/// Divisor of the page size after a page was too large.
const SMALLER: u32 = 8;

/// Message of the history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) message: Message,
    /// Cursor of the page after this one.
    pub(crate) cursor: Option<String>,
}

/// Reads the history, oldest first: all items after the checkpoint, or as many of the newest as the budget
/// holds. Leaves out the current event and later messages of users.
pub(super) async fn read(
    host: &impl LocalAgentHost,
    context: &AgentRunContext,
    config: &Config,
    budget: &RequestBudget,
    checkpoint: Option<&Checkpoint>,
) -> Result<Vec<Remembered>, HostError> {
    let access = &context.context;
    if !access.available_apis.history_page || access.conversation_id.is_none() {
        return Ok(Vec::new());
    }
    let limit = config.history_fetch_limit.min(PAGE_ITEMS);
    // Not fatal: the newest part of the history serves when the read after the checkpoint fails.
    if let Some(covered) = checkpoint.map(|checkpoint| &checkpoint.covers_until) {
        match since(host, covered, limit).await {
            Ok(items) => return Ok(remember(items, context, config)),
            Err(failed) => {
                tracing::warn!(
                    "cannot read history since the summary, reading its newest part instead: {}",
                    survivable(failed)?
                );
            }
        }
    }
    Ok(remember(tail(host, budget, limit).await?, context, config))
}

async fn since(
    host: &impl LocalAgentHost,
    cursor: &str,
    limit: u32,
) -> Result<Vec<TranscriptItem>, HostError> {
    let mut items = Vec::new();
    let mut after = cursor.to_owned();
    // A repeated cursor would fetch the same pages until the page limit.
    let mut seen = HashSet::new();
    for _ in 0..MAX_PAGES {
        let query = HistoryPageQuery {
            after_cursor: Some(after.clone()),
            limit: Some(limit),
            direction: Some(PageDirection::Forward),
            include_attachments: true,
            ..HistoryPageQuery::default()
        };
        let page = page(host, query).await?;
        let next = next_of(&page);
        items.extend(page.items);
        match next {
            Some(next) if seen.insert(next.clone()) => after = next,
            _ => break,
        }
    }
    Ok(items)
}

/// Reads the end of the history page by page backward, until all is read or the budget is full. It stops at an
/// item that is too large to read, because that item would fail every later run of the conversation.
async fn tail(
    host: &impl LocalAgentHost,
    budget: &RequestBudget,
    limit: u32,
) -> Result<Vec<TranscriptItem>, HostError> {
    let mut newest_first = Vec::new();
    let mut before = None;
    let mut seen = HashSet::new();
    let mut tokens = 0;
    for _ in 0..MAX_PAGES {
        let query = HistoryPageQuery {
            before_cursor: before.take(),
            limit: Some(limit),
            direction: Some(PageDirection::Backward),
            include_attachments: true,
            ..HistoryPageQuery::default()
        };
        let page = match page(host, query).await {
            Ok(page) => page,
            Err(failed) if failed.is_answer_too_large() => {
                tracing::warn!("history before an item that is too large is left out: {failed}");
                break;
            }
            Err(failed) => return Err(failed),
        };
        for item in &page.items {
            // Without pictures, which have limits of their own.
            let message = message_of(item, &mut PictureLimits::default());
            tokens += message.as_ref().map_or(0, estimate::message);
        }
        let next = next_of(&page);
        newest_first.extend(page.items);
        // Without a budget there is no other measure: one page is enough.
        let is_full = tokens > budget.input;
        match next.filter(|_| !is_full) {
            Some(next) if seen.insert(next.clone()) => before = Some(next),
            _ => break,
        }
    }
    newest_first.reverse();
    Ok(newest_first)
}

/// Cursor of the next page. An empty cursor would restart the list.
fn next_of(page: &Page<TranscriptItem>) -> Option<String> {
    let next = page.next_cursor.clone();
    next.filter(|next| page.has_more && !next.is_empty())
}

/// Reads a page; retries with fewer items, down to one, when the page is too large.
async fn page(
    host: &impl LocalAgentHost,
    mut query: HistoryPageQuery,
) -> Result<Page<TranscriptItem>, HostError> {
    loop {
        match (host.history(&query).await, query.limit) {
            // At a limit of 1 the item itself is too large, and the caller decides.
            (Err(failed), Some(limit)) if failed.is_answer_too_large() && limit > 1 => {
                query.limit = Some((limit / SMALLER).max(1));
            }
            (answered, _) => return answered,
        }
    }
}

fn remember(
    items: Vec<TranscriptItem>,
    context: &AgentRunContext,
    config: &Config,
) -> Vec<Remembered> {
    let last = last_before(&items, context);
    let items = items.into_iter();
    let before = items.filter(|item| is_before(item, context, last));
    let mut cursor = None;
    let cursors = before.map(|item| {
        // Summaries end here: later runs read the items that are left out now.
        if item.seq <= last {
            cursor.clone_from(&item.cursor);
        }
        (item, cursor.clone())
    });
    // Newest first: the picture limits go to the latest pictures.
    let mut left = config.pictures;
    let mut newest_first: Vec<_> = cursors
        .collect::<Vec<_>>()
        .into_iter()
        .rev()
        .filter_map(|(item, cursor)| {
            let message = message_of(&item, &mut left)?;
            Some(Remembered { message, cursor })
        })
        .collect();
    newest_first.reverse();
    newest_first
}

/// Sequence number of the last user message before the current event.
fn last_before(items: &[TranscriptItem], context: &AgentRunContext) -> i64 {
    let current = &context.event.event_id;
    // The transcript may contain the event itself; the gateway's number is the fallback if it does not.
    let own = items
        .iter()
        .find(|item| item.event_id == *current && item.role == "user");
    let last_seen = context.context.transcript_seq;
    own.map(|own| own.seq - 1).or(last_seen).unwrap_or(i64::MAX)
}

/// True for items before the current event. The gateway stores user messages on arrival, including steering
/// input of this run and messages that wait for a run. Answers to earlier messages may be stored later.
fn is_before(item: &TranscriptItem, context: &AgentRunContext, last: i64) -> bool {
    let is_own = item.event_id == context.event.event_id
        || item.run_id.as_deref() == Some(context.run_id.as_str());
    !is_own && (item.role != "user" || item.seq <= last)
}

/// The stored message when it has content, else its role and text. `None` for instructions: only the prompt
/// instructs. Pictures within `left` stay; the others become descriptions.
fn message_of(item: &TranscriptItem, left: &mut PictureLimits) -> Option<Message> {
    let stored = item.content_json.as_ref();
    let stored = stored.and_then(|stored| serde_json::from_str::<Message>(stored.get()).ok());
    let text = item.content.as_deref().filter(|text| !text.is_empty());
    let plain = text.map(|text| Message::text(&item.role, text));
    // The stored message may be empty or unreadable; role and text serve then.
    let message = stored.filter(has_content).or(plain)?;
    let is_conversation_role = matches!(message.role.as_str(), "user" | "assistant" | "tool");
    if !is_conversation_role {
        return None;
    }
    // Reasoning and signatures are sent back within their run only.
    let mut message = without_thinking(&message);
    pictures::of_past(&mut message, item, |picture| left.take(picture.bytes));
    message.provider_specific_fields = None;
    for call in message.tool_calls.iter_mut().flatten() {
        call.provider_specific_fields = None;
    }
    has_content(&message).then_some(message)
}

fn has_content(message: &Message) -> bool {
    match &message.content {
        Some(MessageContent::Text(text)) => !text.is_empty(),
        Some(MessageContent::Parts(parts)) => !parts.is_empty(),
        None => message.tool_calls.is_some(),
    }
}
