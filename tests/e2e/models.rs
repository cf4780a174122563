//! Model calls of a run with its grants, and faults of model providers.

#[path = "models/bounds.rs"]
mod bounds;
#[path = "models/budget_stops.rs"]
mod budget_stops;
#[path = "models/budget_waits.rs"]
mod budget_waits;
#[path = "models/budgets_by_api.rs"]
mod budgets_by_api;
#[path = "models/disconnects.rs"]
mod disconnects;
#[path = "models/face_errors.rs"]
mod face_errors;
#[path = "models/gemini.rs"]
mod gemini;
#[path = "models/histories.rs"]
mod histories;
#[path = "models/images.rs"]
mod images;
#[path = "models/memory_budget.rs"]
mod memory_budget;
#[path = "models/messages.rs"]
mod messages;
#[path = "models/parameters.rs"]
mod parameters;
#[path = "models/prices.rs"]
mod prices;
#[path = "models/reservations.rs"]
mod reservations;
#[path = "models/responses.rs"]
mod responses;
#[path = "models/routes.rs"]
mod routes;
#[path = "models/token_limits.rs"]
mod token_limits;
#[path = "models/tolerated.rs"]
mod tolerated;
#[path = "models/usage_days.rs"]
mod usage_days;

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{Client, message};
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::node::NodeProject;
use crate::support::peer::ask;
use crate::support::programs::runnel;
use crate::support::python::python_with_openai;
use crate::support::repository::repository_file;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{
    Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, run, until, within,
};
use crate::tools::SHORT;

const SCRIPT: &str = r#"
[[turns]]
when = "weather"
after_tool = false
thinking = "which city?"
tool_calls = [{ name = "get_weather", arguments = { city = "Oslo" } }]
[[turns]]
after_tool = true
answer = "It is {tool}."
[[turns]]
when = "patch"
tool_calls = [{ name = "apply_patch", arguments = { input = "*** Begin Patch" } }]
[[turns]]
when = "busy"
status = 429
retry_after = 7
[[turns]]
when = "slow"
delay_ms = 600000
[[turns]]
when = "long"
status = 400
message = "This model's maximum context length is 10 tokens"
[[turns]]
when = "break"
chunks = ["half", " of it"]
break_after = 2
[[turns]]
chunks = ["<thi", "nk>hidden</thi", "nk>You said: ", "{input}"]
"#;

/// A manifest with all model permissions.
fn all_models() -> Value {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"]["models"] = json!(["invoke", "stream", "rerank", "count_tokens"]);
    manifest
}

fn grant(config: &mut Config) {
    config.agents = vec![Agent {
        resources: r#"models = ["talker", "ranker", "remote", "free", "claude"]"#,
        ..Agent::default()
    }];
}

async fn scripted(engine: Engine) -> Option<(OwnStage, HeldRun)> {
    scripted_with(engine, "").await
}

async fn scripted_with(engine: Engine, more: &str) -> Option<(OwnStage, HeldRun)> {
    let directory = TempDirectory::new();
    scripted_in(&directory, engine, |config| config.rest += more).await
}

/// The same for a gateway that can restart while this directory exists.
async fn scripted_in(
    directory: &TempDirectory,
    engine: Engine,
    configure: impl FnOnce(&mut Config),
) -> Option<(OwnStage, HeldRun)> {
    let stage = stage_in(directory, engine, configure).await?;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    Some((stage, run))
}

/// Usage of a run once this many calls are counted.
async fn used(stage: &Stage, run: &HeldRun, calls: u64) -> Value {
    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("the calls to be counted", async || {
        stage.client.get(&path).await.body["total"]["calls"] == calls
    })
    .await;
    stage.client.get(&path).await.body["total"].clone()
}

async fn stage_in(
    directory: &TempDirectory,
    engine: Engine,
    configure: impl FnOnce(&mut Config),
) -> Option<OwnStage> {
    let runner = StubRunner::start_as(all_models()).await;
    let script = directory.write("script.toml", SCRIPT);
    OwnStage::of(engine, runner, |config| {
        grant(config);
        config.rest = format!(
            "[[model_providers]]\nname = \"script\"\nkind = \"scripted\"\nscript = \"{}\"\n\
             [[models]]\nmodel_id = \"talker\"\nprovider = \"script\"\nmax_output_tokens = 100\n\
             input_price = 2.5\noutput_price = 10.0\n\
             [[models]]\nmodel_id = \"ranker\"\nprovider = \"script\"\noperations = [\"rerank\"]\n\
             [[models]]\nmodel_id = \"forbidden\"\nprovider = \"script\"\n",
            script.display()
        );
        configure(config);
    })
    .await
}

fn chat_request(text: &str) -> Value {
    json!({"messages": [{"role": "user", "content": text}]})
}

/// The audit rows of a run.
async fn audit(stage: &Stage, run: &HeldRun) -> Vec<Value> {
    let path = format!("/v1/runs/{}/audit?limit=100", run.run_id);
    let page = stage.client.get(&path).await.body;
    page["items"].as_array().unwrap().clone()
}

/// Status and text of a raw response.
async fn text_of(request: RequestBuilder) -> (u16, String) {
    let response = within("an answer", request.send()).await.unwrap();
    let status = response.status().as_u16();
    (status, within("its text", response.text()).await.unwrap())
}

/// Names and data of a stream's events.
async fn events(run: &HeldRun, path: &str, body: &Value) -> Vec<(String, Value)> {
    let (status, text) = text_of(run.request(Method::POST, path).json(body)).await;
    assert_eq!(status, 200, "{text}");
    events_in(&text)
}

fn events_in(text: &str) -> Vec<(String, Value)> {
    let event = |block: &str| {
        let field = |name: &str| {
            let mut lines = block.lines();
            lines.find_map(|line| line.strip_prefix(name).map(|rest| rest.trim().to_owned()))
        };
        let data = field("data:")?;
        let data = serde_json::from_str(&data).unwrap_or(Value::String(data));
        Some((field("event:").unwrap_or_default(), data))
    };
    text.split("\n\n").filter_map(event).collect()
}

fn streamed_text(events: &[(String, Value)]) -> String {
    let pieces = events
        .iter()
        .filter_map(|(_, data)| data["chunk"]["content"].as_str());
    pieces.collect()
}

