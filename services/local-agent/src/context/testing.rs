//! Shared test helpers: messages, and generated conversations.

use protocol::message::{
    ContentElement, FunctionCall, ImageUrl, Message, MessageContent, ToolCall,
};

use crate::context::conversation::RequestMessages;
use crate::context::reference_data;

/// Assistant message with one tool call per id.
pub(super) fn call(ids: &[&str]) -> Message {
    let calls = ids.iter().map(|id| ToolCall {
        id: (*id).to_owned(),
        kind: "function".to_owned(),
        function: FunctionCall {
            name: "look_up".to_owned(),
            arguments: format!("{{\"what\":\"{id}\"}}"),
        },
        provider_specific_fields: None,
    });
    Message {
        content: None,
        tool_calls: Some(calls.collect()),
        ..Message::text("assistant", "")
    }
}

/// Tool result of a call.
pub(super) fn result(id: &str, text: &str) -> Message {
    Message {
        tool_call_id: Some(id.to_owned()),
        ..Message::text("tool", text)
    }
}

/// Checks roles, non-empty content, and that each result directly follows its call, once.
pub(super) fn assert_legal(messages: &[Message]) {
    let mut waiting: Vec<String> = Vec::new();
    for message in messages {
        if message.role == "tool" {
            let id = message.tool_call_id.clone().expect("a result has an id");
            let position = waiting.iter().position(|other| *other == id);
            waiting.remove(position.expect("results follow their calls"));
            continue;
        }
        assert_eq!(waiting, Vec::<String>::new(), "each call has its result");
        assert!(["system", "developer", "user", "assistant"].contains(&message.role.as_str()));
        let calls = message.tool_calls.iter().flatten();
        waiting = calls.map(|call| call.id.clone()).collect();
        assert!(
            message.content.is_some() || !waiting.is_empty(),
            "{message:?}"
        );
    }
    assert!(waiting.is_empty(), "each call has its result");
}

/// Deterministic generator (xorshift) of numbers and messages.
pub(super) struct Generator(u64);

impl Generator {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    /// From 0 to below `limit`, which is not 0.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        let count = of.len() as u64;
        &of[usize::try_from(self.below(count)).unwrap()]
    }

    /// At most `words` words in several scripts.
    pub(super) fn text(&mut self, words: u64) -> String {
        const WORDS: &[&str] = &[
            "order",
            "the",
            "ship",
            "é",
            "привет",
            "你好",
            "こんにちは",
            "안녕",
            "👍🏽",
            "{\"path\":\"/a/b\"}",
            "acme_eu_42",
            "\n",
            "<b>",
            "\"",
            "…",
            "ＦＵＬＬ",
            "a/b/c9",
            "</conversation_summary>",
        ];
        let count = self.below(words + 1);
        let words: Vec<_> = (0..count).map(|_| *self.pick(WORDS)).collect();
        words.join(" ")
    }

    fn spoken(&mut self, role: &str) -> Message {
        let words = if self.below(10) == 0 { 400 } else { 30 };
        let text = format!("say {}", self.text(words));
        if self.below(12) > 0 {
            return Message::text(role, text);
        }
        let image = ContentElement {
            kind: "image_url".to_owned(),
            image_url: Some(ImageUrl {
                url: "https://example.org/a.png".to_owned(),
            }),
            ..ContentElement::default()
        };
        Message {
            content: Some(MessageContent::Parts(vec![
                ContentElement::text(text),
                image,
            ])),
            ..Message::text(role, "")
        }
    }

    /// Tool calls and their results.
    pub(super) fn round(&mut self) -> Vec<Message> {
        let ids: Vec<_> = (0..=self.below(3))
            .map(|index| format!("call{index}x{}", self.below(999)))
            .collect();
        let names: Vec<_> = ids.iter().map(String::as_str).collect();
        let mut round = vec![call(&names)];
        for id in &ids {
            let words = if self.below(8) == 0 { 600 } else { 40 };
            round.push(result(id, &self.text(words)));
        }
        round
    }

    /// Messages of any kind in any order.
    pub(super) fn jumble(&mut self) -> Vec<Message> {
        const ROLES: &[&str] = &[
            "system",
            "user",
            "assistant",
            "tool",
            "thinking",
            "developer",
        ];
        let count = self.below(14);
        let mut messages = Vec::new();
        for _ in 0..count {
            let ids = ["a", "b", "c"];
            let message = match self.below(4) {
                0 => call(&ids[..usize::try_from(self.below(4)).unwrap()]),
                1 => {
                    let id = *self.pick(&ids);
                    result(id, "found")
                }
                2 => {
                    let role = *self.pick(ROLES);
                    Message::text(role, self.text(3))
                }
                _ => {
                    let role = *self.pick(ROLES);
                    self.spoken(role)
                }
            };
            messages.push(message);
        }
        messages
    }

    /// Conversation of a run with at most `turns` turns of history.
    pub(super) fn conversation(&mut self, turns: u64) -> RequestMessages {
        let mut history = Vec::new();
        for _ in 0..self.below(turns + 1) {
            history.push(self.spoken("user"));
            for _ in 0..self.below(3) {
                history.extend(self.round());
            }
            history.push(self.spoken("assistant"));
        }
        let mut current = vec![self.spoken("user")];
        for _ in 0..self.below(4) {
            current.extend(self.round());
            if self.below(4) == 0 {
                current.push(self.spoken("user"));
            }
        }
        let chunks: Vec<_> = (0..self.below(5)).map(|_| self.text(200)).collect();
        let summary =
            "<conversation_summary>\nv=1 source=llm count=4\nEarlier.\n</conversation_summary>";
        let mut parts = RequestMessages {
            prompt: vec![Message::text(
                "system",
                format!("be kind {}", self.text(60)),
            )],
            history,
            retrieved: reference_data::retrieved_message(&chunks),
            current,
            ..RequestMessages::default()
        };
        if self.below(2) == 0 {
            parts.summaries.push(Message::text("system", summary));
        }
        parts
    }
}
