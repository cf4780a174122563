//! `runnel schedules`: schedules of a gateway and their occurrences, over HTTP with an admin key.

use std::process::ExitCode;

use anstyle::Style;
use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};

use crate::facts::{elements, moment, principal, print_facts, text};
use crate::gateway::{Gateway, GatewayArguments, encoded};
use crate::ids::{NamedList, find_id, tail};
use crate::output::{self, OutputFormat};
use crate::table::{TableRow, print_table};

/// Maximum number of listed schedules, which is that of a workspace.
const MAX_LISTED: usize = 1_000;
/// Occurrences that `show` prints.
const SHOWN: usize = 10;
const USAGE: u8 = 2;

/// Schedules, which have unique names.
const SCHEDULES: NamedList<'_> = NamedList {
    noun: "schedule",
    path: "/v1/schedules",
    cursor: "cursor",
    id: "id",
    name: Some("name"),
    command: "runnel schedules list",
    about: "name",
};

#[derive(clap::Args)]
pub struct ScheduleArguments {
    /// The schedule: its name, its id, or any unique part of the id.
    #[arg(value_name = "NAME|ID")]
    schedule: String,
    #[command(flatten)]
    gateway: GatewayArguments,
}

#[derive(Subcommand)]
pub enum SchedulesCommand {
    /// List the schedules with their next due times.
    List {
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Show a schedule, its next five due times and its newest occurrences.
    Show(ScheduleArguments),
    /// Run a schedule now. Its due times stay.
    Run(ScheduleArguments),
    /// Pause a schedule. Due times of the pause do not run.
    Pause(ScheduleArguments),
    /// End the pause of a schedule.
    Resume(ScheduleArguments),
}

/// Runs a `schedules` command.
pub(super) async fn schedules(
    command: SchedulesCommand,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (SchedulesCommand::List { gateway }
    | SchedulesCommand::Show(ScheduleArguments { gateway, .. })
    | SchedulesCommand::Run(ScheduleArguments { gateway, .. })
    | SchedulesCommand::Pause(ScheduleArguments { gateway, .. })
    | SchedulesCommand::Resume(ScheduleArguments { gateway, .. })) = &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        SchedulesCommand::List { .. } => {
            let list = gateway.list(SCHEDULES.path, SCHEDULES.cursor, MAX_LISTED);
            print_list(&list.await?, format);
        }
        SchedulesCommand::Show(ScheduleArguments { schedule, .. }) => {
            let path = path_of(&gateway, &schedule).await?;
            let schedule = gateway.get(&path).await?;
            // The newest hundred are one page.
            let occurrences = gateway.get(&format!("{path}/occurrences")).await?;
            show(&schedule, &occurrences, format);
        }
        SchedulesCommand::Run(ScheduleArguments { schedule, .. }) => {
            let queued = post(&gateway, &schedule, "run").await?;
            let line = format!("queued event {}", text(&queued, "event_id"));
            print_change(&queued, &line, format);
        }
        SchedulesCommand::Pause(ScheduleArguments { schedule, .. }) => {
            let paused = post(&gateway, &schedule, "pause").await?;
            let line = format!("{} is paused", text(&paused, "name"));
            print_change(&paused, &line, format);
        }
        SchedulesCommand::Resume(ScheduleArguments { schedule, .. }) => {
            let resumed = post(&gateway, &schedule, "resume").await?;
            let line = format!("{}: next at {}", text(&resumed, "name"), next(&resumed));
            print_change(&resumed, &line, format);
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn path_of(gateway: &Gateway, schedule: &str) -> anyhow::Result<String> {
    let id = find_id(gateway, &SCHEDULES, schedule).await?;
    Ok(format!("{}/{}", SCHEDULES.path, encoded(&id)))
}

async fn post(gateway: &Gateway, schedule: &str, action: &str) -> anyhow::Result<Value> {
    let path = format!("{}/{action}", path_of(gateway, schedule).await?);
    gateway.ask(gateway.request(Method::POST, &path)?).await
}

fn print_change(document: &Value, line: &str, format: OutputFormat) {
    if format.is_json() {
        output::document(document);
    } else {
        output::line(line);
    }
}

fn print_list(schedules: &[Value], format: OutputFormat) {
    if format.is_json() {
        output::document(&json!({ "items": schedules }));
        return;
    }
    if schedules.is_empty() {
        output::remark("no schedules");
        return;
    }
    let row = |schedule: &Value| TableRow {
        style: match state(schedule) {
            "enabled" => Style::new(),
            "paused" => output::YELLOW,
            _ => output::DIM,
        },
        cells: vec![
            tail(text(schedule, "id")).to_owned(),
            text(schedule, "name").to_owned(),
            state(schedule).to_owned(),
            rule(schedule),
            next(schedule),
            text(schedule, "agent").to_owned(),
        ],
    };
    print_table(
        &["id", "name", "state", "rule", "next", "agent"],
        schedules.iter().map(row).collect(),
    );
}

fn state(schedule: &Value) -> &'static str {
    if schedule["enabled"] == false {
        "disabled"
    } else if schedule["paused_at"].is_number() {
        // It is enabled, too, but the pause explains its missing due times.
        "paused"
    } else if elements(schedule, "next_due").is_empty() {
        "over"
    } else {
        "enabled"
    }
}

/// The cron expression with its time zone, or the interval.
fn rule(schedule: &Value) -> String {
    match schedule["every"].as_str() {
        // An interval needs no time zone.
        Some(every) => format!("every {every}"),
        None => format!("{} {}", text(schedule, "cron"), text(schedule, "timezone")),
    }
}

fn next(schedule: &Value) -> String {
    let next = json!({"at": schedule["next_due"][0]});
    moment(&next, "at").unwrap_or_else(|| "-".to_owned())
}

fn show(schedule: &Value, occurrences: &Value, format: OutputFormat) {
    if format.is_json() {
        // One document, as scripts expect of each command.
        let mut document = schedule.clone();
        document["occurrences"] = occurrences["items"].clone();
        output::document(&document);
        return;
    }
    let mut facts = vec![
        ("schedule", text(schedule, "name").to_owned()),
        ("id", text(schedule, "id").to_owned()),
        ("state", state(schedule).to_owned()),
        ("rule", rule(schedule)),
        ("agent", text(schedule, "agent").to_owned()),
        ("misfire", text(schedule, "misfire").to_owned()),
        ("origin", text(schedule, "origin").to_owned()),
    ];
    for due in elements(schedule, "next_due") {
        facts.extend(moment(&json!({"at": due}), "at").map(|at| ("next", at)));
    }
    facts.extend(principal(schedule, "updated_by").map(|by| ("changed by", by)));
    print_facts(&facts);
    let newest = elements(occurrences, "items").iter().take(SHOWN);
    let row = |one: &Value| TableRow {
        style: match text(one, "status") {
            "failed" => output::RED,
            "pending" => output::YELLOW,
            _ => Style::new(),
        },
        cells: vec![
            moment(one, "due_at").unwrap_or_default(),
            text(one, "status").to_owned(),
            tail(text(one, "run_id")).to_owned(),
            text(one, "run_status").to_owned(),
            text(one, "reason").to_owned(),
        ],
    };
    let rows: Vec<_> = newest.map(row).collect();
    if rows.is_empty() {
        return;
    }
    output::line("");
    print_table(&["due", "status", "run", "run status", "reason"], rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_and_rules_are_shown_in_words() {
        for (schedule, shown, expected) in [
            (
                json!({"enabled": false, "every": "1h"}),
                "disabled",
                "every 1h",
            ),
            (
                json!({"enabled": true, "paused_at": 1, "every": "1h"}),
                "paused",
                "every 1h",
            ),
            (json!({"enabled": true, "next_due": []}), "over", " "),
            (
                json!({"enabled": true, "next_due": [1], "cron": "0 2 * * *", "timezone": "UTC"}),
                "enabled",
                "0 2 * * * UTC",
            ),
        ] {
            assert_eq!((state(&schedule), &*rule(&schedule)), (shown, expected));
        }
    }
}
