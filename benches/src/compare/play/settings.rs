//! The gateway's configuration: an agent for each arm, selected by the event's bot id.

use std::fmt::Write as _;
use std::path::PathBuf;

use local_agent::manifest::RUNNER_ID as LOCAL;
use serde_json::{Value, json};

use crate::compare::arms::{Arm, OutputForm};
use crate::compare::upstream::CHILD;
use crate::compare::world::{TOOLS, WRITES};

/// Runner id of the protocol agent. A literal, because its crate is not a dependency here.
const DECLARING: &str = "plugin:runnel/protocol-agent/default";
/// Agents that a graph may delegate to.
const RESEARCHERS: [&str; 2] = ["researcher-1", "researcher-2"];

/// Parts of the configuration.
pub(super) struct CompareConfig<'a> {
    pub(super) upstream: &'a str,
    pub(super) local: &'a str,
    pub(super) declaring: &'a str,
    pub(super) secret: PathBuf,
    pub(super) has_children: bool,
}

impl CompareConfig<'_> {
    pub(super) fn to_toml(&self) -> anyhow::Result<String> {
        let Self {
            upstream,
            local,
            declaring,
            ..
        } = self;
        let secret = self.secret.display();
        let mut text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n\
             [egress]\nallow = [\"{local}\", \"{declaring}\", \"{upstream}\"]\n\
             [[runner_endpoints]]\nname = \"local-agent\"\nbase_url = \"http://{local}\"\nsecret = \"file:{secret}\"\n\
             [[runner_endpoints]]\nname = \"protocol-agent\"\nbase_url = \"http://{declaring}\"\nsecret = \"file:{secret}\"\n\
             [[model_providers]]\nname = \"script\"\nkind = \"openai\"\nbase_url = \"http://{upstream}/v1\"\n"
        );
        for model in Arm::ALL.map(Arm::name).into_iter().chain([CHILD]) {
            let model =
                json!({"model_id": model, "provider": "script", "context_window_tokens": 128_000});
            self::entry(&mut text, "models", &model)?;
        }
        let reads = TOOLS
            .iter()
            .map(|(name, arg, effect, line)| (*name, *arg, *effect, *line));
        let writes = WRITES
            .iter()
            .map(|(name, arg, line)| (*name, Some(*arg), "write", *line));
        for (name, arg, effect, line) in reads.chain(writes) {
            self::entry(&mut text, "tools", &self.tool(name, arg, effect, line))?;
        }
        for arm in Arm::ALL {
            self::entry(&mut text, "agents", &self.agent(arm))?;
        }
        if self.has_children {
            for name in RESEARCHERS {
                self::entry(&mut text, "agents", &researcher(name))?;
            }
        }
        Ok(text)
    }

    fn tool(&self, name: &str, arg: Option<&str>, effect: &str, line: &str) -> Value {
        let mut parameters =
            json!({"type": "object", "properties": {}, "additionalProperties": false});
        if let Some(arg) = arg {
            parameters["properties"][arg] = json!({"type": "string"});
            parameters["required"] = json!([arg]);
        }
        json!({
            "tool_name": name, "url": format!("http://{}/tools/{name}", self.upstream),
            "effect": effect, "description": line, "parameters": parameters,
        })
    }

    fn agent(&self, arm: Arm) -> Value {
        let reads = TOOLS.iter().map(|tool| tool.0);
        let tools: Vec<_> = reads.chain(WRITES.iter().map(|tool| tool.0)).collect();
        let mut policy = json!({
            "models": [arm.name(), CHILD], "tools": tools, "history": ["page"], "artifacts": ["read"],
        });
        let is_native = arm.form() == OutputForm::Native;
        if !is_native {
            policy["storage"] = json!(["binding"]);
            if self.has_children {
                policy["agents"] = json!(RESEARCHERS);
            }
        }
        json!({
            "name": arm.name(), "event_types": ["message.received"],
            "scope": {"kind": "bot", "bot_id": arm.name()},
            "runner_id": if is_native { LOCAL } else { DECLARING },
            "state_policy": {"enabled": true, "scopes": ["conversation"]},
            "delivery_policy": {"interactions": true},
            "resource_policy": policy, "config": arm.config(),
        })
    }
}

fn researcher(name: &str) -> Value {
    json!({
        "name": name, "event_types": ["compare.never"], "scope": {"kind": "global"}, "runner_id": LOCAL,
        "resource_policy": {"models": [CHILD]},
        "config": {"model": {"primary": CHILD}, "prompt": [{"role": "system", "content": "You research."}]},
    })
}

/// Writes an entry of an array of tables. TOML's inline tables are JSON with `=` for `:`.
fn entry(text: &mut String, list: &str, value: &Value) -> anyhow::Result<()> {
    writeln!(text, "[[{list}]]")?;
    for (key, value) in value.as_object().into_iter().flatten() {
        writeln!(text, "{key} = {}", inline(value))?;
    }
    Ok(())
}

fn inline(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let pairs = object.iter();
            let pairs = pairs.map(|(key, value)| format!("{} = {}", json!(key), inline(value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::Array(list) => {
            format!(
                "[{}]",
                list.iter().map(inline).collect::<Vec<_>>().join(", ")
            )
        }
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_values_as_inline_tables() {
        let value = json!({"a": [1, {"b": "x\"y"}], "c": true});
        assert_eq!(
            inline(&value),
            r#"{ "a" = [1, { "b" = "x\"y" }], "c" = true }"#
        );
    }
}
