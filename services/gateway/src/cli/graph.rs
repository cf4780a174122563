//! `runnel graph`: action graphs of a model output, without a model and without a gateway.

mod builtins;
mod execute;
mod read;
mod script;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use action_graph::Graph;
use action_graph::accept::{Verdict, accept};
use action_graph::diagnostic::Diagnostic;
use action_graph::ids::GraphId;
use action_graph::limits::Limits;
use action_graph::rules::{Known, PlainText, Rules};
use action_graph::validate::{Accepted, Context};
use clap::Subcommand;
use serde_json::{Value, json};

use crate::cli::output;
use execute::{ExecutedGraph, execute};
use read::{read_model_output, read_script};
use script::Script;

#[derive(Subcommand)]
pub(super) enum GraphCommand {
    /// Check a model output and print its diagnostics. Fails if the output is refused.
    Lint(GraphArguments),
    /// Run the graph with scripted tools and print its transcript turn for the model.
    Render(GraphArguments),
    /// Run the graph with scripted tools. Prints each change of state, then the result record.
    Run(GraphArguments),
}

#[derive(clap::Args)]
pub(super) struct GraphArguments {
    /// The model output: JSON arguments of `AgentProtocolOutput`, or a text with a fenced `json agent-protocol`
    /// block. It is checked as the first output of a conversation. `-` is standard input.
    file: PathBuf,
    /// Tools and agents with their answers, as TOML or JSON. `scripted` needs no file: each executor of the
    /// output exists, accepts any arguments and returns them.
    #[arg(long, value_name = "FILE", default_value = "scripted")]
    tools: PathBuf,
}

/// The verdict on a model output, with its inputs.
struct CheckedOutput {
    script: Script,
    rules: Rules,
    known: Known,
    verdict: Verdict,
}

/// Runs a subcommand. 0: accepted and not failed; 1: refused, failed or blocked.
pub(super) fn graph(command: GraphCommand, json: bool) -> anyhow::Result<ExitCode> {
    let (shown, to_authors) = (Limits::default(), all_diagnostics());
    let (arguments, limits, act): (_, _, fn(CheckedOutput, bool) -> bool) = match command {
        GraphCommand::Lint(arguments) => (arguments, to_authors, lint),
        GraphCommand::Render(arguments) => (arguments, shown, render),
        GraphCommand::Run(arguments) => (arguments, to_authors, run),
    };
    let judged = judge(&arguments, limits)?;
    if !json && judged.script.is_open() {
        output::remark(
            "no --tools file: every executor is assumed to exist and to take any arguments",
        );
    }
    Ok(if act(judged, json) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Limits for authors: all collected diagnostics are shown, not only those for a model.
fn all_diagnostics() -> Limits {
    let limits = Limits::default();
    Limits {
        notice_diagnostics: limits.diagnostics,
        ..limits
    }
}

fn judge(arguments: &GraphArguments, limits: Limits) -> anyhow::Result<CheckedOutput> {
    let model = read_model_output(&arguments.file)?;
    let script = match arguments.tools.to_str() {
        Some("scripted") => Script::open(&model),
        _ => read_script(&arguments.tools)?,
    };
    let rules = Rules {
        enabled: true,
        carrier: model.carrier,
        plain_text: PlainText::Repair,
        limits,
        ..Rules::default()
    };
    let known = Known {
        goal: script.goal.clone(),
        event: script.event.clone(),
        can_persist: true,
        can_ask: true,
        remaining_ms: script::REMAINING_MS,
        ..Known::default()
    };
    let verdict = {
        let context = Context {
            catalog: script.catalog(),
            known: &known,
            rules: &rules,
        };
        accept(&model.output, context)
    };
    Ok(CheckedOutput {
        script,
        rules,
        known,
        verdict,
    })
}

fn lint(judged: CheckedOutput, json: bool) -> bool {
    let (is_accepted, diagnostics) = match judged.verdict {
        Verdict::Accepted(accepted) => (true, accepted.diagnostics),
        Verdict::Repair(repair) => (false, repair.diagnostics),
        Verdict::Content(_) => (true, Vec::new()),
    };
    if json {
        output::document(&json!({"accepted": is_accepted, "diagnostics": diagnostics}));
        return is_accepted;
    }
    for diagnostic in &diagnostics {
        output::line(&show::diagnostic_line(diagnostic));
    }
    output::remark(&show::lint_summary(is_accepted, &diagnostics));
    is_accepted
}

fn render(judged: CheckedOutput, json: bool) -> bool {
    let (text, is_accepted) = match judged.verdict {
        Verdict::Repair(repair) => (show::notice_turn(&repair), false),
        Verdict::Content(text) => (text, true),
        Verdict::Accepted(accepted) if !accepted.declaration.makes_graph() => {
            (show::message_turn(&accepted.declaration), true)
        }
        Verdict::Accepted(accepted) => {
            let graph = graph_of(*accepted, &judged.rules, &judged.known);
            let played = execute(graph, &judged.script, &mut |_| {});
            (show::graph_turn(&played, &judged.script.goal), true)
        }
    };
    if json {
        output::document(&json!({"accepted": is_accepted, "transcript": text}));
    } else {
        output::piece(&text);
    }
    is_accepted
}

fn run(judged: CheckedOutput, json: bool) -> bool {
    match judged.verdict {
        Verdict::Repair(repair) => refuse(&repair.diagnostics, json),
        Verdict::Content(text) => print_message(&text, json),
        Verdict::Accepted(accepted) if !accepted.declaration.makes_graph() => {
            print_message(&accepted.declaration.message, json)
        }
        Verdict::Accepted(accepted) => {
            let diagnostics = accepted.diagnostics.clone();
            let graph = graph_of(*accepted, &judged.rules, &judged.known);
            let played = execute(graph, &judged.script, &mut |transition| {
                if !json {
                    output::line(&show::transition_line(transition));
                }
            });
            print_executed(&played, diagnostics, json)
        }
    }
}

fn refuse(diagnostics: &[Diagnostic], json: bool) -> bool {
    if json {
        output::document(&json!({"accepted": false, "diagnostics": diagnostics}));
    } else {
        for diagnostic in diagnostics {
            output::line(&show::diagnostic_line(diagnostic));
        }
        output::remark("refused: nothing was executed");
    }
    false
}

/// The output declares no graph: an answer, an end, or a decision about an earlier graph.
fn print_message(message: &str, json: bool) -> bool {
    if json {
        output::document(&json!({"accepted": true, "message": message}));
    } else {
        output::remark("the output declares no graph: nothing was executed");
        output::line(message);
    }
    true
}

fn print_executed(played: &ExecutedGraph, diagnostics: Vec<Diagnostic>, json: bool) -> bool {
    let record = show::record(played, diagnostics);
    let report = show::report(played);
    if json {
        let mut answer = json!({"accepted": true, "end": played.why, "record": record, "transitions": played.transitions});
        if let Some(report) = report {
            answer["report"] = Value::from(report);
        }
        output::document(&answer);
    } else {
        output::line("");
        output::line(&action_graph::json::pretty(&record));
        if let Some(report) = report {
            output::line(&report);
        }
        output::remark(&show::end_line(played));
    }
    played.is_good()
}

fn graph_of(accepted: Accepted, rules: &Rules, known: &Known) -> Graph {
    Graph::new(
        GraphId(script::GRAPH_ID.to_owned()),
        accepted,
        rules,
        known,
        Vec::new(),
    )
}

#[cfg(test)]
mod tests;
