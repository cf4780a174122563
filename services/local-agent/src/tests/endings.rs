//! Runs that do not simply complete.

use runner_kit::CancellationToken;
use serde_json::json;

use crate::testing::{
    AnswerStep, ScriptedTool, TestHost, call, context, end, ending, fail, kinds, run, run_until,
    steering, text, usage,
};

#[tokio::test]
async fn fails_run_without_granted_model() {
    for model in [
        json!({"primary": "", "fallbacks": []}),
        json!({"primary": "other"}),
        json!(null),
    ] {
        let host = TestHost::default();
        let results = run(&host, context("hi", &json!({"model": model}))).await;
        assert_eq!(kinds(&results), ["run.failed"]);
        assert_eq!(ending(&results).1, Some("runner.no_model"));
        assert_eq!(host.script().calls, Vec::<String>::new());
    }
}

#[tokio::test]
async fn rejects_empty_input_without_model_call() {
    for input in ["", "sent later"] {
        let host = TestHost::default();
        host.model("m", vec![text("ok"), end()]);
        if !input.is_empty() {
            // Steering input counts as input.
            host.script().steering.push_back(vec![steering(input)]);
        }
        let results = run(&host, context("", &json!({}))).await;
        if input.is_empty() {
            assert_eq!(kinds(&results), ["run.failed"]);
            assert_eq!(ending(&results).1, Some("runner.no_input"));
            let data = &results[0].data;
            assert!(
                data["error"].as_str().unwrap().contains("`prompt`"),
                "{data:?}"
            );
            assert_eq!(data["retryable"], false);
            assert!(host.script().requests.is_empty());
        } else {
            assert_eq!(ending(&results).0, "run.completed", "{results:?}");
            assert_eq!(host.request(0)[0].plain_text(), input);
        }
    }
    let host = TestHost::default();
    host.model("m", vec![text("ok"), end()]);
    let prompt = json!({"prompt": [{"role": "system", "content": "Greet who has come."}]});
    let results = run(&host, context("", &prompt)).await;
    assert_eq!(ending(&results).0, "run.completed", "a prompt is enough");
}

#[tokio::test(start_paused = true)]
async fn times_out_stalled_calls() {
    let stalled_model = || {
        let host = TestHost::default();
        host.model("m", vec![text("It"), AnswerStep::Hang]);
        host
    };
    let results = run(&stalled_model(), context("hi", &json!({"timeout": 12}))).await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.timeout")));
    assert_eq!(results.last().unwrap().data["retryable"], true);

    let host = TestHost::default();
    host.model(
        "m",
        vec![call("c1", "look", &json!({})), end(), usage(3, 4)],
    );
    host.script()
        .tools
        .insert("look".to_owned(), ScriptedTool::Hangs);
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results).1, Some("runner.timeout"));
    assert_eq!(json!(results.last().unwrap().usage)["total_tokens"], 7);

    // Without a timeout of its own, the agent waits for the gateway's deadline.
    let running = context("hi", &json!({"timeout": 0}));
    let host = stalled_model();
    let waited = tokio::time::timeout(std::time::Duration::from_hours(24), run(&host, running));
    assert!(waited.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn cancels_run_in_every_phase() {
    let while_streaming = TestHost::default();
    while_streaming.model("m", vec![text("It"), usage(3, 4), AnswerStep::Hang]);
    let in_a_tool = TestHost::default();
    in_a_tool.model("m", vec![call("c1", "look", &json!({})), end()]);
    in_a_tool
        .script()
        .tools
        .insert("look".to_owned(), ScriptedTool::Hangs);
    for host in [while_streaming, in_a_tool] {
        let cancel = CancellationToken::new();
        let later = async {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            cancel.cancel();
        };
        let running = run_until(&host, context("hi", &json!({})), cancel.clone());
        let (results, ()) = tokio::join!(running, later);
        assert_eq!(ending(&results), ("run.failed", Some("cancelled")));
        assert_eq!(results.last().unwrap().data["retryable"], false);
    }
}

#[tokio::test]
async fn ends_run_on_host_cancellation() {
    let host = TestHost::default();
    host.model(
        "m",
        vec![text("It"), fail("cancelled", "the run was cancelled")],
    );
    let results = run(&host, context("hi", &json!({}))).await;
    assert_eq!(ending(&results), ("run.failed", Some("cancelled")));
}

#[tokio::test]
async fn cancel_before_completion_wins() {
    let host = TestHost::default();
    host.model("m", vec![text("done"), end()]);
    let cancel = CancellationToken::new();
    let results = {
        use futures_util::StreamExt as _;
        let mut stream =
            crate::agent::run_on(context("hi", &json!({})), host.clone(), cancel.clone());
        let mut results = Vec::new();
        while let Some(result) = stream.next().await {
            let result = result.unwrap();
            if result.kind == "message.delta" {
                cancel.cancel();
            }
            results.push(result);
        }
        results
    };
    assert_eq!(ending(&results), ("run.failed", Some("cancelled")));
}

#[tokio::test]
async fn aborts_work_when_stream_is_dropped() {
    use futures_util::StreamExt as _;
    let host = TestHost::default();
    let both = vec![
        call("c1", "look", &json!({})),
        call("c2", "send", &json!({})),
        end(),
    ];
    host.model("m", both);
    for tool in ["look", "send"] {
        host.script()
            .tools
            .insert(tool.to_owned(), ScriptedTool::Hangs);
    }
    let cancel = CancellationToken::new();
    let mut stream = crate::agent::run_on(context("hi", &json!({})), host.clone(), cancel);
    let mut started = 0;
    while started < 2 {
        let result = stream.next().await.unwrap().unwrap();
        started += usize::from(result.kind == "tool.call.started");
    }
    assert!(futures_util::poll!(stream.next()).is_pending());
    assert_eq!(host.calls("call_tool").len(), 2);
    assert!(host.holders() > 1);
    drop(stream);
    assert_eq!(host.holders(), 1, "no background work remains");
}

#[tokio::test]
async fn fails_run_without_token_counter() {
    let host = TestHost::default();
    host.model("m", vec![text("hi"), end()]);
    host.script().count = Some(Err((
        "unauthorized",
        "count_tokens was not granted".to_owned(),
    )));
    // A request that clearly fits is not counted.
    let small = json!({"context-window-tokens": 200});
    let results = run(&host, context(&"hi ".repeat(100), &small)).await;
    assert_eq!(ending(&results), ("run.failed", Some("runner.error")));
    assert_eq!(host.calls("stream_model").len(), 0);
}
