//! `runnel agents`: agents of a gateway, over HTTP with an admin key.

use std::process::ExitCode;
use std::time::Duration;

use anstyle::Style;
use anyhow::{Context as _, bail};
use clap::Subcommand;
use http::Method;
use http::header::IF_MATCH;
use serde_json::{Value, json};

use crate::advice::{advice_of, apply_changes, print_advice};
use crate::facts::{elements, moment, principal, print_facts, text};
use crate::gateway::{Gateway, GatewayArguments, encoded};
use crate::ids::{NamedList, find_id, tail};
use crate::lifetime::parse_lifetime;
use crate::output::{self, OutputFormat};
use crate::table::{ListTable, TableRow};

/// Members that the gateway adds to the spec of an agent.
const ADDED: [&str; 7] = [
    "id",
    "origin",
    "version",
    "created_at",
    "updated_at",
    "updated_by",
    "refused",
];
/// Maximum number of listed agents.
const MAX_LISTED: usize = 10_000;
const USAGE: u8 = 2;

/// Agents, which have unique names.
pub(super) const AGENTS: NamedList<'_> = NamedList {
    noun: "agent",
    path: "/v1/agents",
    cursor: "cursor",
    id: "id",
    name: Some("name"),
    command: "runnel agents list",
    about: "name",
};

