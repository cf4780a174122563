//! The runtime's words, revisions by declaration, and facts for later declarations.

use action_graph::accept::Adherence;
use action_graph::code::Code;
use action_graph::declaration::{DecisionChoice, Intent};
use action_graph::limits::GraphLimits;
use action_graph::output::ModelOutput;
use action_graph::result::expand::Expanded;
use action_graph::rules::KnownGraph;
use action_graph::schedule::{GraphEvent, step};
use action_graph::transcript::{TranscriptTurn, expansion_turn, render};
use action_graph::validate::{check_bound, check_input};
use action_graph::words::{decision, expansions, merge, summarize};
use serde_json::{Map, Value, json};

use crate::support::{
    a_then_b, act, envelope, failed, fenced, golden, graph_of, ok, play, read, read_action,
    read_call, reads, world,
};

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

#[test]
fn words_read_their_arguments() {
    let limits = GraphLimits::default();
    let one = decision(
        &object(json!({"graph": "g_1", "action": "a", "choice": "retry", "input": {"x": 1}})),
        &limits,
    );
    assert_eq!(one.map(|one| one.choice), Ok(DecisionChoice::Retry));
    let faults =
        decision(&object(json!({"choice": "explode"})), &limits).expect_err("it is refused");
    let codes: Vec<_> = faults.iter().map(|one| one.code).collect();
    assert_eq!(codes, [Code::BadEnum, Code::MissingField]);
    let all = expansions(
        &object(json!({"refs": [{"ref": "runtime://g_1/actions/a/output"}]})),
        &limits,
    );
    assert_eq!(all.map(|all| all.len()), Ok(1));
    assert!(expansions(&object(json!({"refs": []})), &limits).is_err());
}

#[test]
fn merge_joins_texts_or_lists_values() {
    assert_eq!(merge(&[json!("a"), json!("b")]).value, "a\n\nb");
    assert_eq!(merge(&[json!("a"), json!(1)]).value, json!(["a", 1]));
    let long = "word\n".repeat(5_000);
    let summary = summarize(&[json!(long)]);
    assert_eq!(summary.value, "word\n5000 lines, 25000 bytes");
}

#[test]
fn expansion_is_a_turn_of_its_own() {
    let answer = |text: &str, why| Expanded {
        reference: "runtime://runs/g_1/actions/a/output".to_owned(),
        text: text.to_owned(),
        tokens: 2,
        of_tokens: 90,
        why,
    };
    let turn = expansion_turn(
        "g_1",
        &[
            answer("two lines", Some("window")),
            answer("", Some("missing")),
        ],
    );
    golden(
        "transcript-expanded.md",
        &render(&[TranscriptTurn::Protocol(turn)]),
    );
}

#[test]
fn bound_arguments_are_checked_again() {
    let world = world();
    let graph = graph_of(
        &world,
        &act(json!([read_call(
            "a",
            json!({"args": {"path": {"$ref": "input:event#/list/0"}}})
        )])),
    );
    let action = &graph.nodes[0].action;
    assert_eq!(
        check_bound(action, &json!({"path": 1}), &world.catalog)[0].code,
        Code::ArgsSchema
    );
    assert!(check_bound(action, &json!({"path": "a"}), &world.catalog).is_empty());
    assert!(
        check_input(
            action,
            &object(json!({"path": {"$ref": "item"}})),
            &world.catalog
        )
        .is_empty()
    );
    assert_eq!(
        check_input(action, &object(json!({})), &world.catalog).len(),
        1
    );
}

#[test]
fn revisions_rest_on_started_actions_alone() {
    let mut world = world();
    let first = envelope(
        json!([reads("a"), read_action("b", json!({"depends_on": ["a"]}))]),
        json!({}),
    );
    let mut graph = graph_of(&world, &fenced(&first, ""));
    step(&mut graph, GraphEvent::Begin, 0);
    world.known.graphs.push(KnownGraph::from(&graph));
    let revise = |actions: Value| {
        fenced(
            &envelope(actions, json!({"intent": "revise", "base": "g_test"})),
            "## task\nDo it.",
        )
    };
    let accepted = world.accepted(&revise(json!([read_action(
        "c",
        json!({"depends_on": ["a"], "prompt_ref": "md:task"})
    )])));
    assert_eq!(accepted.declaration.intent, Intent::Revise);
    let (actions, constants) = (accepted.declaration.actions().to_vec(), accepted.constants);
    step(&mut graph, GraphEvent::Revise { actions, constants }, 1);
    assert_eq!(
        graph
            .node(&"c".into())
            .map(|node| node.action.depends_on.clone()),
        Some(vec!["a".into()])
    );
    assert_eq!(graph.constants.len(), 1);
    let again = world.refused(&revise(json!([read_action(
        "a",
        json!({"prompt_ref": "md:task"})
    )])));
    assert_eq!(again.diagnostics[0].code, Code::DuplicateId);
    let removed = world.refused(&revise(json!([read_action(
        "c",
        json!({"depends_on": ["b"], "prompt_ref": "md:task"})
    )])));
    assert_eq!(removed.diagnostics[0].code, Code::DependencyUnsatisfied);
}

#[test]
fn failed_graphs_with_blocked_actions_stay_open() {
    let world = world();
    let calls = act(a_then_b());
    let mut graph = graph_of(&world, &calls);
    play(&mut graph, &|_| failed(Code::ToolError, "no"));
    assert!(KnownGraph::from(&graph).open, "a revision may replace b");
    step(&mut graph, GraphEvent::Cancel, 9);
    assert!(!KnownGraph::from(&graph).open);
}

#[test]
fn finished_graphs_meet_later_dependencies() {
    let mut world = world();
    let mut graph = graph_of(&world, &act(json!([read("first")])));
    play(&mut graph, &|_| ok(json!({"n": 1})));
    let stored = KnownGraph::from(&graph);
    assert!(!stored.open);
    world.known.graphs.push(stored);
    let next = act(json!([read_call(
        "next",
        json!({"depends": "first", "args": {"path": "a", "lines": {"$ref": "runtime://g_test/actions/first/output#/n"}}})
    )]));
    let mut graph = graph_of(&world, &next);
    play(&mut graph, &|_| ok(json!(1)));
    assert_eq!(graph.nodes[0].input, Some(json!({"path": "a", "lines": 1})));
}

#[test]
fn adherence_is_counted_by_kind() {
    let world = world();
    let of = |output: &ModelOutput| world.accept_output(output).adherence();
    assert_eq!(of(&act(json!([read("a")]))), Adherence::Declared);
    assert_eq!(of(&ModelOutput::text("It works.")), Adherence::Plain);
    assert_eq!(
        of(&ModelOutput::text("")),
        Adherence::Refused(Code::NoDeclaration)
    );
    let direct = ModelOutput::call("read", r#"{"path":"a"}"#);
    assert_eq!(of(&direct), Adherence::Recovered(Code::RecoveredDirectTool));
}
