//! Trace export: spans of runs and calls, and faults of the collector, which affect no run.

use std::collections::BTreeSet;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{message, send};
use crate::support::collector::{
    Collector, CollectorMode, ReceivedSeries, ReceivedSpan, telemetry_section,
};
use crate::support::gateway::{Config, STUB_API_KEY};
use crate::support::held::HeldRun;
use crate::support::rotel::Rotel;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::tool_server::{TIMEOUT, ToolServer};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, until};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const OUTER: &str = "00f067aa0ba902b7";
const CANARY: &str = "canary-of-what-was-said";
const SCRIPT: &str = r#"
[[turns]]
when = "busy"
status = 429
message = "canary-of-what-was-said"
[[turns]]
chunks = ["canary-of-what-was-said", ": {input}"]
"#;

/// A gateway that exports to the collector at `collector`, with a runner that may use models and tools. Also returns the
/// directory of the model script.
async fn traced(
    engine: Engine,
    collector: &str,
    tools: &ToolServer,
    telemetry: &str,
) -> Option<(OwnStage, TempDirectory)> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({
        "models": ["invoke", "stream", "rerank"], "tools": ["detail", "call"], "history": ["page"],
        "knowledge_bases": ["retrieve"],
    });
    let directory = TempDirectory::new();
    let script = directory.write("script.toml", SCRIPT);
    let tool = |path: &str| {
        format!(
            "[[tools]]\ntool_name = \"{path}\"\nurl = \"{}/{path}\"\ntimeout_seconds = {}.0\n\
             headers = {{ authorization = \"env:{}\" }}\n",
            tools.url,
            TIMEOUT.as_secs(),
            STUB_API_KEY.0
        )
    };
    let rest = format!(
        "{telemetry}\
         [[model_providers]]\nname = \"script\"\nkind = \"scripted\"\nscript = \"{script}\"\n\
         [[models]]\nmodel_id = \"talker\"\nprovider = \"script\"\nupstream_model = \"talk-9\"\n\
         operations = [\"invoke\", \"stream\", \"rerank\"]\n\
         [[knowledge_bases]]\nkb_id = \"handbook\"\n{}{}",
        tool("echo"),
        tool("fail"),
        script = script.display(),
        telemetry = telemetry_section(collector, telemetry),
    );
    let runner = StubRunner::start_as(manifest).await;
    let stage = OwnStage::of(engine, runner, |config: &mut Config| {
        config.agents[0].resources =
            r#"models = ["talker"], tools = "*", history = ["page"], knowledge_bases = "*""#;
        config.rest = rest;
    })
    .await?;
    Some((stage, directory))
}