#[derive(Subcommand)]
pub enum AgentsCommand {
    /// List the agents.
    List {
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Show an agent with its configuration and policies.
    Show(AgentArguments),
    /// Enable an agent: it takes new events.
    Enable(AgentArguments),
    /// Disable an agent: it takes no new events. Live runs continue.
    Disable(AgentArguments),
    /// Delete an agent. Its runs stay readable.
    Delete(AgentArguments),
    /// Show the use of each grant of an agent, and the smallest policy that its runs needed.
    Advise(AdviseArguments),
}

#[derive(clap::Args)]
pub struct AdviseArguments {
    #[command(flatten)]
    agent: AgentArguments,
    /// Judge the runs of this time until now, such as 7d. Default: 30d.
    #[arg(long, value_name = "TIME", value_parser = parse_lifetime)]
    since: Option<Duration>,
    /// Replace the agent's policy by the advised one.
    #[arg(long)]
    apply: bool,
}

#[derive(clap::Args)]
pub struct AgentArguments {
    /// The agent: its name, its id, or any unique part of the id.
    #[arg(value_name = "NAME|ID")]
    agent: String,
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Runs an `agents` command.
pub(super) async fn agents(
    command: AgentsCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (AgentsCommand::List { gateway }
    | AgentsCommand::Show(AgentArguments { gateway, .. })
    | AgentsCommand::Enable(AgentArguments { gateway, .. })
    | AgentsCommand::Disable(AgentArguments { gateway, .. })
    | AgentsCommand::Delete(AgentArguments { gateway, .. })
    | AgentsCommand::Advise(AdviseArguments {
        agent: AgentArguments { gateway, .. },
        ..
    })) = &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        AgentsCommand::List { .. } => {
            let agents = gateway.list(AGENTS.path, AGENTS.cursor, MAX_LISTED).await?;
            list(&agents, format);
        }
        AgentsCommand::Show(AgentArguments { agent, .. }) => {
            show(&find(&gateway, &agent).await?, format);
        }
        AgentsCommand::Enable(AgentArguments { agent, .. }) => {
            switch(&gateway, &agent, Switch::Enable, format).await?;
        }
        AgentsCommand::Disable(AgentArguments { agent, .. }) => {
            switch(&gateway, &agent, Switch::Disable, format).await?;
        }
        AgentsCommand::Advise(arguments) => advise(&gateway, &arguments, format).await?,
        AgentsCommand::Delete(AgentArguments { agent, .. }) => {
            let agent = find(&gateway, &agent).await?;
            // The configuration would undo the change at the next start.
            changeable(&agent)?;
            let request = gateway.request(Method::DELETE, &path_of(&agent))?;
            gateway.ask(request).await?;
            if format.is_json() {
                output::document(&json!({"deleted": agent["id"], "name": agent["name"]}));
            } else {
                output::line(&format!("deleted {}", text(&agent, "name")));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn find(gateway: &Gateway, named: &str) -> anyhow::Result<Value> {
    let id = find_id(gateway, &AGENTS, named).await?;
    gateway
        .get(&format!("{}/{}", AGENTS.path, encoded(&id)))
        .await
}

fn path_of(agent: &Value) -> String {
    format!("{}/{}", AGENTS.path, encoded(text(agent, "id")))
}

fn list(agents: &[Value], format: OutputFormat) {
    let row = |agent: &Value| TableRow {
        style: match state(agent) {
            "enabled" => Style::new(),
            "refused" => output::RED,
            _ => output::DIM,
        },
        cells: vec![
            tail(text(agent, "id")).to_owned(),
            text(agent, "name").to_owned(),
            state(agent).to_owned(),
            text(agent, "origin").to_owned(),
            events(agent),
            text(agent, "runner_id").to_owned(),
        ],
    };
    let table = ListTable {
        empty: "no agents",
        head: &["id", "name", "state", "origin", "events", "runner"],
    };
    table.print(agents, format, row);
}

fn state(agent: &Value) -> &'static str {
    if !elements(agent, "refused").is_empty() {
        "refused"
    } else if agent["enabled"] == false {
        "disabled"
    } else {
        "enabled"
    }
}

fn events(agent: &Value) -> String {
    let names = elements(agent, "event_types").iter();
    let names: Vec<_> = names.filter_map(Value::as_str).collect();
    names.join(", ")
}

fn show(agent: &Value, format: OutputFormat) {
    if format.is_json() {
        output::document(agent);
        return;
    }
    let member = |key: &'static str| (key, text(agent, key).to_owned());
    let reasons = elements(agent, "refused").iter();
    let reasons =
        reasons.map(|fault| format!("{} {}", text(fault, "pointer"), text(fault, "message")));
    let mut facts = vec![
        ("agent", text(agent, "name").to_owned()),
        member("id"),
        ("state", state(agent).to_owned()),
    ];
    facts.extend(reasons.map(|reason| ("refused", reason)));
    facts.extend([
        member("description"),
        member("origin"),
        ("events", events(agent)),
        ("runner", text(agent, "runner_id").to_owned()),
        ("priority", agent["priority"].to_string()),
        ("version", agent["version"].to_string()),
        ("updated", moment(agent, "updated_at").unwrap_or_default()),
        ("by", principal(agent, "updated_by").unwrap_or_default()),
    ]);
    facts.retain(|(_, value)| !value.is_empty() && value != "null");
    print_facts(&facts);
    let rest = [
        "scope",
        "filters",
        "config",
        "locale",
        "timezone",
        "resource_policy",
        "state_policy",
        "delivery_policy",
        "concurrency",
        "conversation_idle_seconds",
        "retry",
        "limits",
    ];
    for key in rest {
        if !agent[key].is_null() {
            output::line(&format!("\n{key} {:#}", agent[key]));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Switch {
    Enable,
    Disable,
}

/// Enables or disables an agent.
async fn switch(
    gateway: &Gateway,
    named: &str,
    switch: Switch,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let mut agent = find(gateway, named).await?;
    changeable(&agent)?;
    agent["enabled"] = json!(switch == Switch::Enable);
    let changed = replace(gateway, agent).await?;
    if format.is_json() {
        output::document(&changed);
    } else {
        output::line(&format!(
            "{} is {}",
            text(&changed, "name"),
            state(&changed)
        ));
    }
    Ok(())
}

/// Replaces an agent that was just read. A concurrent change is refused by its version.
async fn replace(gateway: &Gateway, mut agent: Value) -> anyhow::Result<Value> {
    let version = agent["version"]
        .as_i64()
        .context("the agent has no version")?;
    let path = path_of(&agent);
    let spec = agent.as_object_mut().context("the agent is no object")?;
    // The API refuses members that are no part of a specification.
    for key in ADDED {
        spec.remove(key);
    }
    let request = gateway.request(Method::PUT, &path)?;
    let request = request.header(IF_MATCH, version.to_string()).json(&agent);
    gateway.ask(request).await
}

/// Prints the advice for an agent, and applies it on request.
async fn advise(
    gateway: &Gateway,
    arguments: &AdviseArguments,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let mut agent = find(gateway, &arguments.agent.agent).await?;
    if arguments.apply {
        changeable(&agent)?;
    }
    let advice = advice_of(gateway, text(&agent, "id"), arguments.since).await?;
    print_advice(&advice, format);
    if !arguments.apply || elements(&advice, "changes").is_empty() {
        return Ok(());
    }
    apply_changes(&mut agent, &advice)?;
    let changed = replace(gateway, agent).await?;
    output::remark(&format!(
        "{} has version {} now",
        text(&changed, "name"),
        changed["version"]
    ));
    Ok(())
}

/// Fails for an agent of the configuration file.
fn changeable(agent: &Value) -> anyhow::Result<()> {
    if agent["origin"] == "config" {
        bail!(
            "{} is an agent of the configuration file: change it there (`enabled = false`), and start again",
            text(agent, "name")
        );
    }
    Ok(())
}
