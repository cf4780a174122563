//! Compaction: summarises old messages and keeps recent ones, so that a request fits its budget. Runs before
//! every model call and returns at once when the request is known to fit.

mod plan; // selection by estimates

use protocol::message::Message;

use crate::context::budget::RequestBudget;
use crate::context::conversation::RequestMessages;
use crate::context::references::ReferenceList;
use crate::context::summary::request::{SummaryRequest, request};
use crate::context::summary::{Summary, local};
use crate::context::{estimate, fit, message_validation};
use plan::{Omitted, PassLimits};

/// Exact token counter: a host call, made as rarely as possible.
pub trait Counter {
    /// Error of a failed count. The pass fails with it, so that no oversized request is sent.
    type Error: Send;

    /// Tokens of these messages, without tools.
    fn count(&self, messages: &[Message]) -> impl Future<Output = Result<u64, Self::Error>> + Send;
}

/// Model that writes summaries.
pub trait Summarizer {
    /// Text of the model. `None`: the call failed and a local summary is used.
    fn summarize(&self, request: SummaryRequest) -> impl Future<Output = Option<String>> + Send;
}

/// Known size of a request: the first messages of [`RequestMessages::messages`] with everything sent besides, as
/// the provider counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub messages: usize,
    pub tokens: u64,
}

/// Result of a compaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Compacted {
    /// Valid sequence within the budget. If the budget is too small for a few words of the user, the smallest
    /// possible sequence; see `tokens_after`.
    pub conversation: RequestMessages,
    /// True when messages were shortened or left out.
    pub compacted: bool,
    /// Counted, or estimated when no count was needed.
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// Summary written in this pass.
    pub summary: Option<String>,
    /// Number of leading history items that the summary covers, in the input's numbering.
    pub omitted_history: usize,
    /// Index in the input of each history item that remains.
    pub remaining_history: Vec<usize>,
    /// Known size for the next pass. Invalid after changes to messages before the last.
    pub anchor: Option<Anchor>,
}

/// Attempts to shorten a result that is still too large.
const ROUNDS: u64 = 6;
/// Smallest summary requested from a model; smaller ones are made locally.
const LEAST_SUMMARY: u64 = 64;
/// Tokens needed by a summary request.
const LEAST_REQUEST: u64 = 1_500;

/// Compacts a conversation to its budget. Keeps the input of this run. Returns the counter's error.
pub async fn compact<C: Counter + Sync, S: Summarizer + Sync>(
    conversation: RequestMessages,
    budget: &RequestBudget,
    anchor: Option<Anchor>,
    counter: &C,
    summarizer: &S,
) -> Result<Compacted, C::Error> {
    let history = conversation.history.len();
    let before = conversation.iter().count();
    let (conversation, mut indices) = sanitized(conversation);
    let messages = conversation.messages();
    // The provider counted another list: its message count is useless, but the size of everything besides is
    // unchanged.
    let is_same = messages.len() == before;
    let anchor =
        anchor.filter(|anchor| anchor.messages == 0 || (is_same && anchor.messages <= before));
    if budget.is_off() {
        let tokens = guess(&messages, anchor);
        return Ok(unchanged(conversation, indices, tokens, anchor));
    }
    let size = match measure(&messages, budget, anchor, counter).await? {
        Measured::Fits { tokens, anchor } => {
            return Ok(unchanged(conversation, indices, tokens, anchor));
        }
        Measured::Over(size) => size,
    };
    drop(messages);
    let mut conversation = conversation;
    let limits = size.limits(budget);
    let omitted = plan::omit(&mut conversation, &limits);
    let summary = if omitted.messages.is_empty() {
        None
    } else {
        Some(summarize(&mut conversation, &omitted, &limits, summarizer).await)
    };
    // An empty summary is none: a checkpoint with it would hide the history.
    let summary = summary.filter(|text| !text.is_empty());
    fit::fit(&mut conversation, limits.target);
    let counted = tighten(&mut conversation, size.message_budget(budget), counter).await?;
    let tokens = counted.saturating_add(size.other_tokens());
    let messages = conversation.iter().count();
    Ok(Compacted {
        compacted: !omitted.messages.is_empty() || conversation.estimate() < size.estimated,
        tokens_before: size.total,
        tokens_after: tokens,
        omitted_history: if summary.is_some() {
            original(omitted.history, &indices, history)
        } else {
            0
        },
        summary,
        // Passes drop the oldest items only.
        remaining_history: indices.split_off(indices.len() - conversation.history.len()),
        anchor: Some(Anchor { messages, tokens }),
        conversation,
    })
}