fn says(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

/// Uploads a document with confidential text to the handbook.
async fn upload_document(stage: &Stage) {
    let path = "/v1/knowledge-bases/handbook/documents/said.txt";
    let admin = stage.admin.clone();
    let put = admin.request(Method::PUT, path);
    let put = put.header("content-type", "text/plain").body(CANARY);
    assert_eq!(send(put).await.unwrap().status, 201);
}

/// Posts an event with this header.
async fn post_with(stage: &Stage, event_id: &str, traceparent: &str) -> String {
    let mut event = message(event_id);
    event["input"]["text"] = json!(CANARY);
    let posting = stage.client.posting(&event);
    let posted = send(posting.header("traceparent", traceparent)).await;
    posted.unwrap().run_id()
}

#[rstest]
#[tokio::test]
async fn exports_run_as_one_trace_without_content(#[values(Sqlite, Postgres)] engine: Engine) {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let header = format!(
        "headers = {{ x-collector-key = \"env:{}\" }}",
        STUB_API_KEY.0
    );
    let (stage, _files) = or_skip!(traced(engine, &collector.url, &tools, &header).await);
    let mut event = message("m-1");
    event["input"]["text"] = json!(CANARY);
    event["conversation"]["conversation_id"] = json!("conversation-outside");
    event["actor"]["actor_id"] = json!("person-outside");
    let run = HeldRun::start_with(&stage, &event, &format!("00-{TRACE}-{OUTER}-01")).await;
    let hex = run.run_id.replace('-', "");
    let own = &hex[16..];
    assert_eq!(run.run_request["context"]["runtime"]["trace_id"], TRACE);
    let request = stage.runner.run_request(&run.run_id).await;
    let traceparent = format!("00-{TRACE}-{own}-01");
    assert_eq!(request.header("traceparent"), Some(traceparent.as_str()));

    for path in ["invoke", "stream"] {
        let path = format!("/models/talker/{path}");
        let streamed = run.request(Method::POST, &path).json(&says(CANARY));
        let text = streamed.send().await.unwrap().text().await.unwrap();
        assert!(text.contains(CANARY), "{text}");
    }
    let busy = run.call("/models/talker/invoke", &says("busy?")).await;
    assert_eq!(busy.status, 429);
    let refused = run.call("/models/other/invoke", &says(CANARY)).await;
    assert_eq!(refused.status, 403);
    let texts = json!({"texts": [CANARY]});
    assert_eq!(run.call("/models/talker/embed", &texts).await.status, 200);
    let parameters = json!({"parameters": {"text": CANARY}});
    let of_runner = format!("00-{TRACE}-1111111111111111-01");
    let called = run
        .request(Method::POST, "/tools/echo/call")
        .header("idempotency-key", "call_1")
        .header("traceparent", &of_runner)
        .json(&parameters);
    assert_eq!(send(called).await.unwrap().status, 200);
    assert_eq!(run.call("/tools/fail/call", &parameters).await.status, 502);
    upload_document(&stage).await;
    let query = json!({"query_text": CANARY, "top_k": 3});
    let found = run.call("/knowledge-bases/handbook/retrieve", &query).await;
    assert_eq!(found.body["results"].as_array().unwrap().len(), 1);
    let empty = json!({"query_text": " "});
    let refused = run.call("/knowledge-bases/handbook/retrieve", &empty).await;
    assert_eq!(refused.status, 400);
    run.end(&stage).await;

    let root = collector
        .wait_for_match("the run", |span| span.name == "invoke_agent main")
        .await;
    until("all spans", async || collector.spans().len() >= 9).await;
    let spans = collector.spans();
    assert_eq!(spans.len(), 9, "{spans:#?}");
    assert_eq!(
        (root.span_id.as_str(), root.parent_id.as_str()),
        (own, OUTER)
    );
    assert!(root.is_client && !root.is_error);
    assert_eq!(root.attributes["gen_ai.operation.name"], "invoke_agent");
    assert_eq!(root.attributes["gen_ai.agent.name"], "main");
    assert_eq!(root.attributes["runnel.run.id"], json!(run.run_id));
    assert_eq!(root.resource["service.name"], "runnel");
    let ids: BTreeSet<_> = spans.iter().map(|span| &span.span_id).collect();
    assert_eq!(ids.len(), 9, "each has an id of its own");
    for span in &spans {
        assert_eq!(span.trace_id, TRACE, "{span:?}");
        assert!(span.start <= span.end, "{span:?}");
        assert!(span.start >= root.start - 1_000_000, "{span:?}");
    }
    let of = |name: &str| {
        spans
            .iter()
            .filter(|span| span.name == name)
            .collect::<Vec<_>>()
    };
    let chats = of("chat talk-9");
    assert_eq!(chats.len(), 3);
    for chat in &chats {
        assert_eq!(chat.parent_id, own);
        assert!(chat.is_client);
        let traceparent = &chat.attributes;
        assert_eq!(traceparent["gen_ai.operation.name"], "chat");
        assert_eq!(traceparent["gen_ai.provider.name"], "scripted");
        assert_eq!(traceparent["gen_ai.request.model"], "talk-9");
        assert_eq!(traceparent["runnel.model.id"], "talker");
        if chat.is_error {
            assert_eq!(traceparent["error.type"], "rate_limited");
        } else {
            assert!(
                traceparent["gen_ai.usage.input_tokens"].as_u64() > Some(0),
                "{traceparent}"
            );
            assert!(
                traceparent["gen_ai.usage.output_tokens"].as_u64() > Some(0),
                "{traceparent}"
            );
        }
    }
    assert_eq!(chats.iter().filter(|chat| chat.is_error).count(), 1);
    let embedded = of("embeddings talk-9");
    assert_members!(embedded[0].attributes, {"gen_ai.operation.name": "embeddings"});
    assert_eq!(embedded[0].parent_id, own);
    let echo = of("execute_tool echo")[0];
    assert_eq!(echo.parent_id, "1111111111111111", "the runner's own span");
    assert_eq!(echo.attributes["gen_ai.tool.name"], "echo");
    assert_eq!(echo.attributes["gen_ai.tool.call.id"], "call_1");
    assert!(!echo.is_client && !echo.is_error);
    let fail = of("execute_tool fail")[0];
    assert_eq!((fail.parent_id.as_str(), fail.is_error), (own, true));
    assert_eq!(fail.attributes["error.type"], "runtime_error");
    assert!(fail.attributes.get("gen_ai.tool.call.id").is_none());
    let searches = of("retrieval handbook");
    assert_eq!(searches.len(), 2);
    for search in searches {
        assert_eq!((search.parent_id.as_str(), search.is_client), (own, true));
        let traceparent = &search.attributes;
        assert_eq!(traceparent["gen_ai.operation.name"], "retrieval");
        assert_eq!(traceparent["gen_ai.data_source.id"], "handbook");
        if search.is_error {
            assert_eq!(traceparent["error.type"], "invalid_argument");
        } else {
            assert_eq!(traceparent["gen_ai.retrieval.top_k"], 3);
            assert_eq!(traceparent["runnel.retrieval.passages"], 1);
        }
    }

    let requests = collector.requests();
    for (headers, body) in &requests {
        assert_eq!(headers["x-collector-key"], STUB_API_KEY.1);
        let body = String::from_utf8_lossy(body);
        let secrets = [
            CANARY,
            STUB_API_KEY.1,
            &run.token,
            &stage.client.key,
            "conversation-outside",
            "person-outside",
        ];
        for secret in secrets {
            assert!(!body.contains(secret), "{secret}");
        }
    }
}