#[rstest]
#[tokio::test]
async fn calls_granted_model_plain_and_streamed(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted(engine).await);
    let listed = run.get("/models").await.body;
    let ids: Vec<_> = listed["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["model_id"])
        .collect();
    assert_eq!(ids, ["talker", "ranker"]);
    assert_eq!(
        run.run_request["context"]["runtime"]["metadata"]["model_max_output_tokens"],
        100
    );

    let full_response = run
        .call("/models/talker/invoke", &chat_request("hello"))
        .await
        .expect(200);
    assert_eq!(
        full_response.body["message"]["content"],
        "<think>hidden</think>You said: hello"
    );
    assert!(
        full_response.body["usage"]["total_tokens"]
            .as_u64()
            .unwrap()
            > 0
    );
    let mut request = chat_request("hello");
    request["remove_think"] = json!(true);
    let full_response = run.call("/models/talker/invoke", &request).await.body;
    assert_eq!(full_response["message"]["content"], "You said: hello");

    let streamed = events(&run, "/models/talker/stream", &request).await;
    assert_eq!(streamed_text(&streamed), "You said: hello");
    let names: Vec<_> = streamed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["chunk", "chunk", "chunk", "usage"], "{streamed:?}");
    let last = &streamed[streamed.len() - 2].1["chunk"];
    assert_eq!(last["is_final"], true);
    assert_eq!(last["provider_specific_fields"]["finish_reason"], "stop");

    until("the outcomes", async || {
        let rows = audit(&stage, &run).await;
        let of = |action: &str| rows.iter().filter(|row| row["action"] == action).count();
        let requested = rows.iter().filter(|row| row["resource"] == "talker");
        (of("models_invoke"), of("models_stream")) == (2, 1)
            && requested
                .clone()
                .all(|row| row["outcome"] == "ok" && row["duration_ms"].is_i64())
    })
    .await;
}

#[tokio::test]
async fn returns_tool_calls_without_nulls() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let mut request = chat_request("the weather, please");
    request["tools"] =
        json!([{"name": "get_weather", "description": "d", "parameters": {"type": "object"}}]);
    let streamed = events(&run, "/models/talker/stream", &request).await;
    let calls: Vec<_> = streamed
        .iter()
        .filter_map(|(_, data)| data["chunk"]["tool_calls"].get(0))
        .collect();
    assert_eq!(
        calls[0]["function"],
        json!({"name": "get_weather", "arguments": "{\"city\":\"Oslo\"}"})
    );
    assert_eq!(streamed_text(&streamed), "<think>\nwhich city?\n</think>\n");
    let call = calls[0].clone();
    let full_response = run.call("/models/talker/invoke", &request).await.body;
    assert_members!(full_response["message"]["tool_calls"][0], {"function": call["function"]});
    let messages = request["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": null, "tool_calls": [call]}));
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "cold"}));
    let full_response = run.call("/models/talker/invoke", &request).await.body;
    assert_eq!(full_response["message"]["content"], "It is cold.");
}

#[tokio::test]
async fn ungranted_models_answer_like_unknown_ones() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    for (id, path) in [
        ("forbidden", "invoke"),
        ("nowhere", "invoke"),
        ("ranker", "invoke"),
        ("ranker", "stream"),
        ("ranker", "embed"),
        ("ranker", "count-tokens"),
        ("talker", "rerank"),
        ("forbidden", "count-tokens"),
    ] {
        let body = match path {
            "embed" => json!({"texts": ["a"]}),
            "rerank" => json!({"query": "a", "documents": ["a"]}),
            _ => chat_request("hi"),
        };
        let refused = run.call(&format!("/models/{id}/{path}"), &body).await;
        assert_eq!(refused.status, 403, "{id} {path}");
        assert_eq!(refused.error("code"), "unauthorized");
        // It names the model as requested and the granted ones, not whether others exist.
        let message = refused.error("message").to_string();
        assert!(message.contains(&format!("`{id}`")), "{message}");
        let granted = &refused.body["error"]["details"]["granted"];
        assert!(!granted.to_string().contains(id), "{granted}");
        assert!(!granted.to_string().contains("nowhere"), "{granted}");
    }
    let mut body = chat_request("hi");
    body["model"] = json!("forbidden");
    let refused = run.call("/openai/v1/chat/completions", &body).await;
    assert_eq!(refused.status, 403);
    until("the refusals", async || {
        let rows = audit(&stage, &run).await;
        rows.iter().filter(|row| row["decision"] == "deny").count() == 9
    })
    .await;
}

