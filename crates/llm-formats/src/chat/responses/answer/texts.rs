//! Texts of an answer: content, refusal and reasoning.

use serde_json::json;

use super::super::item::{ItemBody, ItemText, TextKind};
use super::{ITEM_BYTES, ResponseEventWriter};

impl ResponseEventWriter {
    /// Starts or continues a text.
    pub(super) fn write_text(&mut self, kind: TextKind, text: &str) {
        if text.is_empty() {
            return;
        }
        let (output, part) = match self.position_of(kind) {
            Some(position) => position,
            None => self.begin_text(kind),
        };
        self.bytes += text.len();
        let item = &mut self.items[output];
        match &mut item.body {
            ItemBody::Message(texts) => texts[part].text.push_str(text),
            ItemBody::Reasoning(reasoning) => reasoning.text.push_str(text),
            ItemBody::Carried(_) | ItemBody::Call { .. } => {}
        }
        let mut delta = json!({"item_id": item.id, "output_index": output, "content_index": part, "delta": text});
        if kind == TextKind::Answer {
            delta["logprobs"] = json!([]);
        }
        self.event(&format!("{}.delta", kind.event()), delta);
    }

    /// Returns the item and part of the open text of this kind.
    fn position_of(&self, kind: TextKind) -> Option<(usize, usize)> {
        let output = self.open?;
        match &self.items[output].body {
            ItemBody::Reasoning(_) => (kind == TextKind::Reasoning).then_some((output, 0)),
            ItemBody::Message(texts) => {
                let last = texts.last().filter(|last| last.kind == kind);
                last.map(|_| (output, texts.len() - 1))
            }
            ItemBody::Carried(_) | ItemBody::Call { .. } => None,
        }
    }

    fn begin_text(&mut self, kind: TextKind) -> (usize, usize) {
        let text = ItemText {
            kind,
            text: String::new(),
        };
        let part = text.part();
        // Content and refusal share a message; reasoning is an item of its own.
        let open = self.open.filter(|output| {
            kind != TextKind::Reasoning && matches!(self.items[*output].body, ItemBody::Message(_))
        });
        let output = if let Some(output) = open {
            self.close_part(output);
            output
        } else {
            // Items are sequential: another kind of text ends the open one.
            self.close_open("completed");
            let body = match kind {
                TextKind::Reasoning => ItemBody::Reasoning(text),
                TextKind::Answer | TextKind::Refusal => ItemBody::Message(Vec::new()),
            };
            self.add(body)
        };
        self.open = Some(output);
        let mut index = 0;
        if let ItemBody::Message(texts) = &mut self.items[output].body {
            index = texts.len();
            texts.push(ItemText {
                kind,
                text: String::new(),
            });
        }
        // Charged also for a part without text.
        self.bytes += ITEM_BYTES;
        let id = &self.items[output].id;
        let added =
            json!({"item_id": id, "output_index": output, "content_index": index, "part": part});
        self.event("response.content_part.added", added);
        (output, index)
    }

    /// Ends the newest text of an item.
    fn close_part(&mut self, output: usize) {
        let item = &self.items[output];
        let (index, text) = match &item.body {
            ItemBody::Reasoning(text) => (0, text),
            ItemBody::Message(texts) => match texts.last() {
                Some(text) => (texts.len() - 1, text),
                None => return,
            },
            ItemBody::Carried(_) | ItemBody::Call { .. } => return,
        };
        let (kind, part) = (text.kind, text.part());
        let mut done = json!({"item_id": item.id, "output_index": output, "content_index": index});
        done[kind.member()] = json!(text.text);
        if kind == TextKind::Answer {
            done["logprobs"] = json!([]);
        }
        let added = json!({"item_id": item.id, "output_index": output, "content_index": index, "part": part});
        self.event(&format!("{}.done", kind.event()), done);
        self.event("response.content_part.done", added);
    }

    pub(super) fn close_open(&mut self, status: &'static str) {
        if let Some(output) = self.open.take() {
            self.close_part(output);
            self.close_item(output, status);
        }
    }
}
