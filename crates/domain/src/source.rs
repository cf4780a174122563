//! Sources: checks of new ones, and the event of a request.

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::id::SourceId;
use protocol::source::{SourceScheme, SourceSpec};
use serde_json::{Value, json};

/// Maximum sources of a workspace.
pub const MAX_SOURCES: u64 = 100;
/// Maximum agents of a source, as of an API key.
const MAX_AGENTS: usize = 16;
/// Maximum length of a name: it is a part of paths and of event ids.
const MAX_NAME: usize = 64;
/// Maximum length of a header name and of a prefix.
const MAX_HEADER: usize = 128;
/// Maximum length of a key that becomes a part of the event id unchanged.
const MAX_KEY: usize = 256;

/// Returns all faults of a source, except those of its filters, its secret, its header and its agents.
pub fn check_source(spec: &SourceSpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    if !is_source_name(&spec.name) {
        let message = "must have 1 to 64 of a-z, 0-9, `-`, `_` and `.`, and be no id";
        faults.push(Fault::new("/name", message));
    }
    let is_hmac = spec.scheme == SourceScheme::Hmac;
    let options = [
        ("/header", spec.header.is_some()),
        ("/prefix", spec.prefix.is_some()),
        ("/encoding", spec.encoding.is_some()),
    ];
    for (pointer, is_set) in options {
        if is_set && !is_hmac {
            let message = "belongs to the scheme hmac; leave it out";
            faults.push(Fault::new(pointer, message));
        }
    }
    if is_hmac && spec.header.is_none() {
        let message = "is required by the scheme hmac: the name of the signature header";
        faults.push(Fault::new("/header", message));
    }
    for (pointer, text) in [("/header", &spec.header), ("/prefix", &spec.prefix)] {
        if text.as_ref().is_some_and(|text| text.len() > MAX_HEADER) {
            faults.push(Fault::new(pointer, "must be at most 128 bytes"));
        }
    }
    if let Some(agents) = &spec.agents
        && !(1..=MAX_AGENTS).contains(&agents.len())
    {
        let message = "must have 1 to 16 agents; leave it out for all agents";
        faults.push(Fault::new("/agents", message));
    }
    faults
}

fn is_source_name(name: &str) -> bool {
    let is_plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    // A path names a source by its name or by its id, so no name may look like an id.
    let is_id = name.parse::<SourceId>().is_ok();
    // Dot segments of a path are removed by URL parsers.
    let is_dots = name.bytes().all(|byte| byte == b'.');
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_plain) && !is_id && !is_dots
}

/// Returns the key that the sender gave the event, where the scheme has one. `input`: the input of the filters.
pub fn key_of_sender(scheme: SourceScheme, input: &Value) -> Option<String> {
    let pointers: &[&str] = match scheme {
        SourceScheme::StandardWebhooks => &["/headers/webhook-id"],
        SourceScheme::Slack => &["/body/event_id"],
        SourceScheme::Stripe => &["/body/id"],
        SourceScheme::Feishu => &["/body/header/event_id", "/body/uuid"],
        SourceScheme::Dingtalk => &["/body/msgId"],
        SourceScheme::Wecom => &["/body/MsgId"],
        // GitHub's delivery id is not signed: a copied request could change it.
        SourceScheme::Github | SourceScheme::Hmac | SourceScheme::None => &[],
    };
    let mut found = pointers.iter().filter_map(|pointer| input.pointer(pointer));
    found.find_map(key_text)
}

/// Returns a key as text; `None`: the value is no key.
pub fn key_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns the event id of a key. `digest`: gives the text in place of a key that is too long or not printable.
pub fn event_id_of(source: &str, key: &str, digest: impl FnOnce(&str) -> String) -> String {
    let is_plain = key.len() <= MAX_KEY && key.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain {
        format!("{source}/{key}")
    } else {
        format!("{source}/sha256:{}", digest(key))
    }
}