#[tokio::test]
async fn reranks_embeds_and_counts_tokens() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let documents = json!(["cold winters", "the tax office", "a cold and snowy winter"]);
    let body = json!({"query": "cold winter", "documents": documents, "top_k": 2});
    let ranked = run.call("/models/ranker/rerank", &body).await.expect(200);
    let indexes: Vec<_> = ranked.body["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["index"])
        .collect();
    assert_eq!(indexes, [2, 0]);

    let embedded = run
        .call(
            "/models/talker/embed",
            &json!({"texts": ["one", "two", "one"]}),
        )
        .await
        .body;
    let vectors = embedded["vectors"].as_array().unwrap();
    assert_eq!(vectors.len(), 3);
    assert!(vectors[0] == vectors[2] && vectors[0] != vectors[1]);

    let count = async |text: &str| {
        let counted = run
            .call("/models/talker/count-tokens", &chat_request(text))
            .await
            .expect(200);
        counted.body["tokens"].as_u64().unwrap()
    };
    let (short, long) = (count("hello").await, count(&"hello ".repeat(1000)).await);
    assert_eq!(
        short, 8,
        "three before the answer, four around the message, one word"
    );
    assert!((1000..1100).contains(&long), "{long}");

    let many: Vec<_> = (0..65).map(|n| n.to_string()).collect();
    for (path, body, pointer) in [
        (
            "/models/ranker/rerank",
            json!({"query": "q", "documents": many}),
            "/documents",
        ),
        (
            "/models/ranker/rerank",
            json!({"query": "q", "documents": []}),
            "/documents",
        ),
        ("/models/talker/embed", json!({"texts": []}), "/texts"),
        (
            "/models/talker/invoke",
            json!({"messages": []}),
            "/messages",
        ),
        (
            "/models/talker/stream",
            json!({"messages": [{"role": "user"}], "extra_args": {"stream": false}}),
            "/extra_args/stream",
        ),
        (
            "/models/talker/invoke",
            json!({"messages": [{"content": "x"}]}),
            "/messages/0/role",
        ),
    ] {
        let refused = run.call(path, &body).await;
        assert_eq!(refused.status, 400, "{path} {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
}

#[tokio::test]
async fn counts_empty_lists_and_accepts_extra_args() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let counted = async |body: Value| {
        let counted = run.call("/models/talker/count-tokens", &body).await;
        assert_eq!(counted.status, 200, "{}", counted.body);
        counted.body["tokens"].as_u64().unwrap()
    };
    let tool = json!({"name": "find", "description": "Finds a thing.", "parameters": {}});
    assert_eq!(counted(json!({"messages": []})).await, 0);
    let empty = json!({"messages": [], "tools": [], "extra_args": {}});
    assert_eq!(counted(empty).await, 0);
    let of_tools = counted(json!({"messages": [], "tools": [tool.clone()]})).await;
    let mut both = chat_request("hello");
    both["tools"] = json!([tool]);
    let short = counted(chat_request("hello")).await;
    assert_eq!(counted(both).await, short + of_tools);
    let mut free = chat_request("hello");
    free["extra_args"] = json!({"temperature": 0.5, "anything": true});
    assert_eq!(counted(free).await, short);
    let ranked = json!({"query": "cold winter", "documents": ["a", "b"],
        "extra_args": {"user": "u-1", "temperature": null}});
    run.call("/models/ranker/rerank", &ranked).await.expect(200);
    for (path, body, pointer) in [
        (
            "/models/ranker/rerank",
            json!({"query": "q", "documents": ["d"], "extra_args": {"top_n": 9}}),
            "/extra_args/top_n",
        ),
        (
            "/models/ranker/rerank",
            json!({"query": "q", "documents": ["d"], "extra_args": {"service_tier": "x"}}),
            "/extra_args/service_tier",
        ),
        (
            "/models/talker/count-tokens",
            json!({"messages": vec![json!({"role": "user", "content": ""}); 10_001]}),
            "/messages",
        ),
    ] {
        let refused = run.call(path, &body).await;
        assert_eq!(refused.status, 400, "{path} {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
}

#[tokio::test]
async fn provider_failures_have_codes_and_are_audited() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    for path in ["invoke", "stream"] {
        let path = format!("/models/talker/{path}");
        let busy = run.call(&path, &chat_request("busy?")).await;
        assert_eq!(
            (busy.status, busy.headers["retry-after"].to_str().unwrap()),
            (429, "7")
        );
        assert_eq!(busy.error("code"), "rate_limited");
        let long = run.call(&path, &chat_request("too long")).await;
        long.assert_error(400, "code", "invalid_argument");
        assert_eq!(long.detail("reason"), "context_length_exceeded");
    }
    let broken = events(&run, "/models/talker/stream", &chat_request("break")).await;
    assert_eq!(streamed_text(&broken), "half");
    let (name, data) = broken.last().unwrap();
    assert_eq!(
        (name.as_str(), &data["error"]["code"]),
        ("error", &json!("runtime_error"))
    );
    until("the outcomes", async || {
        let rows = audit(&stage, &run).await;
        let of = |outcome: &str| rows.iter().filter(|row| row["outcome"] == outcome).count();
        (
            of("rate_limited"),
            of("invalid_argument"),
            of("runtime_error"),
        ) == (2, 2, 1)
    })
    .await;
}

// --- providers over HTTP ---

/// A run with the model `remote` of an OpenAI-compatible server, and `claude` of another server.
async fn remote(more: &str) -> (OwnStage, HeldRun, Upstream) {
    remote_of(more, |_| {}).await
}

async fn remote_of(
    more: &str,
    configure: impl FnOnce(&mut Config),
) -> (OwnStage, HeldRun, Upstream) {
    let upstream = Upstream::start().await;
    let runner = StubRunner::start_as(all_models()).await;
    let stage = OwnStage::of(Sqlite, runner, |config| {
        grant(config);
        configure(config);
        config.environment.push(("FIRST_KEY", "first-secret-key".to_owned()));
        config.environment.push(("SECOND_KEY", "second-secret-key".to_owned()));
        config.rest = format!(
            "[[model_providers]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\n\
             api_keys = [\"env:FIRST_KEY\", \"env:SECOND_KEY\"]\n{more}\n\
             [[model_providers]]\nname = \"anthropic\"\nkind = \"anthropic\"\nbase_url = \"{url}\"\n\
             api_keys = [\"env:FIRST_KEY\"]\n\
             [[models]]\nmodel_id = \"remote\"\nprovider = \"openai\"\nupstream_model = \"gpt\"\n\
             max_output_tokens = 50\n\
             operations = [\"invoke\", \"stream\", \"rerank\", \"count_tokens\"]\n\
             [[models]]\nmodel_id = \"claude\"\nprovider = \"anthropic\"\n",
            url = upstream.url
        );
    })
    .await
    .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    (stage, run, upstream)
}

fn chunk(delta: &Value) -> String {
    format!(
        "data: {}",
        json!({"id": "x", "choices": [{"index": 0, "delta": delta}]})
    )
}

const END: &str = r#"data: {"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

#[tokio::test]
async fn sends_upstream_model_name_and_rotates_keys() {
    let (_stage, run, upstream) = remote("").await;
    let done =
        json!({"id": "c", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]});
    upstream.reply(UpstreamReply::Headed(
        429,
        vec![("retry-after", "60".to_owned())],
        String::new(),
    ));
    upstream.reply(UpstreamReply::Json(200, done.clone()));
    upstream.reply(UpstreamReply::Json(200, done));
    let mut request = chat_request("hello");
    request["extra_args"] = json!({"temperature": 0.5, "max_tokens": 1000, "logit_bias": {"1": 2}});
    request["reasoning_level"] = json!("high");
    for _ in 0..2 {
        let text = run.call("/models/remote/invoke", &request).await;
        assert_eq!(text.status, 200, "{}", text.body);
        assert!(text.body.get("usage").is_none(), "unknown is not 0");
    }
    let requests = upstream.requests();
    let keys: Vec<_> = requests
        .iter()
        .map(|one| one.headers["authorization"].to_str().unwrap())
        .collect();
    let (first, second) = ("Bearer first-secret-key", "Bearer second-secret-key");
    assert_eq!(
        keys,
        [first, second, second],
        "the first key is rate-limited"
    );
    assert_eq!(requests[0].path, "/v1/chat/completions");
    assert_eq!(
        requests[0].body,
        json!({"model": "gpt", "temperature": 0.5, "max_tokens": 50, "logit_bias": {"1": 2},
            "reasoning_effort": "high", "messages": [{"role": "user", "content": "hello"}]})
    );
}

/// Usage is counted and output is capped by the operator's limit, for every form of request.
#[tokio::test]
async fn counts_and_caps_output_for_every_request() {
    let (stage, run, upstream) = remote("").await;
    let thought = json!({"reasoning_content": "t".repeat(300)});
    let usage = json!({"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}});
    let done = "data: [DONE]".to_owned();
    upstream.reply(UpstreamReply::Events(vec![
        END.to_owned(),
        format!("data: {usage}"),
        done.clone(),
    ]));
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&thought),
        END.to_owned(),
        done,
    ]));
    let asking = |more: Value| {
        let mut body = chat_request("hello");
        body["model"] = json!("remote");
        body["stream"] = json!(true);
        let body_of = body.as_object_mut().unwrap();
        body_of.extend(more.as_object().unwrap().clone());
        body
    };
    let chat = "/openai/v1/chat/completions";
    let hidden = asking(json!({"stream_options": null}));
    let text = run
        .request(Method::POST, chat)
        .json(&hidden)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(!text.contains("usage"), "{text}");
    let requests = &upstream.requests()[0].body;
    assert_eq!(requests["stream_options"], json!({"include_usage": true}));
    assert_eq!(requests["max_tokens"], 50);
    // If the provider reports no usage, the gateway estimates it, with functions and reasoning.
    let functions = asking(
        json!({"functions": [{"name": "f", "description": "word ".repeat(200)}], "max_tokens": 20}),
    );
    run.request(Method::POST, chat)
        .json(&functions)
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(upstream.requests()[1].body["max_tokens"], 20);
    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("both to be counted", async || {
        stage.client.get(&path).await.body["total"]["calls"] == 2
    })
    .await;
    let used = stage.client.get(&path).await.body["total"].clone();
    assert!(used["prompt_tokens"].as_u64().unwrap() > 200, "{used}");
    assert_eq!(used["completion_tokens"], 9 + 100, "{used}");

    let malformed = asking(json!({"stream_options": "all"}));
    let refused = run.call(chat, &malformed).await;
    refused.assert_detail(400, "pointer", "/stream_options");
    run.end(&stage).await;
}