fn unchanged(
    conversation: RequestMessages,
    remaining_history: Vec<usize>,
    tokens: u64,
    anchor: Option<Anchor>,
) -> Compacted {
    Compacted {
        conversation,
        compacted: false,
        tokens_before: tokens,
        tokens_after: tokens,
        summary: None,
        omitted_history: 0,
        remaining_history,
        anchor,
    }
}

// --- validity ---

/// Valid conversation, and the original index of each history item.
fn sanitized(mut conversation: RequestMessages) -> (RequestMessages, Vec<usize>) {
    let history = std::mem::take(&mut conversation.history);
    let mut indices = Vec::new();
    for placed in message_validation::sanitize_indexed(history) {
        indices.push(placed.at);
        conversation.history.push(placed.message);
    }
    for part in [
        &mut conversation.prompt,
        &mut conversation.summaries,
        &mut conversation.current,
    ] {
        *part = message_validation::sanitize(std::mem::take(part));
    }
    (conversation, indices)
}

/// Number of original history items covered by `omitted` valid ones.
fn original(omitted: usize, indices: &[usize], history: usize) -> usize {
    if omitted == 0 {
        return 0;
    }
    indices.get(omitted).copied().unwrap_or(history)
}

// --- size ---

enum Measured {
    Fits { tokens: u64, anchor: Option<Anchor> },
    Over(Size),
}

/// Size of a request that exceeds its budget.
struct Size {
    /// Including everything besides messages.
    total: u64,
    /// Messages only.
    counted: u64,
    estimated: u64,
}

/// Known size plus an estimate of the rest.
fn guess(messages: &[Message], anchor: Option<Anchor>) -> u64 {
    let (counted, tokens) = anchor.map_or((0, 0), |anchor| (anchor.messages, anchor.tokens));
    tokens.saturating_add(estimate::messages(&messages[counted..]))
}

async fn measure<C: Counter + Sync>(
    messages: &[Message],
    budget: &RequestBudget,
    anchor: Option<Anchor>,
    counter: &C,
) -> Result<Measured, C::Error> {
    let fits = |tokens| {
        let messages = messages.len();
        let anchor = Some(Anchor { messages, tokens });
        Measured::Fits { tokens, anchor }
    };
    let mut by_anchor = None;
    // Estimates first: most requests fit by far, and a count is a host call.
    if let Some(anchor) = anchor {
        let tail = &messages[anchor.messages..];
        let guess = estimate::messages(tail);
        if anchor.tokens.saturating_add(guess * estimate::UNSURE) <= budget.input {
            let tokens = anchor.tokens + guess;
            return Ok(Measured::Fits {
                tokens,
                anchor: Some(anchor),
            });
        }
        // Over by the known part: the tail's exact size cannot change the verdict.
        let is_over = anchor.tokens > budget.input;
        let tail = if is_over {
            guess
        } else {
            counter.count(tail).await?
        };
        let total = anchor.tokens.saturating_add(tail);
        if total <= budget.input {
            return Ok(fits(total));
        }
        by_anchor = Some(total);
    }
    let counted = counter.count(messages).await?;
    // The larger of both: the anchor includes tools, which this count leaves out.
    let total = by_anchor.unwrap_or(counted).max(counted);
    if total <= budget.input {
        return Ok(fits(total));
    }
    Ok(Measured::Over(Size {
        total,
        counted,
        estimated: estimate::messages(messages),
    }))
}

impl Size {
    /// Tokens besides messages, such as tools. Only the provider can count them.
    fn other_tokens(&self) -> u64 {
        self.total.saturating_sub(self.counted)
    }

