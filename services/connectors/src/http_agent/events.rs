//! The meaning of one event, and the reply that events make.

use protocol::message::LlmTokenUsage;
use serde_json::Value;

use crate::http_agent::config::Config;
use crate::http_agent::filter::Filter;
use crate::machine::OutputQueue;
use crate::turn::ConnectorTurn;
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, FailureKind, message_of};
use crate::upstream::json::{self, filled, text_of};
use crate::upstream::reader::UpstreamEvent;
use crate::upstream::usage::usage_of;

/// End mark of many streams; not JSON.
const DONE: &str = "[DONE]";

#[derive(Default)]
pub(super) struct EventMeaning {
    pub(super) pieces: Vec<String>,
    pub(super) snapshot: Option<String>,
    pub(super) reasoning: Vec<String>,
    /// The full text.
    pub(super) end: Option<String>,
    pub(super) is_done: bool,
    pub(super) error: Option<ConnectorFailure>,
    pub(super) session: Option<String>,
    pub(super) usage: Option<LlmTokenUsage>,
}

impl EventMeaning {
    pub(super) fn is_nothing(&self) -> bool {
        self.pieces.is_empty()
            && self.reasoning.is_empty()
            && self.snapshot.is_none()
            && self.end.is_none()
            && self.error.is_none()
            && self.session.is_none()
            && self.usage.is_none()
            && !self.is_done
    }
}

/// Runs the filters on one event. They get a text that is not JSON as a string.
pub(super) fn map(
    config: &Config,
    event: &UpstreamEvent,
) -> Result<EventMeaning, ConnectorFailure> {
    let text = event.text.trim();
    if text == DONE {
        let is_done = true;
        return Ok(EventMeaning {
            is_done,
            ..EventMeaning::default()
        });
    }
    let input = match json::parse(text) {
        Some(value) => value,
        None if event.is_document => return Err(ConnectorFailure::unreadable(text)),
        None => Value::from(text),
    };
    let run = |key: &str, filter: &Option<Filter>| {
        let Some(filter) = filter else {
            return Ok(Vec::new());
        };
        let values = filter.run(&input, event.name.as_deref());
        let values = values.map_err(|error| unmapped(key, &error))?;
        // As in jq, `null` and `false` mean no value.
        let has_meaning = |value: &Value| !matches!(value, Value::Null | Value::Bool(false));
        Ok::<_, ConnectorFailure>(values.into_iter().filter(has_meaning).collect())
    };
    let texts = |values: Vec<Value>| values.iter().filter_map(text_of).collect::<Vec<_>>();
    let events = &config.events;
    Ok(EventMeaning {
        error: run("error", &events.error)?.first().map(failure),
        pieces: texts(run("delta", &events.delta)?),
        snapshot: texts(run("snapshot", &events.snapshot)?).pop(),
        reasoning: texts(run("thought", &events.thought)?),
        end: texts(run("final", &events.end)?).pop(),
        is_done: !run("done", &events.done)?.is_empty(),
        session: texts(run("session", &events.session)?).pop(),
        usage: run("usage", &events.usage)?.iter().find_map(usage_of),
    })
}

fn unmapped(key: &str, error: &str) -> ConnectorFailure {
    let message = format!("the filter /events/{key} fails on an event: {error}");
    ConnectorFailure::new(FailureKind::ResponseInvalid, message)
        .detail("pointer", format!("/events/{key}"))
}

/// An error: a text, or an object with `message`, `code` and `status`.
fn failure(error: &Value) -> ConnectorFailure {
    let message = error.as_str().or_else(|| message_of(error));
    let status = error["status"].as_u64().or_else(|| error["code"].as_u64());
    let status = status.and_then(|status| u16::try_from(status).ok());
    let code = filled(&error["code"]);
    ConnectorFailure::reported(status, code, message.unwrap_or_default())
}

/// State of the reply so far.
pub(super) struct HttpReply {
    answer: AnswerText,
    usage: Option<LlmTokenUsage>,
    /// The full text was received.
    pub(super) is_final: bool,
}

impl HttpReply {
    pub(super) fn new(turn: &ConnectorTurn) -> Self {
        Self {
            answer: AnswerText::new(turn),
            usage: None,
            is_final: false,
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.answer.has_begun()
    }

    /// Emits the text of an event. Completes the run after the last one.
    pub(super) fn tell(
        &mut self,
        meaning: EventMeaning,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        for thought in &meaning.reasoning {
            self.answer.think(thought, out);
        }
        for piece in &meaning.pieces {
            self.answer.append(piece, out);
        }
        if let Some(text) = &meaning.snapshot {
            self.answer.snapshot(text, out);
        }
        if meaning.usage.is_some() {
            self.usage = meaning.usage;
        }
        if let Some(text) = &meaning.end {
            self.is_final = true;
            if self.answer.is_empty() {
                self.answer.append(text, out);
            } else {
                // The final text may differ from the pieces, and it is authoritative.
                self.answer.replace(text, out);
            }
        }
        if meaning.is_done {
            return self.complete(out);
        }
        Ok(())
    }

    /// Completes the message and the run.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if !self.answer.complete(out) {
            return Err(ConnectorFailure::empty());
        }
        out.finish("stop", self.usage.take());
        Ok(())
    }
}