/// Builds the event of a filter's value; `None`: the source ignores the request. `body`: the raw payload.
pub fn event_of_value(
    source: &str,
    value: Value,
    event_id: Option<String>,
    body: &Value,
) -> Result<Option<JsonObject>, Fault> {
    let mut event = match value {
        // As in jq, `null` and `false` mean no value.
        Value::Null | Value::Bool(false) => return Ok(None),
        Value::Object(event) => event,
        _ => {
            let message = "yields no object: an event is one, and null is no event";
            return Err(Fault::new("/filter", message));
        }
    };
    if let Some(event_id) = event_id {
        event.insert("event_id".to_owned(), json!(event_id));
    }
    event.entry("source").or_insert_with(|| json!(source));
    // The raw payload and a reference to one exclude each other.
    if !event.contains_key("raw_ref") {
        event.entry("raw").or_insert_with(|| body.clone());
    }
    Ok(Some(event))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(changes: &Value) -> SourceSpec {
        let mut spec = json!({"name": "github", "scheme": "github", "filter": "."});
        let changes = changes.as_object().unwrap().clone();
        spec.as_object_mut().unwrap().extend(changes);
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn reports_all_faults_of_a_source() {
        let check = |changes: Value, expected: &[&str]| {
            let faults = check_source(&spec(&changes));
            let pointers: Vec<_> = faults.into_iter().map(|fault| fault.pointer).collect();
            assert_eq!(pointers, expected, "{changes}");
        };
        check(json!({}), &[]);
        check(
            json!({"name": "Git Hub", "header": "x", "encoding": "hex", "prefix": "", "agents": []}),
            &["/name", "/header", "/prefix", "/encoding", "/agents"],
        );
        check(json!({"scheme": "hmac"}), &["/header"]);
        check(json!({"scheme": "hmac", "header": "x-signature"}), &[]);
        for name in ["", ".", "..", "a/b", "0190a2b4-0000-7000-8000-000000000000"] {
            check(json!({"name": name}), &["/name"]);
        }
    }

    #[test]
    fn keys_of_senders_are_signed_members() {
        let input = json!({
            "headers": {"webhook-id": "msg_1", "x-github-delivery": "d"},
            "body": {"id": "evt_1", "event_id": "Ev1", "header": {"event_id": "f1"}, "MsgId": 7},
        });
        for (scheme, key) in [
            (SourceScheme::StandardWebhooks, Some("msg_1")),
            (SourceScheme::Slack, Some("Ev1")),
            (SourceScheme::Stripe, Some("evt_1")),
            (SourceScheme::Feishu, Some("f1")),
            (SourceScheme::Wecom, Some("7")),
            (SourceScheme::Github, None),
            (SourceScheme::Hmac, None),
        ] {
            assert_eq!(key_of_sender(scheme, &input).as_deref(), key, "{scheme:?}");
        }
    }

    #[test]
    fn event_ids_are_printable_and_short() {
        let digest = |_: &str| "d".to_owned();
        assert_eq!(event_id_of("shop", "evt_1", digest), "shop/evt_1");
        for key in ["two words", "ü", &"k".repeat(MAX_KEY + 1)] {
            assert_eq!(event_id_of("shop", key, digest), "shop/sha256:d");
        }
    }

    #[test]
    fn events_get_source_raw_payload_and_id() {
        let body = json!({"a": 1});
        let of = |value: Value| event_of_value("shop", value, Some("shop/1".to_owned()), &body);
        assert_eq!(of(Value::Null).unwrap(), None);
        assert_eq!(of(json!(false)).unwrap(), None);
        assert_eq!(of(json!("text")).unwrap_err().pointer, "/filter");
        let event = Value::Object(of(json!({"event_type": "t"})).unwrap().unwrap());
        let expected =
            json!({"event_type": "t", "event_id": "shop/1", "source": "shop", "raw": {"a": 1}});
        assert_eq!(event, expected);
        let own = json!({"event_type": "t", "source": "s", "raw": null});
        let event = of(own).unwrap().unwrap();
        assert_eq!(
            (&event["source"], &event["raw"]),
            (&json!("s"), &json!(null))
        );
    }
}
