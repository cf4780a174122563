//! Converts settings of LangBot's forms for Runnel's connectors.

use protocol::JsonObject;
use serde_json::{Value, json};
use url::Url;

use super::pipeline::{PipelinePlan, SettingsDraft};
use super::report::{FieldAction, FieldNote};

/// LangBot's timeout for the service, in seconds.
pub(super) const TIMEOUT: &str = "timeout";
/// LangBot's setting for user names at the service.
pub(super) const USERS: &str = "user-id-source";
pub(super) const NEW_USERS: &str = "the service sees new users: the connector names them by actor type and id, the built-in runner named sessions";
/// LangBot's switch for callbacks to the host.
pub(super) const ASSETS: &str = "langbot-assets-enabled";
const ASSETS_INPUT: &str = "langbot-assets-input-name";
const DEFAULT_INPUT: &str = "langbot_asset_run_token";
/// The connectors' idle timeout, in seconds.
pub(super) const IDLE_TIMEOUT: &str = "idle-timeout";
/// Default idle timeout of the connectors, in seconds.
pub(super) const IDLE_SECONDS: f64 = 120.0;

/// Settings with the address of a runner's service.
pub(super) const UPSTREAM: [&str; 3] = ["base-url", "api-base", "webhook-url"];
/// Ends the name of the variable that lists the hosts of a secret. The connectors send it to no other host.
pub(super) const HOSTS: &str = "_HOSTS";
/// Services that a connector calls without an address in its settings, by plugin.
const DEFAULT_HOSTS: [(&str, &str); 6] = [
    ("DifyAgent", "api.dify.ai"),
    ("CozeAgent", "api.coze.cn"),
    ("DashScopeAgent", "dashscope.aliyuncs.com"),
    ("TboxAgent", "api.tbox.cn"),
    ("LangflowAgent", "localhost:7860"),
    ("WeKnoraAgent", "localhost:8080"),
];

/// Settings of LangBot's runners without a counterpart in connectors.
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

/// Returns the reason for which a setting of [`UNKNOWN`] is dropped.
pub(super) fn drop_reason(name: &str) -> &'static str {
    match name {
        "remove-think" => "answers contain no reasoning: show-thoughts adds it to the events",
        USERS => "the connector names users by actor type and id",
        ASSETS_INPUT => "config.host-tools contains it when callbacks are enabled",
        _ if name.starts_with("langbot-assets-") => {
            "the gateway itself serves the calls: see `[host_api] shared_mcp`"
        }
        _ => "the connector has no such setting",
    }
}

/// The hosts of a plan's service, as [`HOSTS`] lists them. `None`: its address is a secret, or missing.
pub(super) fn hosts_of(plan: &PipelinePlan) -> Option<String> {
    let urls = plan
        .config
        .iter()
        .filter(|(name, _)| UPSTREAM.contains(&name.as_str()));
    let urls: Vec<_> = urls.filter_map(|(_, url)| url.as_str()).collect();
    // Without an address, the connector calls its default service.
    if urls.is_empty() {
        let plugin = plan.family?.plugin;
        let entry = DEFAULT_HOSTS.iter().find(|(name, _)| *name == plugin);
        return entry.map(|(_, host)| (*host).to_owned());
    }
    // One address that is a reference hides its host, so the list would be incomplete.
    let hosts: Option<Vec<_>> = urls.into_iter().map(host_of).collect();
    hosts.map(|hosts| hosts.join(","))
}

/// The host, with its port unless it is the one of HTTPS.
fn host_of(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let host = url.host_str()?;
    match (url.scheme(), url.port_or_known_default()?) {
        // The connectors compare hosts in this form.
        ("https", 443) => Some(host.to_owned()),
        (_, port) => Some(format!("{host}:{port}")),
    }
}

impl SettingsDraft<'_, '_> {
    /// Converts LangBot's timeout to an idle timeout, and only raises the default. LangBot counts keep-alives as
    /// content; connectors do not.
    pub(super) fn idle_timeout(&mut self, value: &Value, pointer: String) {
        // Only raised: LangBot's shorter timeouts would end answers that the connector still receives.
        let seconds = value.as_f64().filter(|seconds| *seconds > IDLE_SECONDS);
        let note = FieldNote::new(
            if seconds.is_some() {
                FieldAction::Renamed
            } else {
                FieldAction::Dropped
            },
            Some(pointer),
        );
        let Some(seconds) = seconds else {
            let why =
                "the connector waits 120 seconds for content; set config.idle-timeout to change it";
            self.notes.push(note.because(why));
            return;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds of a setting, above 120 and cut to a day"
        )]
        // A day is longer than any run.
        let rounded = seconds.min(86_400.0).ceil() as u64;
        self.config.push((IDLE_TIMEOUT.to_owned(), json!(rounded)));
        self.notes.push(note.to("config.idle-timeout"));
    }

    /// Migrates callbacks to the host: the input variable that receives the run token.
    pub(super) fn assets(&mut self, section: &JsonObject, pointer: String) {
        // Any other value means that callbacks are disabled, which is also the connector's default.
        if section.get(ASSETS) != Some(&Value::Bool(true)) {
            self.note(FieldAction::Dropped, pointer).why = Some("is empty".to_owned());
            return;
        }
        let input = section.get(ASSETS_INPUT).and_then(Value::as_str);
        let input = input.map(str::trim).filter(|name| !name.is_empty());
        let input = input.unwrap_or(DEFAULT_INPUT);
        self.config.push(("host-tools".to_owned(), json!(input)));
        let note = FieldNote::new(FieldAction::Renamed, Some(pointer)).to("config.host-tools");
        self.notes.push(note.because(
            "the platform receives the run's token there; its MCP client calls /host/v1/mcp/shared, \
             which `[host_api] shared_mcp = true` enables",
        ));
    }
}
