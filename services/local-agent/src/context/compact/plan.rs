//! Selection of messages to leave out, by estimates only.

use std::ops::Range;

use protocol::message::Message;

use crate::context::conversation::RequestMessages;
use crate::context::references::ReferenceList;
use crate::context::summary::Summary;
use crate::context::{estimate, message_validation, reference_data};

/// Smallest history budget that is divided.
const LEAST_HISTORY: u64 = 30;
/// Smallest budget of a summary.
const LEAST_SUMMARY: u64 = 20;
/// Divisor for the part of the history budget that keeps messages verbatim. The rest is free for new messages,
/// which makes compactions rare.
const SHARE_OF_RECENT: u64 = 3;
/// Divisor for the part of the history budget that the summary takes.
const SHARE_OF_SUMMARY: u64 = 4;

/// Budget of a pass, in estimated tokens.
pub(super) struct PassLimits {
    /// Limit of the complete request.
    pub(super) target: u64,
    pub(super) keep_recent: u64,
    pub(super) summary: u64,
    /// Limit of a model's summary, in the model's own tokens.
    pub(super) summary_tokens: u64,
}

/// Messages left out.
#[derive(Default)]
pub(super) struct Omitted {
    /// In conversation order.
    pub(super) messages: Vec<Message>,
    /// Number of leading messages that come from the history.
    pub(super) history: usize,
    /// Budget of history and summary together.
    pub(super) budget: u64,
}

/// Removes messages to be summarised: the oldest history, then the oldest turns of this run. Shortens retrieved
/// passages first, and stops there when that is enough.
pub(super) fn omit(conversation: &mut RequestMessages, limits: &PassLimits) -> Omitted {
    shorten_retrieved(conversation, limits);
    if conversation.estimate() <= limits.target {
        return Omitted::default();
    }
    let fixed = fixed(conversation).saturating_add(retrieved(conversation));
    let budget = limits.target.saturating_sub(fixed);
    let mut recent = if budget < LEAST_HISTORY {
        0
    } else {
        limits.keep_recent.min(budget / SHARE_OF_RECENT)
    };
    // Turns of this run take the budget first; history gets the rest.
    let turns = conversation.spare_turns();
    let recent_turns = tail(&conversation.current, &turns, &mut recent);
    let units = message_validation::units(&conversation.history);
    // History is older than every turn, so it may stay only if all turns stay.
    let recent_units = if recent_turns == turns.len() {
        tail(&conversation.history, &units, &mut recent)
    } else {
        0
    };
    let history = units[..units.len() - recent_units]
        .last()
        .map_or(0, |unit| unit.end);
    let mut messages: Vec<_> = conversation.history.drain(..history).collect();
    messages.extend(conversation.take_turns(&turns[..turns.len() - recent_turns]));
    Omitted {
        messages,
        history,
        budget,
    }
}

/// Budget of the summary: at least the size of its references, up to half of the history budget; at most the
/// size of the messages it replaces.
pub(super) fn summary_budget(
    omitted: &Omitted,
    previous: Option<&Summary>,
    references: &ReferenceList,
    limits: &PassLimits,
) -> u64 {
    if omitted.budget < LEAST_HISTORY {
        // No budget here; the summary serves the next run.
        return limits.summary.min(limits.target / SHARE_OF_SUMMARY);
    }
    let share = limits
        .summary
        .min((omitted.budget / SHARE_OF_SUMMARY).max(LEAST_SUMMARY));
    let of_references = Summary::tokens_of_references(references).min(omitted.budget / 2);
    let before = previous.map_or(0, |summary| estimate::text(&summary.prose));
    // A summary must not be larger than its messages.
    let replaced = estimate::messages(&omitted.messages).saturating_add(before);
    share.min(replaced.max(LEAST_SUMMARY)).max(of_references)
}

/// Shortens retrieved passages by the excess, but not below their share when there is history.
fn shorten_retrieved(conversation: &mut RequestMessages, limits: &PassLimits) {
    let Some(message) = conversation.retrieved.take() else {
        return;
    };
    // Measured while the passages are taken out.
    let others = conversation.estimate();
    let budget = limits.target.saturating_sub(fixed(conversation));
    let is_only_part = conversation.history.is_empty() && conversation.summaries.is_empty();
    let share = if is_only_part {
        budget
    } else {
        let recent = limits.keep_recent.min((budget / 2).max(1));
        (budget.saturating_sub(recent)).min((limits.target / 4).max(1))
    };
    let remaining = limits.target.saturating_sub(others);
    conversation.retrieved = reference_data::shortened_retrieved(&message, share.max(remaining));
}

/// Tokens that cannot be left out: the prompt and fixed current turns.
fn fixed(conversation: &RequestMessages) -> u64 {
    let spare = conversation.spare_turns().into_iter();
    let spare: u64 = spare
        .map(|turn| estimate::messages(&conversation.current[turn]))
        .sum();
    let current = estimate::messages(&conversation.current);
    estimate::messages(&conversation.prompt) + (current - spare)
}

fn retrieved(conversation: &RequestMessages) -> u64 {
    conversation.retrieved.as_ref().map_or(0, estimate::message)
}

/// Number of trailing units that fit; subtracts them from the budget.
fn tail(messages: &[Message], units: &[Range<usize>], budget: &mut u64) -> usize {
    let mut count = 0;
    for unit in units.iter().rev() {
        let size = estimate::messages(&messages[unit.clone()]);
        let Some(rest) = budget.checked_sub(size) else {
            break;
        };
        *budget = rest;
        count += 1;
    }
    count
}