#[tokio::test]
async fn follows_valid_traceparent_sampling_flag() {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let (stage, _files) = traced(Sqlite, &collector.url, &tools, "").await.unwrap();
    let dropped = post_with(&stage, "m-1", &format!("00-{TRACE}-{OUTER}-00")).await;
    stage.client.finished(&dropped).await;
    let request = stage.runner.run_request(&dropped).await;
    let own = dropped.replace('-', "")[16..].to_owned();
    let traceparent = format!("00-{TRACE}-{own}-00");
    assert_eq!(request.header("traceparent"), Some(traceparent.as_str()));

    let malformed = post_with(&stage, "m-2", "00-canary-trace-01").await;
    stage.client.finished(&malformed).await;
    let root = collector
        .wait_for_match("the run", |span| span.parent_id.is_empty())
        .await;
    assert_eq!(root.trace_id, malformed.replace('-', ""));
    assert_eq!(
        stage.runner.run_request(&malformed).await.json()["context"]["runtime"]["trace_id"],
        root.trace_id
    );
    // The trace header is not part of the event's identity.
    assert_eq!(
        post_with(&stage, "m-2", &format!("00-{TRACE}-{OUTER}-01")).await,
        malformed
    );
    assert_eq!(collector.spans().len(), 1, "{:?}", collector.spans());
}

