//! `[[hooks]]`: HTTP calls that allow, deny or replace events, model calls and tool calls.

use std::fmt;
use std::time::Duration;

use protocol::hook::HookMoment;
use serde_json::Value;
use url::Url;

use super::secret_ref::SecretRef;
use super::table::{Reported, Table, name, one_of, parsed, seconds, some_of, text};
use super::webhook::read_agents;
use egress::parse_plain_url;
use runs::hooks::HookFailure;

const MOMENTS: [&str; 5] = {
    let mut names = [""; 5];
    let mut index = 0;
    while index < names.len() {
        names[index] = HookMoment::ALL[index].as_str();
        index += 1;
    }
    names
};
/// Maximum number of hooks: each of a moment delays its call.
const MAX_HOOKS: usize = 16;
/// Maximum number of agents of a hook.
const MAX_AGENTS: usize = 100;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// A hook. `Debug` omits the URL, which may give access to the receiver.
#[derive(Clone)]
pub struct HookEntry {
    pub name: String,
    pub url: Url,
    pub secret: SecretRef,
    pub on: Vec<HookMoment>,
    /// Names or ids. `None`: all agents.
    pub agents: Option<Vec<String>>,
    pub timeout: Duration,
    pub on_failure: HookFailure,
}

impl HookEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let name = table.required("name", name);
        let url = table.required("url", url);
        let secret = table.required("secret", parsed);
        let on = table.required("on", some_of(&MOMENTS));
        let agents = read_agents(&mut table);
        let timeout = table.optional("timeout_seconds", seconds(0.05..=30.0));
        let fail = table.optional("fail", one_of(&["open", "closed"]));
        let mut shape = Ok(());
        if let (Ok(on), Ok(Some(agents))) = (&on, &agents) {
            let is_bounded = (1..=MAX_AGENTS).contains(&agents.len());
            let message = format!("must have 1 to {MAX_AGENTS} items");
            shape = table.demand("agents", is_bounded, message);
            // An event without its agent would pass a hook that selects agents.
            let has_agent = !on.iter().any(|one| one == HookMoment::Event.as_str());
            let message = "must be absent with \"event\" in on: the agent of an event is chosen after its hooks";
            shape = shape.and(table.demand("agents", has_agent, message));
        }
        // Unknown keys are reported together with the faults above.
        table.close()?;
        shape?;
        let on = on?;
        Ok(Self {
            name: name?,
            url: url?,
            secret: secret?,
            on: on.iter().filter_map(|one| HookMoment::parse(one)).collect(),
            agents: agents?,
            timeout: timeout?.unwrap_or(DEFAULT_TIMEOUT),
            on_failure: match fail?.as_deref() {
                Some("open") => HookFailure::Open,
                // A guardrail that is down must not go unnoticed.
                _ => HookFailure::Closed,
            },
        })
    }
}

fn url(value: Value) -> Result<Url, String> {
    parse_plain_url(&text(value)?).map_err(|error| error.to_string())
}

/// Checks the number of hooks.
pub(super) fn check_hooks(
    hooks: &Result<Vec<HookEntry>, Reported>,
    table: &mut Table<'_>,
) -> Result<(), Reported> {
    let Ok(hooks) = hooks else {
        return Err(Reported);
    };
    let message = format!("must have at most {MAX_HOOKS} items");
    table.demand("hooks", hooks.len() <= MAX_HOOKS, message)
}

impl fmt::Debug for HookEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HookEntry")
            .field("name", &self.name)
            .field("secret", &self.secret)
            .field("on", &self.on)
            .field("agents", &self.agents)
            .field("timeout", &self.timeout)
            .field("on_failure", &self.on_failure)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(entry: &Value) -> Result<HookEntry, Vec<String>> {
        let mut faults = Vec::new();
        let table = Table::open("hooks[0]".to_owned(), entry.clone(), &mut faults).unwrap();
        let read = HookEntry::read(table);
        let pointers = faults.into_iter().map(|fault| fault.pointer).collect();
        read.map_err(|Reported| pointers)
    }

    fn entry(more: &Value) -> Value {
        let mut entry = json!({"name": "g", "url": "https://g.example", "secret": "env:G", "on": ["tool.call"]});
        let more = more.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(more);
        entry
    }

    #[test]
    fn hooks_are_closed_on_failure_by_default() {
        let read = read(&entry(&json!({}))).unwrap();
        assert_eq!(read.on_failure, HookFailure::Closed);
        assert_eq!(read.timeout, DEFAULT_TIMEOUT);
        assert_eq!(read.on, [HookMoment::ToolCall]);
        let shown = format!("{read:?}");
        assert!(!shown.contains("g.example"), "{shown}");
    }

    #[test]
    fn reports_faults_of_hooks_by_pointer() {
        let many: Vec<_> = (0..=MAX_AGENTS).map(|n| format!("a{n}")).collect();
        for (more, expected) in [
            (json!({"on": []}), "on"),
            (json!({"on": ["tool.call", "tool.call"]}), "on"),
            (json!({"on": ["tool"]}), "on"),
            (json!({"timeout_seconds": 31}), "timeout_seconds"),
            (json!({"timeout_seconds": 0}), "timeout_seconds"),
            (json!({"fail": "never"}), "fail"),
            (json!({"secret": "literal"}), "secret"),
            (json!({"url": "https://u:p@g.example"}), "url"),
            (json!({"agents": []}), "agents"),
            (json!({"agents": many}), "agents"),
            (json!({"agents": ["a"], "on": ["event"]}), "agents"),
            (json!({"retries": 1}), "retries"),
        ] {
            let found = read(&entry(&more)).unwrap_err();
            assert_eq!(found, [format!("hooks[0].{expected}")], "{more}");
        }
    }
}
