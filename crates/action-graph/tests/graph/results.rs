//! Views of results for the model: policies, caps, budgets.

use action_graph::code::Code;
use action_graph::declaration::{ExpandItem, Range};
use action_graph::graph::{Graph, GraphStatus};
use action_graph::policy::Return;
use action_graph::report::render_report;
use action_graph::result::deliver::deliver;
use action_graph::result::expand::expand;
use action_graph::result::observe::{FLOOR, ObservationBudget, mark_delivered, observe};
use action_graph::result::tokens::{clip_tail, estimate};
use action_graph::schedule::Why;
use action_graph::transcript::{TranscriptTurn, protocol_turn, render};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{
    block, budget, cases, envelope, failed, fenced, golden, graph_of, node, ok, play, read_action,
    reads, world,
};

fn long() -> String {
    let lines = (0..3_000).map(|n| {
        format!(
            "line {n}: {}",
            if n == 1_500 {
                "error: disk full"
            } else {
                "all well"
            }
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn one(policy: Value, more: Value, output: &Value) -> Graph {
    let mut more = more;
    more["result_policy"] = policy;
    let mut graph = graph_of(&world(), &block(json!([read_action("a", more)])));
    let failure = output
        .get("failure")
        .and_then(Value::as_str)
        .map(str::to_owned);
    play(&mut graph, &|_| match &failure {
        Some(message) => failed(Code::ToolError, message),
        None => ok(output.clone()),
    });
    graph
}

#[test]
fn each_policy_for_each_kind_of_result() {
    let mut text = String::new();
    for form in Return::ALL {
        let policy = json!({"return_to_model": form.as_str(), "priority": ["error"]});
        for (name, more, output) in [
            ("short", json!({}), json!({"files": ["a", "b"], "count": 2})),
            ("long", json!({}), json!(long())),
            ("failed", json!({}), json!({"failure": long()})),
            (
                "private",
                json!({"data_visibility": "user"}),
                json!("secret"),
            ),
        ] {
            let graph = one(policy.clone(), more, &output);
            let node = node(&graph, "a");
            let shown = deliver(&graph, node, 12_000, &estimate);
            let delivered = serde_json::to_string(&shown.delivered).expect("JSON");
            let lines = shown.text.lines().count();
            let head: Vec<_> = shown.text.lines().take(4).collect();
            let tail = clip_tail(&shown.text, 12, &estimate);
            text.push_str(&format!(
                "== {} {name}: {lines} lines\n{delivered}\n{}\n",
                form.as_str(),
                head.join("\n")
            ));
            if lines > 4 {
                text.push_str(&format!("…\n{tail}\n"));
            }
            assert!(!shown.text.contains("secret"));
        }
    }
    golden("result-policies.txt", &text);
}

#[test]
fn truncates_full_results_by_policy() {
    for (word, given, has_text) in [
        ("truncate", Return::Excerpt, true),
        ("refuse", Return::None, false),
        ("provide_ref_and_summary", Return::Summary, true),
    ] {
        let graph = one(
            json!({"return_to_model": "full", "if_truncated": word}),
            json!({}),
            &json!(long()),
        );
        let shown = deliver(&graph, &graph.nodes[0], 12_000, &estimate);
        assert_eq!(
            (shown.delivered.given, !shown.text.is_empty()),
            (given, has_text),
            "{word}"
        );
        assert!(shown.delivered.tokens <= 6_000);
    }
}

#[test]
fn max_tokens_lowers_the_cap() {
    let graph = one(
        json!({"return_to_model": "full", "max_tokens": 50, "if_truncated": "truncate"}),
        json!({}),
        &json!(long()),
    );
    let shown = deliver(&graph, &graph.nodes[0], 12_000, &estimate);
    assert!(shown.delivered.tokens <= 50 && shown.delivered.tokens > 20);
}

#[test]
fn ends_are_delivered_once() {
    let mut graph = one(json!("summary"), json!({}), &json!(1));
    assert_eq!(mark_delivered(&mut graph), ["a".into()]);
    assert!(mark_delivered(&mut graph).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(60), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn observations_stay_within_their_budget(
        sizes in prop::collection::vec((0..6_000_usize, any::<bool>(), 0..8_usize), 1..12),
        window in 4_000..200_000_usize,
    ) {
        let actions: Vec<_> = sizes.iter().enumerate().map(|(index, (_, _, form))| {
            read_action(&format!("a{index}"), json!({"result_policy": Return::ALL[*form].as_str()}))
        }).collect();
        let mut graph = graph_of(&world(), &fenced(&envelope(actions.into(), json!({})), ""));
        play(&mut graph, &|id| {
            let (size, fails, _) = sizes[id[1..].parse::<usize>().expect("an index")];
            let text = "some words here\n".repeat(size / 4);
            if fails { failed(Code::ToolError, &text) } else { ok(json!(text)) }
        });
        let budget = ObservationBudget { window, count: &estimate };
        let shown = observe(&graph, budget);
        let total: usize = shown.iter().map(|(_, one)| one.delivered.tokens).sum();
        prop_assert!(total <= budget.max_tokens().max(FLOOR * sizes.len()));
        let is_cut = |one: &&(action_graph::ids::ActionId, action_graph::result::deliver::Shown)| {
            one.1.delivered.why.as_deref() == Some("budget")
        };
        for (id, one) in &shown {
            prop_assert_eq!(one.delivered.tokens, estimate(&one.text), "{}", id);
            let is_mute = one.text.is_empty() && one.delivered.of_tokens > 0;
            prop_assert!(!is_mute || one.delivered.requested == one.delivered.given, "{} lost its floor", id);
        }
        // A failure is cut only when every success is at the floor.
        let fails = |index: usize| sizes[index].1;
        if shown.iter().enumerate().any(|(index, one)| fails(index) && is_cut(&one)) {
            for (index, (_, one)) in shown.iter().enumerate() {
                prop_assert!(fails(index) || one.delivered.tokens <= FLOOR);
            }
        }
    }
}

#[test]
fn expansions_choose_windows_within_bounds() {
    let item = |range: Range, reason: &str| ExpandItem {
        reference: "runtime://g_done/actions/found/output"
            .parse()
            .expect("a reference"),
        reason: reason.to_owned(),
        range,
    };
    let around = Range {
        around_matches: true,
        context_lines: 1,
        ..Range::default()
    };
    let lines = Range {
        from: Some(11),
        lines: Some(2),
        ..Range::default()
    };
    let all = [
        item(around, "Where is the disk full?"),
        item(lines, ""),
        item(Range::default(), ""),
        item(Range::default(), ""),
    ];
    let answers = expand(&all, &mut |_| Some(long()), &estimate);
    assert_eq!(
        answers[0].text,
        "[…]\nline 1499: all well\nline 1500: error: disk full\nline 1501: all well\n[…]"
    );
    assert_eq!(answers[1].text, "line 10: all well\nline 11: all well");
    assert!(answers.iter().all(|one| one.tokens <= 3_000));
    assert!(answers.iter().map(|one| one.tokens).sum::<usize>() <= 8_000);
    let missing = expand(&all[..1], &mut |_| None, &estimate);
    assert_eq!(missing[0].why, Some("missing"));
}

/// A graph of a source and actions that bind its output so many times each.
fn binding(actions: usize, references: usize, report: Value) -> Graph {
    let bound: Vec<_> = (0..references)
        .map(|_| json!({"$ref": "action:source.output"}))
        .collect();
    let input = json!({"path": "a", "all": bound});
    let list = json!({"executor": {"type": "tool", "target": "list"}, "input": input});
    let rest = (0..actions).map(|n| read_action(&format!("a{n}"), list.clone()));
    let all: Vec<_> = std::iter::once(reads("source")).chain(rest).collect();
    let mut declared = envelope(json!(all), json!({}));
    declared["payload"]["report"] = report;
    let mut graph = graph_of(&world(), &fenced(&declared, ""));
    play(&mut graph, &|_| ok(json!("x".repeat(60 << 10))));
    graph
}

#[test]
fn turns_bound_the_values_of_references() {
    let graph = binding(31, 3, Value::Null);
    assert_eq!(graph.status(), GraphStatus::Completed);
    let turn = TranscriptTurn::Protocol(protocol_turn(&graph, Why::Finished, budget()));
    let text = render(&[turn]);
    assert!(text.len() < 100 << 10, "{}", text.len());
    assert!(text.contains("\"$ref\": \"action:source.output\""));
}

#[test]
fn refuses_inputs_that_references_make_too_large() {
    let graph = binding(1, 18, Value::Null);
    let node = graph.node(&"a0".into()).expect("an action");
    let error = node.error.as_ref().expect("an error");
    assert_eq!(error.code, Code::ArgsTooLarge);
    assert_eq!(binding(1, 16, Value::Null).status(), GraphStatus::Completed);
}

#[test]
fn reports_shorten_repeated_results() {
    let section = json!({"heading": "Again", "ref": "action:source.output"});
    let graph = binding(1, 1, json!({"title": "T", "sections": vec![section; 32]}));
    let spec = graph.info.report.as_ref().expect("a report");
    let text = render_report(&graph, spec).expect("all parts");
    assert!(text.len() < (1 << 20) + 4_096, "{}", text.len());
    assert!(text.ends_with("(shortened: action:source.output)"));
}

/// The transcript of a `for_each` over 200 items with these further fields.
fn sliced(more: Value) -> (Graph, String) {
    let source = reads("source");
    let mut each = json!({"items": "action:source.output", "max": 64});
    for (key, value) in more.as_object().expect("fields") {
        each[key] = value.clone();
    }
    let work = read_action(
        "work",
        json!({"for_each": each, "input": {"path": {"$ref": "item"}}}),
    );
    let mut graph = graph_of(&world(), &block(json!([source, work])));
    let list: Vec<_> = (0..200).map(|n| format!("file {n}")).collect();
    play(&mut graph, &|id| match id {
        "source" => ok(json!(list)),
        _ => ok(json!("read")),
    });
    let turn = TranscriptTurn::Protocol(protocol_turn(&graph, Why::Finished, budget()));
    let text = render(&[turn]);
    (graph, text)
}

#[test]
fn slices_of_lists_name_what_is_left() {
    for (more, items, first, note) in [
        (
            json!({"rest": "leave"}),
            64,
            "file 0",
            Some("136 items of the list are left: continue with `from` 64."),
        ),
        (
            json!({"rest": "leave", "max": 3}),
            3,
            "file 0",
            Some("197 items of the list are left: continue with `from` 3."),
        ),
        (
            json!({"rest": "leave", "from": 64}),
            64,
            "file 64",
            Some("72 items of the list are left: continue with `from` 128."),
        ),
        (json!({"from": 190}), 10, "file 190", None),
        (json!({"from": 900}), 0, "", None),
    ] {
        let (graph, text) = sliced(more.clone());
        assert_eq!(graph.status(), GraphStatus::Completed, "{more}");
        assert_eq!(graph.instances(&"work".into()).count(), items, "{more}");
        let input = graph
            .node(&"work[0]".into())
            .and_then(|node| node.input.clone());
        let path = input.map(|input| input["path"].clone());
        assert_eq!(path.unwrap_or_else(|| json!("")), first, "{more}");
        match note {
            Some(note) => assert!(text.contains(note), "{more}: {text}"),
            None => assert!(!text.contains("are left"), "{more}: {text}"),
        }
    }
    let (graph, _) = sliced(json!({"from": 1}));
    let error = graph
        .node(&"work".into())
        .and_then(|node| node.error.clone());
    assert_eq!(error.expect("an error").code, Code::FanOutTooLarge);
}
