//! The mapping as it is configured.

use jq_filter::Filter;
use protocol::JsonObject;
use serde_json::Value;
use url::Url;

use crate::request::{Method, ResponseFraming, is_settable};
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};

/// The key of the session in the conversation's state.
pub(super) const SESSION: &str = "external.session_id";
/// Default of `body`.
const BODY: &str = "{text: .input.text, user: .user, session: .session}";
/// Maximum headers of one request.
const MAX_HEADERS: usize = 32;
/// The filters for one event, by their keys below `events`.
pub(super) struct EventFilters {
    pub(super) delta: Option<Filter>,
    pub(super) snapshot: Option<Filter>,
    pub(super) thought: Option<Filter>,
    pub(super) end: Option<Filter>,
    pub(super) done: Option<Filter>,
    pub(super) error: Option<Filter>,
    pub(super) session: Option<Filter>,
    pub(super) usage: Option<Filter>,
}

pub(super) struct Config {
    pub(super) url: Url,
    pub(super) method: Method,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Filter,
    pub(super) framing: ResponseFraming,
    pub(super) events: EventFilters,
    pub(super) takes_files: bool,
    /// The member of the body filter's input with the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        let url = reader.url("url", "")?;
        let method = reader.choice(
            "method",
            &[
                ("POST", Method::Post),
                ("GET", Method::Get),
                ("PUT", Method::Put),
                ("PATCH", Method::Patch),
                ("DELETE", Method::Delete),
            ],
        )?;
        let headers = read_headers(reader)?;
        let framing = reader.choice(
            "format",
            &[
                ("sse", ResponseFraming::Sse),
                ("lines", ResponseFraming::Lines),
                ("json-stream", ResponseFraming::JsonStream),
                ("json", ResponseFraming::Document),
            ],
        )?;
        let body = compile("/body", &reader.text_or("body", BODY)?)?;
        let mut members = reader.object("events")?;
        let events = EventFilters {
            delta: take(&mut members, "delta")?,
            snapshot: take(&mut members, "snapshot")?,
            thought: take(&mut members, "thought")?,
            end: take(&mut members, "final")?,
            done: take(&mut members, "done")?,
            error: take(&mut members, "error")?,
            session: take(&mut members, "session")?,
            usage: take(&mut members, "usage")?,
        };
        if let Some(key) = members.keys().next() {
            let supported = "delta, snapshot, thought, final, done, error, session, usage";
            return Err(wrong(
                &format!("/events/{key}"),
                &format!("is no event; events are: {supported}"),
            ));
        }
        // Without one of them no answer could have a text.
        if events.delta.is_none() && events.snapshot.is_none() && events.end.is_none() {
            return Err(wrong("/events", "needs delta, snapshot or final"));
        }
        Ok(Self {
            url,
            method,
            headers,
            body,
            framing,
            events,
            takes_files: reader.flag("files")?.unwrap_or_default(),
            host_tools: reader.host_tools()?,
        })
    }

    /// True if the agent stores the session.
    pub(super) fn keeps_session(&self) -> bool {
        self.events.session.is_some()
    }

    /// True if the end of the body ends the answer: no event marks it.
    pub(super) fn ends_with_body(&self) -> bool {
        self.events.end.is_none() && self.events.done.is_none()
    }
}

fn read_headers(reader: &mut ConfigReader<'_>) -> Mapped<Vec<(String, String)>> {
    let members = reader.object_with_secrets("headers")?;
    if members.len() > MAX_HEADERS {
        let fault = format!("has more than {MAX_HEADERS} headers");
        return Err(wrong("/headers", &fault));
    }
    let mut headers = Vec::new();
    for (name, value) in members {
        let pointer = format!("/headers/{name}");
        let name = name.to_ascii_lowercase();
        if !is_settable(&name) {
            return Err(wrong(&pointer, "cannot be set"));
        }
        let Value::String(value) = value else {
            return Err(wrong(&pointer, "must be a text"));
        };
        if http::HeaderValue::from_bytes(value.as_bytes()).is_err() {
            return Err(wrong(&pointer, "holds control characters"));
        }
        // Any other header may hold a credential.
        if !matches!(name.as_str(), "accept" | "content-type" | "user-agent") {
            reader.hide(&value);
        }
        headers.push((name, value));
    }
    Ok(headers)
}

fn take(members: &mut JsonObject, key: &str) -> Mapped<Option<Filter>> {
    let pointer = format!("/events/{key}");
    match members.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => compile(&pointer, &text).map(Some),
        Some(_) => Err(wrong(&pointer, "must be a text: a jq filter")),
    }
}

fn compile(pointer: &str, text: &str) -> Mapped<Filter> {
    Filter::compile(text).map_err(|fault| wrong(pointer, &format!("is no filter: {fault}")))
}

fn wrong(pointer: &str, fault: &str) -> ConnectorFailure {
    ConnectorFailure::new(FailureKind::ConfigInvalid, format!("{pointer} {fault}"))
        .detail("pointer", pointer)
}
