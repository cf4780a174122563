//! Tools of a run.

use protocol::result::AgentRunResult;
use serde_json::{Value, json};

use crate::testing::{
    AnswerStep, ScriptedTool, TestHost, answer, call, context, end, ending, kinds, run, steering,
    text,
};

/// Host whose model calls these tools in one turn and then answers "done".
fn host_calling(calls: &[(&str, &str, Value)]) -> TestHost {
    let host = TestHost::default();
    let mut steps: Vec<AnswerStep> = calls
        .iter()
        .map(|(id, name, arguments)| call(id, name, arguments))
        .collect();
    steps.push(end());
    host.model("m", steps).model("m", vec![text("done"), end()]);
    host
}

/// Texts of the tool messages in the second request.
fn tool_messages(host: &TestHost) -> Vec<String> {
    let messages = host.request(1);
    let messages = messages.iter().filter(|message| message.role == "tool");
    messages
        .map(protocol::message::Message::plain_text)
        .collect()
}

fn of_kind<'a>(results: &'a [AgentRunResult], kind: &str) -> Vec<&'a Value> {
    let results = results.iter().filter(|result| result.kind == kind);
    results.map(|result| &result.data["tool_call_id"]).collect()
}

#[tokio::test]
async fn returns_tool_results_to_model() {
    let host = TestHost::default();
    host.tool_says("look", json!("sunny"));
    host.model(
        "m",
        vec![
            text("Let me check."),
            call("c1", "look", &json!({"city": "Berlin"})),
            end(),
        ],
    );
    host.model("m", vec![text("It is sunny"), end()]);
    let results = run(&host, context("weather?", &json!({}))).await;
    let expected = [
        "message.delta",
        "tool.call.started",
        "tool.call.completed",
        "message.delta",
        "message.completed",
        "run.completed",
    ];
    assert_eq!(kinds(&results), expected);
    assert_eq!(
        answer(&results),
        "Let me check.\n\nIt is sunny",
        "sent text is not retracted"
    );
    assert_eq!(
        host.calls("call_tool"),
        ["call_tool look turn-1-call-0 {\"city\":\"Berlin\"}"]
    );
    assert_eq!(tool_messages(&host), ["sunny"]);
    let started = results
        .iter()
        .find(|result| result.kind == "tool.call.started")
        .unwrap();
    assert_eq!(started.data["parameters"], json!({"city": "Berlin"}));
    let completed = results
        .iter()
        .find(|result| result.kind == "tool.call.completed")
        .unwrap();
    assert_eq!(completed.data["result"], json!({"value": "sunny"}));
    let final_delta = results
        .iter()
        .find(|result| result.data["chunk"]["is_final"] == true)
        .unwrap();
    assert_eq!(final_delta.data["chunk"]["tool_calls"][0]["id"], "c1");
}

#[tokio::test]
async fn offers_granted_tools_and_fetches_missing_schemas() {
    let host = TestHost::default();
    host.tool_says("send", json!(1));
    host.model("m", vec![text("hi"), end()]);
    let mut context = context("hi", &json!({}));
    for tool in &mut context.resources.tools {
        tool.parameters = None;
    }
    let described = protocol::resources::ToolOperation::Detail;
    let mut only_described = context.resources.tools[0].clone();
    only_described.tool_name = "described".to_owned();
    only_described.operations = vec![described];
    context.resources.tools.push(only_described);
    run(&host, context).await;
    // The host does not know `look`: the run continues without it.
    let tools = host.script().requests[0].tools.clone();
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["send"]);
    assert_eq!(tools[0].parameters["title"], "asked");

    let host = TestHost::default();
    host.model("m", vec![text("hi"), end()]);
    run(&host, crate::testing::context("hi", &json!({}))).await;
    assert_eq!(
        host.calls("tool"),
        Vec::<String>::new(),
        "inlined schemas are taken as they are"
    );
}

#[tokio::test]
async fn reports_parallel_calls_in_request_order() {
    for streams in [true, false] {
        let host = host_calling(&[("c1", "slow", json!({})), ("c2", "look", json!({}))]);
        host.script()
            .tools
            .insert("slow".to_owned(), ScriptedTool::After(1, json!("first")));
        host.tool_says("look", json!("second"));
        let mut context = context("hi", &json!({}));
        context.delivery.supports_streaming = streams;
        let mut slow = context.resources.tools[0].clone();
        slow.tool_name = "slow".to_owned();
        context.resources.tools.push(slow);
        let results = run(&host, context).await;
        assert_eq!(
            of_kind(&results, "tool.call.completed"),
            ["c2", "c1"],
            "as they were done"
        );
        assert_eq!(
            tool_messages(&host),
            ["first", "second"],
            "as they were called"
        );
        let kinds = kinds(&results);
        let first_end = kinds
            .iter()
            .position(|kind| *kind == "tool.call.completed")
            .unwrap();
        let starts = kinds[..first_end]
            .iter()
            .filter(|kind| **kind == "tool.call.started");
        assert_eq!(starts.count(), 2);
    }
}

