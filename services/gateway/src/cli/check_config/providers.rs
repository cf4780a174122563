//! Results of probing model providers, with advice for failures.

use serde_json::{Value, json};

use super::probe_table::{ProbeRow, ProbeState};
use egress::EgressError;
use egress::upstream::UpstreamError;
use models::ProviderProbe;

/// True if the provider accepted every key.
pub(super) fn is_good(provider: &ProviderProbe) -> bool {
    provider.keys.iter().all(Result::is_ok)
}

/// The result as JSON.
pub(super) fn to_json(provider: &ProviderProbe) -> Value {
    let keys = provider.keys.iter().map(|key| match key {
        Ok(()) => json!({"ok": true}),
        Err(error) => json!({
            "ok": false, "code": error.code(), "reason": error.reason(),
            "message": error.to_string(), "advice": advice(error),
        }),
    });
    json!({
        "name": provider.name, "kind": provider.kind, "keys": keys.collect::<Vec<_>>(),
        "unlisted_models": provider.unlisted,
    })
}

/// The rows of the table: one for each key, and one for each model that the provider does not list.
pub(super) fn rows(provider: &ProviderProbe) -> Vec<ProbeRow> {
    let name = &provider.name;
    let keys = provider.keys.len();
    let keys = provider.keys.iter().enumerate().map(|(n, key)| {
        // A single key needs no index.
        let which = if keys > 1 {
            format!("{name}, api_keys[{n}]")
        } else {
            name.clone()
        };
        let result = match key {
            Ok(()) => Ok("answers".to_owned()),
            Err(error) => Err(format!("{error}; {}", advice(error))),
        };
        ProbeRow::of("model provider", which, &result)
    });
    let unlisted = provider.unlisted.iter().map(|model| {
        let detail = format!("does not list {model}; check upstream_model of [[models]]");
        ProbeRow::new("model provider", name, ProbeState::Warning, detail)
    });
    keys.chain(unlisted).collect()
}

fn advice(error: &UpstreamError) -> &'static str {
    match error {
        UpstreamError::Credential { .. } => {
            "renew the key that api_keys refers to, or its rights at the provider"
        }
        UpstreamError::RateLimited { .. } => {
            "it answers, but the key is used up for now; wait, or add another key"
        }
        UpstreamError::Unreachable(EgressError::Blocked { .. }) => {
            "list its host:port in egress.allow, or serve it by https"
        }
        UpstreamError::Unreachable(_) | UpstreamError::Broken(_) => {
            "check base_url, the name and whether anything between drops the connection"
        }
        UpstreamError::Timeout => "check base_url, and whether the provider is overloaded",
        UpstreamError::Failing { .. } => "the provider itself fails; look at its status page",
        _ => "check base_url and kind",
    }
}