#[tokio::test]
async fn zero_sample_ratio_exports_only_sampled_parents() {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let none = "sample_ratio = 0\nservice_name = \"ours\"";
    let (stage, _files) = traced(Sqlite, &collector.url, &tools, none).await.unwrap();
    let own = stage.client.post(&message("m-1")).await.run_id();
    stage.client.finished(&own).await;
    let continued = post_with(&stage, "m-2", &format!("00-{TRACE}-{OUTER}-01")).await;
    stage.client.finished(&continued).await;
    let span = collector.wait_for_match("the run", |_| true).await;
    assert_eq!(span.attributes["runnel.run.id"], json!(continued));
    assert_eq!(span.resource["service.name"], "ours");
    assert_eq!(collector.spans().len(), 1);
    let request = stage.runner.run_request(&own).await;
    assert!(request.header("traceparent").unwrap().ends_with("-00"));
}

#[tokio::test]
async fn exports_metrics_of_unsampled_runs() {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let settings = "sample_ratio = 0\nmetrics_interval_seconds = 1.0";
    let (mut stage, _files) = traced(Sqlite, &collector.url, &tools, settings)
        .await
        .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let streamed = run.request(Method::POST, "/models/talker/stream");
    let streamed = streamed.json(&says(CANARY)).send().await.unwrap();
    assert_lacks!(streamed.text().await.unwrap(), "error");
    let busy = run.call("/models/talker/invoke", &says("busy?")).await;
    assert_eq!(busy.status, 429);
    let parameters = json!({"parameters": {"text": CANARY}});
    assert_eq!(run.call("/tools/echo/call", &parameters).await.status, 200);
    run.end(&stage).await;
    // The last export is that of the stop.
    stage.gateway.stop().await;

    let of_call = json!({
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "scripted", "gen_ai.request.model": "talk-9",
    });
    let with = |name: &str, value: &str| {
        let mut attributes = of_call.clone();
        attributes[name] = json!(value);
        attributes
    };
    let duration = "gen_ai.client.operation.duration";
    let expected = [
        (duration, of_call.clone()),
        (duration, with("error.type", "rate_limited")),
        (
            "gen_ai.client.operation.time_to_first_chunk",
            of_call.clone(),
        ),
        (
            "gen_ai.execute_tool.duration",
            json!({"gen_ai.tool.name": "echo"}),
        ),
        (
            "gen_ai.invoke_agent.duration",
            json!({"gen_ai.agent.name": "main"}),
        ),
    ];
    let series = collector.series();
    for (metric, attributes) in expected {
        let of = |one: &&ReceivedSeries| one.metric == metric && one.attributes == attributes;
        let found = series.iter().find(of);
        let found = found.unwrap_or_else(|| panic!("{metric} {attributes} in {series:#?}"));
        assert_eq!(found.count, 1, "{found:?}");
        assert!(found.sum > 0.0 && found.sum < 600.0, "{found:?}");
    }
    assert!(collector.spans().is_empty());
    for (_, body) in collector.requests() {
        assert_lacks!(String::from_utf8_lossy(&body), CANARY);
    }
}

