//! Message order that chat templates of all models accept: one instruction first, then users and the assistant in
//! turns.

use protocol::message::{ContentElement, Message, MessageContent};

use crate::context::conversation::RequestMessages;
use crate::context::message_validation;

/// Precedes a conversation without its beginning: templates demand that a user speaks first.
const BEGINS_EARLIER: &str = "[The conversation began before this.]";

/// Separator of two texts that become one.
const BETWEEN: &str = "\n\n";

/// Messages of a conversation as a model gets them. Retrieved passages become part of the user's message, before
/// the user's words. Consecutive messages of one role become one.
pub fn messages(conversation: &RequestMessages) -> Vec<Message> {
    let RequestMessages {
        prompt,
        summaries,
        history,
        retrieved,
        current,
    } = conversation;
    let mut current = current.clone();
    if let Some(retrieved) = retrieved {
        // As user data, not as an instruction: passages are untrusted.
        let of_user = current.iter().position(|message| message.role == "user");
        let data = Message {
            role: "user".to_owned(),
            ..retrieved.clone()
        };
        current.insert(of_user.unwrap_or(0), data);
    }
    let before = prompt.iter().chain(summaries).chain(history);
    let (instructions, turns): (Vec<_>, Vec<_>) = before
        .cloned()
        .chain(current)
        .partition(message_validation::is_instruction);
    let mut sent = Vec::new();
    for mut instruction in instructions {
        "system".clone_into(&mut instruction.role);
        add(&mut sent, instruction);
    }
    if turns.first().is_some_and(|first| first.role == "assistant") {
        sent.push(Message::text("user", BEGINS_EARLIER));
    }
    for message in turns {
        add(&mut sent, message);
    }
    sent
}

/// Appends a message, or joins it to the last one of the same role.
fn add(sent: &mut Vec<Message>, message: Message) {
    // Each tool result answers its own call id.
    let is_alone = message.role == "tool";
    match sent.last_mut() {
        Some(last) if last.role == message.role && !is_alone && last.tool_calls.is_none() => {
            let (one, other) = (last.content.take(), message.content);
            last.content = match (one, other) {
                (Some(one), Some(other)) => Some(joined(one, other)),
                (one, other) => one.or(other),
            };
            // Different authors share no name.
            if last.name != message.name {
                last.name = None;
            }
            last.tool_calls = message.tool_calls;
            last.resp_message_id = message.resp_message_id;
            last.provider_specific_fields = message.provider_specific_fields;
        }
        _ => sent.push(message),
    }
}

/// Joins texts by a blank line; pictures and files stay as they are.
fn joined(one: MessageContent, other: MessageContent) -> MessageContent {
    let is_text = |content: &MessageContent| match content {
        MessageContent::Text(_) => true,
        MessageContent::Parts(parts) => parts.iter().all(|part| part.kind == "text"),
    };
    if is_text(&one) && is_text(&other) {
        let (one, other) = (one.plain_text(), other.plain_text());
        return MessageContent::Text(format!("{one}{BETWEEN}{other}"));
    }
    let mut all = parts(one);
    let mut others = parts(other);
    if let (Some(last), Some(first)) = (all.last(), others.first_mut())
        && last.kind == "text"
        && let Some(text) = first.text.as_mut().filter(|_| first.kind == "text")
    {
        // Templates concatenate the texts of parts without a separator.
        text.insert_str(0, BETWEEN);
    }
    all.extend(others);
    MessageContent::Parts(all)
}

fn parts(content: MessageContent) -> Vec<ContentElement> {
    match content {
        MessageContent::Text(text) => vec![ContentElement::text(text)],
        MessageContent::Parts(parts) => parts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::reference_data;
    use crate::context::testing::{Generator, assert_legal, call, result};

    fn text(role: &str, text: &str) -> Message {
        Message::text(role, text)
    }

    fn roles_and_texts(messages: &[Message]) -> Vec<(&str, String)> {
        let roles_and_texts = messages.iter();
        roles_and_texts
            .map(|message| (message.role.as_str(), message.plain_text()))
            .collect()
    }

    #[test]
    fn alternates_user_and_assistant_after_instruction() {
        let conversation = RequestMessages {
            prompt: vec![
                text("system", "p"),
                text("developer", "skills"),
                text("user", "example"),
            ],
            summaries: vec![text("system", "summary")],
            history: vec![
                text("user", "failed"),
                text("user", "again"),
                text("assistant", "a"),
            ],
            retrieved: reference_data::retrieved_message(&["chunk".to_owned()]),
            current: vec![
                text("user", "now"),
                text("user", "and quickly"),
                call(&["c"]),
                result("c", "found"),
                text("user", "wait"),
            ],
        };
        let sent = messages(&conversation);
        let roles: Vec<_> = sent.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(
            roles,
            [
                "system",
                "user",
                "assistant",
                "user",
                "assistant",
                "tool",
                "user"
            ]
        );
        assert_eq!(sent[0].plain_text(), "p\n\nskills\n\nsummary");
        assert_eq!(sent[1].plain_text(), "example\n\nfailed\n\nagain");
        let user_text = sent[3].plain_text();
        assert!(user_text.contains("untrusted_reference_data") && user_text.contains("chunk"));
        assert!(user_text.ends_with("\n\nnow\n\nand quickly"), "{user_text}");
    }

    #[test]
    fn keeps_parts_next_to_text() {
        let image = ContentElement {
            kind: "image_url".to_owned(),
            ..ContentElement::default()
        };
        let conversation = RequestMessages {
            history: vec![text("assistant", "hello"), text("user", "a")],
            current: vec![Message {
                content: Some(MessageContent::Parts(vec![image.clone()])),
                ..text("user", "")
            }],
            ..RequestMessages::default()
        };
        let sent = messages(&conversation);
        assert_eq!(
            roles_and_texts(&sent)[..2],
            [
                ("user", BEGINS_EARLIER.to_owned()),
                ("assistant", "hello".to_owned())
            ]
        );
        let parts = vec![ContentElement::text("a"), image];
        assert_eq!(sent[2].content, Some(MessageContent::Parts(parts)));
    }

    #[test]
    fn any_conversation_alternates() {
        for seed in 0..500 {
            let conversation = Generator::new(seed).conversation(6);
            let sent = messages(&conversation);
            assert_legal(&sent);
            for (before, after) in sent.iter().zip(&sent[1..]) {
                assert_ne!(after.role, "system", "seed {seed}");
                let is_same = before.role == after.role;
                assert!(
                    !is_same || after.role == "tool",
                    "seed {seed}: {}",
                    after.role
                );
            }
        }
    }
}
