//! Token estimates, on the high side. The host's count decides whether a request fits; estimates only divide the
//! budget.

use protocol::message::{ContentElement, Message, MessageContent};

/// Upper bound of the ratio of count and estimate: JSON and code have more tokens than prose.
pub(super) const UNSURE: u64 = 3;
/// Minimum for a picture or a file of any size.
const ATTACHMENT: u64 = 1600;
/// Base64 bytes per token of a file.
const FILE_BYTES: u64 = 2;
/// Characters around the role of a message.
const AROUND_ROLE: usize = 8;
/// Tokens around a tool call.
const AROUND_CALL: u64 = 4;

/// Estimate of a text: one token per four Latin characters, rounded up per run; per two of Greek or Cyrillic;
/// per one of all others, such as CJK, kana, hangul, full width and emoji.
pub fn text(text: &str) -> u64 {
    let mut meter = CharCounter::default();
    text.chars().for_each(|c| meter.add(c));
    meter.tokens()
}

/// Longest prefix of a text with at most `tokens` tokens.
pub fn prefix(text: &str, tokens: u64) -> &str {
    let mut meter = CharCounter::default();
    for (index, c) in text.char_indices() {
        meter.add(c);
        if meter.tokens() > tokens {
            return &text[..index];
        }
    }
    text
}

/// Estimate of a message, including its structure.
pub fn message(message: &Message) -> u64 {
    let content = match &message.content {
        None => 0,
        Some(MessageContent::Text(content)) => text(content),
        Some(MessageContent::Parts(parts)) => parts.iter().map(part).sum(),
    };
    let calls = message.tool_calls.iter().flatten();
    let calls: u64 = calls
        .map(|call| {
            let function = &call.function;
            AROUND_CALL + text(&call.id) + text(&function.name) + text(&function.arguments)
        })
        .sum();
    let names = [&message.name, &message.tool_call_id];
    let names: u64 = names.into_iter().flatten().map(|name| text(name)).sum();
    around(&message.role) + content + calls + names + carried(message)
}

/// Tokens of provider fields besides texts and calls.
fn carried(message: &Message) -> u64 {
    let calls = message.tool_calls.iter().flatten();
    let fields = calls.map(|call| &call.provider_specific_fields);
    let fields = fields.chain([&message.provider_specific_fields]);
    fields
        .flatten()
        .flatten()
        .map(|(_, value)| text(&value.to_string()))
        .sum()
}

/// Estimate of several messages.
pub fn messages(messages: &[Message]) -> u64 {
    messages.iter().map(message).sum()
}

/// Fixed tokens of a message.
pub(super) fn around(role: &str) -> u64 {
    (role.len() + AROUND_ROLE).div_ceil(4) as u64
}

/// Estimate of one content part.
pub(super) fn part(part: &ContentElement) -> u64 {
    let own = part.text.as_deref().map_or(0, text);
    if !is_attachment(part) {
        return own;
    }
    let names = [&part.file_url, &part.file_name];
    let names: u64 = names.into_iter().flatten().map(|name| text(name)).sum();
    let bytes = part.file_base64.as_ref().map_or(0, String::len) as u64;
    own + (names + bytes / FILE_BYTES).max(ATTACHMENT)
}

/// True for pictures and files.
pub(super) fn is_attachment(part: &ContentElement) -> bool {
    part.kind.starts_with("image") || part.kind.starts_with("file")
}

/// Running sum over characters. Monotonic.
#[derive(Default)]
struct CharCounter {
    full: u64,
    /// Quarter tokens in the current run of characters.
    quarters: u64,
}

impl CharCounter {
    fn add(&mut self, c: char) {
        match quarters(c) {
            4 => {
                self.full = self.tokens() + 1;
                self.quarters = 0;
            }
            quarters => self.quarters += quarters,
        }
    }

    fn tokens(&self) -> u64 {
        self.full + self.quarters.div_ceil(4)
    }
}

