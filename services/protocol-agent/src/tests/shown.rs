//! The user's view: streamed answers, projections, calls.

use action_graph::project::{Patch, Projection, apply};
use serde_json::{Value, json};

use crate::testing::*;

#[tokio::test]
async fn streams_answers_after_classification() {
    let host = GraphTestHost::new();
    host.says([
        act("I look.", &[call("a", "tool", "look", &json!({}), &[])]),
        answer("A long answer that comes in pieces."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    let mut shown = String::new();
    let mut is_streamed = false;
    for result in &results {
        if result.kind == "message.completed" {
            is_streamed = shown == "A long answer that comes in pieces.";
        }
        if result.kind != "message.delta" {
            continue;
        }
        let chunk = &result.data["chunk"];
        match chunk.get("all_content").and_then(Value::as_str) {
            Some(full) => full.clone_into(&mut shown),
            None => shown.push_str(chunk["content"].as_str().unwrap_or_default()),
        }
        assert!(
            !shown.contains("AgentProtocol") && !shown.contains("calls"),
            "{shown}"
        );
    }
    assert!(is_streamed, "{shown}");
    let deltas = all(&results, "message.delta");
    assert!(deltas.len() > 3, "{}", deltas.len());
    assert_eq!(
        deltas[0]["chunk"]["content"], "I look.",
        "the note comes at once"
    );
}

#[tokio::test]
async fn projections_are_complete_then_patches() {
    let host = GraphTestHost::new();
    host.says([
        act(
            "I look.",
            &[
                call("a", "tool", "look", &json!({}), &[]),
                call("b", "tool", "look", &json!({"x": 2}), &["a"]),
            ],
        ),
        answer("Done."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    let shown = all(&results, "x.graph.projection");
    let forms: Vec<_> = shown
        .iter()
        .map(|one| one["form"].as_str().unwrap())
        .collect();
    assert_eq!(forms.first(), Some(&"whole"));
    assert_eq!(forms.last(), Some(&"whole"));
    let mut projection: Projection =
        serde_json::from_value(shown[0]["projection"].clone()).unwrap();
    for one in &shown[1..shown.len() - 1] {
        assert_eq!(one["form"], "patch");
        let patch: Patch = serde_json::from_value(one["patch"].clone()).unwrap();
        projection = apply(projection, &patch);
    }
    let last: Projection =
        serde_json::from_value(shown.last().unwrap()["projection"].clone()).unwrap();
    assert_eq!(last.progress.done, 2);
    assert_eq!(last.note, "I look.");
    assert_eq!(json!(last.status), "completed");
}

/// The same output, with thoughts in it as hosts pass them on.
fn thinking(mut output: protocol::message::Message, thought: &str) -> protocol::message::Message {
    let fields =
        json!({"reasoning_content": thought, "reasoning": thought, "finish_reason": "stop"});
    output.provider_specific_fields = fields.as_object().cloned();
    output
}

#[tokio::test]
async fn reasoning_is_never_replayed() {
    const THOUGHT: &str = "the user must be an otter";
    let host = GraphTestHost::new();
    let look = call("a", "tool", "look", &json!({"x": 1}), &[]);
    host.says([
        thinking(act("I look.", &[look]), THOUGHT),
        thinking(answer("Seen."), THOUGHT),
        thinking(answer("Later."), THOUGHT),
    ]);
    let first = context("hi", &json!({}));
    let mut results = run(&host, first.clone()).await;
    let mut next = later(&first, &new_run(), "e-2");
    next.input.text = Some("and now?".to_owned());
    results.extend(run(&host, next).await);
    assert_eq!(host.model_calls(), 3);
    for request in &host.script().requests {
        assert!(request.remove_think, "the host takes thoughts out of texts");
        let request = serde_json::to_string(request).unwrap();
        assert!(!request.contains(THOUGHT), "{request}");
    }
    let results = serde_json::to_string(&results).unwrap();
    assert!(!results.contains(THOUGHT), "{results}");
    let world = host.memory.world();
    let records = format!("{:?}", world.documents);
    assert!(!records.contains(THOUGHT));
}

#[tokio::test]
async fn details_refs_lead_to_stored_declarations() {
    let host = GraphTestHost::new();
    let note = call("n", "tool", "note", &json!({"x": "remember the milk"}), &[]);
    host.says([act("I note it.", &[note]), answer("Noted.")]);
    let first = context("note it", &json!({}));
    let results = run(&host, first.clone()).await;
    let shown = all(&results, "x.graph.projection");
    let details = shown[0]["projection"]["details_ref"].as_str().unwrap();
    let expand = json!({"refs": [{"ref": details}]});
    host.says([
        act(
            "More.",
            &[call("e", "tool", "runtime.expand", &expand, &[])],
        ),
        answer("As declared."),
    ]);
    let mut next = later(&first, &new_run(), "e-2");
    next.input.text = Some("what did you declare?".to_owned());
    assert_eq!(final_message(&run(&host, next).await), "As declared.");
    let request = host.request(3);
    let expanded = request.rfind("More of stored results").unwrap();
    for part in [
        "AgentProtocolOutput",
        "\"kind\":\"act\"",
        "remember the milk",
    ] {
        assert!(request[expanded..].contains(part), "{part} in {request}");
    }
}

#[tokio::test]
async fn call_ids_name_graph_action_and_attempt() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Says(json!({"n": 1}))]);
    host.says([
        act("x", &[call("a", "tool", "look", &json!({"x": 1}), &[])]),
        answer("Done."),
    ]);
    let results = run(&host, context("hi", &json!({}))).await;
    let started = all(&results, "tool.call.started");
    let completed = all(&results, "tool.call.completed");
    let id = started[0]["tool_call_id"].as_str().unwrap();
    assert!(id.starts_with("g_") && id.ends_with("/a/1"), "{id}");
    assert_eq!(completed[0]["tool_call_id"], id);
    assert_eq!(started[0]["parameters"], json!({"x": 1}));
    assert_eq!(completed[0]["result"], json!({"n": 1}));
}
