//! The event of a command: a file, overridden by arguments.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use protocol::event::MESSAGE_RECEIVED;
use serde_json::{Map, Value, json};

/// Maximum size of an event.
const MAX_BYTES: u64 = 5 * 1024 * 1024;

/// Parts of an event. Absent parts keep those of the file.
#[derive(Default)]
pub(super) struct EventParts<'a> {
    /// A file with an event for `POST /v1/events`; `-` is standard input.
    pub(super) file: Option<&'a Path>,
    pub(super) event_type: Option<&'a str>,
    pub(super) text: Option<&'a str>,
    pub(super) conversation: Option<&'a str>,
    pub(super) bot: Option<&'a str>,
    pub(super) actor: Option<&'a str>,
    pub(super) source: Option<&'a str>,
}

impl EventParts<'_> {
    /// The event. Its type defaults to `message.received`.
    pub(super) fn build(&self) -> anyhow::Result<Map<String, Value>> {
        let mut event = match self.file {
            None => Map::new(),
            Some(file) => read_event(file)?,
        };
        put(&mut event, &["event_type"], self.event_type);
        put(&mut event, &["input", "text"], self.text);
        let conversation = ["conversation", "conversation_id"];
        put(&mut event, &conversation, self.conversation);
        put(&mut event, &["bot_id"], self.bot);
        put(&mut event, &["actor", "actor_id"], self.actor);
        put(&mut event, &["source"], self.source);
        if let Some(actor) = event.get_mut("actor").and_then(Value::as_object_mut) {
            actor.entry("actor_type").or_insert_with(|| json!("user"));
        }
        event
            .entry("event_type")
            .or_insert_with(|| json!(MESSAGE_RECEIVED));
        Ok(event)
    }
}

fn put(event: &mut Map<String, Value>, path: &[&str], value: Option<&str>) {
    let (Some(value), Some((last, objects))) = (value, path.split_last()) else {
        return;
    };
    let mut object = event;
    for name in objects {
        let inner = object.entry(*name).or_insert_with(|| json!({}));
        // A member of another type in the file gives way to the argument.
        if !inner.is_object() {
            *inner = json!({});
        }
        let Value::Object(inner) = inner else { return };
        object = inner;
    }
    object.insert((*last).to_owned(), json!(value));
}

fn read_event(file: &Path) -> anyhow::Result<Map<String, Value>> {
    let (what, mut text) = (file.display(), Vec::new());
    // One byte more than allowed, to notice an excess: standard input has no size.
    let read = if file.as_os_str() == "-" {
        std::io::stdin()
            .lock()
            .take(MAX_BYTES + 1)
            .read_to_end(&mut text)
    } else {
        std::fs::File::open(file)
            .and_then(|opened| opened.take(MAX_BYTES + 1).read_to_end(&mut text))
    };
    read.with_context(|| format!("cannot read {what}"))?;
    if text.len() as u64 > MAX_BYTES {
        bail!("{what} is larger than 5 MiB, the maximum for a gateway");
    }
    serde_json::from_slice(&text).with_context(|| format!("{what} is not a JSON object"))
}
