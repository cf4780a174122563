//! Formats of posted events: the native envelope, and CloudEvents 1.0 (structured, binary, batch).

mod batch;

use std::borrow::Cow;

use axum::extract::{FromRequest, Request};
use chrono::DateTime;
use domain::event::check_posted;
use domain::large_text::PathStep::{self, Member};
use http::HeaderMap;
use percent_encoding::percent_decode_str;
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::event::EventEnvelope;
use serde_json::{Value, json};

use crate::client::body_files::{
    DOCUMENT_BYTES, EventDocument, ExtractedFiles, event_body_limit, in_envelope,
};
use web::error::ApiError;
use web::json::{media_type, parse, parse_part, read_json_of};
use web::state::ApiState;

pub(crate) use batch::EventBatch;

/// Posted events of any format.
pub(crate) enum EventBody {
    One(Box<PostedEvent>),
    /// In the order of the batch.
    Batch(Vec<PostedEvent>),
}

/// An event and its format.
pub(crate) struct PostedEvent {
    pub(crate) event: EventEnvelope,
    /// Files extracted from the body.
    pub(crate) files: ExtractedFiles,
    form: EventFormat,
    /// JSON pointer of the event in the body: `/3` in a batch.
    pointer: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum EventFormat {
    Envelope,
    /// A CloudEvent with `data` as a field.
    Structured,
    /// A CloudEvent with attributes in headers.
    Binary,
}

impl PostedEvent {
    /// All faults of the event. Pointers refer to the posted body.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let faults = check_posted(&self.event).into_iter();
        let placed = faults.map(|fault| self.form.placed(fault).under(&self.pointer));
        placed.collect()
    }

    fn of(event: EventEnvelope, files: ExtractedFiles, form: EventFormat) -> Box<Self> {
        Box::new(Self {
            event,
            files,
            form,
            pointer: String::new(),
        })
    }
}

impl From<PostedEvent> for (EventEnvelope, ExtractedFiles) {
    fn from(posted: PostedEvent) -> Self {
        (posted.event, posted.files)
    }
}

impl EventFormat {
    /// Maps a fault of the envelope to the name in the posted format.
    fn placed(self, mut fault: Fault) -> Fault {
        if self == Self::Envelope {
            return fault;
        }
        let attribute = match fault.pointer.as_str() {
            "/event_type" => "/type",
            "/event_id" => "/id",
            "/event_time" => "/time",
            "/source" => "/source",
            "/subject/subject_id" => "/subject",
            _ if self == Self::Structured => return fault.under("/data"),
            _ => return fault,
        };
        attribute.clone_into(&mut fault.pointer);
        fault
    }
}

impl FromRequest<ApiState> for EventBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let headers = request.headers().clone();
        let media_type = media_type(&headers);
        let is_binary = headers.contains_key("ce-specversion");
        let (json, structured, batch) = (
            "application/json",
            "application/cloudevents+json",
            "application/cloudevents-batch+json",
        );
        let is_supported = [json, structured, batch].contains(&media_type.as_str());
        // Binary events may have no data, thus no body and no type.
        let is_bare = is_binary && media_type.is_empty();
        if !is_supported && !is_bare {
            let message = "send the event with `Content-Type: application/json`, or CloudEvents \
                with `application/cloudevents+json` or `application/cloudevents-batch+json`";
            return Err(ApiError::invalid_argument(message));
        }
        if media_type == batch {
            let EventBatch(batch) = EventBatch::read(request, state).await?;
            return Ok(Self::Batch(batch));
        }
        let max_bytes = state.event_body_bytes;
        // The reader's limit includes `raw`; `bounded` applies the exact limits after parsing.
        let body = read_json_of(request, state, event_body_limit(state)).await?;
        let top: &[PathStep] = match media_type.as_str() {
            one if one == structured => &[Member("data")],
            _ => &[],
        };
        let EventDocument {
            json: bytes,
            files,
            total_bytes,
            held: _held,
        } = EventDocument::of(body, &in_envelope(top)).await;
        let (event, form) = if media_type == structured {
            let event = from_structured(parse(&bytes)?);
            (
                event.map_err(|fault| ApiError::faults(&[fault]))?,
                EventFormat::Structured,
            )
        } else if is_binary {
            let data = match bytes.as_ref() {
                [] => JsonObject::new(),
                bytes => parse(bytes)?,
            };
            let event = attributes_of(&headers).and_then(|found| to_envelope(&found, data));
            (
                event.map_err(|fault| ApiError::faults(&[fault]))?,
                EventFormat::Binary,
            )
        } else {
            (parse(&bytes)?, EventFormat::Envelope)
        };
        // Two limits: only the first one counts the files.
        let limit_text = format!("{max_bytes} bytes (limits.event_body_bytes)");
        bounded(total_bytes, &event, max_bytes, &limit_text)?;
        bounded(
            bytes.len(),
            &event,
            DOCUMENT_BYTES,
            "1 MiB without its files",
        )?;
        Ok(Self::One(PostedEvent::of(event, files, form)))
    }
}

