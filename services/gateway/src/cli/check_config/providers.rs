//! Results of probing model providers, with advice for failures.

use serde_json::{Value, json};

use crate::cli::output;
use egress::EgressError;
use egress::upstream::UpstreamError;
use models::ProviderProbe;

/// Whether the provider accepted every key.
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

/// Prints the result.
pub(super) fn show(provider: &ProviderProbe) {
    let name = &provider.name;
    let keys = provider.keys.len();
    for (n, key) in provider.keys.iter().enumerate() {
        let which = if keys > 1 {
            format!("{name}, api_keys[{n}]")
        } else {
            name.clone()
        };
        match key {
            Ok(()) => output::line(&format!("{which}: answers")),
            Err(error) => output::remark(&format!("{which}: {error}; {}", advice(error))),
        }
    }
    for model in &provider.unlisted {
        output::remark(&format!(
            "{name} does not list {model}; check upstream_model of [[models]]"
        ));
    }
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
