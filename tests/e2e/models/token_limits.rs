//! `tokens_per_minute` of API keys, agents and models.

use reqwest::Method;
use serde_json::{Value, json};

use super::{chat_request, chunk, remote_of};
use crate::support::OwnStage;
use crate::support::client::{ApiResponse, Client, message};
use crate::support::held::HeldRun;
use crate::support::until;
use crate::support::upstream::UpstreamReply;

const INVOKE: &str = "/models/remote/invoke";
const CHAT: &str = "/openai/v1/chat/completions";

/// An answer with this use: at 600 tokens a minute, a thousand seconds for 10,000 tokens.
fn completion_of(prompt: u64, completion: u64) -> UpstreamReply {
    let done = json!({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion}});
    UpstreamReply::Json(200, done)
}

/// The limiter of tokens of this kind.
async fn limiter(admin: &Client, kind: &str) -> Value {
    let listed = admin.get("/v1/limits").await.expect(200).body;
    let mut items = listed["items"].as_array().unwrap().iter();
    let of_kind = |item: &&Value| item["kind"] == kind && item["limit"] == "tokens_per_minute";
    items.find(of_kind).unwrap().clone()
}

fn assert_refused(refused: &ApiResponse, reason: &str) {
    refused.assert_detail(429, "reason", reason);
    let wait = refused.headers["retry-after"].to_str().unwrap();
    // About 9,400 tokens over the limit, less those of the seconds of this test.
    assert!((800..=950).contains(&wait.parse().unwrap()), "{wait}");
    assert_eq!(refused.error("retryable"), true);
}

async fn run_of(stage: &OwnStage, client: &Client, event: &str) -> HeldRun {
    HeldRun::start_as(stage, client, &message(event)).await
}

#[tokio::test]
async fn tokens_of_an_agent_bound_its_calls() {
    let limits = |config: &mut super::Config| config.agents[0].limits = "tokens_per_minute = 600";
    let (stage, run, upstream) = remote_of("", limits).await;
    // A call that the provider refuses gives its tokens back.
    upstream.reply(UpstreamReply::Json(
        400,
        json!({"error": {"message": "no"}}),
    ));
    run.call(INVOKE, &chat_request("hello")).await.expect(400);
    let idle = limiter(&stage.admin, "agent").await;
    assert_members!(idle, {"name": "main", "max": 600, "in_flight": 0, "available": 600, "refused": 0});
    // A call in flight holds its estimate.
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "a"}))]));
    let held = run.request(Method::POST, "/models/remote/stream");
    let mut held = held.json(&chat_request("hello")).send().await.unwrap();
    assert!(held.chunk().await.unwrap().is_some());
    let busy = limiter(&stage.admin, "agent").await;
    assert!(busy["in_flight"].as_u64().unwrap() > 50, "{busy}");
    drop(held);
    until("the end of the call", async || {
        limiter(&stage.admin, "agent").await["in_flight"] == 0
    })
    .await;
    upstream.reply(completion_of(9_900, 100));
    run.call(INVOKE, &chat_request("hello")).await.expect(200);
    let refused = run.call(INVOKE, &chat_request("hello")).await;
    assert_eq!(refused.detail("name"), "main");
    assert_eq!(refused.detail("limit"), 600);
    assert_refused(&refused, "agent_tokens");
    // The bucket is that of the agent, not of the run.
    let other = run_of(&stage, &stage.client, "m-2").await;
    let refused = other.call(INVOKE, &chat_request("hello")).await;
    assert_refused(&refused, "agent_tokens");
    let spent = limiter(&stage.admin, "agent").await;
    assert_eq!(spent["refused"], 2);
    assert!(spent["available"].as_i64().unwrap() < -8_000, "{spent}");
    run.end(&stage).await;
    other.end(&stage).await;
}

#[tokio::test]
async fn tokens_of_a_key_bound_its_calls() {
    let (stage, free, upstream) = remote_of("", |_| {}).await;
    let spec = json!({"name": "batch", "role": "client", "limits": {"tokens_per_minute": 600}});
    let made = stage.admin.create("/v1/api-keys", &spec).await.expect(201);
    let client = Client::new(&stage.client.url, made.body["key"].as_str().unwrap());
    let run = run_of(&stage, &client, "m-2").await;
    upstream.reply(completion_of(9_900, 100));
    run.call(INVOKE, &chat_request("hello")).await.expect(200);
    let refused = run.call(INVOKE, &chat_request("hello")).await;
    assert_eq!(refused.detail("name"), "batch");
    assert_refused(&refused, "key_tokens");
    // Starts are free, and so are the runs of another key.
    let later = run_of(&stage, &client, "m-3").await;
    let refused = later.call(INVOKE, &chat_request("hello")).await;
    assert_refused(&refused, "key_tokens");
    upstream.reply(completion_of(9_900, 100));
    free.call(INVOKE, &chat_request("hello")).await.expect(200);
    let spent = limiter(&stage.admin, "api_key").await;
    assert_members!(spent, {"name": "batch", "max": 600, "refused": 2});
    for run in [free, run, later] {
        run.end(&stage).await;
    }
}

#[tokio::test]
async fn calls_beyond_tokens_of_a_model_fall_back() {
    let more = "[[models]]\nmodel_id = \"small\"\nprovider = \"openai\"\ntokens_per_minute = 600\n\
        queue_seconds = 0.1\n[[models]]\nmodel_id = \"best\"\nroute = [{ model = \"small\" }]\n\
        fallback = [\"remote\"]\n";
    let grant = |config: &mut super::Config| {
        config.agents[0].resources = r#"models = ["small", "best", "remote"]"#;
    };
    let (stage, run, upstream) = remote_of(more, grant).await;
    let request =
        |model: &str| json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
    upstream.reply(completion_of(9_900, 100));
    run.call(CHAT, &request("small")).await.expect(200);
    let refused = run.call(CHAT, &request("small")).await;
    assert_refused(&refused, "model_tokens");
    upstream.reply(completion_of(10, 10));
    let answered = run.call(CHAT, &request("best")).await.expect(200);
    assert_eq!(answered.headers["x-runnel-model"], "remote");
    let spent = limiter(&stage.admin, "model").await;
    assert_members!(spent, {"id": "small", "max": 600, "in_flight": 0, "queued": 0, "refused": 2});
    run.end(&stage).await;
}
