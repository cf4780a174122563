//! Calls with side effects: executed as the model meant them, and never twice.

use serde_json::{Value, json};

use crate::testing::{
    AnswerStep, ScriptedTool, TestHost, answer, call, context, end, ending, fail, kinds, run, text,
};

/// End of an answer with the provider's reason.
fn end_because(reason: &str) -> AnswerStep {
    let fields = json!({"finish_reason": reason});
    AnswerStep::Chunk(
        json!({"role": "assistant", "is_final": true, "provider_specific_fields": fields}),
    )
}

/// Tool messages after the first turn.
fn tool_messages(host: &TestHost) -> Vec<String> {
    let messages = host.request(1);
    let messages = messages.iter().filter(|message| message.role == "tool");
    messages
        .map(protocol::message::Message::plain_text)
        .collect()
}

/// Failure of a run whose model calls `tool` and then fails; `retryable` is true if a retry is safe.
async fn fails_after(tool: &str, effect: Option<&str>) -> Value {
    let host = TestHost::default();
    host.tool_says(tool, json!("done"));
    host.model("m", vec![call("c1", tool, &json!({})), end()]);
    host.model("m", vec![fail("runtime_error", "overloaded")]);
    let mut context = context("hi", &json!({}));
    for granted in &mut context.resources.tools {
        granted.effect = serde_json::from_value(json!(effect)).unwrap();
    }
    let results = run(&host, context).await;
    let last = results.last().unwrap();
    let message = last.data["message"].as_str().unwrap();
    assert!(message.starts_with("The model failed: "), "{message}");
    last.data["retryable"].clone()
}

#[tokio::test]
async fn marks_runs_with_side_effects_not_retryable() {
    assert_eq!(fails_after("send", None).await, false);
    assert_eq!(fails_after("send", Some("write")).await, false);
    assert_eq!(fails_after("send", Some("read")).await, true);
    assert_eq!(
        fails_after("unknown", None).await,
        true,
        "nothing was called"
    );
}

#[tokio::test]
async fn skips_possibly_truncated_calls() {
    for reason in ["length", "content_filter"] {
        let host = TestHost::default();
        host.tool_says("send", json!("sent"));
        let calls = json!([{"id": "c1", "type": "function", "function": {"name": "send", "arguments": "{\"to\": \"a"}}]);
        let cut = AnswerStep::Chunk(json!({"role": "assistant", "tool_calls": calls}));
        host.model("m", vec![cut, end_because(reason)]);
        host.model("m", vec![text("done"), end_because("stop")]);
        let results = run(&host, context("hi", &json!({}))).await;
        assert_eq!(host.calls("call_tool"), Vec::<String>::new());
        let [message] = &tool_messages(&host)[..] else {
            panic!("{:?}", tool_messages(&host))
        };
        assert!(
            message.contains("not made") && message.contains(reason),
            "{message}"
        );
        let messages = host.request(1);
        let mut calls = messages.iter().flat_map(|message| &message.tool_calls);
        let arguments = &calls.next().unwrap()[0].function.arguments;
        assert_eq!(arguments, "{}", "malformed arguments are not echoed");
        assert!(kinds(&results).contains(&"tool.call.completed"));
        assert_eq!(results.last().unwrap().data["finish_reason"], "stop");
    }
}

#[tokio::test]
async fn reports_finish_reason_of_truncated_answer() {
    for (reason, expected) in [
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("max_tokens", "length"),
        ("error", "error"),
        ("stop", "stop"),
        ("whatever", "stop"),
    ] {
        let host = TestHost::default();
        host.model("m", vec![text("It is"), end_because(reason)]);
        let results = run(&host, context("hi", &json!({}))).await;
        assert_eq!(ending(&results), ("run.completed", None));
        assert_eq!(results.last().unwrap().data["finish_reason"], expected);
    }
}

#[tokio::test]
async fn reports_unnamed_calls_to_model() {
    let host = TestHost::default();
    host.model("m", vec![call("c1", "", &json!({})), end()]);
    host.model("m", vec![text("done"), end()]);
    run(&host, context("hi", &json!({}))).await;
    let [message] = &tool_messages(&host)[..] else {
        panic!("{:?}", tool_messages(&host))
    };
    assert!(message.contains("Available tools: look, send"), "{message}");
}

#[tokio::test]
async fn reports_unknown_tool_outcome_to_model() {
    for (failing, effect, is_unknown) in [
        ("runtime_error/upstream_broken", None, true),
        ("deadline_exceeded/upstream_timeout", Some("write"), true),
        ("conflict/outcome_unknown", None, true),
        ("runtime_error/upstream_broken", Some("read"), false),
        ("runtime_error/upstream_unreachable", None, false),
        ("invalid_argument/upstream_refused", None, false),
    ] {
        let host = TestHost::default();
        let fails = ScriptedTool::Fails((failing, "no answer".to_owned()));
        host.script().tools.insert("send".to_owned(), fails);
        host.model("m", vec![call("c1", "send", &json!({})), end()]);
        host.model("m", vec![text("done"), end()]);
        let mut context = context("hi", &json!({}));
        for granted in &mut context.resources.tools {
            granted.effect = serde_json::from_value(json!(effect)).unwrap();
        }
        run(&host, context).await;
        let message = tool_messages(&host).concat();
        assert!(message.contains("no answer"), "{failing}: {message}");
        assert_eq!(
            message.contains("find out before"),
            is_unknown,
            "{failing}: {message}"
        );
    }
}

#[tokio::test]
async fn lost_gateway_repeats_the_same_model() {
    let lost = || fail("callback.unreachable", "gone");
    for broken in [vec![lost()], vec![text("half an"), lost()]] {
        let was_shown = broken.len() > 1;
        let host = TestHost::default();
        host.model("m", broken);
        host.model("m", vec![text("an answer"), end()]);
        let results = run(&host, context("hi", &json!({}))).await;
        assert_eq!(ending(&results), ("run.completed", None));
        assert_eq!(answer(&results), "an answer");
        assert_eq!(host.calls("stream_model").len(), 2);
        // Retracts what the client shows of the first stream.
        let mut chunks = results.iter().filter_map(|result| result.data.get("chunk"));
        let is_retracted = chunks.any(|chunk| chunk["all_content"] == "an answer");
        assert_eq!(is_retracted, was_shown);
    }
}

#[tokio::test]
async fn next_model_answers_after_repeated_losses() {
    let host = TestHost::default();
    for _ in 0..4 {
        host.model("m", vec![fail("callback.unreachable", "gone")]);
    }
    host.model("n", vec![text("from n"), end()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(answer(&results), "from n");
    assert_eq!(host.calls("stream_model").len(), 5);
}
