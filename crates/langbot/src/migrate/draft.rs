//! Settings of the selected runner during the conversion.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::connectors::{self, ASSETS, ASSETS_INPUT, IDLE_SECONDS, IDLE_TIMEOUT};
use super::convert::{Converted, convert, without_nulls};
use super::families::FieldKind;
use super::report::{FieldAction, FieldNote};
use super::secrets::{SecretVariables, is_reference};
use super::server::RunnerServer;

const DEFAULT_INPUT: &str = "langbot_asset_run_token";

/// Settings of the selected runner during the conversion.
#[derive(Debug)]
pub(super) struct SettingsDraft<'v, 'a> {
    pub(super) vault: &'v mut SecretVariables<'a>,
    pub(super) config: Vec<(String, Value)>,
    pub(super) notes: Vec<FieldNote>,
    /// Settings that the runner does not support.
    pub(super) unknown: &'static [&'static str],
    /// Server of the runner.
    pub(super) server: RunnerServer,
    /// Replaced values: setting, newer value, equivalent.
    pub(super) newer_values: &'static [(&'static str, &'static str, &'static str)],
}

impl SettingsDraft<'_, '_> {
    pub(super) fn note(&mut self, action: FieldAction, pointer: String) -> &mut FieldNote {
        self.notes.push(FieldNote::new(action, Some(pointer)));
        self.notes.last_mut().expect("it was pushed just now")
    }

    /// Converts a value into the configuration. `false`: it is empty.
    pub(super) fn set(
        &mut self,
        name: &str,
        kind: FieldKind,
        value: &Value,
        pointer: String,
    ) -> Result<bool, &'static str> {
        match convert(kind, value) {
            Converted::Same(read) => self.keep(name, Some(kind), read, pointer, None),
            Converted::Changed(read, how) => self.keep(name, Some(kind), read, pointer, Some(how)),
            Converted::Empty => return Ok(false),
            Converted::Wrong(message) => return Err(message),
        }
        Ok(true)
    }

    /// Takes a value without its secrets.
    pub(super) fn keep(
        &mut self,
        name: &str,
        kind: Option<FieldKind>,
        value: Value,
        pointer: String,
        mut how: Option<&str>,
    ) {
        if self.server == RunnerServer::Connectors && name == connectors::TIMEOUT {
            self.idle_timeout(&value, pointer);
            return;
        }
        if self.unknown.contains(&name) {
            let why = match name {
                _ if self.server == RunnerServer::Connectors => connectors::drop_reason(name),
                "remove-think" => "the older plugin has no such setting: reasoning is shown",
                "response-handling" => "the older plugin has no such setting: replies are sent",
                _ => "the chosen runner has no such setting",
            };
            self.note(FieldAction::Dropped, pointer).why = Some(why.to_owned());
            return;
        }
        let newer = self
            .newer_values
            .iter()
            .find(|(setting, newer, _)| *setting == name && value == *newer);
        let value = newer.map_or(value, |(_, _, equivalent)| {
            how = Some("the older plugin's equivalent");
            json!(equivalent)
        });
        let before = self.vault.removed.len();
        let plain = without_nulls(value);
        // A reference is not a secret; replacing it would lose the variable that it names.
        let is_secret = kind == Some(FieldKind::Secret)
            && plain
                .as_str()
                .is_some_and(|text| !text.is_empty() && !is_reference(text));
        let clean = if is_secret {
            self.vault.refer(name, &pointer)
        } else {
            self.vault.clean(name, name, &pointer, plain)
        };
        let referenced = self.vault.removed.len() > before;
        let action = match pointer.rsplit('/').next() {
            _ if referenced => FieldAction::Referenced,
            Some(last) if last == name && !pointer.ends_with("/output/misc/remove-think") => {
                FieldAction::Kept
            }
            _ => FieldAction::Renamed,
        };
        let variables: Vec<_> = self.vault.removed[before..]
            .iter()
            .map(|removed| removed.variable.as_str())
            .collect();
        let why = match (how, referenced) {
            (_, true) => Some(format!(
                "take the secret from here into {}",
                variables.join(", ")
            )),
            (how, false) => how.map(str::to_owned),
        };
        let note = FieldNote::new(action, Some(pointer)).to(format!("config.{name}"));
        self.notes.push(FieldNote { why, ..note });
        self.config.push((name.to_owned(), clean));
    }

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
