//! What a compaction leaves out, decided by estimates alone.

use std::ops::Range;

use protocol::message::Message;

use crate::context::conversation::Conversation;
use crate::context::references::References;
use crate::context::summary::Summary;
use crate::context::{estimate, legal, reference_data};

/// A history with less room than this is not divided.
const LEAST_HISTORY: u64 = 30;
/// A summary has as much, if there is any room for one.
const LEAST_SUMMARY: u64 = 20;
/// Of the room of the history, what stays as it was: the rest is for what will be said, so that the next compaction
/// is far.
const SHARE_OF_RECENT: u64 = 3;
/// Of the same room, the summary.
const SHARE_OF_SUMMARY: u64 = 4;

/// The budget of a pass, in estimated tokens.
pub(super) struct Limits {
    /// What the whole may have.
    pub(super) target: u64,
    pub(super) keep_recent: u64,
    pub(super) summary: u64,
    /// The most that a model is asked for, in its own tokens.
    pub(super) summary_tokens: u64,
}

/// What was left out.
#[derive(Default)]
pub(super) struct Omitted {
    /// In the order in which it was said.
    pub(super) messages: Vec<Message>,
    /// How many of them, the first, were history.
    pub(super) history: usize,
    /// The room that history has with its summary.
    pub(super) room: u64,
}

/// Takes out of a conversation that is too large what a summary shall stand for: the oldest history, then the
/// oldest turns of this run. What knowledge bases said is shortened before; if that is enough, nothing else goes.
pub(super) fn omit(conversation: &mut Conversation, limits: &Limits) -> Omitted {
    shorten_retrieved(conversation, limits);
    if estimate::conversation(conversation) <= limits.target {
        return Omitted::default();
    }
    let fixed = fixed(conversation).saturating_add(retrieved(conversation));
    let room = limits.target.saturating_sub(fixed);
    let mut recent = if room < LEAST_HISTORY {
        0
    } else {
        limits.keep_recent.min(room / SHARE_OF_RECENT)
    };
    let turns = conversation.spare_turns();
    let kept_turns = tail(&conversation.current, &turns, &mut recent);
    let units = legal::units(&conversation.history);
    let kept_units = if kept_turns == turns.len() {
        tail(&conversation.history, &units, &mut recent)
    } else {
        0
    };
    let history = units[..units.len() - kept_units]
        .last()
        .map_or(0, |unit| unit.end);
    let mut messages: Vec<_> = conversation.history.drain(..history).collect();
    messages.extend(conversation.take_turns(&turns[..turns.len() - kept_turns]));
    Omitted {
        messages,
        history,
        room,
    }
}

/// The room of the summary. Never less than its references need, as far as half of the history's room reaches; never
/// more than what it stands for.
pub(super) fn room_of_summary(
    omitted: &Omitted,
    previous: Option<&Summary>,
    references: &References,
    limits: &Limits,
) -> u64 {
    if omitted.room < LEAST_HISTORY {
        // There is no room here; what is written is for the next run.
        return limits.summary.min(limits.target / SHARE_OF_SUMMARY);
    }
    let share = limits
        .summary
        .min((omitted.room / SHARE_OF_SUMMARY).max(LEAST_SUMMARY));
    let of_references = Summary::tokens_of_references(references).min(omitted.room / 2);
    let before = previous.map_or(0, |summary| estimate::text(&summary.prose));
    let replaced = estimate::messages(&omitted.messages).saturating_add(before);
    share.min(replaced.max(LEAST_SUMMARY)).max(of_references)
}

/// Shortens what knowledge bases said by what is too much, but where there is history, not below the room that it
/// has beside it.
fn shorten_retrieved(conversation: &mut Conversation, limits: &Limits) {
    let Some(message) = conversation.retrieved.take() else {
        return;
    };
    let others = estimate::conversation(conversation);
    let room = limits.target.saturating_sub(fixed(conversation));
    let is_alone = conversation.history.is_empty() && conversation.summaries.is_empty();
    let share = if is_alone {
        room
    } else {
        let recent = limits.keep_recent.min((room / 2).max(1));
        (room.saturating_sub(recent)).min((limits.target / 4).max(1))
    };
    let beside_all = limits.target.saturating_sub(others);
    conversation.retrieved = reference_data::shortened_retrieved(&message, share.max(beside_all));
}

/// What stays whatever is left out: the prompt, and of the current turns what may not go.
fn fixed(conversation: &Conversation) -> u64 {
    let spare = conversation.spare_turns().into_iter();
    let spare: u64 = spare
        .map(|turn| estimate::messages(&conversation.current[turn]))
        .sum();
    let current = estimate::messages(&conversation.current);
    estimate::messages(&conversation.prompt) + (current - spare)
}

fn retrieved(conversation: &Conversation) -> u64 {
    conversation.retrieved.as_ref().map_or(0, estimate::message)
}

/// How many of the last units have room; what they need is taken from the room.
fn tail(messages: &[Message], units: &[Range<usize>], room: &mut u64) -> usize {
    let mut kept = 0;
    for unit in units.iter().rev() {
        let size = estimate::messages(&messages[unit.clone()]);
        let Some(rest) = room.checked_sub(size) else {
            break;
        };
        *room = rest;
        kept += 1;
    }
    kept
}
