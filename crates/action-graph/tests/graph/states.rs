//! One graph for each state: its turn, its projection and its record, compared with golden files.

use action_graph::code::Code;
use action_graph::declaration::DecisionChoice;
use action_graph::graph::Graph;
use action_graph::json::canonical;
use action_graph::node::Sent;
use action_graph::output::ModelOutput;
use action_graph::project::project;
use action_graph::record::{Metrics, ResultRecord, result_record};
use action_graph::schedule::{ActionFailure, ActionOutcome, Actor, GraphEvent, Why};
use action_graph::transcript::{TranscriptTurn, protocol_turn, render};
use serde_json::{Value, json};

use crate::support::{
    a_then_b, act, block, budget, decision, envelope, failed, fenced, go_on, golden, graph_of, ok,
    play, read, read_action, read_call, reads, world,
};

/// The declaration of the first transcript of the seed.
pub(crate) fn one_call() -> ModelOutput {
    let call = read_call(
        "read_extension",
        json!({"args": {"path": "src/extension.ts"}}),
    );
    let value = json!({"kind": "act", "message": "Inspect extension wiring.", "calls": [call]});
    ModelOutput::carrier(value.to_string())
}

/// The declaration of the second transcript of the seed.
pub(crate) fn review() -> ModelOutput {
    let inspect = json!({"type": "action", "id": "inspect_code", "title": "Inspect Code", "description": "Find toolbar components.",
        "reason": "Review needs source locations.", "operation": "inspect_sources",
        "executor": {"type": "tool", "target": "auto", "capabilities": ["filesystem", "search"]}, "input": {"pattern": "*toolbar*"},
        "result_policy": {"return_to_model": "summary", "store_full": true}});
    let review = json!({"type": "action", "id": "review_toolbar", "title": "Review Toolbar", "description": "Review toolbar button behavior.",
        "reason": "The main request.", "operation": "review_code", "executor": {"type": "agent", "target": "auto", "capabilities": ["code_review", "frontend"]},
        "depends_on": ["inspect_code"], "context_refs": ["action:inspect_code.summary"], "prompt_ref": "md:review_toolbar.prompt",
        "result_policy": {"return_to_model": "structured", "store_full": true}});
    let behind = "## review_toolbar.prompt\n\nReview each toolbar button.\n\n## user.visible\n\nI will inspect the toolbar.\n";
    let title = json!({"title": "Toolbar Button Review"});
    fenced(&envelope(json!([inspect, review]), title), behind)
}

/// A graph whose failed part was revised, and the reason why it rests.
pub(crate) fn revised() -> (Graph, Why) {
    let value = envelope(
        json!([reads("a"), read_action("b", json!({"depends_on": ["a"]}))]),
        json!({}),
    );
    let (_, mut graph, _) = played("", &fenced(&value, ""), &|_| failed(Code::ToolError, "no"));
    let new = block(json!([reads("c")]));
    let actions = world().accepted(&new).declaration.actions().to_vec();
    let constants = [].into();
    let event = GraphEvent::Revise { actions, constants };
    let why = go_on(&mut graph, event, &|_| ok(json!("c is read")));
    (graph, why.expect("it ends"))
}

