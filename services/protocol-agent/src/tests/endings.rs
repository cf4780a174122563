//! Cancel, deadline, limits, steering, and failures of the host.

use runner_kit::CancellationToken;
use serde_json::{Value, json};

use crate::testing::script::steering;
use crate::testing::*;

fn look(id: &str, args: &Value) -> Value {
    call(id, "tool", "look", args, &[])
}

/// Cancels a run at its first call of a tool.
async fn cancelled(
    host: &GraphTestHost,
    context: protocol::context::AgentRunContext,
) -> Vec<protocol::result::AgentRunResult> {
    let cancel = CancellationToken::new();
    let stop = async {
        host.called.notified().await;
        host.script().is_cancelled = true;
        cancel.cancel();
    };
    let (results, ()) = tokio::join!(run_until(host, context, cancel.clone()), stop);
    results
}

#[tokio::test(start_paused = true)]
async fn cancel_during_a_tool_ends_the_run() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Hangs]);
    host.says([act("I look.", &[look("a", &json!({}))])]);
    let results = cancelled(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", "cancelled"));
    let shown = all(&results, "x.graph.projection");
    assert_eq!(shown.last().unwrap()["projection"]["status"], "canceled");
}

#[tokio::test(start_paused = true)]
async fn cancelled_graph_precedes_the_next_request() {
    for is_durable in [false, true] {
        let host = GraphTestHost::new();
        host.tool("note", [ToolReply::Hangs]);
        let effects = if is_durable {
            json!(["write"])
        } else {
            json!(["read"])
        };
        let config = json!({"effects": {"note": {"effects": effects, "idempotency": "keyed"}}});
        let context = context("note it", &config);
        host.says([act(
            "I note it.",
            &[call("n", "tool", "note", &json!({"x": 1}), &[])],
        )]);
        cancelled(&host, context.clone()).await;
        host.script().is_cancelled = false;
        host.says([answer("Fine.")]);
        let mut next = later(&context, &new_run(), "e-2");
        next.input.text = Some("something else".to_owned());
        run(&host, next).await;
        let request = host.request(1);
        let observed = request.find("### Result for n").expect("it is observed");
        assert!(
            observed < request.find("something else").unwrap(),
            "{request}"
        );
        assert_eq!(request.matches("### Result for n").count(), 1, "{request}");
    }
}

#[tokio::test]
async fn answer_after_failed_graph_says_so() {
    let host = GraphTestHost::new();
    host.tool(
        "look",
        [
            ToolReply::Fails("runtime_error"),
            ToolReply::Says(json!("seen")),
        ],
    );
    let again = look("b", &json!({"x": 2}));
    host.says([
        act("I look.", &[look("a", &json!({"x": 1}))]),
        answer("It failed."),
        act("I look.", &[look("a", &json!({"x": 1}))]),
        act("I look again.", &[again]),
        answer("It is there."),
    ]);
    let first = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&first), ("run.completed", "actions_failed"));
    host.tool(
        "look",
        [
            ToolReply::Fails("runtime_error"),
            ToolReply::Says(json!("seen")),
        ],
    );
    let next = later(&context("hi", &json!({})), &new_run(), "e-2");
    assert_eq!(ending(&run(&host, next).await), ("run.completed", "stop"));
}