/// Rejects an envelope over the limit, not counting the raw payload.
fn bounded(
    bytes: usize,
    event: &EventEnvelope,
    max_bytes: usize,
    limit_text: &str,
) -> Result<(), ApiError> {
    let raw = || event.raw.as_ref().map_or(0, |raw| raw.to_string().len());
    // `raw` is serialized only for an envelope over the limit.
    if bytes > max_bytes && bytes.saturating_sub(raw()) > max_bytes {
        let message = format!("an envelope has at most {limit_text}; `raw` does not count");
        return Err(ApiError::too_large(message));
    }
    Ok(())
}

/// The CloudEvent attributes in use.
#[derive(Debug, Default)]
struct Attributes {
    specversion: String,
    id: String,
    source: String,
    kind: String,
    subject: Option<String>,
    /// RFC 3339.
    time: Option<String>,
}

/// JSON format: the event is one object, and `data` is a field of it.
fn from_structured(mut event: JsonObject) -> Result<EventEnvelope, Fault> {
    let mut text = |name: &str| match event.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Fault::new(format!("/{name}"), "must be a text")),
    };
    let attributes = Attributes {
        specversion: text("specversion")?.unwrap_or_default(),
        id: text("id")?.unwrap_or_default(),
        source: text("source")?.unwrap_or_default(),
        kind: text("type")?.unwrap_or_default(),
        subject: text("subject")?,
        time: text("time")?,
    };
    if event.contains_key("data_base64") {
        return Err(Fault::new(
            "/data_base64",
            "binary data is not taken; send `data` as JSON",
        ));
    }
    let data = match event.remove("data") {
        None | Some(Value::Null) => JsonObject::new(),
        Some(Value::Object(data)) => data,
        Some(_) => {
            return Err(Fault::new(
                "/data",
                "must be an object: the rest of the envelope",
            ));
        }
    };
    to_envelope(&attributes, data).map_err(|fault| match fault.pointer.as_str() {
        // Attributes are members of the event itself; everything else comes from `data`.
        "/specversion" | "/id" | "/source" | "/type" | "/time" => fault,
        _ => explained(fault).under("/data"),
    })
}

/// Adds to an unknown member of `data` what `data` holds.
fn explained(fault: Fault) -> Fault {
    let is_member = fault.pointer.matches('/').count() == 1;
    // Deeper members have objects of their own, which this advice does not describe.
    if !is_member || !fault.message.starts_with("unknown field") {
        return fault;
    }
    let advice = r#"`data` is the rest of the event envelope, like {"input": {"text": "hi"}}"#;
    let message = format!("{}; {advice}", fault.message);
    Fault::new(fault.pointer, message)
}

/// HTTP binary mode: attributes are headers, and the body is the data.
fn attributes_of(headers: &HeaderMap) -> Result<Attributes, Fault> {
    let text = |name: &str| {
        let mut values = headers.get_all(format!("ce-{name}")).iter();
        match (values.next(), values.next()) {
            (None, _) => Ok(None),
            (Some(_), Some(_)) => Err(Fault::new(format!("/{name}"), "must occur once")),
            (Some(value), None) => {
                let fault = || Fault::new(format!("/{name}"), "is no percent-encoded UTF-8");
                let value = std::str::from_utf8(value.as_bytes()).map_err(|_| fault())?;
                // The HTTP binding of CloudEvents requires percent-encoding in header values.
                let decoded = percent_decode_str(&unquoted(value))
                    .decode_utf8()
                    .map_err(|_| fault())?
                    .into_owned();
                Ok(Some(decoded))
            }
        }
    };
    Ok(Attributes {
        specversion: text("specversion")?.unwrap_or_default(),
        id: text("id")?.unwrap_or_default(),
        source: text("source")?.unwrap_or_default(),
        kind: text("type")?.unwrap_or_default(),
        subject: text("subject")?,
        time: text("time")?,
    })
}

/// Removes quotes and resolves escapes in them (RFC 7230, 3.2.6). Percent-decoding follows, once.
fn unquoted(value: &str) -> Cow<'_, str> {
    let inner = value
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    let Some(inner) = inner else {
        return Cow::Borrowed(value);
    };
    let mut text = String::with_capacity(inner.len());
    let mut letters = inner.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some(escaped) => text.push(escaped),
                // The closing quote is escaped, so the value is not a quoted string.
                None => return Cow::Borrowed(value),
            },
            // An inner quote means that the value is not a single quoted string.
            '"' => return Cow::Borrowed(value),
            plain => text.push(plain),
        }
    }
    Cow::Owned(text)
}

/// The event id: escaped source and id, unique for each pair.
fn event_id(attributes: &Attributes) -> String {
    // Unescaped, two different pairs of source and id could form the same event id.
    let source = attributes.source.replace('%', "%25").replace('#', "%23");
    format!("{source}#{}", attributes.id)
}