#[tokio::test]
async fn runs_serial_calls_in_order() {
    let host = host_calling(&[("c1", "look", json!({})), ("c2", "send", json!({}))]);
    host.tool_says("look", json!("a"))
        .tool_says("send", json!("b"));
    let results = run(
        &host,
        context("hi", &json!({"tool-execution-mode": "serial"})),
    )
    .await;
    let tools: Vec<_> = kinds(&results)
        .into_iter()
        .filter(|kind| kind.starts_with("tool"))
        .collect();
    let one = ["tool.call.started", "tool.call.completed"];
    assert_eq!(tools, [one, one].concat());
}

#[tokio::test]
async fn rejects_invalid_calls_without_host_request() {
    let host = TestHost::default();
    let not_an_object = json!([1]);
    host.model(
        "m",
        vec![
            call("c1", "forbidden", &json!({})),
            call("c2", "look", &not_an_object),
            end(),
        ],
    );
    host.model("m", vec![text("done"), end()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(host.calls("call_tool"), Vec::<String>::new());
    let messages = tool_messages(&host);
    assert!(
        messages[0].starts_with("Error:") && messages[0].contains("look, send"),
        "{messages:?}"
    );
    assert!(messages[1].contains("JSON object"), "{messages:?}");
    assert_eq!(answer(&results), "done");
}

#[tokio::test]
async fn reports_tool_failures_to_model() {
    let host = host_calling(&[("c1", "look", json!({}))]);
    let failed = ("runtime_error", "no such city ".repeat(10));
    host.script()
        .tools
        .insert("look".to_owned(), ScriptedTool::Fails(failed));
    let results = run(&host, context("hi", &json!({"max-tool-result-chars": 30}))).await;
    assert!(tool_messages(&host)[0].starts_with("Error: Tool execution failed: no"));
    assert!(tool_messages(&host)[0].contains("truncated"));
    let completed = results
        .iter()
        .find(|result| result.kind == "tool.call.completed")
        .unwrap();
    assert!(completed.data["error"].as_str().unwrap().contains("failed"));
    assert_eq!(ending(&results).0, "run.completed");
}

#[tokio::test]
async fn retries_lost_tool_responses_with_same_key() {
    let host = host_calling(&[("c1", "look", json!({}))]);
    let failed = ("callback.unreachable", "gone".to_owned());
    host.script()
        .tools
        .insert("look".to_owned(), ScriptedTool::Fails(failed));
    run(&host, context("hi", &json!({}))).await;
    let calls = host.calls("call_tool");
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
}

#[tokio::test]
async fn reports_usage_after_deadline_in_tool() {
    let host = TestHost::default();
    host.script().tools.insert(
        "look".to_owned(),
        ScriptedTool::Fails(("deadline_exceeded", "over".to_owned())),
    );
    host.model(
        "m",
        vec![
            call("c1", "look", &json!({})),
            end(),
            crate::testing::usage(5, 5),
        ],
    );
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.timeout")));
    assert_eq!(json!(results.last().unwrap().usage)["total_tokens"], 10);
}

#[tokio::test]
async fn reports_tool_timeouts_to_model() {
    let host = host_calling(&[("c1", "look", json!({}))]);
    let slow = ("deadline_exceeded/upstream_timeout", "too slow".to_owned());
    host.script()
        .tools
        .insert("look".to_owned(), ScriptedTool::Fails(slow));
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.completed", None), "{results:?}");
    let messages = host.request(1).pop().unwrap().plain_text();
    assert!(
        messages.starts_with("Error:") && messages.contains("too slow"),
        "{messages}"
    );
}

#[tokio::test]
async fn ends_run_when_all_tools_finish_it() {
    let host = host_calling(&[("c1", "look", json!({})), ("c2", "send", json!({}))]);
    host.tool_says("look", json!({"terminate": true}))
        .tool_says("send", json!({"terminate": true, "sent": 1}));
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results).0, "run.completed");
    assert_eq!(host.calls("stream_model").len(), 1);

    let host = host_calling(&[("c1", "look", json!({})), ("c2", "send", json!({}))]);
    host.tool_says("look", json!({"terminate": true}))
        .tool_says("send", json!({"sent": 1}));
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(answer(&results), "done");
    assert_eq!(tool_messages(&host), ["{}", "{\"sent\":1}"]);
}