#[tokio::test]
async fn reports_truncated_streams_as_errors() {
    let (stage, run, upstream) = remote("").await;
    let half = vec![chunk(&json!({"content": "The bridge is"}))];
    upstream.reply(UpstreamReply::Events(half.clone()));
    upstream.reply(UpstreamReply::Events(half));
    let mut body = chat_request("hello");
    (body["model"], body["stream"]) = (json!("remote"), json!(true));
    let chat = run.request(Method::POST, "/openai/v1/chat/completions");
    let text = chat.json(&body).send().await.unwrap().text().await.unwrap();
    assert_contains!(text, "the stream ended before the answer did");
    assert!(!text.contains("[DONE]"), "{text}");
    let native = events(&run, "/models/remote/stream", &chat_request("hello")).await;
    assert_eq!(native.last().unwrap().0, "error");
    run.end(&stage).await;
}

#[tokio::test]
async fn errors_hold_no_gateway_secrets() {
    let (stage, run, upstream) = remote("").await;
    let leak =
        json!({"error": {"message": "key first-secret-key is no key, nor second-secret-key"}});
    upstream.reply(UpstreamReply::Json(400, leak.clone()));
    upstream.reply(UpstreamReply::Json(401, leak.clone()));
    upstream.reply(UpstreamReply::Json(401, leak.clone()));
    upstream.reply(UpstreamReply::Events(vec![format!("data: {leak}")]));
    let refused = run.call("/models/remote/invoke", &chat_request("hi")).await;
    assert_eq!(
        (refused.status, refused.detail("upstream_status")),
        (400, &json!(400))
    );
    assert_contains!(refused.body.to_string(), "is no key");
    let denied = run.call("/models/remote/invoke", &chat_request("hi")).await;
    denied.assert_detail(502, "reason", "upstream_credential");
    let streamed = events(&run, "/models/remote/stream", &chat_request("hi")).await;
    let texts = format!(
        "{}{}{streamed:?}{}",
        refused.body,
        denied.body,
        stage.gateway.log()
    );
    assert!(!texts.contains("secret-key"), "{texts}");
}

#[tokio::test]
async fn provider_faults_end_only_their_call() {
    let (_stage, run, upstream) = remote("idle_seconds = 0.3").await;
    let hi = chunk(&json!({"content": "hi"}));
    let html = vec![("content-type", "text/html".to_owned())];
    let error_of = async |reply: UpstreamReply| {
        upstream.reply(reply);
        let asking = run
            .request(Method::POST, "/models/remote/stream")
            .json(&chat_request("hi"));
        let (status, text) = text_of(asking).await;
        if status != 200 {
            return serde_json::from_str::<Value>(&text).unwrap()["error"].clone();
        }
        events_in(&text).last().unwrap().1["error"].clone()
    };
    for (reply, code) in [
        (UpstreamReply::Cut(vec![hi.clone()]), "runtime_error"),
        (UpstreamReply::Events(vec![hi.clone()]), "runtime_error"),
        (
            UpstreamReply::Events(vec!["data: {no json".to_owned()]),
            "runtime_error",
        ),
        (
            UpstreamReply::Events(vec![format!("data: {}", "x".repeat(1_100_000))]),
            "runtime_error",
        ),
        (UpstreamReply::Hold(vec![hi.clone()]), "deadline_exceeded"),
        (
            UpstreamReply::Headed(200, html, "<p>".to_owned()),
            "runtime_error",
        ),
        (
            UpstreamReply::Headed(
                302,
                vec![("location", "http://169.254.169.254/".to_owned())],
                String::new(),
            ),
            "runtime_error",
        ),
        (UpstreamReply::Json(500, json!("oops")), "runtime_error"),
    ] {
        assert_eq!(error_of(reply).await["code"], code);
    }
    let requests = upstream.requests();
    assert_eq!(requests.len(), 8, "no request was repeated");
    upstream.reply(UpstreamReply::Events(vec![
        hi,
        END.to_owned(),
        "data: [DONE]".to_owned(),
    ]));
    assert_eq!(
        streamed_text(&events(&run, "/models/remote/stream", &chat_request("hi")).await),
        "hi"
    );
}

