//! `runnel budgets`: budgets of a gateway and their use, over HTTP with an admin key.

use std::process::ExitCode;

use anstyle::Style;
use anyhow::bail;
use clap::Subcommand;
use http::{Method, StatusCode};
use serde_json::{Map, Value, json};

use crate::facts::{elements, moment, text};
use crate::gateway::{Gateway, GatewayArguments, encoded, read_json, refusal};
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

const USAGE: u8 = 2;
const PATH: &str = "/v1/budgets";
/// Measures that a budget can limit.
const MEASURES: [&str; 4] = ["calls", "tokens", "cost", "seconds"];
/// A cell without a value.
const NONE: &str = "-";

#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BudgetsArguments {
    #[command(subcommand)]
    command: Option<BudgetsCommand>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

#[derive(Subcommand)]
enum BudgetsCommand {
    /// List the budgets, what is used and left of them, and when they reset.
    List {
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Set a budget, which replaces that of the configuration. What is not given stays as it is.
    Set(Box<SetArguments>),
    /// Return a budget to the configuration. One that only the API has set is deleted.
    Reset {
        /// The budget.
        name: String,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

#[derive(clap::Args)]
struct SetArguments {
    /// The budget.
    name: String,
    /// Subject whose use is added up. Required for a new budget.
    #[arg(long, value_parser = ["run", "agent", "endpoint", "workspace"])]
    scope: Option<String>,
    /// Id of the only subject.
    #[arg(long, value_name = "ID")]
    only: Option<String>,
    /// Interval after which the use counts from zero again; none for scope run.
    #[arg(long, value_parser = ["hour", "day", "month"])]
    window: Option<String>,
    /// Maximum number of calls.
    #[arg(long)]
    calls: Option<u64>,
    /// Maximum number of tokens.
    #[arg(long)]
    tokens: Option<u64>,
    /// Maximum cost.
    #[arg(long)]
    cost: Option<f64>,
    /// Maximum duration of calls, in seconds.
    #[arg(long)]
    seconds: Option<f64>,
    /// Effect on a call beyond the budget: refuse, or pause until a raise.
    #[arg(long, value_parser = ["refuse", "pause"])]
    on_reached: Option<String>,
    /// For pause: maximum wait of a run in total, in seconds.
    #[arg(long, value_name = "SECONDS")]
    max_wait: Option<u64>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

impl SetArguments {
    /// The body of the request: the budget in force with these changes.
    fn body(&self, in_force: &Value) -> Value {
        let mut body = Map::new();
        let members =
            ["scope", "only", "on_reached", "max_wait_seconds"].map(|key| (key, &in_force[key]));
        // The list shows limits under `most`, the request takes them as members.
        let limits = MEASURES.map(|of| (of, &in_force["most"][of]));
        let unchanged = members.into_iter().chain(limits);
        for (key, value) in unchanged.filter(|(_, value)| !value.is_null()) {
            body.insert(key.to_owned(), value.clone());
        }
        let is_rescoped = self
            .scope
            .as_deref()
            .is_some_and(|scope| scope != text(in_force, "scope"));
        if is_rescoped {
            // The id is that of a subject of the other scope.
            body.remove("only");
        }
        let scope = self.scope.as_deref().unwrap_or(text(in_force, "scope"));
        let window = text(in_force, "window");
        // A run has one window, from start to end, and the API takes none for it.
        if scope != "run" && !matches!(window, "" | "whole") {
            body.insert("window".to_owned(), json!(window));
        }
        let changes = [
            ("scope", json!(self.scope)),
            ("only", json!(self.only)),
            ("window", json!(self.window)),
            ("calls", json!(self.calls)),
            ("tokens", json!(self.tokens)),
            ("cost", json!(self.cost)),
            ("seconds", json!(self.seconds)),
            ("on_reached", json!(self.on_reached)),
            ("max_wait_seconds", json!(self.max_wait)),
        ];
        // A wait needs a pause, which this change may end.
        if self.on_reached.as_deref() == Some("refuse") {
            body.remove("max_wait_seconds");
        }
        for (key, value) in changes.into_iter().filter(|(_, value)| !value.is_null()) {
            body.insert(key.to_owned(), value);
        }
        body.into()
    }
}

/// Runs a `budgets` command; without one it lists.
pub(super) async fn budgets(
    arguments: BudgetsArguments,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let given = match &arguments.command {
        Some(BudgetsCommand::List { gateway } | BudgetsCommand::Reset { gateway, .. }) => gateway,
        Some(BudgetsCommand::Set(set)) => &set.gateway,
        None => &arguments.gateway,
    };
    let Some(gateway) = given.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match &arguments.command {
        None | Some(BudgetsCommand::List { .. }) => {
            list(&gateway.get(PATH).await?, format);
        }
        Some(BudgetsCommand::Set(arguments)) => set(&gateway, arguments, format).await?,
        Some(BudgetsCommand::Reset { name, .. }) => {
            let request = gateway.request(Method::DELETE, &path_of(name))?;
            gateway.ask(request).await?;
            let done = json!({"reset": name});
            print_change(&done, &format!("{name} is reset"), format);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn path_of(name: &str) -> String {
    format!("{PATH}/{}", encoded(name))
}

async fn set(
    gateway: &Gateway,
    arguments: &SetArguments,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let path = path_of(&arguments.name);
    let response = gateway.send(gateway.request(Method::GET, &path)?).await?;
    let status = response.status();
    let in_force = match (status, read_json(response).await?) {
        (StatusCode::OK, budget) => budget,
        (StatusCode::NOT_FOUND, _) => Value::Null,
        (_, body) => bail!(refusal(status, &body)),
    };
    let body = arguments.body(&in_force);
    let request = gateway.request(Method::PUT, &path)?.json(&body);
    let budget = gateway.ask(request).await?;
    print_change(&budget, &format!("{} is set", arguments.name), format);
    Ok(())
}

fn print_change(document: &Value, line: &str, format: OutputFormat) {
    if format.is_json() {
        output::document(document);
    } else {
        output::line(line);
    }
}

fn list(budgets: &Value, format: OutputFormat) {
    if format.is_json() {
        return output::document(budgets);
    }
    let budgets = elements(budgets, "items");
    if budgets.is_empty() {
        return output::remark(
            "no budgets; `[[budgets]]` of the configuration or `runnel budgets set` adds one",
        );
    }
    print_table(
        &[
            "budget",
            "subject",
            "limit of",
            "limit",
            "used",
            "left",
            "resets at",
            "source",
        ],
        budgets.iter().flat_map(rows_of).collect(),
    );
}

/// Rows of a budget: one for each subject and limit. A budget without use has one subject, the one that could use it.
fn rows_of(budget: &Value) -> Vec<TableRow> {
    let scope = text(budget, "scope");
    // The API lists subjects only after their first use.
    let unused = json!({"id": budget["only"], "left": budget["most"]});
    let used = match elements(budget, "used") {
        [] => std::slice::from_ref(&unused),
        used => used,
    };
    let mut rows = Vec::new();
    for subject in used {
        let name = subject["name"].as_str().or(subject["id"].as_str());
        let name = name.map_or_else(|| format!("each {scope}"), |name| format!("{scope} {name}"));
        let limited = MEASURES.iter().filter(|of| !budget["most"][**of].is_null());
        rows.extend(limited.map(|of| row(budget, subject, &name, of)));
    }
    rows
}

fn row(budget: &Value, subject: &Value, name: &str, of: &str) -> TableRow {
    let left = &subject["left"][of];
    TableRow {
        // Runs under an exhausted budget are refused.
        style: if left.as_f64() == Some(0.0) {
            output::RED
        } else {
            Style::new()
        },
        cells: vec![
            text(budget, "name").to_owned(),
            name.to_owned(),
            of.to_owned(),
            amount(&budget["most"][of]),
            amount(&subject[of]),
            amount(left),
            moment(budget, "resets_at").unwrap_or_else(|| NONE.to_owned()),
            text(budget, "source").to_owned(),
        ],
    }
}

/// A number; 0 if the subject has used nothing.
fn amount(value: &Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(budget: &Value) -> Vec<String> {
        let rows = rows_of(budget).into_iter();
        rows.map(|row| row.cells.join("|")).collect()
    }

    #[test]
    fn budgets_have_one_row_per_subject_and_limit() {
        let mut budget = json!({
            "name": "day", "scope": "agent", "window": "day", "most": {"tokens": 100, "cost": 1.5},
            "resets_at": 1_795_824_000, "source": "configuration",
            "used": [{"id": "a-1", "name": "hello", "calls": 3, "tokens": 120, "cost": 0.5, "seconds": 1.0,
                      "left": {"tokens": 0, "cost": 1.0}}],
        });
        assert_eq!(
            cells(&budget),
            [
                "day|agent hello|tokens|100|120|0|2026-11-28T00:00:00Z|configuration",
                "day|agent hello|cost|1.5|0.5|1.0|2026-11-28T00:00:00Z|configuration",
            ]
        );
        assert_eq!(rows_of(&budget)[0].style, output::RED);
        budget["used"] = json!([]);
        budget["resets_at"] = Value::Null;
        assert_eq!(
            cells(&budget),
            [
                "day|each agent|tokens|100|0|100|-|configuration",
                "day|each agent|cost|1.5|0|1.5|-|configuration"
            ]
        );
    }

    #[test]
    fn set_changes_only_what_is_given() {
        #[derive(clap::Parser)]
        struct SetLine {
            #[command(flatten)]
            set: SetArguments,
        }
        let body = |line: &[&str], in_force: &Value| {
            let line = [&["set", "day"], line].concat();
            let line = <SetLine as clap::Parser>::parse_from(line);
            line.set.body(in_force)
        };
        let in_force = json!({
            "name": "day", "source": "configuration", "scope": "agent", "window": "day",
            "most": {"tokens": 100, "cost": 1.5}, "used": [],
        });
        assert_eq!(
            body(&["--tokens", "200"], &in_force),
            json!({"scope": "agent", "window": "day", "tokens": 200, "cost": 1.5})
        );
        let of_run = json!({"scope": "run", "window": "whole", "most": {"calls": 3}});
        assert_eq!(
            body(&["--calls", "9"], &of_run),
            json!({"scope": "run", "calls": 9})
        );
        let pausing = json!({"scope": "run", "most": {"calls": 3}, "on_reached": "pause", "max_wait_seconds": 60});
        assert_eq!(
            body(&["--max-wait", "90"], &pausing),
            json!({"scope": "run", "calls": 3, "on_reached": "pause", "max_wait_seconds": 90})
        );
        assert_eq!(
            body(&["--on-reached", "refuse"], &pausing),
            json!({"scope": "run", "calls": 3, "on_reached": "refuse"})
        );
        assert_eq!(
            body(&["--scope", "run", "--cost", "2"], &Value::Null),
            json!({"scope": "run", "cost": 2.0})
        );
    }
}
