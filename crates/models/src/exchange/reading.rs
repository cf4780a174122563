//! Reads a completion response incrementally: events, or one document, whichever the server sends.

use std::collections::VecDeque;
use std::time::Duration;

use domain::json_repair::SurrogateHalves;
use egress::Response;
use futures_util::stream::BoxStream;
use http::header::CONTENT_TYPE;
use protocol::JsonObject;
use protocol::sse::{Decoder, SseEvent, SseItem, SseLimits};
use serde_json::Value;

use super::ANSWER_BYTES;
use super::answer::ResponseParser;
use crate::deviations::ResponseDeviations;
use egress::EgressError;
use egress::upstream::UpstreamError;

/// Maximum size of one event, and of a stream.
const EVENT_BYTES: usize = 1024 * 1024;
const STREAM_BYTES: usize = 64 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// Fields that can begin an event stream.
const FIELDS: [&[u8]; 5] = [b"data:", b"event:", b"id:", b"retry:", b":"];
/// Names of answer events. Other events without readable data are heartbeats.
const ANSWER_EVENTS: [&str; 10] = [
    "message",
    "error",
    "completion",
    "chat.completion.chunk",
    "message_start",
    "message_delta",
    "message_stop",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
];

/// One event.
pub(crate) struct Event {
    pub(crate) name: Option<String>,
    pub(crate) data: JsonObject,
    pub(crate) halves: SurrogateHalves,
}

/// One item of a response.
pub(crate) enum Item {
    Event(Event),
    /// `[DONE]`, the last item.
    End,
    /// A complete document, which is the only item.
    Document(JsonObject),
}

/// The items of a response. After a `Malformed` error others may follow; any other error is the last item.
pub(crate) type ResponseItems = BoxStream<'static, Result<Item, UpstreamError>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BodyFraming {
    Events,
    Document,
}

pub(super) struct ResponseReader {
    response: Response,
    content_type: String,
    reader: ResponseParser,
    noted: ResponseDeviations,
    /// `None`: not yet determined.
    framing: Option<BodyFraming>,
    /// Bytes before the framing is known, or those of a document.
    buffer: Vec<u8>,
    decoder: Decoder,
    items: VecDeque<Result<Item, UpstreamError>>,
    bytes: usize,
    idle: Duration,
    is_over: bool,
}

impl ResponseReader {
    /// Reads a response. `idle` limits the silence between two pieces.
    pub(super) fn new(response: Response, reader: ResponseParser, idle: Duration) -> Self {
        let content_type = response.headers().get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        let limits = SseLimits {
            line_bytes: EVENT_BYTES,
            event_bytes: EVENT_BYTES,
        };
        Self {
            content_type: content_type.unwrap_or_default().to_ascii_lowercase(),
            response,
            noted: reader.noted(),
            reader,
            framing: None,
            buffer: Vec::new(),
            decoder: Decoder::new(limits).splitting_objects(),
            items: VecDeque::new(),
            bytes: 0,
            idle,
            is_over: false,
        }
    }

    pub(super) fn declares_stream(&self) -> bool {
        self.content_type.starts_with("text/event-stream")
    }

    /// The next item.
    pub(super) async fn next(mut self) -> Option<(Result<Item, UpstreamError>, Self)> {
        loop {
            if let Some(item) = self.items.pop_front() {
                return Some((item, self));
            }
            if self.is_over {
                return None;
            }
            if let Err(error) = self.read_more().await {
                self.is_over = true;
                // Deliver the items before the break; the caller may have its complete answer in them.
                self.take_rest(true);
                self.items.push_back(Err(error));
            }
        }
    }

    async fn read_more(&mut self) -> Result<(), UpstreamError> {
        let chunk = tokio::time::timeout(self.idle, self.response.chunk()).await;
        let chunk = chunk.map_err(|_| UpstreamError::Timeout)?;
        let Some(chunk) = chunk.map_err(EgressError::from)? else {
            self.is_over = true;
            self.take_rest(false);
            return Ok(());
        };
        self.bytes += chunk.len();
        // Count all bytes, also heartbeats: an endless stream of them must end.
        if self.bytes > STREAM_BYTES {
            return Err(UpstreamError::TooLarge { max: STREAM_BYTES });
        }
        // Events are decoded directly and not buffered.
        if self.framing == Some(BodyFraming::Events) {
            return self.decode(&chunk);
        }
        self.buffer.extend_from_slice(&chunk);
        if self.buffer.len() > ANSWER_BYTES {
            return Err(UpstreamError::TooLarge { max: ANSWER_BYTES });
        }
        if self.framing.is_none() {
            self.framing = framing_of(&self.buffer, self.declares_stream(), false);
        }
        if self.framing == Some(BodyFraming::Events) {
            let begin = std::mem::take(&mut self.buffer);
            return self.decode(&begin);
        }
        Ok(())
    }

