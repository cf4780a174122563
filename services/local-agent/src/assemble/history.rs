//! What was said before, from the host's history.

use std::collections::HashSet;

use protocol::context::AgentRunContext;
use protocol::history::TranscriptItem;
use protocol::message::{Message, MessageContent};
use protocol::run::Page;
use runner_kit::HostError;
use runner_kit::host::{Direction, HistoryQuery};

use crate::config::Config;
use crate::context::budget::Budget;
use crate::context::checkpoint::Checkpoint;
use crate::context::estimate;
use crate::context::pictures;
use crate::host::AgentHost;
use crate::model::without_thinking;

use super::over;

/// Pages of one run; a conversation that is longer goes on behind its next summary.
const MOST_PAGES: usize = 64;
/// The host gives no more in a page.
const PAGE_ITEMS: u32 = 100;
/// A page that is too large is asked for again with so many times fewer items.
const SMALLER: u32 = 8;

/// A message of the history.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Remembered {
    pub(crate) message: Message,
    /// Where the history goes on with all that is neither this one nor one before it.
    pub(crate) cursor: Option<String>,
}

/// The history, oldest first: all since the checkpoint, or as much of the end as the budget can be
/// filled with. Neither the current event is in it, nor what users have said since.
pub(super) async fn read(
    host: &impl AgentHost,
    context: &AgentRunContext,
    config: &Config,
    budget: &Budget,
    checkpoint: Option<&Checkpoint>,
) -> Result<Vec<Remembered>, HostError> {
    let access = &context.context;
    if !access.available_apis.history_page || access.conversation_id.is_none() {
        return Ok(Vec::new());
    }
    let limit = config.history_fetch_limit.min(PAGE_ITEMS);
    if let Some(covered) = checkpoint.map(|checkpoint| &checkpoint.covers_until) {
        match since(host, covered, limit).await {
            Ok(items) => return Ok(remember(items, context)),
            Err(failed) => {
                tracing::warn!(
                    "the history since the summary cannot be read: {}",
                    over(failed)?
                );
            }
        }
    }
    Ok(remember(tail(host, budget, limit).await?, context))
}

async fn since(
    host: &impl AgentHost,
    cursor: &str,
    limit: u32,
) -> Result<Vec<TranscriptItem>, HostError> {
    let mut items = Vec::new();
    let mut after = cursor.to_owned();
    let mut seen = HashSet::new();
    for _ in 0..MOST_PAGES {
        let query = HistoryQuery {
            after_cursor: Some(after.clone()),
            limit: Some(limit),
            direction: Some(Direction::Forward),
            ..HistoryQuery::default()
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

/// The end of the history: page by page backward, until it is all or fills the budget. An item that is too large to
/// be read is where it begins: it would fail every run of the conversation that is still to come.
async fn tail(
    host: &impl AgentHost,
    budget: &Budget,
    limit: u32,
) -> Result<Vec<TranscriptItem>, HostError> {
    let mut newest_first = Vec::new();
    let mut before = None;
    let mut seen = HashSet::new();
    let mut tokens = 0;
    for _ in 0..MOST_PAGES {
        let query = HistoryQuery {
            before_cursor: before.take(),
            limit: Some(limit),
            direction: Some(Direction::Backward),
            ..HistoryQuery::default()
        };
        let page = match page(host, query).await {
            Ok(page) => page,
            Err(failed) if failed.is_answer_too_large() => {
                tracing::warn!(
                    "the history before an item that is too large is left out: {failed}"
                );
                break;
            }
            Err(failed) => return Err(failed),
        };
        for item in &page.items {
            tokens += message_of(item).as_ref().map_or(0, estimate::message);
        }
        let next = next_of(&page);
        newest_first.extend(page.items);
        // Without a budget nothing tells when it is enough: one page is.
        let is_full = tokens > budget.input;
        match next.filter(|_| !is_full) {
            Some(next) if seen.insert(next.clone()) => before = Some(next),
            _ => break,
        }
    }
    newest_first.reverse();
    Ok(newest_first)
}

/// The cursor of the page behind this one. An empty cursor would begin the list again.
fn next_of(page: &Page<TranscriptItem>) -> Option<String> {
    let next = page.next_cursor.clone();
    next.filter(|next| page.has_more && !next.is_empty())
}

/// A page; a smaller one, down to a single item, where it is too large.
async fn page(
    host: &impl AgentHost,
    mut query: HistoryQuery,
) -> Result<Page<TranscriptItem>, HostError> {
    loop {
        match (host.history(&query).await, query.limit) {
            (Err(failed), Some(limit)) if failed.is_answer_too_large() && limit > 1 => {
                query.limit = Some((limit / SMALLER).max(1));
            }
            (answered, _) => return answered,
        }
    }
}

fn remember(items: Vec<TranscriptItem>, context: &AgentRunContext) -> Vec<Remembered> {
    let last = last_before(&items, context);
    let items = items.into_iter();
    let before = items.filter(|item| is_before(item, context, last));
    let mut cursor = None;
    let remembered = before.filter_map(|item| {
        // A summary reaches no further: what is left out here, the runs to come shall read.
        if item.seq <= last {
            cursor.clone_from(&item.cursor);
        }
        Some(Remembered {
            message: message_of(&item)?,
            cursor: cursor.clone(),
        })
    });
    remembered.collect()
}

/// The place of the last message of a user that came before the current event.
fn last_before(items: &[TranscriptItem], context: &AgentRunContext) -> i64 {
    let current = &context.event.event_id;
    let own = items
        .iter()
        .find(|item| item.event_id == *current && item.role == "user");
    let told = context.context.transcript_seq;
    own.map(|own| own.seq - 1).or(told).unwrap_or(i64::MAX)
}

/// Whether it was said before the current event. The host writes down what users say as soon as it comes: also what
/// this run gets by steering, and what waits for a run of its own. Answers to what came before may be written later.
fn is_before(item: &TranscriptItem, context: &AgentRunContext, last: i64) -> bool {
    let is_own = item.event_id == context.event.event_id
        || item.run_id.as_deref() == Some(context.run_id.as_str());
    !is_own && (item.role != "user" || item.seq <= last)
}

/// The whole message where it is one that says something; else its role and text. Instructions come from
/// the prompt alone: nobody in the history gives them.
fn message_of(item: &TranscriptItem) -> Option<Message> {
    let whole = item.content_json.as_ref();
    let whole = whole.and_then(|whole| serde_json::from_str::<Message>(whole.get()).ok());
    let text = item.content.as_deref().filter(|text| !text.is_empty());
    let told = text.map(|text| Message::text(&item.role, text));
    let message = whole.filter(says_something).or(told)?;
    let is_said = matches!(message.role.as_str(), "user" | "assistant" | "tool");
    if !is_said {
        return None;
    }
    // Thoughts and signatures go back within their run alone.
    let mut message = without_thinking(&pictures::told(message));
    message.provider_specific_fields = None;
    for call in message.tool_calls.iter_mut().flatten() {
        call.provider_specific_fields = None;
    }
    says_something(&message).then_some(message)
}

fn says_something(message: &Message) -> bool {
    match &message.content {
        Some(MessageContent::Text(text)) => !text.is_empty(),
        Some(MessageContent::Parts(parts)) => !parts.is_empty(),
        None => message.tool_calls.is_some(),
    }
}
