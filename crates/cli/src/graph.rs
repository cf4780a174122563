//! `runnel graph`: action graphs of a model output, without a model; without a gateway, or live by an agent.

mod execute;
mod live;
mod read;
mod script;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use action_graph::Graph;
use action_graph::accept::{OutputVerdict, accept};
use action_graph::diagnostic::Diagnostic;
use action_graph::ids::GraphId;
use action_graph::limits::GraphLimits;
use action_graph::rules::{AgentRules, KnownFacts, PlainText};
use action_graph::validate::{AcceptedDeclaration, Context};
use clap::Subcommand;
use serde_json::{Value, json};

use crate::output::{self, OutputFormat};
use crate::parse_toml::ParseToml;
use execute::{ExecutedGraph, execute};
use live::{RunGraphArguments, run_live};
use read::{read_model_output, read_script};
use script::ReplayScript;

#[derive(Subcommand)]
pub enum GraphCommand {
    /// Check a model output and print its diagnostics. Fails if the output is refused.
    Lint(GraphArguments),
    /// Run the graph with scripted tools and print its transcript turn for the model.
    Render(GraphArguments),
    /// Run the graph with scripted tools. Prints each change of state, then the result record. With --live an agent
    /// of a gateway runs it.
    Run(RunGraphArguments),
}

#[derive(clap::Args)]
pub struct GraphArguments {
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
    script: ReplayScript,
    rules: AgentRules,
    facts: KnownFacts,
    verdict: OutputVerdict,
}

