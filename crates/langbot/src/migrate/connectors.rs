//! Settings of LangBot's forms as Runnel's connectors take them.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::pipeline::Draft;
use super::report::{Action, FieldNote};

/// LangBot's setting for the seconds that it waits for the service.
pub(super) const TIMEOUT: &str = "timeout";
/// LangBot's setting for the names of users at the service.
pub(super) const USERS: &str = "user-id-source";
pub(super) const NEW_USERS: &str = "the service sees new users: the connector names them by actor type and id, the built-in runner named sessions";
/// LangBot's switch for calls back to the host.
pub(super) const ASSETS: &str = "langbot-assets-enabled";
const ASSETS_INPUT: &str = "langbot-assets-input-name";
const DEFAULT_INPUT: &str = "langbot_asset_run_token";
/// The connectors' setting for the seconds that they wait for content.
pub(super) const IDLE_TIMEOUT: &str = "idle-timeout";
/// The idle limit of connectors without that setting, in seconds.
pub(super) const IDLE_SECONDS: f64 = 120.0;

/// Settings of LangBot's runners that no connector has.
pub(super) const UNKNOWN: &[&str] = &[
    "remove-think",
    USERS,
    "streaming",
    "advanced-settings",
    ASSETS,
    ASSETS_INPUT,
    "langbot-assets-gateway-host",
    "langbot-assets-gateway-port",
    "langbot-assets-gateway-request-timeout",
    "langbot-assets-token-ttl",
];

/// The reason why a setting of [`UNKNOWN`] is dropped.
pub(super) fn why_not(name: &str) -> &'static str {
    match name {
        "remove-think" => {
            "an answer holds no thoughts: show-thoughts adds them to the events beside it"
        }
        USERS => "the connector names users by actor type and id",
        ASSETS_INPUT => "stands in config.host-tools where calls back are on",
        _ if name.starts_with("langbot-assets-") => {
            "the gateway itself takes the calls: see `[host_api] shared_mcp`"
        }
        _ => "the connector has no such setting",
    }
}

impl Draft<'_, '_> {
    /// The wait of LangBot, which counts keep-alives as content, as an idle limit, which does not: it is raised alone.
    pub(super) fn idle_timeout(&mut self, value: &Value, pointer: String) {
        let seconds = value.as_f64().filter(|seconds| *seconds > IDLE_SECONDS);
        let note = FieldNote::new(
            if seconds.is_some() {
                Action::Renamed
            } else {
                Action::Dropped
            },
            Some(pointer),
        );
        let Some(seconds) = seconds else {
            let why =
                "the connector waits 120 seconds for content; config.idle-timeout says otherwise";
            self.notes.push(note.because(why));
            return;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a setting, above 120 and cut to a day"
        )]
        let whole = seconds.min(86_400.0).ceil() as u64;
        self.config.push((IDLE_TIMEOUT.to_owned(), json!(whole)));
        self.notes.push(note.to("config.idle-timeout"));
    }

    /// Calls back to the host: the input variable that gets the run's token.
    pub(super) fn assets(&mut self, section: &JsonObject, pointer: String) {
        if section.get(ASSETS) != Some(&Value::Bool(true)) {
            self.note(Action::Dropped, pointer).why = Some("says nothing".to_owned());
            return;
        }
        let input = section.get(ASSETS_INPUT).and_then(Value::as_str);
        let input = input.map(str::trim).filter(|name| !name.is_empty());
        let input = input.unwrap_or(DEFAULT_INPUT);
        self.config.push(("host-tools".to_owned(), json!(input)));
        let note = FieldNote::new(Action::Renamed, Some(pointer)).to("config.host-tools");
        self.notes.push(note.because(
            "the platform gets the run's token there; its MCP client asks /host/v1/mcp/shared, \
             which `[host_api] shared_mcp = true` opens",
        ));
    }
}