/// Rotel decodes the exports, batches them, and relays them in its own encoding.
#[tokio::test]
async fn real_collector_relays_each_signal() {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let rotel = or_skip!(Rotel::start(&collector.url).await);
    let settings = "metrics_interval_seconds = 1.0\nlogs = \"info\"";
    let (stage, _files) = traced(Sqlite, &rotel.url, &tools, settings).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let streamed = run.request(Method::POST, "/models/talker/stream");
    let streamed = streamed.json(&says(CANARY)).send().await.unwrap();
    assert_lacks!(streamed.text().await.unwrap(), "error");
    let parameters = json!({"parameters": {"text": CANARY}});
    assert_eq!(run.call("/tools/echo/call", &parameters).await.status, 200);
    run.end(&stage).await;

    let root = collector
        .wait_for_match("the run", |span| span.parent_id.is_empty())
        .await;
    assert_eq!(root.attributes["runnel.run.id"], json!(run.run_id));
    for name in ["chat talk-9", "execute_tool echo"] {
        let span = collector
            .wait_for_match(name, |span| span.name == name)
            .await;
        assert_eq!(span.trace_id, root.trace_id);
        assert_eq!(span.resource, root.resource);
    }
    until("metrics of the run", async || {
        let metrics = [
            "gen_ai.client.operation.duration",
            "gen_ai.invoke_agent.duration",
        ];
        let series = collector.series();
        let is_there = |metric: &&str| series.iter().any(|one| one.metric == **metric);
        metrics.iter().all(is_there)
    })
    .await;
    let is_of_start = |record: &Value| {
        let message = record["message"].as_str().unwrap_or_default();
        message.starts_with("runnel") && message.contains(" serves ")
    };
    let record = collector.wait_for_record("the start", is_of_start).await;
    assert_eq!(record["severity"], "INFO");
    assert_eq!(record["code.namespace"], "gateway::cli::serve");
    assert_eq!(record["agents"], 1);
}

#[tokio::test]
async fn collector_faults_affect_no_run() {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let (mut stage, _files) = traced(Sqlite, &collector.url, &tools, "").await.unwrap();
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    collector.behave(CollectorMode::Refuses);
    let first = stage.client.post(&message("m-1")).await.run_id();
    let outcome = stage.outcome(&first).await;
    assert_eq!(outcome.ending(), "completed");
    // The export is retried and succeeds once the collector accepts it.
    collector.wait_for_exports(1).await;
    collector.behave(CollectorMode::Takes);
    let is_of = |run: &str| {
        let run = json!(run);
        move |span: &ReceivedSpan| span.attributes["runnel.run.id"] == run
    };
    collector
        .wait_for_match("the first run", is_of(&first))
        .await;

    collector.behave(CollectorMode::Hangs);
    let run_request = collector.requests().len();
    let second = stage.client.post(&message("m-2")).await.run_id();
    assert_eq!(stage.outcome(&second).await.ending(), "completed");
    collector.wait_for_exports(run_request + 1).await;
    // Shutdown does not wait for the export.
    stage.gateway.stop().await;
    assert_lacks!(
        stage.gateway.log(),
        "some runs did not end within the grace period"
    );
}

#[tokio::test]
async fn flushes_spans_on_shutdown() {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let (mut stage, _files) = traced(Sqlite, &collector.url, &tools, "").await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    run.call("/models/talker/invoke", &says("hello")).await;
    stage.gateway.terminate().await;
    run.release();
    assert!(stage.gateway.exited().await.success());
    let names: BTreeSet<_> = collector
        .spans()
        .into_iter()
        .map(|span| span.name)
        .collect();
    assert_eq!(
        names.into_iter().collect::<Vec<_>>(),
        ["chat talk-9", "invoke_agent main"]
    );
}

#[tokio::test]
async fn recovering_gateway_exports_orphaned_run() {
    let (collector, tools) = (Collector::start().await, ToolServer::start().await);
    let (mut stage, _files) = traced(Sqlite, &collector.url, &tools, "").await.unwrap();
    let parent = format!("00-{TRACE}-{OUTER}-01");
    let run = HeldRun::start_with(&stage, &message("m-1"), &parent).await;
    stage.gateway.kill().await;
    assert!(collector.spans().is_empty());
    stage.gateway.restart().await;
    let span = collector.wait_for_match("the run", |_| true).await;
    assert_eq!(span.name, "invoke_agent main");
    assert_eq!(
        (span.trace_id.as_str(), span.parent_id.as_str()),
        (TRACE, OUTER)
    );
    assert_eq!(span.span_id, run.run_id.replace('-', "")[16..]);
    assert!(span.is_error);
    assert_eq!(span.attributes["error.type"], "host.orphaned");
}
