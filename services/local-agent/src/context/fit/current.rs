//! Shortens current messages when they exceed the target without any other part.

use protocol::message::{ContentElement, Message, MessageContent};

use crate::context::conversation::RequestMessages;
use crate::context::estimate;
use crate::context::fit::{capped, level, sizes};

/// Replaces a picture or a file that does not fit.
const LEFT_OUT: &str = "[an attachment was left out: it does not fit]";

type MessagePart = fn(&[Message]) -> Vec<Message>;

/// Reductions in order; the first that fits is taken.
const TRIES: [MessagePart; 3] = [<[Message]>::to_vec, users, last_user];

/// Shortens current messages to the target minus the prompt: tool results before user text, attachments before
/// text. If that is not enough, drops the last tool round, then all but the last user message, which keeps a few
/// words.
pub(super) fn cut(conversation: &mut RequestMessages, target: u64) {
    let budget = target.saturating_sub(estimate::messages(&conversation.prompt));
    let mut shortest = Vec::new();
    for part in TRIES {
        let mut messages = part(&conversation.current);
        if messages.is_empty() {
            continue;
        }
        shorten(&mut messages, budget);
        let is_fitting = estimate::messages(&messages) <= budget && has_words(&messages);
        shortest = messages;
        if is_fitting {
            break;
        }
    }
    conversation.current = shortest;
}

fn shorten(messages: &mut [Message], budget: u64) {
    let user_tokens = sum(messages, is_user);
    // A quarter is reserved for tool results: without them the model would repeat its calls.
    let least = sum(messages, is_other).min(budget / 4);
    let other_budget = budget.saturating_sub(user_tokens).max(least);
    cap(messages, is_other, other_budget);
    let user_budget = budget.saturating_sub(sum(messages, is_other));
    cap(messages, is_user, user_budget);
}

/// Reduces the selected messages: drops attachments above half of the budget, then shortens the longest texts.
/// Each text keeps one word.
fn cap(messages: &mut [Message], chosen: fn(&Message) -> bool, budget: u64) {
    if sum(messages, chosen) > budget {
        leave_attachments_out(messages, chosen, budget / 2);
    }
    let total = sum(messages, chosen);
    if total <= budget {
        return;
    }
    // Attachments are dropped before: a part of a picture is worthless.
    let of_chosen = messages.iter().filter(|message| chosen(message));
    let sizes: Vec<u64> = of_chosen.flat_map(sizes).collect();
    let frames = total.saturating_sub(sizes.iter().sum());
    let level = level(&sizes, budget.saturating_sub(frames)).max(1);
    for message in messages.iter_mut().filter(|message| chosen(message)) {
        *message = capped(message, level);
    }
}

/// Drops attachments, last first, until the rest fits.
fn leave_attachments_out(messages: &mut [Message], chosen: fn(&Message) -> bool, budget: u64) {
    let parts = messages
        .iter()
        .filter(|message| chosen(message))
        .flat_map(attachments);
    let mut size: u64 = parts.map(estimate::part).sum();
    for message in messages.iter_mut().rev().filter(|message| chosen(message)) {
        let Some(MessageContent::Parts(parts)) = &mut message.content else {
            continue;
        };
        for part in parts.iter_mut().rev() {
            if size > budget && estimate::is_attachment(part) {
                size = size.saturating_sub(estimate::part(part));
                *part = ContentElement::text(LEFT_OUT);
            }
        }
    }
}

fn attachments(message: &Message) -> impl Iterator<Item = &ContentElement> {
    let parts = match &message.content {
        Some(MessageContent::Parts(parts)) => parts.as_slice(),
        _ => &[],
    };
    parts.iter().filter(|part| estimate::is_attachment(part))
}

fn users(messages: &[Message]) -> Vec<Message> {
    messages
        .iter()
        .filter(|message| is_user(message))
        .cloned()
        .collect()
}

fn last_user(messages: &[Message]) -> Vec<Message> {
    let last = messages.iter().rfind(|message| is_user(message));
    last.map(only_words).into_iter().collect()
}

/// Message as one text, if it has any.
fn only_words(message: &Message) -> Message {
    let text = message.plain_text();
    let text = if text.is_empty() {
        LEFT_OUT.to_owned()
    } else {
        text
    };
    Message::text(&message.role, text)
}

fn has_words(messages: &[Message]) -> bool {
    let last = messages.iter().rfind(|message| is_user(message));
    last.is_none_or(|last| !last.plain_text().is_empty() || attachments(last).next().is_some())
}

fn sum(messages: &[Message], chosen: fn(&Message) -> bool) -> u64 {
    let chosen = messages.iter().filter(|message| chosen(message));
    chosen.map(estimate::message).sum()
}

fn is_user(message: &Message) -> bool {
    message.role == "user"
}

fn is_other(message: &Message) -> bool {
    !is_user(message)
}

#[cfg(test)]
mod tests {
    use protocol::message::ImageUrl;

    use super::*;
    use crate::context::testing::{assert_legal, call, result};

    fn cut_to(current: Vec<Message>, budget: u64) -> Vec<Message> {
        let mut conversation = RequestMessages {
            current,
            ..RequestMessages::default()
        };
        cut(&mut conversation, budget);
        conversation.current
    }

    #[test]
    fn truncates_huge_results_before_question() {
        let question = Message::text("user", "how many rows?");
        let round = [call(&["a"]), result("a", &"row ".repeat(9_000))];
        let shortened = cut_to([vec![question.clone()], round.to_vec()].concat(), 500);
        assert_legal(&shortened);
        assert_eq!((shortened.len(), &shortened[0]), (3, &question));
        assert!(estimate::messages(&shortened) <= 500 && estimate::messages(&shortened) > 480);
        assert!(shortened[2].plain_text().starts_with("row row"));
    }

    #[test]
    fn reserves_quarter_of_budget_for_results() {
        let current = vec![
            Message::text("user", "why ".repeat(2_000)),
            call(&["a"]),
            result("a", &"row ".repeat(2_000)),
        ];
        let shortened = cut_to(current, 400);
        assert_eq!(shortened.len(), 3);
        assert!(estimate::messages(&shortened[1..]) > 80);
        assert!(estimate::message(&shortened[0]) > 280);
    }

    #[test]
    fn words_are_worth_more_than_pictures() {
        let image = ContentElement {
            kind: "image_url".to_owned(),
            image_url: Some(ImageUrl {
                url: "https://example.org/a.png".to_owned(),
            }),
            ..ContentElement::default()
        };
        let question = Message {
            content: Some(MessageContent::Parts(vec![
                ContentElement::text("what is it?"),
                image,
            ])),
            ..Message::text("user", "")
        };
        let shortened = cut_to(vec![question.clone()], 1_000);
        assert!(
            shortened[0]
                .plain_text()
                .starts_with("what is it?[an attachment was left out")
        );
        assert_eq!(cut_to(vec![question.clone()], 5_000), [question]);
    }

    #[test]
    fn keeps_user_text_without_budget() {
        let round = [call(&["a", "b"]), result("a", "1"), result("b", "2")];
        let shortened = cut_to(
            [vec![Message::text("user", "hello there")], round.to_vec()].concat(),
            5,
        );
        assert_eq!(shortened.len(), 1);
        assert!(shortened[0].plain_text().starts_with("hello"));
    }
}
