//! `[[agents]]`, validated like agents of the API. Each fault points into the file.

use domain::agent::check_agent;
use protocol::admin::AgentSpec;
use serde_json::{Value, json};

use super::spec;
use super::table::{Reported, Table};

pub(super) fn read(table: Table<'_>) -> Result<AgentSpec, Reported> {
    spec::read(table, &placeholders(), check_agent)
}

/// Required keys, with values that have no fault.
fn placeholders() -> [(&'static str, Value); 2] {
    [
        ("event_types", json!(["*"])),
        ("runner_id", json!("plugin:a/b/c")),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;
    use crate::config::fault::ConfigFault;

    fn validate(agent: Map<String, Value>) -> Result<AgentSpec, Vec<ConfigFault>> {
        spec::validate(agent, &placeholders(), check_agent)
    }

    #[test]
    fn reports_all_faults_of_one_agent() {
        let agent = json!({
            "name": "a", "event_type": ["*"], "event_types": ["a.*.b", "ok"], "runner_id": "acme",
            "concurrency": "hunter2", "resource_policy": {"tool": ["x"], "models": 5},
            "config": {"timeout": "5m"}, "retry": {"max": "often"}, "scope": {"kind": "bot", "bot": "x"},
            "limits": {"burst": 5, "tokens_per_minute": 0},
        });
        let Value::Object(agent) = agent else {
            unreachable!()
        };
        let mut faults = validate(agent).unwrap_err();
        faults.sort_by(|one, other| one.pointer.cmp(&other.pointer));
        let shown: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "concurrency: must be one of concurrent, reject, enqueue, interrupt, steer",
                "config.timeout: must be a number of seconds; 0 or null selects the maximum",
                "event_type: is not known here; did you mean event_types?",
                "event_types[0]: must be an exact event type or a prefix that ends in .*",
                "limits.burst: has no effect without rate",
                "limits.tokens_per_minute: must be from 1 to 1000000000",
                "resource_policy.models: must be \"*\" or a list of names",
                "resource_policy.tool: is not known here; did you mean tools?",
                "retry.max: must be an integer",
                "runner_id: must have the form plugin:{author}/{plugin}/{runner}, or {author}/{plugin}",
                "scope.bot: is not known here; did you mean bot_id?",
            ]
        );
    }

    #[test]
    fn reports_required_keys_together() {
        let faults = validate(Map::from_iter([("name".to_owned(), json!("a"))])).unwrap_err();
        let shown: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            ["event_types: is required", "runner_id: is required"]
        );
    }
}