#[tokio::test(start_paused = true)]
async fn cancel_ends_child_runs() {
    let host = GraphTestHost::new();
    host.says([act(
        "I delegate.",
        &[call("t", "agent", "writer", &json!({"prompt": "x"}), &[])],
    )]);
    let results = cancelled(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", "cancelled"));
    let script = host.script();
    assert_eq!(script.cancelled_children, [script.spawned[0].1]);
}

#[tokio::test(start_paused = true)]
async fn server_stop_leaves_stored_graphs_for_next_run() {
    let host = GraphTestHost::new();
    host.tool("note", [ToolReply::Hangs, ToolReply::Says(json!("noted"))]);
    let config = json!({"effects": {"note": {"effects": ["write"], "idempotency": "keyed"}}});
    let context = context("note it", &config);
    host.says([act(
        "I note it.",
        &[call("n", "tool", "note", &json!({"x": 1}), &[])],
    )]);
    let cancel = CancellationToken::new();
    let stop = async {
        host.called.notified().await;
        cancel.cancel();
    };
    let (results, ()) = tokio::join!(run_until(&host, context.clone(), cancel.clone()), stop);
    assert_eq!(ending(&results), ("run.failed", "cancelled"));
    host.says([answer("Noted.")]);
    let mut next = later(&context, &new_run(), "e-2");
    next.input.text = Some("continue".to_owned());
    let results = run(&host, next).await;
    assert_eq!(final_message(&results), "Noted.");
    assert_eq!(
        host.calls().len(),
        2,
        "the call is sent again under its key"
    );
    host.sees(1, "noted");
}

#[tokio::test]
async fn steering_becomes_a_turn_of_the_user() {
    let host = GraphTestHost::new();
    host.script()
        .steering
        .extend([Vec::new(), vec![steering("in French, please")]]);
    host.says([act("I look.", &[look("a", &json!({}))]), answer("Bonjour.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Bonjour.");
    let request = host.request(1);
    let observed = request.find("### Result for a").unwrap();
    let steered = request.find("in French, please").unwrap();
    assert!(observed < steered, "{request}");
}

#[tokio::test]
async fn declarations_are_limited() {
    let host = GraphTestHost::new();
    for number in 0..26 {
        host.says([act("More.", &[look("a", &json!({"x": number}))])]);
    }
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.completed", "limit"));
    assert_eq!(host.calls().len(), 24);
    assert_eq!(host.model_calls(), 25);
    let text = final_message(&results);
    has_parts(
        &text,
        &["24 declarations", "Done:\n- a", "Tell me how to continue."],
    );
    assert!(host.request(24).contains("Limits: 0 declarations left"));
}

#[tokio::test]
async fn tokens_are_limited() {
    let host = GraphTestHost::new();
    let more = |x: u8| act("I look.", &[look("a", &json!({"x": x}))]);
    host.says([more(1), more(2), answer("too late")]);
    let results = run(&host, context("hi", &json!({"max-tokens": 200}))).await;
    assert_eq!(ending(&results), ("run.completed", "limit"));
    assert_eq!((host.model_calls(), host.calls().len()), (2, 1));
    let text = final_message(&results);
    assert!(
        text.contains("the 200 tokens of this run are used up"),
        "{text}"
    );
    assert!(text.contains("Done:\n- a"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn deadline_reports_completed_actions() {
    let host = GraphTestHost::new();
    host.tool("look", [ToolReply::Says(json!("seen")), ToolReply::Hangs]);
    let after = call("b", "tool", "look", &json!({"x": 2}), &["a"]);
    host.says([act("I look.", &[look("a", &json!({})), after])]);
    let results = run(&host, context("hi", &json!({"timeout": 60}))).await;
    assert_eq!(ending(&results), ("run.completed", "limit"));
    let text = final_message(&results);
    has_parts(
        &text,
        &[
            "the time of this run is over",
            "Done:\n- a",
            "Not done:\n- b",
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn silent_model_ends_by_the_deadline() {
    let host = GraphTestHost::new();
    host.script().models.push_back(ScriptedOutput::Hangs);
    let results = run(&host, context("hi", &json!({"timeout": 60}))).await;
    assert_eq!(ending(&results), ("run.completed", "limit"));
    assert!(final_message(&results).contains("the time of this run is over"));
}

#[tokio::test]
async fn models_are_tried_in_order() {
    let host = GraphTestHost::new();
    host.script()
        .models
        .push_back(ScriptedOutput::Fails("rate_limited"));
    host.says([answer("From the second.")]);
    let config = json!({"model": {"primary": "m", "fallbacks": ["n"]}});
    let results = run(&host, context("hi", &config)).await;
    assert_eq!(final_message(&results), "From the second.");
    let host = GraphTestHost::new();
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", "runner.llm_error"));
}

#[tokio::test]
async fn small_windows_get_shorter_requests() {
    let host = GraphTestHost::new();
    host.script().models.push_back(ScriptedOutput::Fails(
        "invalid_argument/context_length_exceeded",
    ));
    host.says([answer("Short.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(final_message(&results), "Short.");
}

#[tokio::test]
async fn rejected_records_start_no_effect() {
    let host = GraphTestHost::new();
    host.memory.fail("put_document", "runtime_error", 100);
    host.says([act(
        "I note it.",
        &[call("n", "tool", "note", &json!({}), &[])],
    )]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(
        ending(&results),
        ("run.failed", "protocol_agent.records_unavailable")
    );
    assert_eq!(results.last().unwrap().data["retryable"], true);
    assert_eq!(host.calls(), []);
}

#[tokio::test]
async fn event_without_input_fails() {
    let host = GraphTestHost::new();
    let results = run(&host, context("  ", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", "runner.no_input"));
}

#[tokio::test(start_paused = true)]
async fn lost_gateway_repeats_the_model_call() {
    let host = GraphTestHost::new();
    let lost = ScriptedOutput::Fails("callback.unreachable");
    host.script().models.push_back(lost);
    host.says([answer("Fine.")]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results).0, "run.completed");
    assert_eq!(final_message(&results), "Fine.");
    assert_eq!(host.model_calls(), 2);
}
