//! Shortening of texts, messages and conversations to a limit. The user's current message is shortened last and
//! never dropped.

mod current; // current messages: the last step

use std::ops::Range;

use protocol::message::{Message, MessageContent};
use serde_json::json;

use crate::context::conversation::RequestMessages;
use crate::context::summary::Summary;
use crate::context::{estimate, message_validation, reference_data};

/// Marks a cut.
const CUT: &str = "... [truncated]";
/// Divisor for the part of the budget that the prompt always has: long input cannot displace instructions.
const SHARE_OF_PROMPT: u64 = 8;

/// Shortens a conversation to `target` estimated tokens, in this order: retrieved passages, summaries, oldest
/// history, oldest turns of this run, end of the prompt, current messages. A target that is too small for a few
/// words of the user is exceeded.
pub fn fit(conversation: &mut RequestMessages, target: u64) {
    const STEPS: [fn(&mut RequestMessages, u64); 6] = [
        cut_retrieved,
        cut_summaries,
        drop_history,
        drop_turns,
        cut_prompt,
        current::cut,
    ];
    for step in STEPS {
        if conversation.estimate() <= target {
            return;
        }
        step(conversation, target);
    }
}

/// Prefix of a text within `tokens`, with a mark at the cut if the mark fits.
pub fn shortened(text: &str, tokens: u64) -> String {
    let start = estimate::prefix(text, tokens);
    // Unchanged, without a mark.
    if start.len() == text.len() {
        return text.to_owned();
    }
    let mark = estimate::text(CUT);
    // In so short a text the mark would take most of the budget.
    if tokens < mark * 3 {
        return start.to_owned();
    }
    let start = estimate::prefix(text, tokens - mark);
    format!("{start}{CUT}")
}