/// Runs a subcommand. 0: accepted and not failed; 1: refused, failed or blocked.
pub(super) async fn graph(
    command: GraphCommand,
    parse_script: ParseToml,
    format: OutputFormat,
) -> anyhow::Result<ExitCode> {
    let (shown, to_authors) = (GraphLimits::default(), all_diagnostics());
    let (arguments, limits, act): (_, _, fn(CheckedOutput, OutputFormat) -> bool) = match command {
        GraphCommand::Lint(arguments) => (arguments, to_authors, lint),
        GraphCommand::Render(arguments) => (arguments, shown, render),
        GraphCommand::Run(arguments) if arguments.live.live => {
            return run_live(arguments, format).await;
        }
        GraphCommand::Run(arguments) => (arguments.graph, to_authors, run),
    };
    let checked = check_output(&arguments, parse_script, limits)?;
    // With JSON, the output is for a program; the remark would mix into its log.
    if !format.is_json() && checked.script.is_open() {
        output::remark(
            "no --tools file: every executor is assumed to exist and to take any arguments",
        );
    }
    Ok(if act(checked, format) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Limits for authors: all collected diagnostics are shown, not only those for a model.
fn all_diagnostics() -> GraphLimits {
    let limits = GraphLimits::default();
    GraphLimits {
        notice_diagnostics: limits.diagnostics,
        ..limits
    }
}

fn check_output(
    arguments: &GraphArguments,
    parse_script: ParseToml,
    limits: GraphLimits,
) -> anyhow::Result<CheckedOutput> {
    let model = read_model_output(&arguments.file)?;
    let script = match arguments.tools.to_str() {
        Some("scripted") => ReplayScript::open(&model),
        _ => read_script(&arguments.tools, parse_script)?,
    };
    let rules = AgentRules {
        enabled: true,
        carrier: model.carrier,
        plain_text: PlainText::Repair,
        limits,
        ..AgentRules::default()
    };
    let facts = facts_of(&script);
    let verdict = {
        let context = Context {
            catalog: script.catalog(),
            known: &facts,
            rules: &rules,
        };
        accept(&model.output, context)
    };
    Ok(CheckedOutput {
        script,
        rules,
        facts,
        verdict,
    })
}

fn lint(checked: CheckedOutput, format: OutputFormat) -> bool {
    let (is_accepted, diagnostics) = match checked.verdict {
        OutputVerdict::Accepted(accepted) => (true, accepted.diagnostics),
        OutputVerdict::Repair(repair) => (false, repair.diagnostics),
        OutputVerdict::Content(_) => (true, Vec::new()),
    };
    if format.is_json() {
        output::document(&json!({"accepted": is_accepted, "diagnostics": diagnostics}));
        return is_accepted;
    }
    for diagnostic in &diagnostics {
        output::line(&show::diagnostic_line(diagnostic));
    }
    let verdict = if is_accepted { "accepted" } else { "refused" };
    output::remark(&show::lint_summary(verdict, &diagnostics));
    is_accepted
}

fn render(checked: CheckedOutput, format: OutputFormat) -> bool {
    let (text, is_accepted) = match checked.verdict {
        OutputVerdict::Repair(repair) => (show::notice_turn(&repair), false),
        OutputVerdict::Content(text) => (text, true),
        OutputVerdict::Accepted(accepted) if !accepted.declaration.makes_graph() => {
            (show::message_turn(&accepted.declaration), true)
        }
        OutputVerdict::Accepted(accepted) => {
            let graph = graph_of(*accepted, &checked.rules, &checked.facts);
            let played = execute(graph, &checked.script, &mut |_| {});
            (show::graph_turn(&played, &checked.script.goal), true)
        }
    };
    if format.is_json() {
        output::document(&json!({"accepted": is_accepted, "transcript": text}));
    } else {
        output::piece(&text);
    }
    is_accepted
}

fn run(checked: CheckedOutput, format: OutputFormat) -> bool {
    match checked.verdict {
        OutputVerdict::Repair(repair) => refuse(&repair.diagnostics, format),
        OutputVerdict::Content(text) => print_message(&text, format),
        OutputVerdict::Accepted(accepted) if !accepted.declaration.makes_graph() => {
            print_message(&accepted.declaration.message, format)
        }
        OutputVerdict::Accepted(accepted) => {
            let diagnostics = accepted.diagnostics.clone();
            let graph = graph_of(*accepted, &checked.rules, &checked.facts);
            let played = execute(graph, &checked.script, &mut |transition| {
                if !format.is_json() {
                    output::line(&show::transition_line(transition));
                }
            });
            print_executed(&played, diagnostics, format)
        }
    }
}

fn refuse(diagnostics: &[Diagnostic], format: OutputFormat) -> bool {
    if format.is_json() {
        output::document(&json!({"accepted": false, "diagnostics": diagnostics}));
    } else {
        for diagnostic in diagnostics {
            output::line(&show::diagnostic_line(diagnostic));
        }
        output::remark("refused: nothing was executed");
    }
    false
}

/// Facts of a script. Its agent may store graphs and ask a person.
fn facts_of(script: &ReplayScript) -> KnownFacts {
    KnownFacts {
        goal: script.goal.clone(),
        event: script.event.clone(),
        can_persist: true,
        can_ask: true,
        remaining_ms: script::REMAINING_MS,
        ..KnownFacts::default()
    }
}

/// The output declares no graph: an answer, an end, or a decision about an earlier graph.
fn print_message(message: &str, format: OutputFormat) -> bool {
    if format.is_json() {
        output::document(&json!({"accepted": true, "message": message}));
    } else {
        output::remark("the output declares no graph: nothing was executed");
        output::line(message);
    }
    true
}

fn print_executed(
    played: &ExecutedGraph,
    diagnostics: Vec<Diagnostic>,
    format: OutputFormat,
) -> bool {
    let record = show::record(played, diagnostics);
    let report = show::report(played);
    if format.is_json() {
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

fn graph_of(accepted: AcceptedDeclaration, rules: &AgentRules, facts: &KnownFacts) -> Graph {
    Graph::new(
        GraphId(script::GRAPH_ID.to_owned()),
        accepted,
        rules,
        facts,
        Vec::new(),
    )
}

#[cfg(test)]
mod tests;
