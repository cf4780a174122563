//! Hooks of the configuration, with their secrets.

use secrets::signature::SigningSecret;

use super::{check_egress, signing_secret};
use crate::config::{Config, ConfigFault};
use egress::Egress;
use runs::hooks::HookSpec;

/// Reads the hooks. One with a fault is left out.
pub(super) fn hooks(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> Vec<HookSpec> {
    let mut hooks = Vec::new();
    for (index, entry) in config.hooks.iter().enumerate() {
        let pointer = format!("hooks[{index}]");
        check_egress(egress, &entry.url, &format!("{pointer}.url"), faults);
        let secret = signing_secret(&entry.secret, &format!("{pointer}.secret"), faults);
        // A secret that cannot be parsed is a fault already.
        if let Ok(secret) = SigningSecret::parse(&secret) {
            hooks.push(HookSpec {
                name: entry.name.clone(),
                url: entry.url.clone(),
                secret,
                on: entry.on.clone(),
                agents: entry.agents.clone(),
                timeout: entry.timeout,
                on_failure: entry.on_failure,
            });
        }
    }
    hooks
}
