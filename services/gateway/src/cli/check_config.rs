//! `runnel check-config`.

use std::process::ExitCode;

use serde_json::json;

use crate::app::declared;
use crate::cli::serve::master_key;
use crate::cli::{ConfigArgument, output};
use crate::config::{Config, ConfigErrors, ConfigFault};

/// Reports everything that `serve` would refuse, and changes nothing.
pub(super) fn check_config(config: &ConfigArgument, json: bool) -> ExitCode {
    let path = config.path();
    let faults = match Config::load(path.as_deref()) {
        Err(ConfigErrors(faults)) => faults,
        Ok(config) => {
            let mut faults = declared(&config)
                .err()
                .map(|errors| errors.0)
                .unwrap_or_default();
            if let Err(error) = master_key(&config) {
                faults.push(ConfigFault::new("auth.master_key", format!("{error:#}")));
            }
            faults
        }
    };
    let shown: Vec<_> = faults
        .iter()
        .map(|f| json!({"pointer": f.pointer, "message": f.message}))
        .collect();
    if json {
        output::line(&json!({"valid": faults.is_empty(), "faults": shown}).to_string());
    } else if faults.is_empty() {
        output::line("the configuration is valid");
    } else {
        output::remark(&ConfigErrors(faults.clone()).to_string());
    }
    if faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