    fn decode(&mut self, chunk: &[u8]) -> Result<(), UpstreamError> {
        let mut items = Vec::new();
        let pushed = self.decoder.push(chunk, &mut items);
        self.take(items, false);
        // Data after the end mark is ignored, also an oversized event.
        if self.is_over {
            return Ok(());
        }
        pushed.map_err(|_| UpstreamError::TooLarge { max: EVENT_BYTES })
    }

    /// Handles the rest of the body at its end. `is_broken`: the connection broke, so an unreadable rest is not
    /// reported.
    fn take_rest(&mut self, is_broken: bool) {
        let streams = self.declares_stream();
        let framing = self
            .framing
            .or_else(|| framing_of(&self.buffer, streams, true));
        if framing == Some(BodyFraming::Document) {
            let document = self.document();
            // A document that was cut is not an error of its own: the broken connection is reported.
            if !is_broken || document.is_ok() {
                self.items.push_back(document);
            }
            return;
        }
        let mut items = Vec::new();
        let begin = std::mem::take(&mut self.buffer);
        let pushed = self.decoder.push(&begin, &mut items);
        if pushed
            .and_then(|()| self.decoder.finish(&mut items))
            .is_ok()
            && !items.is_empty()
        {
            self.noted.note("last_event_without_blank_line");
        }
        self.take(items, is_broken);
    }

    fn document(&self) -> Result<Item, UpstreamError> {
        let text = self
            .buffer
            .strip_prefix(BYTE_ORDER_MARK)
            .unwrap_or(&self.buffer);
        let value = self.reader.value(text, &self.noted);
        let value = match value {
            // Some servers wrap the document in a list.
            Ok(Value::Array(items)) if items.len() == 1 => items.into_iter().next(),
            Ok(value) => Some(value),
            // A broken JSON object gets the parser's error, other text the general one.
            Err(error) if text.trim_ascii_start().starts_with(b"{") => return Err(error),
            Err(_) => None,
        };
        match value {
            Some(Value::Object(document)) => Ok(Item::Document(document)),
            _ => Err(UpstreamError::Malformed(format!(
                "it is neither a JSON object nor a stream of events; its content type is `{}`",
                self.content_type
                    .chars()
                    .take(80)
                    .collect::<String>()
                    .escape_debug()
            ))),
        }
    }

    fn take(&mut self, items: Vec<SseItem>, only_readable: bool) {
        for item in items {
            let SseItem::Event(event) = item else {
                continue;
            };
            match self.item(event) {
                None => {}
                Some(Err(_)) if only_readable => {}
                Some(Ok(Item::End)) => {
                    self.items.push_back(Ok(Item::End));
                    self.is_over = true;
                    return;
                }
                Some(item) => self.items.push_back(item),
            }
        }
    }

    /// `None`: a heartbeat.
    fn item(&self, event: SseEvent) -> Option<Result<Item, UpstreamError>> {
        let text = event.data.trim_ascii();
        // Some servers quote the end mark.
        if text == b"[DONE]" || text == b"\"[DONE]\"" {
            return Some(Ok(Item::End));
        }
        if text.is_empty() || text == b"null" {
            self.noted.note("empty_event");
            return None;
        }
        let name = event.event.as_deref().unwrap_or_default();
        let is_of_answer = name.is_empty() || ANSWER_EVENTS.contains(&name);
        // Events of other names are heartbeats if their data is no object.
        match self.reader.part(text, &self.noted) {
            Ok((Value::Object(data), halves)) => Some(Ok(Item::Event(Event {
                name: event.event,
                data,
                halves,
            }))),
            _ if !is_of_answer => {
                self.noted.note("heartbeat_with_data");
                None
            }
            Ok(_) => Some(Err(UpstreamError::Malformed(
                "a chunk is no object".to_owned(),
            ))),
            Err(error) => Some(Err(error)),
        }
    }
}

