//! Token counts of requests. Texts are exact for OpenAI vocabularies; other models get a margin. Providers do
//! not publish the overhead per message, so the estimate is an upper bound.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use dashmap::DashMap;
use llm_formats::chat::provider_member_texts;
use protocol::message::{ContentElement, Message, MessageContent, ToolCall};
use protocol::model::LlmTool;

pub use tokenizer::Vocabulary;

/// Token counting for one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenCount {
    pub vocabulary: Vocabulary,
    /// Factor on counts, for models with another vocabulary; at least 1.
    pub margin: f64,
}

/// Overhead of a message: role and delimiters.
const MESSAGE: u64 = 4;
/// Overhead of a tool call and of a tool definition.
const CALL: u64 = 8;
const TOOL: u64 = 12;
/// Overhead before the answer.
const ANSWER: u64 = 3;
/// Tokens of an image: the count of a large one in high detail.
const IMAGE: u64 = 1105;
/// Minimum bytes of a file per token.
const FILE_BYTES: u64 = 2;

/// Cache of text counts, because agents resend their history.
static COUNT_CACHE: LazyLock<DashMap<[u8; 16], u32>> = LazyLock::new(DashMap::new);
/// Counting a shorter text is faster than a cache lookup.
const SHORT: usize = 256;
const MAX_COUNTED: usize = 20_000;
/// Total text size above which counting uses a blocking section.
const LONG: usize = 64 * 1024;

impl TokenCount {
    /// Upper bound of the tokens of a request.
    pub fn of_request(&self, messages: &[Message], tools: &[LlmTool]) -> u64 {
        let schemas: Vec<_> = tools.iter().map(schema_of).collect();
        let of_tool = |(tool, schema): (&LlmTool, &String)| {
            tool.name.len() + tool.description.len() + schema.len()
        };
        let of_tools: usize = tools.iter().zip(&schemas).map(of_tool).sum();
        let bytes = of_tools + messages.iter().map(text_bytes).sum::<usize>();
        blocking_if_long(bytes, || {
            let messages = messages.iter().map(|message| self.of_message(message));
            let tools = tools.iter().zip(&schemas);
            let tools = tools.map(|(tool, schema)| self.of_tool(tool, schema));
            // Without messages there is no answer.
            let answer = messages.len().min(1) as u64 * ANSWER;
            self.with_margin(answer + messages.sum::<u64>() + tools.sum::<u64>())
        })
    }

    /// Total tokens of texts.
    pub fn of_texts<'a>(&self, texts: impl Iterator<Item = &'a String>) -> u64 {
        let texts: Vec<_> = texts.collect();
        let bytes = texts.iter().map(|text| text.len()).sum();
        blocking_if_long(bytes, || {
            self.with_margin(texts.iter().map(|text| self.of_text(text)).sum())
        })
    }

    /// Tokens of images, and of files with this total size.
    pub fn of_data(&self, images: u64, file_bytes: u64) -> u64 {
        self.with_margin(images.saturating_mul(IMAGE) + file_bytes / FILE_BYTES)
    }

    fn of_message(&self, message: &Message) -> u64 {
        let content = match &message.content {
            None => 0,
            Some(MessageContent::Text(text)) => self.of_text(text),
            Some(MessageContent::Parts(parts)) => parts.iter().map(|part| self.of_part(part)).sum(),
        };
        let calls = message.tool_calls.iter().flatten();
        let calls: u64 = calls
            .map(|call| {
                let texts = [&call.id, &call.function.name, &call.function.arguments];
                CALL + texts.iter().map(|text| self.of_text(text)).sum::<u64>()
            })
            .sum();
        let names = [&message.name, &message.tool_call_id];
        let names: u64 = names
            .into_iter()
            .flatten()
            .map(|name| 1 + self.of_text(name))
            .sum();
        let carried = provider_member_texts(message).map(|text| self.of_text(&text));
        MESSAGE + content + calls + names + carried.sum::<u64>()
    }

    fn of_part(&self, part: &ContentElement) -> u64 {
        let is_image = part.image_url.is_some() || part.image_base64.is_some();
        let image = if is_image { IMAGE } else { 0 };
        let file = part
            .file_base64
            .as_ref()
            .map_or(0, |data| data.len() as u64 / FILE_BYTES);
        let texts = [&part.text, &part.file_url, &part.file_name];
        let texts: u64 = texts
            .into_iter()
            .flatten()
            .map(|text| self.of_text(text))
            .sum();
        image + file + texts
    }

    fn of_tool(&self, tool: &LlmTool, schema: &str) -> u64 {
        TOOL + self.of_text(&tool.name) + self.of_text(&tool.description) + self.of_text(schema)
    }

    /// Tokens of one text, without the margin.
    fn of_text(&self, text: &str) -> u64 {
        if text.len() < SHORT {
            return self.cut(text);
        }
        let mut key = [0; 16];
        let hash = digest(&SHA256, text.as_bytes());
        key.copy_from_slice(&hash.as_ref()[..16]);
        // Both vocabularies share the cache, so the vocabulary is a part of the key.
        key[0] ^= u8::from(self.vocabulary == Vocabulary::Cl100k);
        if let Some(count) = COUNT_CACHE.get(&key) {
            return u64::from(*count);
        }
        let count = self.cut(text);
        // Clearing is cheaper than an eviction order, and live texts return at once.
        if COUNT_CACHE.len() >= MAX_COUNTED {
            COUNT_CACHE.clear();
        }
        COUNT_CACHE.insert(key, u32::try_from(count).unwrap_or(u32::MAX));
        count
    }

    fn cut(&self, text: &str) -> u64 {
        self.vocabulary.count(text) as u64
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a request has far fewer tokens than a double counts exactly"
    )]
    fn with_margin(&self, count: u64) -> u64 {
        (count as f64 * self.margin).ceil() as u64
    }
}

