//! The meaning of one event, and the reply that events make.

use jq_filter::Filter;
use protocol::message::LlmTokenUsage;
use serde_json::Value;

use crate::http_agent::config::Config;
use crate::mapping::MappingStep;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, message_of};
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

    /// Emits the text of the event.
    pub(super) fn tell(self, answer: &mut PlatformAnswer) -> MappingStep {
        for thought in &self.reasoning {
            answer.think(thought);
        }
        for piece in &self.pieces {
            answer.append(piece);
        }
        if let Some(text) = &self.snapshot {
            answer.snapshot(text);
        }
        answer.count(self.usage);
        match &self.end {
            None => {}
            Some(text) if answer.is_empty() => answer.append(text),
            // The final text may differ from the pieces, and it is authoritative.
            Some(text) => answer.replace(text),
        }
        if self.is_done {
            MappingStep::Complete
        } else {
            MappingStep::Read
        }
    }
}

/// Runs the filters on one event. They get a text that is not JSON as a string.
pub(super) fn map(config: &Config, event: &UpstreamEvent) -> Mapped<EventMeaning> {
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