#[tokio::test]
async fn ends_run_at_iteration_limit() {
    for streams in [true, false] {
        let host = TestHost::default();
        host.tool_says("look", json!("again"));
        for _ in 0..3 {
            host.model("m", vec![call("c", "look", &json!({})), end()]);
        }
        let mut context = context("hi", &json!({"max-tool-iterations": 2}));
        context.delivery.supports_streaming = streams;
        let results = run(&host, context).await;
        assert_eq!(ending(&results).0, "run.completed");
        assert!(answer(&results).contains("Tool call iteration limit reached"));
        assert_eq!(host.calls("call_tool").len(), 2);
    }
}

#[tokio::test]
async fn bounds_tool_results_for_model_and_user() {
    let host = host_calling(&[("c1", "look", json!({})), ("c2", "send", json!({}))]);
    host.tool_says("look", json!("x".repeat(500)));
    host.tool_says(
        "send",
        json!({"files": [{"path": "/out/report.pdf"}], "log": "y".repeat(500)}),
    );
    let results = run(&host, context("hi", &json!({"max-tool-result-chars": 100}))).await;
    let messages = tool_messages(&host);
    assert!(messages[0].contains("original_chars=500, kept_chars=100"));
    assert!(messages[1].contains("/out/report.pdf") && messages[1].len() < 700);
    let shown: Vec<_> = results
        .iter()
        .filter(|result| result.kind == "tool.call.completed")
        .map(|result| &result.data["result"]["type"])
        .collect();
    assert_eq!(shown, ["tool_result_preview", "tool_result_references"]);
}

#[tokio::test]
async fn reads_steering_after_tools_and_at_end() {
    let host = TestHost::default();
    host.tool_says("look", json!("sunny"));
    host.model("m", vec![call("c1", "look", &json!({})), end()]);
    host.model("m", vec![text("Sunny in Berlin."), end()]);
    host.model("m", vec![text("And in Rome."), end()]);
    host.script().steering = [
        vec![steering("only Berlin")],
        vec![steering("Rome as well")],
        vec![],
    ]
    .into();
    let results = run(&host, context("weather?", &json!({}))).await;
    let users = |index: usize| {
        let messages = host.request(index);
        let messages = messages.iter().filter(|message| message.role == "user");
        messages
            .map(protocol::message::Message::plain_text)
            .collect::<Vec<_>>()
    };
    assert_eq!(users(1), ["weather?", "only Berlin"]);
    assert_eq!(users(2), ["weather?", "only Berlin", "Rome as well"]);
    assert_eq!(answer(&results), "Sunny in Berlin.\n\nAnd in Rome.");
    assert_eq!(host.calls("pull_steering").len(), 3);
}

#[tokio::test]
async fn joins_text_of_all_turns_without_streaming() {
    let host = TestHost::default();
    host.tool_says("look", json!("sunny"));
    let looks = call("c1", "look", &json!({}));
    host.model("m", vec![text("Let me look."), looks, end()])
        .model("m", vec![text("Sunny in Berlin."), end()])
        .model("m", vec![text("And in Rome."), end()]);
    host.script().steering = [vec![], vec![steering("Rome as well")]].into();
    let mut context = context("weather?", &json!({}));
    context.delivery.supports_streaming = false;
    let results = run(&host, context).await;
    let expected = "Let me look.\n\nSunny in Berlin.\n\nAnd in Rome.";
    assert_eq!(answer(&results), expected);
    assert!(!kinds(&results).contains(&"message.delta"));
}

#[tokio::test]
async fn skips_steering_without_grant() {
    let host = TestHost::default();
    host.model("m", vec![text("hi"), end()]);
    host.script().steering_fails = true;
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results).0, "run.completed");

    let host = TestHost::default();
    host.model("m", vec![text("hi"), end()]);
    let mut context = context("hi", &json!({}));
    context.context.available_apis.steering_pull = false;
    run(&host, context).await;
    assert_eq!(host.calls("pull_steering").len(), 0);
}

#[tokio::test]
async fn activates_skills_by_tool_call() {
    let host = host_calling(&[("c1", "activate", json!({"name": "invoices"}))]);
    host.tool_says("activate", json!("# How to write invoices"));
    let mut context = context("an invoice, please", &json!({}));
    let mut activate = context.resources.tools[0].clone();
    activate.tool_name = "activate".to_owned();
    context.resources.tools.push(activate);
    run(&host, context).await;
    assert_eq!(tool_messages(&host), ["# How to write invoices"]);
}

#[tokio::test]
async fn fails_run_on_empty_answer_after_tool() {
    let host = TestHost::default();
    host.tool_says("look", json!("sunny"));
    host.model("m", vec![call("c1", "look", &json!({})), end()])
        .model("m", vec![end()]);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.llm_error")));
}
