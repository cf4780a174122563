//! An answer that streams, read event by event.

use std::collections::VecDeque;
use std::time::Duration;

use protocol::sse::{Decoder, SseItem, SseLimits};
use reqwest::Response;
use serde_json::Value;

use super::answer::AnswerReader;
use crate::outbound::egress::EgressError;
use crate::outbound::upstream::UpstreamError;

/// A stream: one event, and all of them.
const EVENT_BYTES: usize = 1024 * 1024;
const STREAM_BYTES: usize = 64 * 1024 * 1024;

/// The name of an event and its data.
type Item = (Option<String>, Value);

pub(super) struct Reading {
    response: Response,
    reader: AnswerReader,
    decoder: Decoder,
    items: VecDeque<Item>,
    bytes: usize,
    idle: Duration,
    /// Why it is over, told behind what came before that.
    failed: Option<UpstreamError>,
    is_over: bool,
}

impl Reading {
    /// Reads a response whose server may be silent for `idle` between two pieces.
    pub(super) fn new(response: Response, reader: AnswerReader, idle: Duration) -> Self {
        Self {
            response,
            reader,
            decoder: Decoder::new(SseLimits {
                line_bytes: EVENT_BYTES,
                event_bytes: EVENT_BYTES,
            }),
            items: VecDeque::new(),
            bytes: 0,
            idle,
            failed: None,
            is_over: false,
        }
    }

    /// The next event. An error is the last item.
    pub(super) async fn next(mut self) -> Option<(Result<Item, UpstreamError>, Self)> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Some((Ok(item), self));
            }
            if let Some(error) = self.failed.take() {
                return Some((Err(error), self));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.read_more().await {
                self.failed = Some(error);
                self.is_over = true;
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), UpstreamError> {
        let chunk = tokio::time::timeout(self.idle, self.response.chunk()).await;
        let chunk = chunk.map_err(|_| UpstreamError::Timeout)?;
        let Some(chunk) = chunk.map_err(EgressError::from)? else {
            self.is_over = true;
            return Ok(());
        };
        self.bytes += chunk.len();
        if self.bytes > STREAM_BYTES {
            return Err(UpstreamError::TooLarge { most: STREAM_BYTES });
        }
        let mut items = Vec::new();
        let pushed = self.decoder.push(&chunk, &mut items);
        for item in items {
            let SseItem::Event(event) = item else {
                continue;
            };
            if event.data == b"[DONE]" {
                self.is_over = true;
                break;
            }
            let data = self.reader.value(&event.data)?;
            self.items.push_back((event.event, data));
        }
        pushed.map_err(|_| UpstreamError::TooLarge { most: EVENT_BYTES })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::outbound::redact::Redactor;

    async fn read(text: String) -> Vec<Result<Value, UpstreamError>> {
        let response = Response::from(http::Response::new(text));
        let reader = AnswerReader::new(Redactor::new(["key-of-ours".into()]));
        let mut reading = Some(Reading::new(response, reader, Duration::from_mins(1)));
        let mut all = Vec::new();
        while let Some(now) = reading.take() {
            if let Some((item, rest)) = now.next().await {
                all.push(item.map(|(_, data)| data));
                reading = Some(rest);
            }
        }
        all
    }

    #[tokio::test]
    async fn an_event_that_would_be_far_larger_as_values_ends_the_stream() {
        let many = format!("[{}0]", "{\"\":0},".repeat(60_000));
        let all = read(format!("data: {{\"a\":1}}\n\ndata: {many}\n\n")).await;
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[0].as_ref().unwrap(), &json!({"a": 1}));
        assert!(matches!(all[1], Err(UpstreamError::Malformed(_))));
    }

    #[tokio::test]
    async fn events_come_without_our_secrets_until_the_last() {
        let all = read("data: {\"a\":\"<key-of-ours>\"}\n\ndata: [DONE]\n\ndata: 7\n\n".to_owned());
        let all: Vec<_> = all.await.into_iter().map(Result::unwrap).collect();
        assert_eq!(all, [json!({"a": "<[redacted]>"})]);
    }
}