    /// Budget of the messages: at least a quarter of the total.
    fn message_budget(&self, budget: &RequestBudget) -> u64 {
        let other_tokens = self.other_tokens().min(budget.input / 4 * 3);
        (budget.input - other_tokens).max(1)
    }

    /// Budget in estimated tokens, scaled by the ratio of count and estimate.
    fn limits(&self, budget: &RequestBudget) -> PassLimits {
        // Count and estimate differ by a factor that depends on the conversation.
        let scaled = |tokens| scaled(tokens, self.estimated, self.counted);
        PassLimits {
            target: scaled(self.message_budget(budget)).max(1),
            keep_recent: scaled(budget.keep_recent),
            summary: scaled(budget.summary),
            summary_tokens: budget.summary,
        }
    }
}

fn scaled(tokens: u64, to: u64, from: u64) -> u64 {
    // 128 bits: a product of two token counts may exceed 64.
    let scaled = u128::from(tokens) * u128::from(to.max(1)) / u128::from(from.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

// --- summary ---

/// Replaces left-out messages and earlier summaries by one summary. Its text is empty when the budget has no
/// place for it.
async fn summarize<S: Summarizer + Sync>(
    conversation: &mut RequestMessages,
    omitted: &Omitted,
    limits: &PassLimits,
    summarizer: &S,
) -> String {
    let previous = Summary::of_messages(&std::mem::take(&mut conversation.summaries));
    // References of an older prose are collected, too, because the new summary replaces it.
    let references = previous.as_ref().map(|summary| {
        let in_prose = ReferenceList::of_text(&summary.prose);
        summary.references.clone().merged(in_prose)
    });
    let references = references.unwrap_or_default();
    let references = references.merged(ReferenceList::of_messages(&omitted.messages));
    let limit = plan::summary_budget(omitted, previous.as_ref(), &references, limits);
    let by_model = ask(
        previous.as_ref(),
        omitted,
        &references,
        limit,
        limits,
        summarizer,
    )
    .await;
    let summary = by_model.unwrap_or_else(|| {
        local::summarize(previous.as_ref(), &omitted.messages, references, limit)
    });
    let text = summary.render(limit);
    if !text.is_empty() {
        conversation.summaries = vec![Message::text("system", text.as_str())];
    }
    text
}

/// Summary of a model; `None` without budget for one or after a failure.
async fn ask<S: Summarizer + Sync>(
    previous: Option<&Summary>,
    omitted: &Omitted,
    references: &ReferenceList,
    limit: u64,
    limits: &PassLimits,
    summarizer: &S,
) -> Option<Summary> {
    let prose = limit.saturating_sub(Summary::tokens_of_references(references));
    if prose < LEAST_SUMMARY || limits.target < LEAST_REQUEST {
        return None;
    }
    let tokens = prose.min(limits.summary_tokens);
    let request = request(
        previous,
        &omitted.messages,
        tokens,
        limits.target - limit.min(limits.target / 2),
    );
    let text = summarizer.summarize(request).await?;
    let before = previous.map_or(0, |summary| summary.count);
    let count = before.saturating_add(omitted.messages.len() as u64);
    Summary::of_model(&text, count, references.clone())
}

// --- check ---

/// Counts the result and shortens it while it exceeds the budget, because estimates may be too low. Returns the
/// last count.
async fn tighten<C: Counter + Sync>(
    conversation: &mut RequestMessages,
    limit: u64,
    counter: &C,
) -> Result<u64, C::Error> {
    let mut counted = counter.count(&conversation.messages()).await?;
    for round in 0..ROUNDS {
        if counted <= limit {
            break;
        }
        let estimated = conversation.estimate();
        let fair = scaled(estimated, limit, counted);
        // Overshoots more each time, so that the loop ends soon.
        let target = (fair - fair * (2 * round + 1) / 16).min(estimated.saturating_sub(1));
        fit::fit(conversation, target);
        // Nothing is left to shorten.
        if conversation.estimate() == estimated {
            break;
        }
        counted = counter.count(&conversation.messages()).await?;
    }
    Ok(counted)
}

#[cfg(test)]
mod tests;
