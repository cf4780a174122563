//! Records, projection, report, delegation and workflows.

use std::collections::BTreeMap;

use action_graph::accept::accept_draft;
use action_graph::action::ExecutorKind;
use action_graph::code::Code;
use action_graph::declaration::Payload;
use action_graph::delegate::{assignment, handoff, node_request};
use action_graph::graph::{Graph, GraphStatus};
use action_graph::json::pretty;
use action_graph::node::ActionOutput;
use action_graph::policy::Visibility;
use action_graph::project::{apply, patch, project};
use action_graph::record::{Metrics, RestoreError, restore, result_record, store};
use action_graph::report::render_report;
use action_graph::schedule::{ActionOutcome, GraphEvent, Why, step};
use action_graph::workflow::{Workflow, WorkflowNode, from_workflow, workflow_status};
use serde_json::{Value, json};

use crate::support::{
    a_then_b, act, block, budget, done, envelope, failed, fenced, finish, golden, graph_of, ok,
    play, read, read_action, read_call, reads, unsatisfying, world,
};

fn review() -> Graph {
    let actions = json!([
        read_action("find", json!({"title": "Find files"})),
        read_action(
            "review",
            json!({"title": "Review", "executor": {"type": "agent", "target": "code-reviewer"}, "input": {"prompt": "Review it."},
            "depends_on": ["find"], "context_refs": ["action:find.summary", "md:rules"], "criteria": ["each button is judged"]})
        ),
        read_action(
            "fix",
            json!({"title": "Fix", "depends_on": ["review"], "description": "Fix the findings."})
        ),
        read_action(
            "each",
            json!({"title": "Read each", "input": {"path": {"$ref": "item", "default": "none"}}, "for_each": {"items": "action:find.output#/files", "max": 4, "max_failures": 1}})
        ),
    ]);
    let mut graph = graph_of(
        &world(),
        &fenced(&envelope(actions, json!({})), "## rules\n\nBe <strict>.\n"),
    );
    play(&mut graph, &|id| match id {
        "find" => ok(json!({"files": ["a", "b"]})),
        "review" => ok(json!("Two issues.")),
        "each[1]" => failed(Code::ToolError, "no such file"),
        _ => ok(json!("fine")),
    });
    graph
}

#[test]
fn projection_has_every_field() {
    let graph = review();
    let projection = serde_json::to_value(project(&graph)).expect("JSON");
    golden("projection.json", &format!("{}\n", pretty(&projection)));
}

#[test]
fn patches_rebuild_the_projection() {
    let mut graph = graph_of(&world(), &act(a_then_b()));
    let mut shown = project(&graph);
    let mut events = vec![GraphEvent::Begin];
    for id in ["a", "b"] {
        let outcome = done("done");
        events.push(GraphEvent::Finished {
            id: id.into(),
            attempt: 1,
            outcome,
        });
    }
    for event in events {
        let before = project(&graph);
        step(&mut graph, event, 1);
        let after = project(&graph);
        let change = patch(&before, &after).expect("it changed");
        shown = apply(shown, &change);
        assert_eq!(shown, after);
        assert_eq!(patch(&after, &after), None);
    }
    assert_eq!(shown.status, GraphStatus::Completed);
}

#[test]
fn untitled_projections_take_the_request() {
    let graph = graph_of(&world(), &act(json!([read("a")])));
    assert_eq!(project(&graph).title, "Fix the buttons of the toolbar.");
    assert_eq!(project(&graph).note, "I look.");
}

#[test]
fn result_record_has_every_field() {
    let graph = review();
    let record = result_record(
        &graph,
        Vec::new(),
        Metrics::default(),
        vec!["run_1".to_owned()],
        budget(),
        99,
    );
    let value = serde_json::to_value(&record).expect("JSON");
    golden("result-record.json", &format!("{}\n", pretty(&value)));
    assert_eq!(
        serde_json::from_value::<action_graph::record::ResultRecord>(value).expect("it is read"),
        record
    );
}

#[test]
fn stored_graphs_restore_completely() {
    let mut graph = review();
    let (head, blobs) = store(&graph, None);
    let text = serde_json::to_string(&head).expect("JSON");
    assert!(!text.contains("Two issues.\",") || text.len() < 40_000);
    let bodies: BTreeMap<_, _> = blobs
        .into_iter()
        .map(|blob| (blob.key, blob.content))
        .collect();
    let head = serde_json::from_str(&text).expect("it is read");
    let restored = restore(head, &mut |key| bodies.get(key).cloned()).expect("it is restored");
    graph.transitions.clear();
    assert_eq!(restored, graph);
}

#[test]
fn null_items_survive_a_restart() {
    let each = read_action(
        "each",
        json!({"executor": {"type": "tool", "target": "list"}, "input": {"of": {"$ref": "item"}}, "for_each": {"items": "input:event#/list", "max": 3}}),
    );
    let mut world = world();
    world.known.event = json!({"list": [null, 1]});
    let mut graph = graph_of(&world, &block(json!([each])));
    step(&mut graph, GraphEvent::Begin, 0);
    let (head, blobs) = store(&graph, None);
    let bodies: BTreeMap<_, _> = blobs
        .into_iter()
        .map(|blob| (blob.key, blob.content))
        .collect();
    let restored = restore(head, &mut |key| bodies.get(key).cloned()).expect("it is restored");
    assert_eq!(restored.nodes, graph.nodes);
    assert_eq!(restored.declared().count(), 1);
}

