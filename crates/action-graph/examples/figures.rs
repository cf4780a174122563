//! Times of the crate's three hot paths: `cargo run --release -p action-graph --example figures`.

use std::hint::black_box;
use std::io::Write as _;
use std::time::Instant;

use action_graph::accept::{Verdict, accept};
use action_graph::action::{Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, Entry};
use action_graph::ids::GraphId;
use action_graph::node::Output;
use action_graph::output::ModelOutput;
use action_graph::result::observe::Budget;
use action_graph::result::tokens::estimate;
use action_graph::rules::{Known, Rules};
use action_graph::schedule::{Event, Outcome, Why, step};
use action_graph::transcript::{Replay, Turn, protocol_turn, render, replay};
use action_graph::validate::Context;
use action_graph::{Command, Graph};
use serde_json::{Value, json};

const ACTIONS: usize = 32;
const TURNS: usize = 50;

fn catalog() -> Catalog {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}, "required": ["path"]});
    let read = Entry::new(ExecutorKind::Tool, "read", "Read a file.", schema);
    Catalog::new(vec![read.acting(&[Effect::Read], Idempotency::Safe)])
}

/// Calls that each depend on two earlier ones and bind a value of one.
fn declaration(count: usize) -> ModelOutput {
    let call = |n: usize| {
        let depends: Vec<_> = (1..3)
            .filter(|back| n > back * 4)
            .map(|back| format!("a{}", n - back * 4))
            .collect();
        let path = match depends.first() {
            Some(first) => json!({"$ref": format!("action:{first}.output#/path")}),
            None => json!(format!("src/file_{n}.rs")),
        };
        json!({"id": format!("a{n}"), "type": "tool", "name": "read", "title": format!("Read file {n}"), "args": {"path": path, "lines": n}, "depends": depends})
    };
    let calls: Vec<Value> = (0..count).map(call).collect();
    ModelOutput::carrier(
        json!({"kind": "act", "message": "I read the files.", "calls": calls}).to_string(),
    )
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let (catalog, rules) = (
        catalog(),
        Rules {
            enabled: true,
            ..Rules::default()
        },
    );
    let known = Known {
        remaining_ms: 60_000,
        ..Known::default()
    };
    let context = Context {
        catalog: &catalog,
        known: &known,
        rules: &rules,
    };
    let judge = |output: &ModelOutput| match accept(output, context) {
        Verdict::Accepted(accepted) => *accepted,
        other => panic!("not accepted: {other:?}"),
    };
    let output = declaration(ACTIONS);
    let timed = |run: &mut dyn FnMut()| {
        let began = Instant::now();
        run();
        began.elapsed().as_secs_f64() * 1e6
    };
    let accepts = (0..500)
        .map(|_| timed(&mut || drop(black_box(judge(&output)))))
        .collect();
    let (steps, started) = steps(|| {
        Graph::new(
            GraphId("g".to_owned()),
            judge(&output),
            &rules,
            &known,
            Vec::new(),
        )
    });
    let history = history(|| {
        Graph::new(
            GraphId("g".to_owned()),
            judge(&declaration(4)),
            &rules,
            &known,
            Vec::new(),
        )
    });
    let renders = (0..100)
        .map(|_| timed(&mut || drop(black_box(render(&history)))))
        .collect();
    let replays = (0..100)
        .map(|_| {
            timed(&mut || {
                drop(black_box(render(&replay(
                    &history,
                    Replay::Hybrid,
                    100_000,
                    &estimate,
                ))));
            })
        })
        .collect();
    let mut out = std::io::stdout().lock();
    let _ = writeln!(
        out,
        "parse and validate {ACTIONS} actions: {:.0} µs",
        median(accepts)
    );
    let _ = writeln!(
        out,
        "scheduler step ({started} attempts): {:.2} µs",
        median(steps)
    );
    let _ = writeln!(out, "render {TURNS} turns: {:.0} µs", median(renders));
    let _ = writeln!(
        out,
        "replay and render {TURNS} turns: {:.0} µs",
        median(replays)
    );
}

/// Times of the steps of a whole graph, many times over.
fn steps(build: impl Fn() -> Graph) -> (Vec<f64>, usize) {
    let (mut times, mut started) = (Vec::new(), 0);
    for _ in 0..50 {
        let mut graph = build();
        let mut events = vec![Event::Begin];
        while let Some(event) = events.pop() {
            let began = Instant::now();
            let commands = step(&mut graph, event, 1);
            times.push(began.elapsed().as_secs_f64() * 1e6);
            for command in commands {
                if let Command::Execute(one) = command {
                    let outcome = Outcome::Ok {
                        output: Output::json(json!({"path": "x"})),
                        satisfying: true,
                    };
                    events.push(Event::Finished {
                        id: one.id,
                        attempt: one.attempt,
                        outcome,
                    });
                    started += 1;
                }
            }
        }
    }
    (times, started / 50)
}

/// A history of requests and protocol turns.
fn history(build: impl Fn() -> Graph) -> Vec<Turn> {
    let turn = |n: usize| {
        if n.is_multiple_of(5) {
            return Turn::User {
                text: "Please look at the next files.".repeat(5),
                attachments: Vec::new(),
            };
        }
        let mut graph = build();
        let mut events = vec![Event::Begin];
        while let Some(event) = events.pop() {
            for command in step(&mut graph, event, 1) {
                if let Command::Execute(one) = command {
                    let output = Output::text(&"a line of the file\n".repeat(20));
                    let outcome = Outcome::Ok {
                        output,
                        satisfying: true,
                    };
                    events.push(Event::Finished {
                        id: one.id,
                        attempt: one.attempt,
                        outcome,
                    });
                }
            }
        }
        let budget = Budget {
            window: 200_000,
            count: &estimate,
        };
        Turn::Protocol(protocol_turn(&graph, Why::Finished, budget))
    };
    (0..TURNS).map(turn).collect()
}