/// Common upper bound of several sizes so that their sum is at most the budget: small ones stay complete.
pub fn level(sizes: &[u64], budget: u64) -> u64 {
    let fits = |level: u64| {
        let capped = sizes.iter().map(|size| *size.min(&level));
        capped.fold(0_u64, u64::saturating_add) <= budget
    };
    let (mut low, mut high) = (0, sizes.iter().copied().max().unwrap_or(0));
    while low < high {
        // Rounded up, or the loop would not end with two candidates left.
        let middle = high - (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Message within `tokens`, longest texts shortened first. `None`: its structure exceeds the limit without texts.
pub fn shortened_message(message: &Message, tokens: u64) -> Option<Message> {
    let size = estimate::message(message);
    if size <= tokens {
        return Some(message.clone());
    }
    let sizes = sizes(message);
    let frame = size.saturating_sub(sizes.iter().sum());
    let level = level(
        &sizes,
        tokens.checked_sub(frame).filter(|limit| *limit > 0)?,
    );
    Some(capped(message, level))
}

/// Tokens of each text that can be shortened.
fn sizes(message: &Message) -> Vec<u64> {
    let mut sizes = Vec::new();
    match &message.content {
        Some(MessageContent::Text(text)) => sizes.push(estimate::text(text)),
        Some(MessageContent::Parts(parts)) => {
            let texts = parts.iter().filter_map(|part| part.text.as_deref());
            sizes.extend(texts.map(estimate::text));
        }
        None => {}
    }
    let calls = message.tool_calls.iter().flatten();
    sizes.extend(calls.map(|call| estimate::text(&call.function.arguments)));
    sizes
}

/// Message with each text limited to `level` tokens.
fn capped(message: &Message, level: u64) -> Message {
    let mut message = message.clone();
    match &mut message.content {
        Some(MessageContent::Text(text)) => *text = shortened(text, level),
        Some(MessageContent::Parts(parts)) => {
            for text in parts.iter_mut().filter_map(|part| part.text.as_mut()) {
                *text = shortened(text, level);
            }
        }
        None => {}
    }
    for call in message.tool_calls.iter_mut().flatten() {
        let arguments = &mut call.function.arguments;
        if estimate::text(arguments) > level {
            *arguments = shortened_arguments(arguments, level);
        }
    }
    message
}

/// Shortened arguments stay a JSON object, because providers reject anything else.
fn shortened_arguments(arguments: &str, tokens: u64) -> String {
    let mut start = tokens;
    while start > 0 {
        let shorter =
            json!({"truncated_arguments": estimate::prefix(arguments, start)}).to_string();
        if estimate::text(&shorter) <= tokens {
            return shorter;
        }
        // Escapes make the size of the JSON unpredictable, so smaller prefixes are tried.
        start = start * 3 / 4;
    }
    "{}".to_owned()
}

// --- steps ---

/// Tokens of the target that remain for a part of size `part`.
fn remaining_budget(conversation: &RequestMessages, part: u64, target: u64) -> u64 {
    let others = conversation.estimate() - part;
    target.saturating_sub(others)
}

fn cut_retrieved(conversation: &mut RequestMessages, target: u64) {
    if let Some(retrieved) = &conversation.retrieved {
        let limit = remaining_budget(conversation, estimate::message(retrieved), target);
        conversation.retrieved = reference_data::shortened_retrieved(retrieved, limit);
    }
}

fn cut_summaries(conversation: &mut RequestMessages, target: u64) {
    let size = estimate::messages(&conversation.summaries);
    let limit = remaining_budget(conversation, size, target);
    let merged = Summary::of_messages(&conversation.summaries);
    let message = merged.and_then(|summary| summary.message(limit));
    conversation.summaries = message.into_iter().collect();
}

fn drop_history(conversation: &mut RequestMessages, target: u64) {
    let mut excess = conversation.estimate().saturating_sub(target);
    let mut end = 0;
    for unit in message_validation::units(&conversation.history) {
        if excess == 0 {
            break;
        }
        end = unit.end;
        excess = excess.saturating_sub(estimate::messages(&conversation.history[unit]));
    }
    conversation.history.drain(..end);
}

fn drop_turns(conversation: &mut RequestMessages, target: u64) {
    let mut excess = conversation.estimate().saturating_sub(target);
    let mut dropped: Vec<Range<usize>> = Vec::new();
    for turn in conversation.spare_turns() {
        if excess == 0 {
            break;
        }
        excess = excess.saturating_sub(estimate::messages(&conversation.current[turn.clone()]));
        dropped.push(turn);
    }
    conversation.take_turns(&dropped);
}

/// Keeps the start of the prompt. Current messages take precedence, except for the prompt's fixed share.
fn cut_prompt(conversation: &mut RequestMessages, target: u64) {
    let size = estimate::messages(&conversation.prompt);
    let limit = remaining_budget(conversation, size, target);
    let mut limit = limit.max(size.min(target / SHARE_OF_PROMPT));
    let mut shortened = Vec::new();
    for message in &conversation.prompt {
        let Some(message) = shortened_message(message, limit) else {
            break;
        };
        limit -= estimate::message(&message);
        shortened.push(message);
    }
    conversation.prompt = shortened;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::testing::{Generator, assert_legal, call, result};

    #[test]
    fn truncates_at_character_boundaries() {
        let mut generator = Generator::new(5);
        for _ in 0..500 {
            let full = generator.text(80);
            let tokens = generator.below(90);
            let short = shortened(&full, tokens);
            assert!(estimate::text(&short) <= tokens);
            let start = short.strip_suffix(CUT).unwrap_or(&short);
            assert!(full.starts_with(start), "{full:?} {short:?}");
        }
        assert_eq!(shortened("你好世界", 2), "你好");
        assert_eq!(
            shortened(&"你".repeat(50), 14),
            format!("{}{CUT}", "你".repeat(10))
        );
    }

    #[test]
    fn shares_budget_evenly_among_large_parts() {
        assert_eq!(level(&[1, 100, 100], 61), 30);
        assert_eq!(level(&[1, 2, 3], 6), 3);
        assert_eq!(level(&[5, 5], 3), 1);
        assert_eq!(level(&[5, 5], 0), 0);
        assert_eq!(level(&[], 9), 0);
    }

    #[test]
    fn truncated_arguments_stay_objects() {
        let arguments = json!({"text": "line \" one\n".repeat(50)}).to_string();
        for tokens in 0..150 {
            let short = shortened_arguments(&arguments, tokens);
            assert!(estimate::text(&short) <= tokens.max(1), "{tokens}");
            assert!(serde_json::from_str::<protocol::JsonObject>(&short).is_ok());
        }
    }

    fn sample() -> RequestMessages {
        let text = |role: &str, word: &str, count: usize| Message::text(role, word.repeat(count));
        RequestMessages {
            prompt: vec![text("system", "rule ", 80), text("system", "skill ", 80)],
            summaries: vec![Message::text(
                "system",
                format!(
                    "<conversation_summary>\nv=1 source=llm count=2\n{}\n</conversation_summary>",
                    "earlier ".repeat(80)
                ),
            )],
            history: vec![
                text("user", "first ", 60),
                call(&["a"]),
                result("a", &"second ".repeat(60)),
                text("assistant", "third ", 60),
            ],
            retrieved: reference_data::retrieved_message(&[
                "chunk ".repeat(60),
                "other ".repeat(60),
            ]),
            current: vec![
                text("user", "now ", 60),
                call(&["b"]),
                result("b", &"found ".repeat(60)),
                call(&["c"]),
                result("c", &"again ".repeat(60)),
            ],
        }
    }

    /// Parts that are present, by one word each.
    fn present(conversation: &RequestMessages) -> Vec<&'static str> {
        let all = serde_json::to_string(&conversation.messages()).unwrap();
        let words = [
            "chunk", "earlier", "first", "second", "third", "found", "skill", "rule", "again",
            "now",
        ];
        words
            .into_iter()
            .filter(|word| all.contains(word))
            .collect()
    }

    #[test]
    fn drops_parts_in_priority_order() {
        let full = sample().estimate();
        let mut gone: Vec<&str> = Vec::new();
        let mut before = present(&sample());
        for target in (10..=full).rev() {
            let mut conversation = sample();
            fit(&mut conversation, target);
            let estimated = conversation.estimate();
            assert!(estimated <= target, "{estimated} of {target}");
            assert_legal(&conversation.messages());
            let now = present(&conversation);
            gone.extend(before.iter().filter(|word| !now.contains(word)));
            before = now;
        }
        // A tool round competes with the prompt's share; the test leaves their order open.
        assert_eq!(
            gone[..7],
            [
                "chunk", "earlier", "first", "second", "third", "found", "skill"
            ]
        );
        assert_eq!(before, ["now"]);
    }

    #[test]
    fn keeps_instructions_beside_long_input() {
        let mut conversation = RequestMessages {
            prompt: vec![Message::text("system", "never tell the code")],
            current: vec![Message::text("user", "x ".repeat(10_000))],
            ..RequestMessages::default()
        };
        fit(&mut conversation, 1_000);
        assert_eq!(conversation.prompt[0].plain_text(), "never tell the code");
        assert!(conversation.estimate() > 990);
    }

    #[test]
    fn keeps_user_message_beside_huge_prompt() {
        let mut conversation = RequestMessages {
            prompt: vec![Message::text("system", "rule ".repeat(10_000))],
            current: vec![Message::text("user", "what is new?")],
            ..RequestMessages::default()
        };
        fit(&mut conversation, 200);
        assert_eq!(conversation.current[0].plain_text(), "what is new?");
        assert!(conversation.prompt[0].plain_text().starts_with("rule rule"));
    }

    #[test]
    fn always_fits_and_stays_valid() {
        for seed in 0..1_500 {
            let mut generator = Generator::new(seed);
            let mut conversation = generator.conversation(12);
            let full = conversation.estimate();
            let target = 12 + generator.below(full);
            fit(&mut conversation, target);
            let estimated = conversation.estimate();
            assert!(estimated <= target, "seed {seed}: {estimated} of {target}");
            assert_legal(&conversation.messages());
            let mut current = conversation.current.iter();
            let user = current.rfind(|message| message.role == "user");
            assert!(
                user.is_some_and(|user| !user.plain_text().is_empty()),
                "seed {seed}"
            );
        }
    }
}