#[tokio::test]
async fn cancel_during_stream_disconnects_provider() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "hi"}))]));
    let asking = run
        .request(Method::POST, "/models/remote/stream")
        .json(&chat_request("hi"));
    let streaming = text_of(asking);
    let cancelling = async {
        until("the provider request", async || {
            !upstream.requests().is_empty()
        })
        .await;
        stage.client.cancel(&run.run_id).await;
        upstream.left(1).await;
    };
    let ((_, text), ()) = tokio::join!(streaming, cancelling);
    let events = events_in(&text);
    let (name, data) = events.last().unwrap();
    assert_eq!(
        (name.as_str(), &data["error"]["code"]),
        ("error", &json!("cancelled"))
    );
}

#[tokio::test]
async fn limits_concurrent_model_calls_per_run() {
    let (stage, run, upstream) = remote("").await;
    let mut apart = message("m-2");
    apart["conversation"]["conversation_id"] = json!("c-2");
    let other = HeldRun::start(&stage, &apart).await;
    for _ in 0..49 {
        upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "hi"}))]));
    }
    let ask = |run: &HeldRun| {
        let asking = run.request(Method::POST, "/models/remote/stream");
        text_of(asking.json(&chat_request("hi")))
    };
    let is_called = |n: usize| {
        let upstream = &upstream;
        until("the provider request", async move || {
            upstream.requests().len() == n
        })
    };
    let mut streams = Box::pin(join_all((0..48).map(|_| ask(&run))));
    tokio::select! {
        ended = &mut streams => panic!("{ended:?}"),
        () = is_called(48) => {}
    }
    let refused = run.call("/models/remote/invoke", &chat_request("hi")).await;
    let why = (refused.status, refused.detail("reason"));
    assert_eq!(why, (429, &json!("model_calls")), "{}", refused.body);
    assert_eq!(refused.headers["retry-after"], "1");
    let mut another = Box::pin(ask(&other));
    tokio::select! {
        ended = &mut another => panic!("{ended:?}"),
        () = is_called(49) => {}
    }
    drop((streams, another));
    upstream.left(49).await;
    upstream.reply(UpstreamReply::Events(vec![chunk(
        &json!({"content": "hi"}),
    )]));
    until("a slot to be free", async || {
        let answer = run.call("/models/remote/invoke", &chat_request("hi")).await;
        answer.status != 429
    })
    .await;
}

#[tokio::test]
async fn deadline_ends_stream_and_disconnects_provider() {
    let short = |config: &mut Config| config.agents[0].timeout_seconds = SHORT;
    let (stage, run, upstream) = remote_of("", short).await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "hi"}))]));
    let streamed = events(&run, "/models/remote/stream", &chat_request("hi")).await;
    let [(first, chunk), (last, failed)] = &streamed[..] else {
        panic!("{streamed:?}");
    };
    assert_eq!((first.as_str(), last.as_str()), ("chunk", "error"));
    assert_eq!(chunk["chunk"]["content"], "hi");
    let error = &failed["error"];
    assert_eq!(
        (&error["code"], &error["message"]),
        (
            &json!("deadline_exceeded"),
            &json!("the run is past its deadline")
        )
    );
    upstream.left(1).await;
    let outcome = stage.outcome(&run.run_id).await;
    assert_eq!(outcome.ending(), "timeout deadline_exceeded");
}

#[tokio::test]
async fn runner_disconnect_disconnects_provider() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "hi"}))]));
    let asking = run
        .request(Method::POST, "/models/remote/stream")
        .json(&chat_request("hi"));
    let response = asking.send().await.unwrap();
    assert_eq!(response.status(), 200);
    drop(response);
    upstream.left(1).await;
    until("the outcome", async || {
        let rows = audit(&stage, &run).await;
        rows.iter().any(|row| row["outcome"] == "abandoned")
    })
    .await;
}

#[tokio::test]
async fn returns_reasoning_and_signatures_to_model() {
    let (_stage, run, upstream) = remote("").await;
    let call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{}", "seal": "F"},
        "extra_content": {"google": {"thought_signature": "S"}}});
    let of_message = json!({"of": "message"});
    let completion = json!({"id": "x", "choices": [{"finish_reason": "tool_calls",
        "message": {"content": null, "reasoning_content": "T", "extra_content": of_message, "tool_calls": [call]}}]});
    let done =
        json!({"id": "y", "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]});
    let requests = upstream.requests().len();
    upstream.reply(UpstreamReply::Json(200, completion));
    let response = run
        .call("/models/remote/invoke", &chat_request("look"))
        .await
        .body["message"]
        .clone();
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&json!({"reasoning_content": "T"})),
        chunk(&json!({"tool_calls": [call], "extra_content": of_message})),
        END.replace("stop", "tool_calls"),
        "data: [DONE]".to_owned(),
    ]));
    let mut streamed = json!({"role": "assistant"});
    for (_, event) in events(&run, "/models/remote/stream", &chat_request("look")).await {
        for member in ["tool_calls", "provider_specific_fields"] {
            if !event["chunk"][member].is_null() {
                streamed[member] = event["chunk"][member].clone();
            }
        }
    }
    for message in [response, streamed] {
        let result = json!({"role": "tool", "tool_call_id": "c", "content": "sunny"});
        let mut request = chat_request("look");
        let messages = request["messages"].as_array_mut().unwrap();
        messages.extend([message, result]);
        upstream.reply(UpstreamReply::Json(200, done.clone()));
        run.call("/models/remote/invoke", &request)
            .await
            .expect(200);
        let back = upstream.requests().pop().unwrap().body["messages"][1].clone();
        assert_eq!(back["reasoning_content"], "T", "{back}");
        let signature = &back["tool_calls"][0]["extra_content"]["google"]["thought_signature"];
        assert_eq!(signature, "S", "{back}");
        assert_eq!(back["tool_calls"][0]["function"]["seal"], "F", "{back}");
        assert_eq!(back["extra_content"], of_message, "{back}");
        assert!(
            !back["content"].to_string().contains('T'),
            "thoughts are no text: {back}"
        );
        // The other model gets neither.
        let answer = json!({"id": "m", "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn", "usage": {}});
        upstream.reply(UpstreamReply::Json(200, answer));
        run.call("/models/claude/invoke", &request)
            .await
            .expect(200);
        let other = upstream.requests().pop().unwrap().body["messages"].to_string();
        assert!(
            !["extra_content", "reasoning", "seal"]
                .iter()
                .any(|name| other.contains(name)),
            "{other}"
        );
    }
    assert_eq!(upstream.requests().len() - requests, 6);
}

