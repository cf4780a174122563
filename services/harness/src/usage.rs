//! Usage of a run, read from gateway responses in the relay: tokens, and contact with the MCP server.

use std::sync::{Arc, Mutex, PoisonError};

use protocol::message::LlmTokenUsage;
use serde_json::Value;
use tokio::sync::Notify;

/// Maximum bytes of a line, or of a complete unstreamed response, that is parsed. Longer ones are skipped.
const LINE_BYTES: usize = 1024 * 1024;

/// Tokens of one run. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Usage(Arc<Mutex<Tokens>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tokens {
    input: i64,
    output: i64,
    is_reported: bool,
    has_tools: bool,
}

impl Usage {
    /// Usage so far; `None` if no response reported any.
    pub(crate) fn total(&self) -> Option<LlmTokenUsage> {
        let tokens = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.is_reported.then(|| LlmTokenUsage {
            prompt_tokens: Some(tokens.input),
            completion_tokens: Some(tokens.output),
            total_tokens: Some(tokens.input.saturating_add(tokens.output)),
            ..LlmTokenUsage::default()
        })
    }

    /// True once the harness has reached the MCP server.
    pub(crate) fn has_tools(&self) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .has_tools
    }

    /// Records a response of the MCP server.
    pub(crate) fn record_tools(&self) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .has_tools = true;
    }

    fn add(&self, more: Tokens) {
        let mut tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Providers report the counts, so they may be arbitrarily large.
        tokens.input = tokens.input.saturating_add(more.input);
        tokens.output = tokens.output.saturating_add(more.output);
        tokens.is_reported |= more.is_reported;
    }
}

/// Signal of an exhausted budget of the run. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spent(Arc<(Mutex<Option<String>>, Notify)>);

impl Spent {
    /// Checks a refusal of the gateway, and fires the signal if its reason is a budget.
    pub(crate) fn check_refusal(&self, refusal: &[u8]) {
        let text = String::from_utf8_lossy(refusal);
        // `insufficient_quota` is the code of the OpenAI faces for an exhausted budget.
        if !text.contains("\"reason\":\"budget\"") && !text.contains("insufficient_quota") {
            return;
        }
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let message = body["error"]["message"]
            .as_str()
            .unwrap_or("a budget of the run is used up");
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(message.to_owned());
        self.0.1.notify_waiters();
    }

    /// Waits for an exhausted budget and returns the gateway's message.
    pub(crate) async fn reached(&self) -> String {
        loop {
            // Register before reading the message: a notification in between must not be missed.
            let notified = self.0.1.notified();
            if let Some(message) = self
                .0
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
            {
                return message;
            }
            notified.await;
        }
    }
}

/// Reads the usage of one complete or streamed response while its bytes pass. Adds it on drop, so that aborted
/// responses count, too.
pub(crate) struct UsageReader {
    usage: Usage,
    line: Vec<u8>,
    is_too_long: bool,
    last: Tokens,
}

impl UsageReader {
    pub(crate) fn new(usage: Usage) -> Self {
        Self {
            usage,
            line: Vec::new(),
            is_too_long: false,
            last: Tokens::default(),
        }
    }

    pub(crate) fn read(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() > LINE_BYTES {
                (self.is_too_long, self.line) = (true, Vec::new());
            }
            if !self.is_too_long {
                self.line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    fn end_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            return;
        }
        let text = String::from_utf8_lossy(&line);
        let json = text.trim().strip_prefix("data:").unwrap_or(&text).trim();
        if !json.contains("usage") {
            return;
        }
        if let Ok(event) = serde_json::from_str::<Value>(json) {
            // The last counts of a stream are its totals; Anthropic sends input and output in separate events.
            for counts in [
                &event["usage"],
                &event["message"]["usage"],
                &event["response"]["usage"],
            ] {
                self.add_counts(counts);
            }
        }
    }

    fn add_counts(&mut self, usage: &Value) {
        let count = |names: &[&str]| names.iter().find_map(|name| usage[*name].as_i64());
        if let Some(input) = count(&["prompt_tokens", "input_tokens"]) {
            // Anthropic excludes cached tokens from `input_tokens`.
            let cached = ["cache_read_input_tokens", "cache_creation_input_tokens"];
            let cached: i64 = cached.iter().filter_map(|name| usage[*name].as_i64()).sum();
            self.last.input = input.saturating_add(cached);
            self.last.is_reported = true;
        }
        if let Some(output) = count(&["completion_tokens", "output_tokens"]) {
            self.last.output = output;
            self.last.is_reported = true;
        }
    }
}

impl Drop for UsageReader {
    fn drop(&mut self) {
        self.end_line();
        self.usage.add(self.last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(answers: &[&str]) -> Option<(i64, i64)> {
        let usage = Usage::default();
        for answer in answers {
            let mut reader = UsageReader::new(usage.clone());
            for bytes in answer.as_bytes().chunks(7) {
                reader.read(bytes);
            }
        }
        let total = usage.total()?;
        Some((total.prompt_tokens?, total.completion_tokens?))
    }

    #[tokio::test]
    async fn distinguishes_budget_errors() {
        let spent = Spent::default();
        spent.check_refusal(
            br#"{"error":{"message":"wait","details":{"reason":"upstream_rate_limited"}}}"#,
        );
        assert!(futures_util::poll!(Box::pin(spent.reached())).is_pending());
        spent.check_refusal(br#"{"error":{"message":"the budget a has no calls left","details":{"reason":"budget"}}}"#);
        assert_eq!(spent.reached().await, "the budget a has no calls left");
    }

    #[test]
    fn reads_usage_of_every_api_format() {
        let chat = "data: {\"choices\":[]}\n\ndata: {\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n";
        let messages = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":3,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":9}}\n\n";
        let responses =
            "data: {\"response\":{\"usage\":{\"input_tokens\":1,\"output_tokens\":1}}}\n\n";
        let unstreamed = "{\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20}}";
        assert_eq!(of(&[chat]), Some((5, 2)));
        assert_eq!(of(&[messages]), Some((7, 9)));
        assert_eq!(of(&[responses, unstreamed]), Some((11, 21)));
        assert_eq!(of(&["data: {\"choices\":[]}\n\n"]), None);
    }
}