/// Builds the envelope of a CloudEvent: source and id form the event id, and `data` is the rest.
fn to_envelope(attributes: &Attributes, mut data: JsonObject) -> Result<EventEnvelope, Fault> {
    let required = [
        ("id", &attributes.id),
        ("source", &attributes.source),
        ("type", &attributes.kind),
    ];
    if attributes.specversion != "1.0" {
        return Err(Fault::new("/specversion", "must be \"1.0\""));
    }
    if let Some((name, _)) = required.iter().find(|(_, value)| value.is_empty()) {
        return Err(Fault::new(format!("/{name}"), "is required by CloudEvents"));
    }
    // In `data`, they could contradict the attributes.
    for name in ["event_type", "event_id", "source", "event_time"] {
        if data.contains_key(name) {
            return Err(Fault::new(
                format!("/{name}"),
                "is an attribute of the CloudEvent",
            ));
        }
    }
    data.insert("event_type".to_owned(), json!(attributes.kind));
    data.insert("event_id".to_owned(), json!(event_id(attributes)));
    data.insert("source".to_owned(), json!(attributes.source));
    if let Some(time) = &attributes.time {
        let parsed = DateTime::parse_from_rfc3339(time);
        let parsed = parsed.map_err(|_| Fault::new("/time", "must be a time after RFC 3339"))?;
        data.insert("event_time".to_owned(), json!(parsed.timestamp()));
    }
    if let Some(subject) = &attributes.subject {
        // The envelope requires a type, and CloudEvents have no attribute for it.
        let subject_object = data
            .entry("subject")
            .or_insert_with(|| json!({"subject_type": "unknown"}));
        if let Value::Object(subject_object) = subject_object {
            subject_object.insert("subject_id".to_owned(), json!(subject));
        }
    }
    // Parsed from text, so that the checks and faults are those of a native envelope.
    parse_part(Value::Object(data).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn structured(changes: Value) -> Result<EventEnvelope, String> {
        let mut event = json!({
            "specversion": "1.0", "id": "7", "source": "/shop", "type": "order.placed",
            "time": "2026-11-21T22:00:00Z", "subject": "o-1", "extension": 1,
            "data": {"conversation": {"conversation_id": "c"}, "data": {"total": 3}},
        });
        let Value::Object(changes) = changes else {
            panic!("an object")
        };
        event.as_object_mut().unwrap().extend(changes);
        let Value::Object(event) = event else {
            panic!("an object")
        };
        from_structured(event).map_err(|fault| fault.pointer)
    }

    #[test]
    fn converts_cloud_events_to_envelopes() {
        let event = structured(json!({})).unwrap();
        assert_eq!(event.event_id.as_deref(), Some("/shop#7"));
        assert_eq!(
            (event.event_type.as_str(), event.source.as_str()),
            ("order.placed", "/shop")
        );
        assert_eq!(event.event_time, Some(1_795_298_400));
        assert_eq!(event.subject.unwrap().subject_id.as_deref(), Some("o-1"));
        assert_eq!(event.data["total"], 3);
    }

    #[test]
    fn cloud_event_faults_point_into_posted_body() {
        for (change, pointer) in [
            (json!({"specversion": "0.3"}), "/specversion"),
            (json!({"id": ""}), "/id"),
            (json!({"source": null}), "/source"),
            (json!({"type": 7}), "/type"),
            (json!({"time": "yesterday"}), "/time"),
            (json!({"data": [1]}), "/data"),
            (json!({"data_base64": "eA=="}), "/data_base64"),
            (json!({"data": {"nope": 1}}), "/data/nope"),
            (json!({"data": {"event_type": "x"}}), "/data/event_type"),
        ] {
            assert_eq!(
                structured(change.clone()),
                Err(pointer.to_owned()),
                "{change}"
            );
        }
    }

    fn binary(attributes: &[(&'static str, &str)]) -> EventEnvelope {
        let mut headers = HeaderMap::new();
        for (name, value) in attributes {
            headers.insert(*name, value.parse().unwrap());
        }
        let found = attributes_of(&headers).unwrap();
        to_envelope(&found, JsonObject::new()).unwrap()
    }

    #[test]
    fn unquotes_headers_then_decodes_percent_once() {
        let check = |header: &str, attribute: &str| {
            let event = binary(&[
                ("ce-specversion", "\"1.0\""),
                ("ce-type", "\"order.placed\""),
                ("ce-source", header),
                ("ce-id", header),
                ("ce-subject", header),
                ("ce-time", "\"2026-11-21T22:00:00Z\""),
            ]);
            let same =
                json!({"source": attribute, "id": attribute, "subject": attribute, "data": {}});
            assert_eq!(event, structured(same).unwrap(), "{header}");
        };
        check("/shop", "/shop");
        check("\"/shop\"", "/shop");
        check(r#""a \"b\" \\ \c""#, r#"a "b" \ c"#);
        check("\"%E2%82%AC %2541\"", "€ %41");
        check("%22a%22", "\"a\"");
        check(r#""\%41""#, "A");
        check("€", "€");
        for plain in ["a\"b\"", "\"a", "\"", r#""a\""#, r#""a" "b""#, "a\\b"] {
            check(plain, plain);
        }
    }
}
