//! `runnel agents advise` and `runnel explain --policy`: an agent's policy next to the calls of its runs.

use std::path::Path;
use std::time::Duration;

use anstyle::Style;
use anyhow::{Context as _, bail};
use clock::Clock;
use http::Method;
use serde_json::{Map, Value, json};

use crate::facts::{elements, moment, text};
use crate::gateway::{Gateway, encoded};
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

/// Members of an agent that a policy check takes.
const POLICIES: [&str; 2] = ["resource_policy", "state_policy"];

/// Requests the advice for an agent by its id.
pub(super) async fn advice_of(
    gateway: &Gateway,
    id: &str,
    period: Option<Duration>,
) -> anyhow::Result<Value> {
    let query = period.map_or_else(String::new, |period| format!("?since={}", start(period)));
    let path = format!("/v1/agents/{}/advice{query}", encoded(id));
    gateway.get(&path).await
}

/// The start of a period until now, in epoch seconds.
fn start(period: Duration) -> i64 {
    let period = i64::try_from(period.as_secs()).unwrap_or(i64::MAX);
    Clock::system().now_seconds().saturating_sub(period).max(0)
}

/// Prints each grant with its use, the denied calls, and the changes.
pub(super) fn print_advice(advice: &Value, format: OutputFormat) {
    if format.is_json() {
        output::document(advice);
        return;
    }
    let grants = elements(advice, "grants").iter().map(|grant| TableRow {
        style: if grant["calls"] == 0 {
            output::DIM
        } else {
            Style::new()
        },
        cells: vec![
            list_name(text(grant, "list")),
            text(grant, "entry").to_owned(),
            grant["calls"].to_string(),
            moment(grant, "last_used_at").unwrap_or_else(|| "never".to_owned()),
        ],
    });
    print_table(&["list", "entry", "calls", "last used"], grants.collect());
    print_calls("denied", elements(advice, "denials"));
    let changes = elements(advice, "changes");
    output::line("");
    if advice["is_complete"] == false {
        output::line("too many calls to judge all of them: choose a shorter --since");
    } else if advice["runs"] == 0 {
        output::line("no run in this period, so nothing is advised");
    } else if changes.is_empty() {
        output::line("the policy has no unused entry");
    } else {
        output::line(&format!(
            "advised by the calls of past runs ({}):",
            advice["runs"]
        ));
    }
    // The names of the configuration file, so that a line can be copied there.
    for change in changes {
        let list = list_name(text(change, "path"));
        output::line(&format!("  {list} = {}", change["value"]));
    }
}

/// The agent after the changes of an advice.
pub(super) fn apply_changes(agent: &mut Value, advice: &Value) -> anyhow::Result<()> {
    for change in elements(advice, "changes") {
        let path = text(change, "path");
        let list = agent.pointer_mut(path);
        *list.with_context(|| format!("the agent has no {path}"))? = change["value"].clone();
    }
    Ok(())
}

/// Requests the past calls that the policies of a JSON file decide differently.
pub(super) async fn check_policy(
    gateway: &Gateway,
    id: &str,
    file: &Path,
    period: Option<Duration>,
) -> anyhow::Result<Value> {
    let mut check = read_policies(file)?;
    if let Some(period) = period {
        check.insert("since".to_owned(), json!(start(period)));
    }
    let path = format!("/v1/agents/{}/policy-check", encoded(id));
    let request = gateway.request(Method::POST, &path)?.json(&check);
    gateway.ask(request).await
}

/// The policies of a file, which may be a complete agent.
fn read_policies(file: &Path) -> anyhow::Result<Map<String, Value>> {
    let name = file.display();
    let content = std::fs::read_to_string(file).with_context(|| format!("cannot read {name}"))?;
    let agent: Value =
        serde_json::from_str(&content).with_context(|| format!("{name} is no JSON document"))?;
    // The API refuses the other members of an agent.
    let member = |key: &&str| Some(((*key).to_owned(), agent.get(*key)?.clone()));
    // Without a state policy, the gateway takes the agent's.
    let policies: Map<_, _> = POLICIES.iter().filter_map(member).collect();
    if !policies.contains_key(POLICIES[0]) {
        bail!(
            "{name} has no `resource_policy`: edit the output of `runnel agents show NAME --json`"
        );
    }
    Ok(policies)
}

/// Prints the result of a policy check.
pub(super) fn print_check(check: &Value, format: OutputFormat) {
    if format.is_json() {
        output::document(check);
        return;
    }
    let (denied, allowed) = (elements(check, "denied"), elements(check, "allowed"));
    print_calls("would be denied", denied);
    print_calls("would be allowed", allowed);
    if denied.is_empty() && allowed.is_empty() {
        output::line(&format!(
            "the policy decides all calls of {} runs as before",
            check["runs"]
        ));
    }
    if check["is_complete"] == false {
        output::line("too many calls to judge all of them: choose a shorter --since");
    }
}

fn print_calls(head: &str, calls: &[Value]) {
    if calls.is_empty() {
        return;
    }
    output::line("");
    let row = |call: &Value| TableRow {
        style: Style::new(),
        cells: vec![
            text(call, "action").to_owned(),
            text(call, "resource").to_owned(),
            call["calls"].to_string(),
            moment(call, "last_at").unwrap_or_default(),
            text(call, "rule").to_owned(),
        ],
    };
    let rows = calls.iter().map(row).collect();
    print_table(&[head, "resource", "calls", "last", "rule"], rows);
}

/// A JSON pointer as the setting of a configuration: `resource_policy.tools`.
fn list_name(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}
