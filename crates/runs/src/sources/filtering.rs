//! Filters of sources: from the input to an event. They run on blocking threads, a few at a time.

use std::time::Duration;

use domain::source::{event_id_of, event_of_value, key_of_sender, key_text};
use egress::limiter::Share;
use jq_filter::Filter;
use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::source::{SourceScheme, SourceSettings};
use secrets::digest::sha256_hex;
use serde_json::Value;
use store::SourceRecord;

use super::{FILTERS_OF_SOURCE, SourceContent, SourceInput, Sources};

/// Maximum wait for a permit. Senders give up after a few seconds and repeat.
const PATIENCE: Duration = Duration::from_secs(5);

/// Result of the filters.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceEvent {
    Event(JsonObject),
    /// The source ignores the request.
    Nothing,
    Fault(Fault),
    /// Too many filters run.
    Busy,
}

impl Sources {
    /// The event that a source makes of a request.
    pub async fn event_of(&self, record: &SourceRecord, content: SourceContent) -> SourceEvent {
        let share = Share {
            key: record.id,
            limit: FILTERS_OF_SOURCE,
        };
        let permit = tokio::time::timeout(PATIENCE, self.filters.acquire(vec![share])).await;
        let Ok(permit) = permit else {
            return SourceEvent::Busy;
        };
        let (name, settings) = (record.name.clone(), record.settings.clone());
        let filtering = tokio::task::spawn_blocking(move || {
            // Dropped at the end of the work: a blocking thread continues when the request is aborted.
            let _permit = permit;
            filtered(&name, &settings, &content)
        });
        match filtering.await {
            Ok(Ok(Some(event))) => SourceEvent::Event(event),
            Ok(Ok(None)) => SourceEvent::Nothing,
            Ok(Err(fault)) => SourceEvent::Fault(fault),
            Err(_) => SourceEvent::Fault(Fault::new("/filter", "fails: the filter panicked")),
        }
    }
}

fn filtered(
    source: &str,
    settings: &SourceSettings,
    content: &SourceContent,
) -> Result<Option<JsonObject>, Fault> {
    let input = content.input(settings)?;
    let SourceInput(value) = &input;
    let event = first_value("/filter", &settings.filter, value)?;
    if matches!(event, Value::Null | Value::Bool(false)) {
        return Ok(None);
    }
    let key = match &settings.dedupe {
        Some(dedupe) => {
            let key = first_value("/dedupe", dedupe, value)?;
            let message = "yields no key: it must be a text or a number";
            Some(key_text(&key).ok_or_else(|| Fault::new("/dedupe", message))?)
        }
        // The filter may set the id itself.
        None if event.get("event_id").is_some() => None,
        None => default_key(settings.scheme, value, &content.body),
    };
    if settings.dedupe.is_some() && event.get("event_id").is_some() {
        let message = "is set by dedupe, too; leave one of them out";
        return Err(Fault::new("/event_id", message));
    }
    let event_id = key.map(|key| event_id_of(source, &key, |key| sha256_hex(key)));
    event_of_value(source, event, event_id, &value["body"])
}

/// The key of the sender, or else the digest of the signed body. Without a signature nothing is a repetition.
fn default_key(scheme: SourceScheme, input: &Value, body: &[u8]) -> Option<String> {
    let digest = || (scheme != SourceScheme::None).then(|| format!("sha256:{}", sha256_hex(body)));
    key_of_sender(scheme, input).or_else(digest)
}

/// The value of a filter; null if it has none.
fn first_value(pointer: &str, filter: &str, input: &Value) -> Result<Value, Fault> {
    let fault = |message: String| Fault::new(pointer, message);
    let compiled = Filter::compile(filter);
    let compiled = compiled.map_err(|error| fault(format!("is no filter: {error}")))?;
    let values = compiled.run(input, None);
    let mut values = values.map_err(|error| fault(format!("fails: {error}")))?;
    match values.len() {
        0 => Ok(Value::Null),
        1 => Ok(values.remove(0)),
        count => Err(fault(format!(
            "yields {count} values: it must yield one or none"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::json;

    use super::*;

    fn run(filter: &str, dedupe: Option<&str>, body: &str) -> Result<Option<Value>, String> {
        let settings = SourceSettings {
            scheme: SourceScheme::Github,
            header: None,
            prefix: None,
            encoding: None,
            filter: filter.to_owned(),
            dedupe: dedupe.map(str::to_owned),
        };
        let content = SourceContent {
            body: body.as_bytes().to_vec(),
            headers: HeaderMap::new(),
            query: String::new(),
        };
        let event = filtered("shop", &settings, &content);
        event
            .map(|event| event.map(Value::Object))
            .map_err(|fault| fault.pointer)
    }

    #[test]
    fn yields_events_with_ids() {
        let filter = "{event_type: .body.kind, data: {n: .body.n}}";
        let body = r#"{"kind": "t", "n": 7}"#;
        let event = run(filter, None, body).unwrap().unwrap();
        let id = event["event_id"].as_str().unwrap();
        assert_eq!(id, format!("shop/sha256:{}", sha256_hex(body)));
        assert_eq!(event["data"], json!({"n": 7}));
        let event = run(filter, Some(".body.n"), body).unwrap().unwrap();
        assert_eq!(event["event_id"], "shop/7");
        let own = "{event_type: \"t\", event_id: \"own\"}";
        let event = run(own, None, body).unwrap().unwrap();
        assert_eq!(event["event_id"], "own");
    }

    #[test]
    fn ignores_requests_without_a_value() {
        for filter in ["empty", "null", "false", "select(.body.kind == \"other\")"] {
            assert_eq!(run(filter, Some("error"), "{}"), Ok(None), "{filter}");
        }
    }

    #[test]
    fn faults_name_the_filter_or_the_member() {
        let event = "{event_type: \"t\", event_id: \"own\"}";
        for (filter, dedupe, pointer) in [
            ("1, 2", None, "/filter"),
            ("\"text\"", None, "/filter"),
            (".body + 1", None, "/filter"),
            ("{event_type: \"t\"}", Some(".body.absent"), "/dedupe"),
            (event, Some("1"), "/event_id"),
        ] {
            assert_eq!(
                run(filter, dedupe, "{}"),
                Err(pointer.to_owned()),
                "{filter}"
            );
        }
    }
}
