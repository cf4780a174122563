//! The pass that keeps a conversation within its budget: it summarises what is old and keeps what is recent. It runs
//! before every call of a model, and costs nothing where it is known that nothing is to be done.

mod plan; // what is left out, by estimates

use protocol::message::Message;

use crate::context::budget::Budget;
use crate::context::conversation::Conversation;
use crate::context::references::References;
use crate::context::summary::request::{SummaryRequest, request};
use crate::context::summary::{Summary, local};
use crate::context::{estimate, fit, legal};
use plan::{Limits, Omitted};

/// Counts tokens as the model does: a call to the host, made as few times as possible.
pub trait Counter {
    /// Why nothing was counted. The pass ends with it: nothing is sent that may not fit.
    type Error: Send;

    /// The tokens of these messages, without tools.
    fn count(&self, messages: &[Message]) -> impl Future<Output = Result<u64, Self::Error>> + Send;
}

/// Asks a model for a summary.
pub trait Summarizer {
    /// What the model wrote. `None`: the call failed, and the summary is made here.
    fn summarize(&self, request: SummaryRequest) -> impl Future<Output = Option<String>> + Send;
}

/// What is known of the size of a request: the first messages of [`Conversation::messages`] with all that is sent
/// beside them, as a provider counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    pub messages: usize,
    pub tokens: u64,
}

/// What became of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Compacted {
    /// Legal, and within the budget: only where that has no room for a few words of the user, it is as small as it
    /// gets, and `tokens_after` tells.
    pub conversation: Conversation,
    /// Whether anything was cut, or left out for its size.
    pub compacted: bool,
    /// Counted, or estimated where nothing had to be counted.
    pub tokens_before: u64,
    pub tokens_after: u64,
    /// The summary that was written in this pass.
    pub summary: Option<String>,
    /// How many of the first items of the history it stands for, as the history came in.
    pub omitted_history: usize,
    /// What is known now, for the next pass. Of no use once messages before the last were changed.
    pub anchor: Option<Anchor>,
}

/// How often a result that is still too large is cut again.
const ROUNDS: u64 = 6;
/// A model is asked for summaries of this length at least: shorter ones are made here.
const LEAST_SUMMARY: u64 = 64;
/// The room that a request for a summary needs.
const LEAST_REQUEST: u64 = 1_500;

/// Keeps a conversation within its budget. The input of this run is never left out, and a counter that fails fails
/// the pass.
pub async fn compact<C: Counter + Sync, S: Summarizer + Sync>(
    conversation: Conversation,
    budget: &Budget,
    anchor: Option<Anchor>,
    counter: &C,
    summarizer: &S,
) -> Result<Compacted, C::Error> {
    let history = conversation.history.len();
    let before = conversation.iter().count();
    let (conversation, places) = sanitized(conversation);
    let messages = conversation.messages();
    // Of a list that is not what the provider counted, the provider's count says nothing; but what stands beside
    // the messages is the same.
    let is_same = messages.len() == before;
    let anchor =
        anchor.filter(|anchor| anchor.messages == 0 || (is_same && anchor.messages <= before));
    if budget.is_off() {
        let tokens = guess(&messages, anchor);
        return Ok(unchanged(conversation, tokens, anchor));
    }
    let size = match measure(&messages, budget, anchor, counter).await? {
        Measured::Fits { tokens, anchor } => return Ok(unchanged(conversation, tokens, anchor)),
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
    let summary = summary.filter(|text| !text.is_empty());
    fit::fit(&mut conversation, limits.target);
    let counted = tighten(&mut conversation, size.room(budget), counter).await?;
    let tokens = counted.saturating_add(size.beside());
    let messages = conversation.iter().count();
    Ok(Compacted {
        compacted: !omitted.messages.is_empty()
            || estimate::conversation(&conversation) < size.estimated,
        tokens_before: size.total,
        tokens_after: tokens,
        omitted_history: if summary.is_some() {
            original(omitted.history, &places, history)
        } else {
            0
        },
        summary,
        anchor: Some(Anchor { messages, tokens }),
        conversation,
    })
}

fn unchanged(conversation: Conversation, tokens: u64, anchor: Option<Anchor>) -> Compacted {
    Compacted {
        conversation,
        compacted: false,
        tokens_before: tokens,
        tokens_after: tokens,
        summary: None,
        omitted_history: 0,
        anchor,
    }
}

// --- what can be sent ---

/// A conversation of legal parts, and where each item of its history stood.
fn sanitized(mut conversation: Conversation) -> (Conversation, Vec<usize>) {
    let history = std::mem::take(&mut conversation.history);
    let mut places = Vec::new();
    for placed in legal::place(history) {
        places.push(placed.at);
        conversation.history.push(placed.message);
    }
    for part in [
        &mut conversation.prompt,
        &mut conversation.summaries,
        &mut conversation.current,
    ] {
        *part = legal::sanitize(std::mem::take(part));
    }
    (conversation, places)
}

/// How many items of the history as it came in are gone when so many legal ones are.
fn original(omitted: usize, places: &[usize], history: usize) -> usize {
    if omitted == 0 {
        return 0;
    }
    places.get(omitted).copied().unwrap_or(history)
}

// --- how large it is ---

enum Measured {
    Fits { tokens: u64, anchor: Option<Anchor> },
    Over(Size),
}

/// A request that is too large.
struct Size {
    /// With all that is sent beside the messages.
    total: u64,
    /// The messages alone.
    counted: u64,
    estimated: u64,
}

/// What is known of the size, and an estimate of the rest.
fn guess(messages: &[Message], anchor: Option<Anchor>) -> u64 {
    let (known, tokens) = anchor.map_or((0, 0), |anchor| (anchor.messages, anchor.tokens));
    tokens.saturating_add(estimate::messages(&messages[known..]))
}

async fn measure<C: Counter + Sync>(
    messages: &[Message],
    budget: &Budget,
    anchor: Option<Anchor>,
    counter: &C,
) -> Result<Measured, C::Error> {
    let fits = |tokens| {
        let messages = messages.len();
        let anchor = Some(Anchor { messages, tokens });
        Measured::Fits { tokens, anchor }
    };
    let mut known = None;
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
        known = Some(total);
    }
    let counted = counter.count(messages).await?;
    let total = known.unwrap_or(counted).max(counted);
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
    /// What is sent beside the messages, such as tools: a provider counted it, and we cannot.
    fn beside(&self) -> u64 {
        self.total.saturating_sub(self.counted)
    }

    /// What the messages may have. A quarter of the budget is theirs whatever stands beside them.
    fn room(&self, budget: &Budget) -> u64 {
        let beside = self.beside().min(budget.input / 4 * 3);
        (budget.input - beside).max(1)
    }

    /// The limits of the budget in estimated tokens, by what the whole was counted and estimated as.
    fn limits(&self, budget: &Budget) -> Limits {
        let scaled = |tokens| scaled(tokens, self.estimated, self.counted);
        Limits {
            target: scaled(self.room(budget)).max(1),
            keep_recent: scaled(budget.keep_recent),
            summary: scaled(budget.summary),
            summary_tokens: budget.summary,
        }
    }
}

