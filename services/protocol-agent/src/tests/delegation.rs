//! Delegation: actions as child runs, and this agent as a child.

use protocol::id::RunId;
use serde_json::{Value, json};
use uuid::Uuid;

use super::humans::{answers, asks};
use crate::testing::*;

fn delegate() -> Value {
    call(
        "text",
        "agent",
        "writer",
        &json!({"prompt": "Write a poem."}),
        &[],
    )
}

/// A run that delegates to a child with this fate, and the request that the model sees then.
async fn delegated(fate: Value) -> (GraphTestHost, Vec<protocol::result::AgentRunResult>) {
    let host = GraphTestHost::new();
    host.script().children.push_back(fate);
    let after = call("after", "tool", "look", &json!({}), &["text"]);
    host.says([act("I delegate.", &[delegate(), after]), answer("Done.")]);
    let results = run(&host, context("write", &json!({}))).await;
    (host, results)
}

#[tokio::test]
async fn child_that_is_done_opens_edges() {
    let (host, results) = delegated(json!({"status": "completed", "text": "Roses are red."})).await;
    assert_eq!(final_message(&results), "Done.");
    assert_eq!(host.calls().len(), 1);
    assert!(host.request(1).contains("Roses are red."));
    let script = host.script();
    let (request, _) = &script.spawned[0];
    assert_eq!(request.agent_id, "a-1");
    let text = request.input.text.clone().unwrap();
    has_parts(
        &text,
        &[
            "<task>\nWrite a poem.\n</task>",
            "Expected result: summary",
            "You cannot ask the user",
        ],
    );
}

#[tokio::test]
async fn child_that_is_not_done_is_delivered_alone() {
    let fate = json!({"status": "completed", "outcome": "not_done", "text": "No paper."});
    let (host, results) = delegated(fate).await;
    assert_eq!(final_message(&results), "Done.");
    assert_eq!(host.calls(), []);
    let request = host.request(1);
    has_parts(
        &request,
        &["The work is not done.", "No paper.", "Status: blocked"],
    );
}

#[tokio::test]
async fn child_that_failed_is_a_failure() {
    let error = json!({"code": "runner.error", "message": "it broke", "retryable": false});
    let (host, _) = delegated(json!({"status": "failed", "error": error})).await;
    let request = host.request(1);
    assert!(
        request.contains("Reason: child_failed, it broke"),
        "{request}"
    );
    assert_eq!(host.calls(), []);
}

#[tokio::test(start_paused = true)]
async fn next_run_follows_earlier_child() {
    let host = GraphTestHost::new();
    let send = call("mail", "tool", "send", &json!({"x": 1}), &[]);
    host.says([act("Both.", &[delegate(), send])]);
    let context = context("write and send", &json!({}));
    let results = run(&host, context.clone()).await;
    assert_eq!(
        ending(&results),
        ("run.completed", "waiting_child"),
        "a question ends the run, the child continues"
    );
    let child = host.script().spawned[0].1;
    assert_eq!(host.script().cancelled_children, Vec::<RunId>::new());
    host.end_child(child, json!({"status": "completed", "text": "A poem."}));
    host.says([answer("Both done.")]);
    let id = questions(&results)[0]["interaction_id"]
        .as_str()
        .unwrap()
        .to_owned();
    let answer = submitted(&context, &new_run(), &id, "allow_once", &json!({}));
    let results = run(&host, answer).await;
    assert_eq!(final_message(&results), "Both done.");
    host.sees(1, "A poem.");
    assert_eq!(
        host.script().spawned.len(),
        1,
        "the child is not started again"
    );
}

#[tokio::test(start_paused = true)]
async fn run_waits_for_its_child_beside_an_older_question() {
    let host = GraphTestHost::new();
    let pending = asks(
        &host,
        &[call("mail", "tool", "send", &json!({"x": 1}), &[])],
    )
    .await;
    host.says([
        act("I delegate.", &[delegate()]),
        answer("A poem is there."),
    ]);
    let message = later(&pending.0, &new_run(), "e-2");
    let child_ends = async {
        let child = loop {
            let spawned = host.script().spawned.first().map(|(_, run)| *run);
            match spawned {
                Some(run) => break run,
                None => tokio::task::yield_now().await,
            }
        };
        host.end_child(child, json!({"status": "completed", "text": "A poem."}));
    };
    let (results, ()) = tokio::join!(run(&host, message), child_ends);
    assert_eq!(final_message(&results), "A poem is there.");
    assert_eq!(ending(&results), ("run.completed", "stop"));
    host.says([answer("Sent.")]);
    let results = answers(&host, &pending, "allow_once", &json!({})).await;
    assert_eq!(
        final_message(&results),
        "Sent.",
        "the older question is still open"
    );
}

#[tokio::test]
async fn delegation_off_hides_agents() {
    let host = GraphTestHost::new();
    host.says([act("x", &[delegate()]), answer("Alone.")]);
    run(&host, context("write", &json!({"delegation": "off"}))).await;
    assert!(!host.request(0).contains("# Agents"));
    host.sees(1, "`unknown_agent`");
}