#[test]
fn damaged_and_later_records_are_refused() {
    let graph = review();
    let (head, blobs) = store(&graph, None);
    let bodies: BTreeMap<_, _> = blobs
        .into_iter()
        .map(|blob| (blob.key, blob.content))
        .collect();
    let mut load = |key: &str| bodies.get(key).cloned();
    let mut later = head.clone();
    later.version = 2;
    assert_eq!(restore(later, &mut load), Err(RestoreError::Version(2)));
    let lost = restore(head.clone(), &mut |_| None);
    assert!(matches!(lost, Err(RestoreError::Body(_))));
    let corrupt = restore(head, &mut |key| {
        if key.starts_with("find.1") {
            Some(json!({"value": 1, "bytes": 1}))
        } else {
            bodies.get(key).cloned()
        }
    });
    assert!(matches!(corrupt, Err(RestoreError::Body(_))));
}

#[test]
fn bodies_keep_their_keys() {
    let graph = review();
    let (_, first) = store(&graph, None);
    let (_, second) = store(&graph, None);
    assert_eq!(first, second);
    let mut keys: Vec<_> = first.iter().map(|blob| &blob.key).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), first.len());
}

#[test]
fn stored_outputs_have_no_body_again() {
    let graph = review();
    let (head, first) = store(&graph, None);
    let (again, second) = store(&graph, Some(&head));
    assert_eq!(again, head);
    let outputs = |blobs: &[action_graph::record::RecordBody]| {
        let keys = blobs.iter().map(|blob| blob.key.as_str());
        keys.filter(|key| head.outputs.values().any(|one| *one == **key))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(outputs(&first).len(), head.outputs.len());
    assert_eq!(outputs(&second).len(), 1, "the list of the fan-out");
}

#[test]
fn repeated_actions_keep_outputs_apart() {
    let repeat = json!({"max": 3, "until": {"ref": "own#/done", "equals": true}});
    let action = read_action("a", json!({"repeat": repeat}));
    let mut graph = graph_of(&world(), &block(json!([action])));
    step(&mut graph, GraphEvent::Begin, 0);
    let outcome = ActionOutcome::Ok {
        output: ActionOutput::json(json!({"done": false})),
        satisfying: true,
    };
    let id = || "a".into();
    let finished = |attempt| GraphEvent::Finished {
        id: id(),
        attempt,
        outcome: outcome.clone(),
    };
    step(&mut graph, finished(1), 1);
    assert_eq!(graph.node(&id()).map(|node| node.attempt), Some(2));
    let (head, _) = store(&graph, None);
    assert!(head.outputs[&id()].starts_with("a.1."));
    step(&mut graph, finished(2), 2);
    let (head, _) = store(&graph, Some(&head));
    assert!(head.outputs[&id()].starts_with("a.2."));
}

#[test]
fn journals_rebuild_the_same_graph() {
    let accepted = graph_of(&world(), &act(a_then_b()));
    let outcome = done("done");
    let journal = vec![
        (1, GraphEvent::Begin),
        (2, finish("a", 1, outcome.clone())),
        (3, finish("b", 1, outcome)),
    ];
    let text = serde_json::to_string(&journal).expect("JSON");
    let read: Vec<(u64, GraphEvent)> = serde_json::from_str(&text).expect("it is read");
    let replayed = |events: Vec<(u64, GraphEvent)>| {
        let mut graph = accepted.clone();
        for (now, event) in events {
            step(&mut graph, event, now);
        }
        graph
    };
    let live = replayed(journal);
    assert_eq!(replayed(read), live);
    let seqs: Vec<_> = live.transitions.iter().map(|one| one.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
}

#[test]
fn reports_render_without_a_model() {
    let report = json!({"title": "Review", "footer": "End.", "sections": [
        {"heading": "Intro", "text": "Facts."}, {"heading": "Files", "ref": "action:a.output#/files"},
        {"heading": "Summary", "ref": "action:a.summary"}, {"heading": "None", "ref": "action:a.output#/none", "optional": true}]});
    let build = |report: &Value| {
        let mut value = envelope(json!([reads("a")]), json!({}));
        value["payload"]["report"] = report.clone();
        let mut graph = graph_of(&world(), &fenced(&value, ""));
        play(&mut graph, &|_| ok(json!({"files": ["x"]})));
        graph
    };
    let graph = build(&report);
    let spec = graph.info.report.clone().expect("a report");
    golden(
        "report.md",
        &format!(
            "{}\n",
            render_report(&graph, &spec).expect("it is complete")
        ),
    );
    let lacking = json!({"sections": [{"heading": "None", "ref": "action:a.output#/none"}]});
    let graph = build(&lacking);
    let spec = graph.info.report.clone().expect("a report");
    assert_eq!(
        render_report(&graph, &spec)
            .expect_err("a part is missing")
            .heading,
        "None"
    );
}

#[test]
fn node_request_groups_context_and_task() {
    let graph = review();
    let text = node_request(&graph, &"review".into()).expect("a request");
    golden("node-request.xml", &text);
    assert!(!text.contains("md:") && !text.contains("action:"));
}

#[test]
fn assignment_and_handoff_have_every_field() {
    let graph = review();
    let assigned = assignment(&graph, &"review".into()).expect("an agent");
    assert_eq!(
        (assigned.agent.as_str(), assigned.criteria.len()),
        ("code-reviewer", 1)
    );
    assert_eq!(assignment(&graph, &"find".into()), None);
    let handed = handoff(&graph, &"review".into(), &"fix".into()).expect("an assignment");
    let both = json!({"assignment": assigned, "handoff": handed});
    golden("delegation.json", &format!("{}\n", pretty(&both)));
}

#[test]
fn node_requests_carry_handoffs_of_agents() {
    let agent = |id: &str, depends: Value| json!({"id": id, "type": "agent", "name": "code-reviewer", "args": {"prompt": "p"}, "depends": depends});
    let mut graph = graph_of(
        &world(),
        &act(json!([agent("a", json!([])), agent("b", json!("a"))])),
    );
    play(&mut graph, &|id| (id == "a").then(|| done("two <faults>")));
    let first = node_request(&graph, &"a".into()).expect("a request");
    assert!(!first.contains("<handoff>"), "{first}");
    let second = node_request(&graph, &"b".into()).expect("a request");
    assert!(second.contains("<handoff>"), "{second}");
    assert!(second.contains("two &lt;faults&gt;"), "{second}");
}

#[test]
fn handoffs_open_no_edges() {
    let mut graph = graph_of(
        &world(),
        &act(json!([
        {"id": "a", "type": "agent", "name": "code-reviewer", "args": {"prompt": "p"}}, read_call("b", json!({"depends": "a"}))])),
    );
    play(&mut graph, &|_| Some(unsatisfying("half done")));
    assert!(handoff(&graph, &"a".into(), &"b".into()).is_some());
    assert_eq!(
        graph.node(&"b".into()).map(|node| node.state.status()),
        Some(GraphStatus::Blocked)
    );
}

#[test]
fn private_results_stay_out_of_records_and_projection() {
    let mut graph = graph_of(
        &world(),
        &act(json!([{"id": "s", "type": "tool", "name": "salaries"}])),
    );
    play(&mut graph, &|_| ok(json!("a secret sum")));
    assert_eq!(graph.nodes[0].visibility(), Visibility::RuntimeOnly);
    let record = result_record(
        &graph,
        Vec::new(),
        Metrics::default(),
        Vec::new(),
        budget(),
        1,
    );
    for text in [
        serde_json::to_string(&record),
        serde_json::to_string(&project(&graph)),
    ] {
        assert!(!text.expect("JSON").contains("secret"));
    }
}

#[test]
fn workflows_map_to_durable_graphs() {
    let node = |id: &str, after: &[&str]| WorkflowNode {
        id: id.into(),
        title: id.to_owned(),
        executor: ExecutorKind::Tool,
        target: "read".to_owned(),
        input: json!({"path": "a"}).as_object().expect("an object").clone(),
        after: after.iter().map(|&id| id.into()).collect(),
    };
    let workflow = Workflow {
        title: "Nightly".to_owned(),
        nodes: vec![node("a", &[]), node("b", &["a"])],
    };
    let declaration = from_workflow(&workflow);
    assert!(matches!(declaration.payload, Payload::ActionGraph { .. }));
    assert_eq!(declaration.persist, Some(true));
    let world = world();
    let accepted = accept_draft(declaration, world.context()).expect("it is accepted");
    let id = action_graph::ids::GraphId("g_w".to_owned());
    let mut graph = Graph::new(id, accepted, &world.rules, &world.known, Vec::new());
    assert!(graph.is_durable());
    assert_eq!(play(&mut graph, &|_| ok(json!(1))), Some(Why::Finished));
    assert_eq!(
        workflow_status(&graph),
        [
            ("a".into(), GraphStatus::Completed),
            ("b".into(), GraphStatus::Completed)
        ]
    );
}

#[test]
fn store_full_false_keeps_the_summary_alone() {
    let run = |target: &str| {
        let policy = json!({"store_full": false});
        let action = read_action(
            "a",
            json!({"executor": {"type": "tool", "target": target}, "result_policy": policy}),
        );
        let mut graph = graph_of(&world(), &block(json!([action])));
        play(&mut graph, &|_| ok(json!("word\n".repeat(2_000))));
        let (_, blobs) = store(&graph, None);
        let output = blobs
            .iter()
            .find(|blob| blob.key.starts_with("a.1."))
            .expect("an output");
        output.content["value"].as_str().map(str::len)
    };
    assert_eq!(run("read"), Some("word\n2000 lines, 10000 bytes".len()));
    assert_eq!(run("mystery"), Some(10_000), "it runs at most once");
}