type ModelState = (&'static str, Graph, Why);

fn played(
    name: &'static str,
    output: &ModelOutput,
    outcome: &dyn Fn(&str) -> Option<ActionOutcome>,
) -> ModelState {
    let mut graph = graph_of(&world(), output);
    let why = play(&mut graph, outcome).unwrap_or(Why::Waiting);
    (name, graph, why)
}

fn waiting() -> Vec<ModelState> {
    let mail = json!({"id": "mail", "type": "tool", "name": "send_mail", "args": {"to": "x", "text": "y"}});
    let ask = json!({"id": "ask", "type": "tool", "name": "human.ask", "args": {"kind": "confirmation", "title": "Go on?"}});
    let agent = json!({"id": "review", "type": "agent", "name": "code-reviewer", "args": {"prompt": "p"}, "title": "Review"});
    let mystery = json!({"id": "m", "type": "tool", "name": "mystery"});
    vec![
        played("waiting approval", &act(json!([mail])), &|_| None),
        played("waiting user", &act(json!([ask])), &|_| None),
        played("child running", &act(json!([agent])), &|_| None),
        played("uncertain", &act(json!([mystery])), &|_| {
            let failure = ActionFailure::new(Code::Timeout, "no answer", Sent::Maybe);
            Some(ActionOutcome::Err(failure))
        }),
    ]
}

fn for_each() -> ModelState {
    let each = read_action(
        "each",
        json!({"input": {"path": {"$ref": "item"}}, "for_each": {"items": "input:event#/list", "max": 3, "max_failures": 1}}),
    );
    let mut world = world();
    world.known.event = json!({"list": ["x", "y", "z"]});
    let mut graph = graph_of(&world, &block(json!([each])));
    let why = play(&mut graph, &|id| match id {
        "each[1]" => failed(Code::ToolError, "no such file"),
        _ => ok(json!("fine")),
    });
    ("for_each of three", graph, why.expect("it ends"))
}

fn canceled() -> ModelState {
    let calls = json!([read("a"), read("b")]);
    let (name, mut graph, _) = played("canceled", &act(calls), &|_| None);
    let why = go_on(&mut graph, GraphEvent::Cancel, &|_| None);
    (name, graph, why.expect("it ends"))
}

fn ended() -> Vec<ModelState> {
    let skipped = json!([
        reads("a"),
        read_action("b", json!({"when": {"action": "a", "is": "failed"}}))
    ]);
    let skipped = block(skipped);
    let blocked = a_then_b();
    let private = json!([{"id": "s", "type": "tool", "name": "salaries"}, {"id": "l", "type": "tool", "name": "list", "args": {"of": {"$ref": "action:s.output#/sum"}}}]);
    vec![
        played("skipped", &skipped, &|_| ok(json!("fine"))),
        played("blocked", &act(blocked), &|_| {
            failed(Code::ToolError, "no such file")
        }),
        for_each(),
        played("private", &act(private), &|_| ok(json!({"sum": 7}))),
        canceled(),
    ]
}

/// A graph that went on without its failed action.
fn waived() -> ModelState {
    let calls = a_then_b();
    let (_, mut graph, _) = played("", &act(calls), &|_| {
        failed(Code::ToolError, "no such file")
    });
    let decision = decision(&graph, Some("a"), DecisionChoice::Continue);
    let by = Actor::Model;
    let why = go_on(&mut graph, GraphEvent::Decide { decision, by }, &|_| {
        ok(json!("fine"))
    });
    ("waived", graph, why.expect("it ends"))
}

fn states() -> Vec<ModelState> {
    waiting().into_iter().chain(ended()).collect()
}

/// The states and the graphs of the seed's transcripts.
fn all() -> Vec<ModelState> {
    let mut all = states();
    all.push(waived());
    let (graph, why) = revised();
    all.push(("revised", graph, why));
    let fine = |_: &str| ok(json!("fine"));
    all.push(played("one call", &one_call(), &fine));
    all.push(played("review", &review(), &fine));
    all
}

#[test]
fn every_state_has_a_golden_turn() {
    let texts = states().into_iter().map(|(name, graph, why)| {
        let turn = TranscriptTurn::Protocol(protocol_turn(&graph, why, budget()));
        format!("== {name}\n{}", render(&[turn]))
    });
    golden("states.md", &texts.collect::<String>());
}

/// One line for the graph and one for each action.
fn golden_values(name: &str, value: impl Fn(&Graph) -> Value) {
    let mut text = String::new();
    for (state, graph, _) in all() {
        let mut value = value(&graph);
        let actions = value["actions"].take();
        text += &format!("== {state}\n{}\n", canonical(&value));
        for action in actions.as_array().expect("a list") {
            text += &format!("{}\n", canonical(action));
        }
    }
    golden(name, &text);
}

#[test]
fn every_state_has_a_golden_projection() {
    golden_values("states-projections.txt", |graph| {
        serde_json::to_value(project(graph)).expect("JSON")
    });
}

#[test]
fn every_state_has_a_golden_record() {
    golden_values("states-records.txt", |graph| {
        let runs = vec!["run_1".to_owned()];
        let record = result_record(graph, Vec::new(), Metrics::default(), runs, budget(), 99);
        let value = serde_json::to_value(&record).expect("JSON");
        let read: ResultRecord = serde_json::from_value(value.clone()).expect("it is read");
        assert_eq!(read, record);
        value
    });
}
