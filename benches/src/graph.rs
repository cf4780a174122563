//! The hot paths of action graphs: parse and validate a declaration, run one scheduler step, render a
//! transcript.

use std::hint::black_box;
use std::time::Instant;

use action_graph::accept::{OutputVerdict, accept};
use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, CatalogEntry};
use action_graph::ids::GraphId;
use action_graph::node::ActionOutput;
use action_graph::output::ModelOutput;
use action_graph::result::observe::ObservationBudget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{AgentRules, KnownFacts};
use action_graph::schedule::{ActionOutcome, GraphEvent, Why, step};
use action_graph::transcript::{Replay, TranscriptTurn, protocol_turn, render, replay};
use action_graph::validate::{AcceptedDeclaration, Context};
use action_graph::{Command, Graph};
use anyhow::bail;
use serde_json::{Value, json};

use crate::Options;
use crate::figures::{median, percentile, write};
use crate::process::machine;

/// Actions of the declaration.
const ACTIONS: usize = 32;
/// Turns of the history.
const TURNS: usize = 50;
/// Repetitions of one path in a round.
const REPEATS: usize = 200;

/// One path with its times in microseconds.
pub(crate) struct PathTimes {
    name: &'static str,
    target_us: f64,
    times: Vec<f64>,
}

/// Measures every path in each round and prints medians with their targets. Fails if a path misses its target.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let world = ValidationInputs::new();
    let mut figures = [
        PathTimes::new("parse and validate 32 actions", 300.0),
        PathTimes::new("scheduler step", 5.0),
        PathTimes::new("render 50 turns", 2_000.0),
        PathTimes::new("replay and render 50 turns", 2_000.0),
    ];
    let output = declaration(ACTIONS);
    let history = world.history()?;
    for _ in 0..options.rounds {
        for _ in 0..REPEATS {
            figures[0].time(|| drop(black_box(world.accepted(&output))));
            figures[2].time(|| drop(black_box(render(&history))));
            figures[3].time(|| {
                let shown = replay(&history, Replay::Hybrid, 100_000, &estimate);
                drop(black_box(render(&shown)));
            });
        }
        for _ in 0..REPEATS / 8 {
            let graph = world.graph(&output)?;
            play(graph, |graph, event| {
                figures[1].time(|| step(graph, event, 1))
            });
        }
    }
    print_figures(options, "graph", &figures)
}

impl PathTimes {
    pub(crate) fn new(name: &'static str, target_us: f64) -> Self {
        Self {
            name,
            target_us,
            times: Vec::new(),
        }
    }

    pub(crate) fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let done = work();
        self.times.push(begin.elapsed().as_secs_f64() * 1e6);
        done
    }

    fn is_within(&self) -> bool {
        median(&self.times) <= self.target_us
    }
}

/// The inputs of validation.
struct ValidationInputs {
    catalog: Catalog,
    facts: KnownFacts,
    rules: AgentRules,
}