fn scaled(tokens: u64, to: u64, from: u64) -> u64 {
    let scaled = u128::from(tokens) * u128::from(to.max(1)) / u128::from(from.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

// --- what stands for what is left out ---

/// Puts a summary in the place of what was left out and of the summaries before. Its text is empty when there is no
/// room for one.
async fn summarize<S: Summarizer + Sync>(
    conversation: &mut Conversation,
    omitted: &Omitted,
    limits: &Limits,
    summarizer: &S,
) -> String {
    let previous = Summary::of_messages(&std::mem::take(&mut conversation.summaries));
    let references = previous.as_ref().map(|summary| {
        let in_prose = References::of_text(&summary.prose);
        summary.references.clone().merged(in_prose)
    });
    let references = references.unwrap_or_default();
    let references = references.merged(References::of_messages(&omitted.messages));
    let room = plan::room_of_summary(omitted, previous.as_ref(), &references, limits);
    let asked = ask(
        previous.as_ref(),
        omitted,
        &references,
        room,
        limits,
        summarizer,
    )
    .await;
    let summary = asked.unwrap_or_else(|| {
        local::summarize(previous.as_ref(), &omitted.messages, references, room)
    });
    let text = summary.render(room);
    if !text.is_empty() {
        conversation.summaries = vec![Message::text("system", text.as_str())];
    }
    text
}

/// The summary of a model, if there is room for one and the model writes one.
async fn ask<S: Summarizer + Sync>(
    previous: Option<&Summary>,
    omitted: &Omitted,
    references: &References,
    room: u64,
    limits: &Limits,
    summarizer: &S,
) -> Option<Summary> {
    let prose = room.saturating_sub(Summary::tokens_of_references(references));
    if prose < LEAST_SUMMARY || limits.target < LEAST_REQUEST {
        return None;
    }
    let tokens = prose.min(limits.summary_tokens);
    let request = request(
        previous,
        &omitted.messages,
        tokens,
        limits.target - room.min(limits.target / 2),
    );
    let text = summarizer.summarize(request).await?;
    let before = previous.map_or(0, |summary| summary.count);
    let count = before.saturating_add(omitted.messages.len() as u64);
    Summary::of_model(&text, count, references.clone())
}

// --- whether it fits now ---

/// Counts the result, and cuts it further as long as it is too large: parts that estimates judge too low can make it
/// so. Gives what was counted last.
async fn tighten<C: Counter + Sync>(
    conversation: &mut Conversation,
    room: u64,
    counter: &C,
) -> Result<u64, C::Error> {
    let mut counted = counter.count(&conversation.messages()).await?;
    for round in 0..ROUNDS {
        if counted <= room {
            break;
        }
        let estimated = estimate::conversation(conversation);
        let fair = scaled(estimated, room, counted);
        // Each time by more than what would be fair, so that an end is near.
        let target = (fair - fair * (2 * round + 1) / 16).min(estimated.saturating_sub(1));
        fit::fit(conversation, target);
        if estimate::conversation(conversation) == estimated {
            break;
        }
        counted = counter.count(&conversation.messages()).await?;
    }
    Ok(counted)
}

#[cfg(test)]
mod tests;
