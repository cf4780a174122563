//! Settings of LangBot's forms that Runnel's connectors read in another form, or not at all.

use serde_json::Value;
use url::Url;

/// LangBot's timeout for the service, in seconds.
pub(super) const TIMEOUT: &str = "timeout";
/// LangBot's setting for user names at the service.
pub(super) const USERS: &str = "user-id-source";
pub(super) const NEW_USERS: &str = "the service sees new users: the connector names them by actor type and id, the built-in runner named sessions";
/// LangBot's switch for callbacks to the host.
pub(super) const ASSETS: &str = "langbot-assets-enabled";
pub(super) const ASSETS_INPUT: &str = "langbot-assets-input-name";
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

/// The hosts of a plugin's service with these settings, as [`HOSTS`] lists them. `None`: its address is a secret, or missing.
pub(super) fn hosts_of(plugin: Option<&str>, config: &[(String, Value)]) -> Option<String> {
    let urls = config
        .iter()
        .filter(|(name, _)| UPSTREAM.contains(&name.as_str()));
    let urls: Vec<_> = urls.filter_map(|(_, url)| url.as_str()).collect();
    // Without an address, the connector calls its default service.
    if urls.is_empty() {
        let plugin = plugin?;
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