#[tokio::test]
async fn translates_anthropic_messages_to_completions() {
    let (_stage, run, upstream) = remote("").await;
    let event = |data: Value| format!("event: {}\ndata: {data}", data["type"].as_str().unwrap());
    upstream.reply(UpstreamReply::Events(vec![
        event(json!({"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 5}}})),
        event(json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}})),
        event(json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}})),
        event(json!({"type": "message_stop"})),
    ]));
    upstream.reply(UpstreamReply::Events(vec![event(
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}),
    )]));
    let streamed = events(&run, "/models/claude/stream", &chat_request("hello")).await;
    assert_eq!(streamed_text(&streamed), "hi");
    assert_eq!(streamed.last().unwrap().1["usage"]["total_tokens"], 7);
    let failed = events(&run, "/models/claude/stream", &chat_request("hello")).await;
    assert_eq!(failed.last().unwrap().0, "error");
    let requests = &upstream.requests()[0];
    assert_eq!(requests.path, "/v1/messages");
    assert_eq!(requests.headers["x-api-key"], "first-secret-key");
    assert_eq!(requests.headers["anthropic-version"], "2023-06-01");
    assert_eq!(requests.body["messages"][0]["content"][0]["text"], "hello");
}

// --- budgets ---

/// The budget reserves the output limit of a request in each form that the provider reads.
#[tokio::test]
async fn budget_reserves_every_form_of_output_limit() {
    let budget = "[[budgets]]\nname = \"run-tokens\"\nscope = \"run\"\ntokens = 2000\n";
    let (stage, run) = scripted_with(Sqlite, budget).await.unwrap();
    let chat = "/openai/v1/chat/completions";
    let asking = |more: &Value| {
        let mut body = chat_request("hello");
        body["model"] = json!("talker");
        let body_of = body.as_object_mut().unwrap();
        body_of.extend(more.as_object().unwrap().clone());
        body
    };
    let many = run.call(chat, &asking(&json!({"n": 100}))).await;
    assert_eq!(many.status, 429, "{}", many.body);
    assert_eq!(many.error("details")["budget"], "run-tokens");
    for more in [
        json!({"n": 0}),
        json!({"n": 2.5}),
        json!({"best_of": 1000}),
        json!({"max_tokens": u64::MAX}),
        json!({"max_tokens": "50"}),
        json!({"max_tokens": -1}),
        json!({"max_completion_tokens": 50.0}),
    ] {
        let pointer = format!("/{}", more.as_object().unwrap().keys().next().unwrap());
        let refused = run.call(chat, &asking(&more)).await;
        assert_eq!(refused.status, 400, "{more}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer.as_str(), "{more}");
        let mut native = chat_request("hello");
        native["extra_args"] = more.clone();
        let refused = run.call("/models/talker/invoke", &native).await;
        assert_eq!(refused.status, 400, "{more}: {}", refused.body);
        let pointer = format!("/extra_args{pointer}");
        assert_eq!(refused.detail("pointer"), pointer.as_str(), "{more}");
    }
    // The token count of a document is unknown, for a URL or a few bytes.
    let reading =
        |part: Value| json!({"messages": [{"role": "user", "content": [part]}], "max_tokens": 5});
    for data in [
        "https://example.org/a.pdf",
        "data:application/pdf;base64,AAAA",
    ] {
        let part = json!({"type": "file", "file": {"filename": "a.pdf", "file_data": data}});
        let document = run.call(chat, &asking(&reading(part))).await;
        assert_eq!(document.status, 429, "{data}: {}", document.body);
        assert_eq!(document.error("details")["budget"], "run-tokens");
    }
    let part = json!({"type": "file_base64", "file_base64": "JVBERi0xLjQ=", "file_name": "a.pdf"});
    let document = json!({"messages": [{"role": "user", "content": [part]}]});
    let document = run.call("/models/talker/invoke", &document).await;
    assert_eq!(document.status, 429, "{}", document.body);
    let part = json!({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}});
    run.call(chat, &asking(&reading(part))).await.expect(200);
    let few = json!({"n": 2, "max_tokens": 5, "max_completion_tokens": null});
    run.call(chat, &asking(&few)).await.expect(200);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn reserves_budget_before_call_and_settles_after(#[values(Sqlite, Postgres)] engine: Engine) {
    let budgets = "[[budgets]]\nname = \"run-calls\"\nscope = \"run\"\ncalls = 3\n\
        [[budgets]]\nname = \"day-tokens\"\nscope = \"workspace\"\nwindow = \"day\"\ntokens = 1000\n\
        [[budgets]]\nname = \"each-agent\"\nscope = \"agent\"\nwindow = \"day\"\ncalls = 100\n";
    let (stage, run) = or_skip!(scripted_with(engine, budgets).await);
    // Output is limited to 100 tokens; with the input, nine such calls would fit.
    run.call("/models/talker/invoke", &chat_request("hello"))
        .await
        .expect(200);
    let streamed = events(&run, "/models/talker/stream", &chat_request("hello")).await;
    assert_eq!(streamed.last().unwrap().0, "usage");
    let long = chat_request(&"word ".repeat(2000));
    let refused = run.call("/models/talker/invoke", &long).await;
    refused.assert_error(429, "code", "rate_limited");
    let details = refused.error("details");
    for (member, value) in [
        ("reason", json!("budget")),
        ("budget", json!("day-tokens")),
        ("limit", json!("tokens")),
        ("most", json!(1000)),
    ] {
        assert_eq!(details[member], value, "{details}");
    }
    let resets = details["resets_at"].as_i64().unwrap();
    assert_eq!(resets.rem_euclid(86_400), 0);
    let message = refused.error("message").as_str().unwrap();
    assert!(message.ends_with("T00:00:00Z"), "{message}");
    assert!(refused.headers.contains_key("retry-after"));

    let third = run
        .call("/models/talker/invoke", &chat_request("busy"))
        .await;
    assert_eq!(
        third.error("details")["reason"],
        "upstream_rate_limited",
        "a refused call took nothing"
    );
    let fourth = run
        .call("/openai/v1/chat/completions", &{
            let mut body = chat_request("hello");
            body["model"] = json!("talker");
            body
        })
        .await;
    assert_eq!(
        fourth.error("details")["budget"],
        "run-calls",
        "{}",
        fourth.body
    );
    assert_eq!(fourth.error("retryable"), false);
    assert!(!fourth.headers.contains_key("retry-after"));

    let admin = stage.admin.clone();
    let usage_path = format!("/v1/runs/{}/usage", run.run_id);
    until("the usage", async || {
        stage.client.get(&usage_path).await.body["total"]["calls"] == 3
    })
    .await;
    let usage = stage.client.get(&usage_path).await.body;
    let item = &usage["items"][0];
    assert_members!(item, {"kind": "model", "resource": "talker"});
    let tokens = |of: &Value| {
        of["prompt_tokens"].as_u64().unwrap() + of["completion_tokens"].as_u64().unwrap()
    };
    assert!(
        tokens(item) > 0 && usage["total"]["cost"].as_f64().unwrap() > 0.0,
        "{usage}"
    );
    let budgets = admin.get("/v1/budgets").await.body;
    let of_day = &budgets["items"][1]["used"][0];
    assert_eq!(of_day["id"], "default");
    assert_eq!(
        of_day["tokens"],
        tokens(item),
        "what was reserved is given back: {budgets}"
    );
    assert_eq!(of_day["calls"], 3);
    let left = json!({"tokens": 1000 - tokens(item)});
    assert_eq!(of_day["left"], left, "limits that are set: {budgets}");
    let of_run = &budgets["items"][0];
    assert_eq!(of_run["name"], "run-calls");
    assert_eq!(of_run["used"][0]["left"]["calls"], 0, "{budgets}");
    assert_eq!(budgets["items"][2]["used"][0]["name"], "main", "{budgets}");
}

// --- the official clients ---

pub static OPENAI_NODE: NodeProject = NodeProject::at("tests/clients/openai");

/// The expected results of a client with the scripted model.
fn check_client(got: &Value) {
    assert_eq!(got["whole"], "<think>hidden</think>You said: hello");
    assert_eq!(got["pieces"], got["whole"]);
    assert_eq!(got["model"], "talker");
    assert_eq!(got["usage"], true);
    assert_members!(got, {"call": json!(["get_weather", {"city": "Oslo"}, "tool_calls"])});
    assert_eq!(got["told"], "It is cold.");
    assert_eq!(got["dimensions"], json!([128, 128]));
    assert_eq!(got["models"], json!(["talker", "ranker"]));
    assert_eq!(got["model_of_id"], "talker");
    assert_eq!(
        got["refused"],
        json!([
            ["PermissionDeniedError", 403, "unauthorized"],
            ["RateLimitError", 429, "rate_limited"]
        ])
    );
}

#[tokio::test]
async fn official_python_client_accepts_run_token() {
    let openai = or_skip!(python_with_openai().await);
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let base_url = format!("{}/openai/v1", run.host.url);
    let mut python = Command::new(openai);
    python.arg(repository_file("tests/peer/openai_client.py"));
    check_client(
        &ask(
            &mut python,
            &json!({"base_url": base_url, "token": run.token}),
        )
        .await,
    );
}

#[tokio::test]
async fn official_node_client_accepts_run_token() {
    let project = or_skip!(OPENAI_NODE.built("node").await);
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let base_url = format!("{}/openai/v1", run.host.url);
    let mut node = Command::new("node");
    node.arg(project.join("client.mjs"));
    check_client(
        &ask(
            &mut node,
            &json!({"base_url": base_url, "token": run.token}),
        )
        .await,
    );
}

/// A provider with two keys, a run that calls it and an operator that reads its health.
struct ProviderStage {
    upstream: Upstream,
    stage: Stage,
    admin: Client,
    run: HeldRun,
}

impl ProviderStage {
    async fn new() -> Self {
        let upstream = Upstream::start().await;
        let runner = StubRunner::start_as(all_models()).await;
        let stage = Stage::of(Sqlite, runner, |config| {
            grant(config);
            config.rest = two_keys(&upstream.url);
            config.environment = KEYS.map(|(name, key)| (name, key.to_owned())).to_vec();
        })
        .await
        .unwrap();
        Self {
            upstream,
            admin: stage.admin.clone(),
            run: HeldRun::start(&stage, &message("m-1")).await,
            stage,
        }
    }

    async fn health(&self) -> Value {
        let answer = self.admin.get("/v1/model-providers").await.expect(200);
        let text = answer.body.to_string();
        assert!(KEYS.iter().all(|(_, key)| !text.contains(key)), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
        answer.body["items"][0].clone()
    }

    /// Makes one call that the provider answers with this response.
    async fn invoke(&self, status: u16, answer: Value) -> u16 {
        self.upstream.reply(UpstreamReply::Json(status, answer));
        let path = "/models/remote/invoke";
        self.run.call(path, &chat_request("hi")).await.status
    }

    async fn streamed(&self, reply: UpstreamReply) -> u16 {
        self.upstream.reply(reply);
        let asking = self.run.request(Method::POST, "/models/remote/stream");
        text_of(asking.json(&chat_request("hi"))).await.0
    }
}

#[tokio::test]
async fn shows_provider_health_and_resting_keys() {
    let far = ProviderStage::new().await;
    assert_eq!(
        far.health().await,
        json!({"name": "far", "kind": "openai", "base_url": format!("{}/v1", far.upstream.url),
            "models": ["remote"], "keys": [{}, {}], "consecutive_failures": 0})
    );
    let completion =
        json!({"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}}]});
    let refused = json!({"error": {"message": "no"}});
    far.upstream.reply(UpstreamReply::Json(401, refused));
    assert_eq!(far.invoke(200, completion).await, 200);
    let now = far.health().await;
    assert_eq!(now["consecutive_failures"], 0, "the other key was taken");
    let success = now["last_success_at"].as_i64();
    assert!(
        success > Some(1_700_000_000) && success < Some(17_000_000_000),
        "epoch seconds"
    );
    assert!(now.get("last_failure_at").is_none(), "{now}");
    assert_eq!(now["keys"][0]["rests_because"], "upstream_credential");
    assert!(now["keys"][0]["rests_until"].as_i64() > now["last_success_at"].as_i64());
    assert_eq!(now["keys"][1], json!({}));

    let completion = json!({"error": {"message": "hunter2"}});
    for failures in 1..=2 {
        assert_eq!(far.invoke(500, completion.clone()).await, 502);
        let now = far.health().await;
        assert_eq!(now["consecutive_failures"], failures);
        assert_eq!(
            now["last_error"],
            json!({"code": "runtime_error", "reason": "upstream_failing", "status": 500})
        );
    }
    // A request error does not count as a provider failure; a missing model does.
    assert_eq!(far.invoke(400, completion.clone()).await, 400);
    assert_eq!(far.health().await["consecutive_failures"], 2);
    assert_eq!(far.invoke(404, completion).await, 400);
    let now = far.health().await;
    assert_eq!(now["consecutive_failures"], 3);
    assert_eq!(now["last_error"]["status"], 404);
    let client = far.stage.client.get("/v1/model-providers").await;
    assert_eq!(client.status, 403, "it is the operator's");
    far.run.end(&far.stage).await;
}

#[tokio::test]
async fn stream_outcome_counts_for_provider_health() {
    let far = ProviderStage::new().await;
    let failed = json!({"error": {"message": "hunter2"}});
    assert_eq!(far.invoke(503, failed).await, 502);
    assert_eq!(far.health().await["consecutive_failures"], 1);
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": "hi"}}]});
    let piece = format!("data: {chunk}");
    let complete = UpstreamReply::Events(vec![piece.clone(), "data: [DONE]".to_owned()]);
    assert_eq!(far.streamed(complete).await, 200);
    let now = far.health().await;
    assert_eq!(now["consecutive_failures"], 0);
    assert!(now["last_success_at"].as_i64() >= now["last_failure_at"].as_i64());
    // The piece arrives before or after the cut, depending on the network.
    far.streamed(UpstreamReply::Cut(vec![piece])).await;
    let now = far.health().await;
    assert_eq!(now["consecutive_failures"], 1, "{now}");
    assert_eq!(now["last_error"]["reason"], "upstream_broken");
    far.run.end(&far.stage).await;
}

const KEYS: [(&str, &str); 2] = [
    ("FAR_KEY_ONE", "key-number-one"),
    ("FAR_KEY_TWO", "key-number-two"),
];

fn two_keys(url: &str) -> String {
    format!(
        "[[model_providers]]\nname = \"far\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\n\
         api_keys = [\"env:{}\", \"env:{}\"]\n\
         [[models]]\nmodel_id = \"remote\"\nprovider = \"far\"\nupstream_model = \"big\"\n",
        KEYS[0].0, KEYS[1].0
    )
}

#[tokio::test]
async fn probes_providers_with_each_key_before_serving() {
    let directory = TempDirectory::new();
    let half = || uuid::Uuid::new_v4().simple().to_string();
    let key = directory.write("master.key", &(half() + &half()));
    let upstream = Upstream::start().await;
    let probe = async |providers: &str, more: &[&str]| {
        let head = format!(
            "[auth]\nmaster_key = \"file:{key}\"\n[database]\nurl = \"sqlite://{key}.db\"\n\
             [egress]\nallow = [\"127.0.0.0/8\"]\n{providers}",
            key = key.display()
        );
        let file = directory.write("runnel.toml", &head);
        let mut command = Command::new(runnel());
        command
            .args(["check-config", "--probe", "--config"])
            .arg(file);
        run(command.args(more).envs(KEYS)).await
    };
    let listed = |ids: &[&str]| {
        let items = ids.iter().map(|id| json!({"id": id})).collect::<Vec<_>>();
        UpstreamReply::Json(200, json!({"object": "list", "data": items}))
    };
    upstream.reply(listed(&["big", "small"]));
    upstream.reply(UpstreamReply::Json(404, json!({})));
    let good = probe(&two_keys(&upstream.url), &[]).await.exited(0);
    let table = good.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for key in 0..2 {
        let row = format!("model provider far, api_keys[{key}] ok answers");
        assert!(table.contains(&row), "{good:?}");
    }
    let requests = upstream.requests();
    assert_eq!(requests[0].path, "/v1/models");
    assert_eq!(
        requests[0].headers["authorization"],
        "Bearer key-number-one"
    );
    assert_eq!(
        requests[1].headers["authorization"],
        "Bearer key-number-two"
    );

    upstream.reply(listed(&["small"]));
    upstream.reply(UpstreamReply::Json(
        401,
        json!({"error": {"message": "key-number-two is over"}}),
    ));
    let away = "[[model_providers]]\nname = \"away\"\nkind = \"anthropic\"\nbase_url = \"http://127.0.0.1:1\"\n\
        [[model_providers]]\nname = \"script\"\nkind = \"scripted\"\n";
    let bad = probe(&format!("{}{away}", two_keys(&upstream.url)), &["--json"]).await;
    assert!(!bad.status.success());
    assert!(!format!("{bad:?}").contains("key-number"), "{bad:?}");
    let report = bad.json();
    assert_eq!(report["valid"], true);
    let [far, away, script] = [0, 1, 2].map(|n| report["model_providers"][n].clone());
    assert_eq!(far["keys"][0], json!({"ok": true}));
    assert_eq!(far["keys"][1]["reason"], "upstream_credential");
    let advice = far["keys"][1]["advice"].as_str().unwrap();
    assert!(advice.contains("renew the key"), "{advice}");
    assert_eq!(far["unlisted_models"], json!(["big"]));
    assert_eq!(away["keys"][0]["reason"], "upstream_unreachable");
    assert_eq!(script["keys"], json!([{"ok": true}]));
}