/// Detects the framing from the first bytes, since servers send wrong content types. `None`: more bytes are
/// needed.
fn framing_of(begin: &[u8], declares_stream: bool, is_all: bool) -> Option<BodyFraming> {
    if !is_all && begin.len() < 3 && BYTE_ORDER_MARK.starts_with(begin) {
        return None;
    }
    let begin = begin
        .strip_prefix(BYTE_ORDER_MARK)
        .unwrap_or(begin)
        .trim_ascii_start();
    let begins = |field: &&[u8]| begin.starts_with(field);
    let may_begin = |field: &&[u8]| !is_all && field.starts_with(begin);
    match begin.first() {
        None if !is_all => None,
        Some(b'{' | b'[') => Some(BodyFraming::Document),
        _ if declares_stream || FIELDS.iter().any(begins) => Some(BodyFraming::Events),
        _ if FIELDS.iter().any(may_begin) => None,
        _ => Some(BodyFraming::Document),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::deviations::DeviationCounts;
    use egress::redact::Redactor;

    async fn read_as(
        content_type: &str,
        text: impl Into<Vec<u8>>,
    ) -> Vec<Result<Value, UpstreamError>> {
        let body = http::Response::builder().header(CONTENT_TYPE, content_type);
        let response = Response::from(body.body(text.into()).unwrap());
        let reader = ResponseParser::new(
            Redactor::new(["key-of-ours".into()]),
            DeviationCounts::new("p"),
        );
        let mut reading = Some(ResponseReader::new(
            response,
            reader,
            Duration::from_mins(1),
        ));
        let mut all = Vec::new();
        while let Some(now) = reading.take() {
            if let Some((item, rest)) = now.next().await {
                all.push(item.map(|item| match item {
                    Item::Event(event) => Value::Object(event.data),
                    Item::End => json!("end"),
                    Item::Document(document) => json!({"document": document}),
                }));
                reading = Some(rest);
            }
        }
        all
    }

    async fn read(text: impl Into<Vec<u8>>) -> Vec<Result<Value, UpstreamError>> {
        read_as("text/event-stream; charset=utf-8", text).await
    }

    #[tokio::test]
    async fn expanding_events_end_the_stream() {
        let many = format!("[{}0]", "{\"\":0},".repeat(60_000));
        let all = read(format!("data: {{\"a\":1}}\n\ndata: {many}\n\n")).await;
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[0].as_ref().unwrap(), &json!({"a": 1}));
        assert!(matches!(all[1], Err(UpstreamError::Malformed(_))));
    }

    #[tokio::test]
    async fn redacts_secrets_from_all_events() {
        let all = read("data: {\"a\":\"<key-of-ours>\"}\n\ndata: [DONE]\n\ndata: 7\n\n");
        let all: Vec<_> = all.await.into_iter().map(Result::unwrap).collect();
        assert_eq!(all, [json!({"a": "<[redacted]>"}), json!("end")]);
    }

    #[tokio::test]
    async fn ignores_heartbeats_and_empty_events() {
        let beats = "event: ping\ndata: ping\n\nevent: ping\ndata: {\n\nevent: keep\ndata: 42\n\n\
                     data:\n\ndata: null\n\ndata: [DONE] \n\n";
        let all: Vec<_> = read(beats).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(all, [json!("end")]);
        let garbage = read("data: ping\n\ndata: {\"a\":1}\n\n").await;
        assert!(matches!(garbage[0], Err(UpstreamError::Malformed(_))));
        assert_eq!(garbage[1].as_ref().unwrap(), &json!({"a": 1}));
    }

    #[tokio::test]
    async fn detects_framing_from_the_body() {
        let object = json!({"a": 1});
        let document = json!({"document": object});
        for (content_type, text, expected) in [
            ("text/event-stream", "\u{feff} {\"a\":1}\n", vec![&document]),
            ("text/plain", "{\"a\":\n1}", vec![&document]),
            ("application/json", "[{\"a\":1}]", vec![&document]),
            (
                "application/json",
                ": hi\n\ndata: {\"a\":1}\n\n",
                vec![&object],
            ),
            (
                "",
                "data: {\"a\":1}\ndata: {\"a\":1}",
                vec![&object, &object],
            ),
            (
                "text/event-stream",
                "event: x\ndata: {\"a\":1}\n",
                vec![&object],
            ),
        ] {
            let all = read_as(content_type, text).await;
            let all: Vec<_> = all.iter().map(|item| item.as_ref().unwrap()).collect();
            assert_eq!(all, expected, "{text}");
        }
        let html = read_as("text/html", "<p>data: {}").await;
        let message = html[0].as_ref().unwrap_err().to_string();
        assert!(
            message.contains("neither a JSON object nor a stream of events"),
            "{message}"
        );
    }
}