impl ValidationInputs {
    fn new() -> Self {
        let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}, "required": ["path"]});
        let read = CatalogEntry::new(ExecutorKind::Tool, "read", "Read a file.", schema);
        Self {
            catalog: Catalog::new(vec![read.acting(&[Effect::Read], Idempotency::Safe)]),
            facts: KnownFacts {
                remaining_ms: 60_000,
                ..KnownFacts::default()
            },
            rules: AgentRules {
                enabled: true,
                ..AgentRules::default()
            },
        }
    }

    fn accepted(&self, output: &ModelOutput) -> anyhow::Result<AcceptedDeclaration> {
        let context = Context {
            catalog: &self.catalog,
            known: &self.facts,
            rules: &self.rules,
        };
        match accept(output, context) {
            OutputVerdict::Accepted(accepted) => Ok(*accepted),
            other => bail!("not accepted: {other:?}"),
        }
    }

    fn graph(&self, output: &ModelOutput) -> anyhow::Result<Graph> {
        let accepted = self.accepted(output)?;
        let id = GraphId("g".to_owned());
        Ok(Graph::new(
            id,
            accepted,
            &self.rules,
            &self.facts,
            Vec::new(),
        ))
    }

    /// Protocol turns of four calls each; every fifth turn is a user request.
    fn history(&self) -> anyhow::Result<Vec<TranscriptTurn>> {
        let output = declaration(4);
        let turn = |n: usize| -> anyhow::Result<TranscriptTurn> {
            if n.is_multiple_of(5) {
                return Ok(TranscriptTurn::User {
                    text: "Please look at the next files.".repeat(5),
                    attachments: Vec::new(),
                });
            }
            let graph = play(self.graph(&output)?, |graph, event| step(graph, event, 1));
            let budget = ObservationBudget {
                window: 200_000,
                count: &estimate,
            };
            Ok(TranscriptTurn::Protocol(protocol_turn(
                &graph,
                Why::Finished,
                budget,
            )))
        };
        (0..TURNS).map(turn).collect()
    }
}

/// Calls that each depend on two earlier calls and bind a value of one.
fn declaration(count: usize) -> ModelOutput {
    let call = |n: usize| {
        let depends = (1..3).filter(|back| n > back * 4);
        let depends: Vec<_> = depends.map(|back| format!("a{}", n - back * 4)).collect();
        let path = match depends.first() {
            Some(first) => json!({"$ref": format!("action:{first}.output#/path")}),
            None => json!(format!("src/file_{n}.rs")),
        };
        json!({"id": format!("a{n}"), "type": "tool", "name": "read", "title": format!("Read file {n}"), "args": {"path": path, "lines": n}, "depends": depends})
    };
    let calls: Vec<Value> = (0..count).map(call).collect();
    let act = json!({"kind": "act", "message": "I read the files.", "calls": calls});
    ModelOutput::carrier(act.to_string())
}

/// Runs a graph to its end; every call returns a path and twenty lines.
fn play(mut graph: Graph, mut step: impl FnMut(&mut Graph, GraphEvent) -> Vec<Command>) -> Graph {
    let mut events = vec![GraphEvent::Begin];
    while let Some(event) = events.pop() {
        for command in step(&mut graph, event) {
            let Command::Execute(call) = command else {
                continue;
            };
            let text = "a line of the file\n".repeat(20);
            let output = ActionOutput::json(json!({"path": "x", "text": text}));
            let (id, attempt, satisfying) = (call.id, call.attempt, true);
            let outcome = ActionOutcome::Ok { output, satisfying };
            events.push(GraphEvent::Finished {
                id,
                attempt,
                outcome,
            });
        }
    }
    graph
}

pub(crate) fn print_figures(
    options: &Options,
    name: &str,
    figures: &[PathTimes],
) -> anyhow::Result<()> {
    println!("{}; {} rounds", machine(), options.rounds);
    for figure in figures {
        let verdict = if figure.is_within() {
            "within"
        } else {
            "NOT within"
        };
        println!(
            "{:<30} p50 {:>8.2} µs, p99 {:>8.2} µs, {verdict} the target of {:.0} µs",
            figure.name,
            median(&figure.times),
            percentile(&figure.times, 99.0),
            figure.target_us
        );
    }
    let figures_json = figures.iter().map(|figure| {
        json!({"name": figure.name, "p50_us": median(&figure.times), "p99_us": percentile(&figure.times, 99.0),
            "at_most_us": figure.target_us, "count": figure.times.len()})
    });
    let figures_json = figures_json.collect::<Vec<_>>();
    write(options, &json!({name: figures_json}))?;
    let slow: Vec<_> = figures.iter().filter(|one| !one.is_within()).collect();
    match slow.first() {
        Some(figure) => bail!("{} is slower than its target", figure.name),
        None => Ok(()),
    }
}