fn quarters(c: char) -> u64 {
    match u32::from(c) {
        0..=0x024f => 1,
        0x0370..=0x052f => 2,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::context::testing::Generator;

    #[test]
    fn never_underestimates_tokens_by_script() {
        for (input, expected) in [
            ("", 0),
            ("a", 1),
            ("abcd", 1),
            ("abcde", 2),
            ("Ünïcödé", 2),
            ("你好世界", 4),
            ("ab你好cd", 4),
            ("こんにちは", 5),
            ("カタカナ", 4),
            ("안녕하세요", 5),
            ("ＦＵＬＬ", 4),
            ("👍🎉", 2),
            ("☀→", 2),
            ("привет", 3),
        ] {
            assert_eq!(text(input), expected, "{input}");
        }
    }

    #[test]
    fn estimates_attachments_by_size() {
        let of = |value: serde_json::Value| {
            message(&serde_json::from_value(json!({"role": "user", "content": [value]})).unwrap())
        };
        assert!(
            of(json!({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}})) >= 1600
        );
        assert!(of(json!({"type": "image_base64", "image_base64": "AA"})) >= 1600);
        assert!(of(json!({"type": "file_url", "file_url": "https://a.b/c.pdf"})) >= 1600);
        let file = json!({"type": "file_base64", "file_base64": "A".repeat(40_000)});
        assert!(of(file) >= 20_000);
        assert!(of(json!({"type": "text", "text": "hi"})) < 10);
    }

    #[test]
    fn estimates_all_message_fields() {
        let base = json!({"role": "assistant", "content": "hi"});
        let of = |more: serde_json::Value| {
            let mut full = base.clone();
            let more = more.as_object().unwrap().clone();
            full.as_object_mut().unwrap().extend(more);
            message(&serde_json::from_value(full).unwrap())
        };
        let plain = of(json!({}));
        assert_eq!(plain, 6);
        let call = json!({"id": "call", "type": "function", "function": {"name": "find", "arguments": "{}"}});
        assert_eq!(of(json!({"tool_calls": [call]})), plain + 7);
        assert_eq!(of(json!({"name": "bobby"})), plain + 2);
        assert_eq!(of(json!({"tool_call_id": "call"})), plain + 1);
        assert_eq!(
            messages(&[Message::text("user", "hi"), Message::text("user", "hi")]),
            8
        );
    }

    /// Messages with real token counts of models; the gateway's own counter is tested with them, too.
    const CORPUS: &str = include_str!("../../../../tests/fixtures/token_corpus.json");

    #[derive(serde::Deserialize)]
    struct CountedPart {
        vocabulary: String,
        kind: String,
        messages: Vec<Message>,
        tools: Vec<serde_json::Value>,
        tokens: u64,
    }

    #[test]
    fn bounds_estimate_error_against_real_counts() {
        let corpus: Vec<CountedPart> = serde_json::from_str(CORPUS).unwrap();
        let plain = corpus.iter().filter(|case| case.tools.is_empty());
        let mut cases = 0;
        for case in plain {
            let estimated = messages(&case.messages);
            let is_prose = ["english", "chinese", "japanese"].contains(&case.kind.as_str());
            let limit = match case.vocabulary.as_str() {
                "o200k" if is_prose => estimated,
                _ => estimated * UNSURE / 3 * 2,
            };
            let CountedPart {
                vocabulary,
                kind,
                tokens,
                ..
            } = case;
            assert!(
                *tokens <= limit,
                "{vocabulary} {kind}: {tokens}, not {estimated}"
            );
            cases += 1;
        }
        assert_eq!(cases, 20);
    }

    #[test]
    fn takes_longest_fitting_prefix() {
        let mut generator = Generator::new(7);
        for _ in 0..500 {
            let full = generator.text(60);
            let tokens = generator.below(text(&full) + 3);
            let start = prefix(&full, tokens);
            assert!(text(start) <= tokens);
            assert!(full.starts_with(start));
            let next = full[start.len()..].chars().next();
            if let Some(next) = next {
                assert!(
                    text(&format!("{start}{next}")) > tokens,
                    "{full:?} {tokens}"
                );
            }
        }
    }
}
