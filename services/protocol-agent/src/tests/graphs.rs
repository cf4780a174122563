//! Graphs of tools: parallel work, bindings, failures, words of the runtime.

use serde_json::{Value, json};

use crate::testing::*;

fn look(id: &str, args: &Value, depends: &[&str]) -> Value {
    call(id, "tool", "look", args, depends)
}

#[tokio::test]
async fn runs_independent_calls_together() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Together(2, json!("seen"))]);
    host.says([
        act(
            "I look twice.",
            &[
                look("a", &json!({"x": 1}), &[]),
                look("b", &json!({"x": 2}), &[]),
            ],
        ),
        answer("Both seen."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Both seen.");
    assert_eq!(host.calls().len(), 2);
    let request = host.request(1);
    has_parts(
        &request,
        &[
            "### Result for a",
            "### Result for b",
            "Status: completed",
            "seen",
        ],
    );
}

#[tokio::test]
async fn bindings_keep_their_types() {
    let host = GraphTestHost::new();
    host.tool(
        "look",
        [
            ToolReply::Says(json!({"list": [1, 2], "name": "n"})),
            ToolReply::Says(json!("ok")),
        ],
    );
    let bound = json!({"x": {"$ref": "action:a.output#/list"}});
    host.says([
        act("x", &[look("a", &json!({}), &[]), look("b", &bound, &[])]),
        answer("Done."),
    ]);
    run(&host, context("hi", &json!({}))).await;
    assert_eq!(host.calls()[1].1, json!({"x": [1, 2]}));
}

#[tokio::test]
async fn failed_calls_reach_the_model() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Fails("runtime_error")]);
    host.says([
        act(
            "x",
            &[look("a", &json!({}), &[]), look("b", &json!({}), &["a"])],
        ),
        answer("It failed."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "It failed.");
    let request = host.request(1);
    has_parts(
        &request,
        &["Reason: tool_error", "Status: blocked", "decide about a"],
    );
}

#[tokio::test]
async fn model_decides_about_failures() {
    let host = GraphTestHost::new();
    host.tool(
        "look",
        [
            ToolReply::Fails("runtime_error"),
            ToolReply::Says(json!("now")),
        ],
    );
    let decision = json!({"graph": "GRAPH", "action": "a", "choice": "retry", "input": {"x": 2}});
    let after = call("b", "tool", "note", &json!({}), &["a"]);
    host.says([
        act("x", &[look("a", &json!({"x": 1}), &[]), after]),
        act(
            "Again.",
            &[call("d", "tool", "runtime.decide", &decision, &[])],
        ),
        answer("Done."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Done.");
    let calls = host.calls();
    let names: Vec<_> = calls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["look", "look", "note"]);
    assert_eq!(calls[1].1, json!({"x": 2}));
}

#[tokio::test]
async fn refused_decisions_reach_the_model() {
    let host = GraphTestHost::new();
    let decision = json!({"graph": "GRAPH", "action": "a", "choice": "retry"});
    host.says([
        act("x", &[look("a", &json!({}), &[])]),
        act(
            "Again.",
            &[call("d", "tool", "runtime.decide", &decision, &[])],
        ),
        answer("Then not."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Then not.");
    assert!(host.request(2).contains("not allowed in the present state"));
    assert_eq!(host.calls().len(), 1);
}

#[tokio::test]
async fn expansions_are_turns_of_their_own() {
    let host = GraphTestHost::new();
    let lines: Vec<_> = (0..3_000).map(|line| format!("line {line}")).collect();
    host.tool("look", [ToolReply::Says(json!(lines.join("\n")))]);
    let reference = json!({"refs": [{
        "ref": "runtime://runs/GRAPH/actions/a/output", "range": {"around_matches": true, "match": "line 2711"},
    }]});
    host.says([
        act("x", &[look("a", &json!({}), &[])]),
        act(
            "More.",
            &[call("e", "tool", "runtime.expand", &reference, &[])],
        ),
        answer("Found."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Found.");
    assert!(!host.request(1).contains("line 2711"));
    let request = host.request(2);
    has_parts(
        &request,
        &[
            "More of stored results",
            "line 2710",
            "line 2711",
            "line 2712",
        ],
    );
}

#[tokio::test]
async fn plans_run_once_decided() {
    let host = GraphTestHost::new();
    let plan = json!({"type": "agent.protocol", "version": "1", "intent": "plan", "title": "Plan", "payload": {
    "type": "action_graph", "actions": [
        {"type": "action", "id": "a", "title": "a", "executor": {"type": "tool", "target": "look"}, "input": {}},
    ]}});
    let decide = json!({"type": "agent.protocol", "version": "1", "intent": "decide", "payload": {
        "type": "decision", "graph": "GRAPH", "choice": "execute"}});
    host.says([fence(&plan), fence(&decide), text("Planned and done.")]);
    let results = run(&host, context("hi", &json!({"carrier": "fenced"}))).await;
    assert_eq!(final_message(&results), "Planned and done.");
    host.sees(1, "planned, nothing runs");
    assert_eq!(host.calls().len(), 1);
}

#[tokio::test]
async fn revisions_replace_actions_that_have_not_started() {
    let host = GraphTestHost::new();
    host.tool(
        "look",
        [ToolReply::Fails("runtime_error"), ToolReply::Echoes],
    );
    let action = |id: &str, x: u8, depends: &[&str]| {
        json!({"type": "action", "id": id, "title": id, "executor": {"type": "tool", "target": "look"},
            "input": {"x": x}, "depends_on": depends})
    };
    let graph = |intent: &str, actions: &[Value]| {
        json!({"type": "agent.protocol", "version": "1", "intent": intent, "title": "Work", "base": "GRAPH",
            "payload": {"type": "action_graph", "actions": actions}})
    };
    let mut first = graph("execute", &[action("a", 1, &[]), action("b", 2, &["a"])]);
    first.as_object_mut().unwrap().remove("base");
    host.says([
        fence(&first),
        fence(&graph("revise", &[action("c", 3, &[])])),
        text("Revised."),
    ]);
    let results = run(&host, context("hi", &json!({"carrier": "fenced"}))).await;
    assert_eq!(final_message(&results), "Revised.", "{}", host.request(1));
    assert_eq!(host.calls().len(), 2, "{}", host.request(2));
    assert_eq!(host.calls()[1].1, json!({"x": 3}));
}

#[tokio::test]
async fn lists_run_once_per_item() {
    let host = GraphTestHost::new();
    host.tool(
        "look",
        [
            ToolReply::Says(json!(["a", "b", "c"])),
            ToolReply::Echoes,
            ToolReply::Fails("runtime_error"),
            ToolReply::Echoes,
        ],
    );
    let actions = json!([
        {"type": "action", "id": "list", "title": "list", "executor": {"type": "tool", "target": "look"}, "input": {}},
        {"type": "action", "id": "each", "title": "each", "executor": {"type": "tool", "target": "look"},
            "input": {"x": {"$ref": "item"}}, "for_each": {"items": "action:list.output", "max": 5, "max_failures": 1}},
    ]);
    let declaration = json!({"type": "agent.protocol", "version": "1", "intent": "execute", "title": "Work",
        "payload": {"type": "action_graph", "actions": actions}});
    host.says([fence(&declaration), text("Two of three.")]);
    let results = run(
        &host,
        context("hi", &json!({"carrier": "fenced", "max-parallel": 1})),
    )
    .await;
    assert_eq!(final_message(&results), "Two of three.");
    assert_eq!(host.calls().len(), 4);
    let request = host.request(1);
    assert!(request.contains("each[1]"), "{request}");
    assert!(request.contains("Status: completed"), "{request}");
}

#[tokio::test(start_paused = true)]
async fn waits_and_merges_without_tools() {
    let host = GraphTestHost::new();
    host.tool(
        "look",
        [ToolReply::Says(json!("one")), ToolReply::Says(json!("two"))],
    );
    let refs = json!({"refs": [{"$ref": "action:a.output"}, {"$ref": "action:b.output"}]});
    host.says([
        act(
            "x",
            &[
                call("w", "tool", "runtime.wait", &json!({"ms": 5_000}), &[]),
                look("a", &json!({}), &["w"]),
                look("b", &json!({}), &["a"]),
                call("m", "tool", "runtime.merge", &refs, &[]),
                call("c", "tool", "runtime.checkpoint", &json!({}), &["m"]),
            ],
        ),
        answer("Done."),
    ]);
    let began = tokio::time::Instant::now();
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Done.");
    assert!(began.elapsed().as_secs() >= 5);
    let request = host.request(1);
    assert!(request.contains("one\n\ntwo"), "{request}");
}

#[tokio::test]
async fn reads_shortened_results_from_their_artifact() {
    let host = GraphTestHost::new();
    let full = "line\n".repeat(1_000);
    let short =
        json!({"truncated": true, "bytes": full.len(), "preview": "line", "artifact_id": "f-1"});
    host.script()
        .artifacts
        .insert("f-1".to_owned(), full.into_bytes());
    host.tool("look", [ToolReply::Says(short)]);
    host.says([act("x", &[look("a", &json!({}), &[])]), answer("Done.")]);
    run(&host, context("hi", &json!({}))).await;
    let request = host.request(1);
    assert!(request.contains("1000 lines, 5000 bytes"), "{request}");
    assert!(request.contains("artifact://f-1"), "{request}");
}

#[tokio::test]
async fn searches_knowledge_by_tool() {
    let host = GraphTestHost::new();
    host.script().passages = vec!["The answer is 42.".to_owned()];
    host.says([
        act(
            "x",
            &[call(
                "k",
                "tool",
                "knowledge.search",
                &json!({"query": "answer"}),
                &[],
            )],
        ),
        answer("42."),
    ]);
    run(&host, context("hi", &json!({"knowledge-bases": ["docs"]}))).await;
    host.sees(0, "`knowledge.search(query");
    assert!(host.request(1).contains("The answer is 42."));
}

#[tokio::test]
async fn remotes_are_called_by_host_tools() {
    let host = GraphTestHost::new();
    host.tool("note", [ToolReply::Says(json!({"ok": true}))]);
    let config = json!({"carrier": "fenced", "remotes": [
        {"name": "ci", "type": "pipeline", "tool": "note", "arguments": {"x": "fixed"}, "effects": ["read"]},
        {"name": "gone", "type": "service", "tool": "no_such_tool"},
    ]});
    let pipeline = |name: &str, kind: &str| {
        json!({
            "type": "agent.protocol", "version": "1", "intent": "execute", "title": "Work", "payload": {"type": "action_graph", "actions": [
                {"type": "action", "id": "p", "title": "p", "executor": {"type": kind, "target": name}, "input": {"x": "model"}},
            ]},
        })
    };
    host.says([
        fence(&pipeline("gone", "service")),
        fence(&pipeline("ci", "pipeline")),
        text("Built."),
    ]);
    let results = run(&host, context("hi", &config)).await;
    assert_eq!(final_message(&results), "Built.");
    host.sees(1, "`unavailable`");
    assert_eq!(host.calls(), [("note".to_owned(), json!({"x": "fixed"}))]);
}
