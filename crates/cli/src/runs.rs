//! `runnel runs`: runs of a gateway, over HTTP.

mod batch;
mod details; // lists of `runs show`
mod filter;
mod retry;

use std::process::ExitCode;

use anstyle::Style;
use anyhow::Context as _;
use clap::Subcommand;
use http::Method;
use serde_json::Value;

use crate::facts::{age, elements, moment, principal, print_facts, text, took};
use crate::gateway::{Gateway, GatewayArguments, encoded};
use crate::ids::{RUNS, find_id, tail};
use crate::output::{self, OutputFormat};
use crate::send;
use crate::table::{ListTable, TableRow, one_line};
use batch::BatchArguments;
use details::DetailArguments;
use filter::{FILTERS, MatchArguments};
use retry::{retry, retry_of};

/// Finish reason of a run whose graph has failed actions.
pub const ACTIONS_FAILED: &str = "actions_failed";
/// The same as shown.
pub const INCOMPLETE: &str = "actions failed";
/// Statuses of runs that have ended.
const ENDED: [&str; 4] = ["completed", "failed", "cancelled", "timeout"];
const USAGE: u8 = 2;
/// Maximum characters of an input in a list, also where no terminal cuts the line.
const INPUT_CHARACTERS: usize = 100;

#[derive(Subcommand)]
pub enum RunsCommand {
    /// List the newest runs.
    List {
        #[command(flatten)]
        matching: MatchArguments,
        /// Maximum number of runs.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=2000))]
        limit: u16,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Show a run: status, times, usage, error and answer.
    Show {
        #[command(flatten)]
        run: RunArguments,
        #[command(flatten)]
        details: DetailArguments,
    },
    /// Follow a run from its first event to its end, and answer its questions. Exit code 0: it completed.
    Watch(RunArguments),
    /// Cancel runs: those named, or all that match filters.
    Cancel {
        /// The runs: their ids, or any unique parts of them.
        #[arg(value_name = "ID", required_unless_present_any = FILTERS, conflicts_with_all = FILTERS)]
        runs: Vec<String>,
        #[command(flatten)]
        batch: BatchArguments,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
    /// Run the event of an ended run again, and follow the new run; or those of all that match filters.
    Retry {
        /// The run: its id, or any unique part of it.
        #[arg(value_name = "ID", required_unless_present_any = FILTERS, conflicts_with_all = FILTERS)]
        run: Option<String>,
        /// Begin after this result: its sequence in the ledger, as `runs show --events` lists it. Default: the event.
        #[arg(long, value_name = "SEQUENCE", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = FILTERS)]
        from: Option<u64>,
        #[command(flatten)]
        batch: BatchArguments,
        #[command(flatten)]
        gateway: GatewayArguments,
    },
}

#[derive(clap::Args)]
pub struct RunArguments {
    /// The run: its id, or any unique part of it. Default: the newest run.
    #[arg(value_name = "ID")]
    run: Option<String>,
    #[command(flatten)]
    gateway: GatewayArguments,
}

/// Runs a `runs` command.
pub(super) async fn runs(command: RunsCommand, format: OutputFormat) -> anyhow::Result<ExitCode> {
    let (RunsCommand::List { gateway, .. }
    | RunsCommand::Show {
        run: RunArguments { gateway, .. },
        ..
    }
    | RunsCommand::Watch(RunArguments { gateway, .. })
    | RunsCommand::Cancel { gateway, .. }
    | RunsCommand::Retry { gateway, .. }) = &command;
    let Some(gateway) = gateway.find()? else {
        return Ok(ExitCode::from(USAGE));
    };
    match command {
        RunsCommand::List {
            matching, limit, ..
        } => {
            let query = matching.query(&gateway).await?;
            let path = format!("/v1/runs?{}", query.join("&"));
            let path = path.trim_end_matches('?');
            let runs = gateway.list(path, "cursor", usize::from(limit)).await?;
            list(&runs, format);
        }
        RunsCommand::Show {
            run: RunArguments { run, .. },
            details,
        } => show(&gateway, run, &details, format).await?,
        RunsCommand::Watch(RunArguments { run, .. }) => {
            let run = find(&gateway, run).await?;
            return send::watch(&gateway, &run, format).await;
        }
        RunsCommand::Cancel { batch, .. } if batch.is_given() => {
            return batch.run(&gateway, "cancel", format, list).await;
        }
        RunsCommand::Cancel { runs, .. } => return cancel(&gateway, &runs, format).await,
        RunsCommand::Retry { batch, .. } if batch.is_given() => {
            return batch.run(&gateway, "retry", format, list).await;
        }
        RunsCommand::Retry { run, from, .. } => {
            let run = find(&gateway, run).await?;
            let next = retry(&gateway, &run, from).await?;
            return send::watch(&gateway, &next, format).await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Id of a named run, or of the newest one.
async fn find(gateway: &Gateway, named: Option<String>) -> anyhow::Result<String> {
    if let Some(named) = named {
        return find_id(gateway, &RUNS, &named).await;
    }
    let newest = gateway.list(RUNS.path, RUNS.cursor, 1).await?;
    let id = newest.first().and_then(|run| run["run_id"].as_str());
    let id = id.context("there is no run yet; `runnel send` starts one")?;
    Ok(id.to_owned())
}

fn list(runs: &[Value], format: OutputFormat) {
    let row = |run: &Value| TableRow {
        style: style_of(run),
        cells: vec![
            tail(text(run, "run_id")).to_owned(),
            list_status_of(run),
            age(run, "created_at"),
            took(run).unwrap_or_else(|| "-".to_owned()),
            agent_of(run).to_owned(),
            input_of(run),
        ],
    };
    let table = ListTable {
        empty: "no runs",
        head: &["id", "status", "age", "took", "agent", "input"],
    };
    table.print(runs, format, row);
}

/// Begin of the input. A child run names its parent.
fn input_of(run: &Value) -> String {
    let input = one_line(text(run, "input_preview"));
    let input = match run["parent_run_id"].as_str() {
        Some(parent) => format!("↳ of {}: {input}", tail(parent)),
        None => input,
    };
    match input.char_indices().nth(INPUT_CHARACTERS) {
        Some((end, _)) => format!("{}…", &input[..end]),
        None => input,
    }
}

fn agent_of(run: &Value) -> &str {
    let name = run["agent_name"].as_str();
    name.unwrap_or_else(|| tail(text(run, "agent_id")))
}

fn style_of(run: &Value) -> Style {
    match text(run, "status") {
        "completed" if is_incomplete(run) => output::YELLOW,
        "failed" | "timeout" => output::RED,
        "cancelled" => output::DIM,
        "completed" => Style::new(),
        _ => output::YELLOW,
    }
}

async fn show(
    gateway: &Gateway,
    named: Option<String>,
    details: &DetailArguments,
    format: OutputFormat,
) -> anyhow::Result<()> {
    let id = find(gateway, named).await?;
    let path = format!("/v1/runs/{}", encoded(&id));
    let mut run = gateway.get(&path).await?;
    let details = details.read(gateway, &path).await?;
    if format.is_json() {
        details.add_to(&mut run);
        output::document(&run);
        return Ok(());
    }
    let usage = gateway.get(&format!("{path}/usage")).await?;
    let response = error_response(gateway, &path, &run).await;
    let mut facts = vec![("run", text(&run, "run_id").to_owned())];
    let mut add = |name, value: Option<String>| {
        facts.extend(
            value
                .filter(|value| !value.is_empty())
                .map(|value| (name, value)),
        );
    };
    let member = |key: &str| Some(text(&run, key).to_owned());
    add("status", Some(status_of(&run)));
    add("agent", Some(agent_of(&run).to_owned()));
    add("runner", member("runner_id"));
    add("conversation", member("conversation_id"));
    add("event", member("event_id"));
    add("parent", member("parent_run_id"));
    add("retry of", retry_of(&run));
    add("retried as", member("retried_as"));
    add("API key", member("posted_by"));
    add("cancelled by", principal(&run, "cancelled_by"));
    let created = moment(&run, "created_at");
    add(
        "created",
        created.map(|at| format!("{at}, {} ago", age(&run, "created_at"))),
    );
    add("took", took(&run));
    add("usage", usage_of(&usage));
    add("rejected", rejected_of(&run));
    add("error", error_of(&run));
    add("response", response);
    add("input", member("input_preview"));
    print_facts(&facts);
    let answer = answer_of(&run["output"]);
    if !answer.is_empty() {
        output::line(&format!("\n{answer}"));
    }
    details.print();
    if !ENDED.contains(&text(&run, "status")) {
        output::remark(&format!("`runnel runs watch {}` follows it", tail(&id)));
    }
    Ok(())
}

/// Status in a list, with the cause of a wait, and with failed actions.
fn list_status_of(run: &Value) -> String {
    let waiting = run["status_reason"].as_str().and_then(waits_for);
    match waiting {
        Some(waiting) => format!("waiting ({waiting})"),
        None if is_incomplete(run) => format!("completed ({INCOMPLETE})"),
        None => text(run, "status").to_owned(),
    }
}

fn is_incomplete(run: &Value) -> bool {
    text(run, "status") == "completed" && text(run, "status_reason") == ACTIONS_FAILED
}

/// Cause of the wait of a completed run, by its finish reason; `None` for runs that are done.
pub fn waits_for(reason: &str) -> Option<&'static str> {
    match reason {
        "waiting_user" => Some("approval"),
        "waiting_child" => Some("child"),
        "waiting" => Some("time"),
        _ => None,
    }
}

fn status_of(run: &Value) -> String {
    let status = text(run, "status");
    match run["status_reason"].as_str() {
        Some(reason) if status == "completed" && waits_for(reason).is_some() => {
            format!("{status}, {}", list_status_of(run))
        }
        Some(ACTIONS_FAILED) if status == "completed" => list_status_of(run),
        Some(reason) if status != "completed" && reason != status => {
            format!("{status} ({reason})")
        }
        _ => status.to_owned(),
    }
}

fn usage_of(usage: &Value) -> Option<String> {
    let total = &usage["total"];
    let number = |key: &str| total[key].as_u64().unwrap_or_default();
    let calls = number("calls");
    let tokens = number("prompt_tokens").saturating_add(number("completion_tokens"));
    let cost = total["cost"].as_f64().filter(|cost| *cost > 0.0);
    let cost = cost.map_or(String::new(), |cost| format!(", cost {cost}"));
    (calls > 0).then(|| {
        let calls = output::counted(calls, "call");
        format!("{calls}, {}{cost}", output::counted(tokens, "token"))
    })
}

fn rejected_of(run: &Value) -> Option<String> {
    let rejected = run["metadata"]["rejected"].as_u64()?;
    let (results, id) = (output::counted(rejected, "result"), text(run, "run_id"));
    (rejected > 0).then(|| format!("{results} of the runner: GET /v1/runs/{id}/rejections"))
}

fn error_of(run: &Value) -> Option<String> {
    let error = &run["error"];
    let message = error["message"].as_str()?;
    Some(format!("{}: {message}", text(error, "code")))
}

/// Start of the response of a runner that did not take the run. Only keys of role `admin` read it.
async fn error_response(gateway: &Gateway, path: &str, run: &Value) -> Option<String> {
    let code = text(&run["error"], "code");
    if !["runner.http_error", "runner.bad_content_type"].contains(&code) {
        return None;
    }
    // Retention may have deleted it.
    let rejections = gateway
        .get(&format!("{path}/rejections?limit=1"))
        .await
        .ok()?;
    let excerpt = text(elements(&rejections, "items").first()?, "excerpt");
    Some(excerpt.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The text of a message.
fn answer_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        _ => elements(message, "content")
            .iter()
            .map(|part| text(part, "text"))
            .collect(),
    }
}

async fn cancel(
    gateway: &Gateway,
    named: &[String],
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for named in named {
        match cancel_one(gateway, named).await {
            Ok(run) if format.is_json() => output::document(&run),
            Ok(run) => {
                let (id, status) = (text(&run, "run_id"), text(&run, "status"));
                output::line(&if ENDED.contains(&status) {
                    format!("{id} has ended: {status}")
                } else {
                    format!("{id} is being cancelled")
                });
            }
            Err(error) => {
                // One run that cannot be cancelled does not stop the others.
                output::error(&error, format);
                code = ExitCode::FAILURE;
            }
        }
    }
    Ok(code)
}

async fn cancel_one(gateway: &Gateway, named: &str) -> anyhow::Result<Value> {
    let id = find_id(gateway, &RUNS, named).await?;
    let path = format!("/v1/runs/{}/cancel", encoded(&id));
    gateway.ask(gateway.request(Method::POST, &path)?).await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn status_names_reason_of_failure_once() {
        let check = |run: Value, expected: &str| assert_eq!(status_of(&run), expected);
        check(
            json!({"status": "completed", "status_reason": "stop"}),
            "completed",
        );
        let waiting = json!({"status": "completed", "status_reason": "waiting_user"});
        assert_eq!(list_status_of(&waiting), "waiting (approval)");
        check(waiting, "completed, waiting (approval)");
        let incomplete = json!({"status": "completed", "status_reason": "actions_failed"});
        assert_eq!(list_status_of(&incomplete), "completed (actions failed)");
        check(incomplete, "completed (actions failed)");
        check(
            json!({"status": "failed", "status_reason": "host.orphaned"}),
            "failed (host.orphaned)",
        );
        check(
            json!({"status": "cancelled", "status_reason": "cancelled"}),
            "cancelled",
        );
    }

    #[test]
    fn lists_name_parents_and_cut_inputs() {
        let check = |run: Value, expected: &str| assert_eq!(input_of(&run), expected);
        check(json!({"input_preview": "two\nlines"}), "two lines");
        let child =
            json!({"input_preview": "Ask the assistant: What?", "parent_run_id": "01a2-c8cdcc8b"});
        check(child, "↳ of c8cdcc8b: Ask the assistant: What?");
        check(
            json!({"input_preview": "天".repeat(101)}),
            &format!("{}…", "天".repeat(100)),
        );
    }

    #[test]
    fn usage_without_calls_is_omitted() {
        let used = |calls: u64| {
            usage_of(
                &json!({"total": {"calls": calls, "prompt_tokens": 3, "completion_tokens": 1}}),
            )
        };
        assert_eq!(used(0), None);
        assert_eq!(used(1).as_deref(), Some("1 call, 4 tokens"));
    }
}