#[tokio::test]
async fn delegated_run_reports_its_outcome() {
    for (outcome, expected) in [
        (json!("not_done"), "not_done"),
        (json!("need_input"), "need_input"),
        (Value::Null, "ok"),
    ] {
        let host = GraphTestHost::new();
        host.script().parent = Some(RunId(Uuid::new_v4()));
        let mut arguments = json!({"kind": "answer", "message": "So far."});
        if !outcome.is_null() {
            arguments["outcome"] = outcome;
        }
        host.says([carrier(&arguments)]);
        let results = run(&host, context("task", &json!({}))).await;
        assert_eq!(results.last().unwrap().data["outcome"], expected);
        let script = host.script();
        let schema = serde_json::to_string(&script.requests[0].tools[0].parameters).unwrap();
        assert!(schema.contains("need_input"), "{schema}");
    }
}

#[tokio::test]
async fn run_of_a_user_has_no_outcome() {
    let host = GraphTestHost::new();
    host.says([answer("Hi.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert!(results.last().unwrap().data.get("outcome").is_none());
    let script = host.script();
    let schema = serde_json::to_string(&script.requests[0].tools[0].parameters).unwrap();
    assert!(!schema.contains("outcome"), "{schema}");
}

/// A delegation to the writer with these arguments, as the model, the person and the host observe it.
async fn delegation_with(
    authority: &Value,
    config: &Value,
) -> (GraphTestHost, Vec<protocol::result::AgentRunResult>) {
    let host = GraphTestHost::new();
    let mut arguments = json!({"prompt": "Write."});
    if !authority.is_null() {
        arguments["authority"] = authority.clone();
    }
    let text = call("text", "agent", "writer", &arguments, &[]);
    let fate = json!({"status": "completed", "text": "Done."});
    host.script().children.push_back(fate);
    host.says([act("I delegate.", &[text]), answer("Done.")]);
    let results = run(&host, context("write", config)).await;
    (host, results)
}

#[tokio::test]
async fn child_gets_no_tool_that_needs_approval() {
    let remote =
        json!([{"name": "booking", "type": "service", "tool": "mystery", "effects": ["purchase"]}]);
    for (authority, config, tools) in [
        (Value::Null, json!({}), json!(["look", "note", "mystery"])),
        (
            json!({"models": ["m"]}),
            json!({}),
            json!(["look", "note", "mystery"]),
        ),
        (json!({"tools": ["look"]}), json!({}), json!(["look"])),
        (json!({"tools": []}), json!({}), json!([])),
        (
            Value::Null,
            json!({"approve": ["write"]}),
            json!(["look", "send", "mystery"]),
        ),
        (
            Value::Null,
            json!({"approve": [], "forbid": ["external"]}),
            json!(["look", "note", "mystery"]),
        ),
        (
            Value::Null,
            json!({"effects": {"note": {"effects": ["publish"]}}}),
            json!(["look", "mystery"]),
        ),
        // The same call under the name of a remote.
        (
            Value::Null,
            json!({"remotes": remote}),
            json!(["look", "note"]),
        ),
    ] {
        let (host, results) = delegation_with(&authority, &config).await;
        assert_eq!(final_message(&results), "Done.", "{authority} {config}");
        let grants = host.script().spawned[0].0.grants.clone().unwrap();
        assert_eq!(json!(grants.tools), tools, "{authority} {config}");
    }
}

#[tokio::test]
async fn approved_delegation_gives_named_tools() {
    let authority = json!({"tools": ["send", "look"]});
    let (host, results) = delegation_with(&authority, &json!({})).await;
    assert_eq!(ending(&results), ("run.completed", "waiting_user"));
    assert_eq!(host.script().spawned, []);
    let question = &questions(&results)[0];
    let text = question["description"].as_str().unwrap();
    has_parts(text, &["`writer` (external, unknown)", "\"send\""]);
    let id = question["interaction_id"].as_str().unwrap();
    let run_id = new_run();
    let answer = submitted(
        &context("", &json!({})),
        &run_id,
        id,
        "allow_once",
        &json!({}),
    );
    run(&host, answer).await;
    let grants = host.script().spawned[0].0.grants.clone().unwrap();
    assert_eq!(json!(grants.tools), authority["tools"]);
}

#[tokio::test]
async fn forbidden_tools_are_never_given() {
    let authority = json!({"tools": ["send"]});
    let (host, _) = delegation_with(&authority, &json!({"forbid": ["external"]})).await;
    assert_eq!(host.script().spawned, []);
    let request = host.request(1);
    assert!(request.contains("`effects_forbidden`"), "{request}");
}

#[tokio::test]
async fn bound_names_of_tools_give_nothing() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Says(json!(["send"]))]);
    let bound =
        json!({"prompt": "Write.", "authority": {"tools": {"$ref": "action:names.output"}}});
    let names = call("names", "tool", "look", &json!({}), &[]);
    let text = call("text", "agent", "writer", &bound, &["names"]);
    host.says([act("I delegate.", &[names, text]), answer("Alone.")]);
    run(&host, context("write", &json!({}))).await;
    assert_eq!(host.script().spawned, []);
    let request = host.request(1);
    assert!(request.contains("Reason: not_granted"), "{request}");
}