fn schema_of(tool: &LlmTool) -> String {
    serde_json::to_string(&tool.parameters).unwrap_or_default()
}

/// Counts long texts in a blocking section, so that they do not stall the worker thread.
fn blocking_if_long(bytes: usize, count: impl FnOnce() -> u64) -> u64 {
    // `block_in_place` requires the multi-thread runtime.
    if bytes > LONG {
        tokio::task::block_in_place(count)
    } else {
        count()
    }
}

/// Total bytes of all counted texts of a message.
fn text_bytes(message: &Message) -> usize {
    fn sum<'a>(texts: impl IntoIterator<Item = &'a Option<String>>) -> usize {
        texts.into_iter().flatten().map(String::len).sum()
    }
    let content = match &message.content {
        None => 0,
        Some(MessageContent::Text(text)) => text.len(),
        Some(MessageContent::Parts(parts)) => {
            let of_part =
                |part: &ContentElement| sum([&part.text, &part.file_url, &part.file_name]);
            parts.iter().map(of_part).sum()
        }
    };
    let calls = message.tool_calls.iter().flatten();
    let of_call =
        |call: &ToolCall| call.id.len() + call.function.name.len() + call.function.arguments.len();
    let carried = provider_member_texts(message)
        .map(|text| text.len())
        .sum::<usize>();
    let names = sum([&message.name, &message.tool_call_id]);
    content + calls.map(of_call).sum::<usize>() + names + carried
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const EXACT: TokenCount = TokenCount {
        vocabulary: Vocabulary::O200k,
        margin: 1.0,
    };

    #[test]
    fn caches_counts_and_applies_margin() {
        let long = Message::text("user", "The quick brown fox 跳过了懒狗。 ".repeat(40));
        let first = EXACT.of_request(std::slice::from_ref(&long), &[]);
        assert_eq!(first, EXACT.of_request(std::slice::from_ref(&long), &[]));
        let wide = TokenCount {
            margin: 1.5,
            ..EXACT
        };
        assert_eq!(wide.of_request(&[long], &[]), (first * 3).div_ceil(2));
    }

    #[test]
    fn counts_all_parts_of_a_request() {
        let plain = Message::text("user", "hi");
        let count = |message: &Message| EXACT.of_request(std::slice::from_ref(message), &[]);
        let base = count(&plain);
        let with = |more: serde_json::Value| {
            let mut message = serde_json::to_value(&plain).unwrap();
            message
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            count(&serde_json::from_value(message).unwrap())
        };
        let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}});
        for more in [
            json!({"name": "bob"}),
            json!({"tool_call_id": "c1"}),
            json!({"tool_calls": [call]}),
            json!({"content": [{"type": "text", "text": "hi"}, {"type": "image_base64", "image_base64": "AA"}]}),
            json!({"content": [{"type": "text", "text": "hi"}, {"type": "file_base64", "file_base64": "AAAAAA"}]}),
        ] {
            assert!(with(more.clone()) > base, "{more}");
        }
        let tool: LlmTool = serde_json::from_value(json!({"name": "f", "description": "d",
            "parameters": {"type": "object"}}))
        .unwrap();
        assert!(EXACT.of_request(&[plain], &[tool]) > base + TOOL);
    }

    /// Corpus with true counts; `tests/peer/count_corpus.mjs` documents how they were made.
    const CORPUS: &str = include_str!("../../../tests/fixtures/token_corpus.json");

    #[derive(serde::Deserialize)]
    struct Counted {
        vocabulary: String,
        kind: String,
        messages: Vec<Message>,
        tools: Vec<LlmTool>,
        tokens: u64,
    }

    #[test]
    fn counts_exceed_truth_by_up_to_a_third() {
        let corpus: Vec<Counted> = serde_json::from_str(CORPUS).unwrap();
        assert_eq!(corpus.len(), 40);
        for case in corpus {
            let vocabulary = match case.vocabulary.as_str() {
                "cl100k" => Vocabulary::Cl100k,
                _ => Vocabulary::O200k,
            };
            let count = TokenCount {
                vocabulary,
                margin: 1.0,
            };
            let counted = count.of_request(&case.messages, &case.tools);
            let true_count = case.tokens;
            assert!(
                (true_count..=true_count * 13 / 10).contains(&counted),
                "{} {} with {} tools: {counted}, not {true_count}",
                case.vocabulary,
                case.kind,
                case.tools.len()
            );
        }
    }
}
