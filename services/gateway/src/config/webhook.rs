//! `[[webhooks]]`: receivers of messages about runs.

use std::fmt;

use domain::webhook::check_webhook;
use protocol::webhook::{WebhookEventType, WebhookPayload, WebhookSpec};
use serde_json::Value;
use url::Url;

use super::fault::ConfigFault;
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, one_of, parsed, some_of, text};
use egress::parse_plain_url;

const EVENTS: [&str; 8] = {
    let mut names = [""; 8];
    let mut index = 0;
    while index < names.len() {
        names[index] = WebhookEventType::ALL[index].as_str();
        index += 1;
    }
    names
};

/// A webhook. `Debug` omits the URL, which may give access to the receiver.
#[derive(Clone)]
pub struct WebhookEntry {
    pub name: String,
    /// `None`: the messages are in the feed only.
    pub url: Option<Url>,
    pub secret: Option<SecretRef>,
    pub events: Vec<WebhookEventType>,
    /// Names or ids.
    pub agents: Option<Vec<String>>,
    pub payload: WebhookPayload,
    pub enabled: bool,
}

impl WebhookEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let name = table.required("name", name);
        let url = table.optional("url", url);
        let secret = table.optional("secret", parsed);
        let events = table.required("events", some_of(&EVENTS));
        let agents = read_agents(&mut table);
        let payload = table.optional("payload", one_of(&["thin", "full"]));
        let enabled = table.optional("enabled", |value| boolean(&value));
        let mut shape = Ok(());
        if let (Ok(Some(_)), Ok(None)) = (&url, &secret) {
            let message = "is required with url: it signs the deliveries";
            shape = Err(table.fault("secret", message));
        }
        let events = events.map(|events| {
            let events = events
                .iter()
                .filter_map(|name| WebhookEventType::parse(name));
            events.collect::<Vec<_>>()
        });
        if let (Ok(name), Ok(events), Ok(agents)) = (&name, &events, &agents) {
            let considered = WebhookSpec {
                name: name.clone(),
                url: None,
                events: events.clone(),
                agents: agents.clone(),
                payload: WebhookPayload::Thin,
                enabled: true,
                secret: None,
            };
            for fault in check_webhook(&considered) {
                let key = fault.pointer.trim_start_matches('/').to_owned();
                shape = Err(table.fault(&key, fault.message));
            }
        }
        table.close()?;
        shape?;
        let payload = match payload?.as_deref() {
            Some("full") => WebhookPayload::Full,
            _ => WebhookPayload::Thin,
        };
        Ok(Self {
            name: name?,
            url: url?,
            secret: secret?,
            events: events?,
            agents: agents?,
            payload,
            enabled: enabled?.unwrap_or(true),
        })
    }
}

fn url(value: Value) -> Result<Url, String> {
    parse_plain_url(&text(value)?).map_err(|error| error.to_string())
}

fn boolean(value: &Value) -> Result<bool, &'static str> {
    value.as_bool().ok_or("must be true or false")
}

/// The agents; `None`: all. An empty list is no absent one: it must not open all agents.
pub(super) fn read_agents(table: &mut Table<'_>) -> Result<Option<Vec<String>>, Reported> {
    table.items_if_any("agents", |pointer, value, faults| {
        name(value).map_err(|message| {
            faults.push(ConfigFault::new(pointer, message));
            Reported
        })
    })
}

impl fmt::Debug for WebhookEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WebhookEntry")
            .field("name", &self.name)
            .field("secret", &self.secret)
            .field("events", &self.events)
            .field("agents", &self.agents)
            .field("enabled", &self.enabled)
            .finish_non_exhaustive()
    }
}
