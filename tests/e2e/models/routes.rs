//! Routes and fallbacks: which model answers, and limits of providers.

use reqwest::Method;
use serde_json::{Value, json};

use super::{END, audit, chat_request, chunk, remote_of, text_of};
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::until;
use crate::support::upstream::{Upstream, UpstreamReply};

const CHAT: &str = "/openai/v1/chat/completions";
const RESPONSES: &str = "/openai/v1/responses";
const MESSAGES: &str = "/anthropic/v1/messages";
const GEMINI: &str = "/gemini/v1beta/models/r6:streamGenerateContent";
const ROUTES: usize = 7;

/// Routes `r0`… over the models `h0`… of the OpenAI server, with the fallback `answer` of the Anthropic server.
fn routes() -> String {
    let route = |n| {
        format!(
            "[[models]]\nmodel_id = \"h{n}\"\nprovider = \"openai\"\ninput_price = 1.0\noutput_price = 2.0\n\
             [[models]]\nmodel_id = \"r{n}\"\nroute = [{{ model = \"h{n}\", weight = 3 }}]\nfallback = [\"answer\"]\n"
        )
    };
    let routes: String = (0..ROUTES).map(route).collect();
    format!(
        "{routes}[[models]]\nmodel_id = \"answer\"\nprovider = \"anthropic\"\n\
         input_price = 10.0\noutput_price = 20.0\n"
    )
}

fn grant_routes(config: &mut Config) {
    config.agents = vec![Agent {
        resources: r#"models = ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "remote"]"#,
        ..Agent::default()
    }];
}

fn request_to(path: &str, model: &str) -> Value {
    match path {
        RESPONSES => json!({"model": model, "input": "hello"}),
        MESSAGES => {
            json!({"model": model, "max_tokens": 99, "messages": [{"role": "user", "content": "hello"}]})
        }
        GEMINI => json!({"contents": [{"parts": [{"text": "hello"}]}]}),
        CHAT => json!({"model": model, "messages": [{"role": "user", "content": "hello"}]}),
        _ => chat_request("hello"),
    }
}

fn failed(status: u16, wait: Option<&str>) -> UpstreamReply {
    let wait = wait.map(|wait| ("retry-after", wait.to_owned()));
    UpstreamReply::Headed(status, wait.into_iter().collect(), String::new())
}

/// An answer of the Anthropic server.
fn message() -> UpstreamReply {
    let message = json!({"type": "message", "id": "m", "role": "assistant",
        "content": [{"type": "text", "text": "from the fallback"}], "stop_reason": "end_turn",
        "usage": {"input_tokens": 100, "output_tokens": 10}});
    UpstreamReply::Json(200, message)
}

fn streamed_message() -> UpstreamReply {
    let events = [
        json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 100}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "from the fallback"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}}),
        json!({"type": "message_stop"}),
    ];
    let event = |event: &Value| {
        let name = event["type"].as_str().unwrap();
        format!("event: {name}\ndata: {event}")
    };
    UpstreamReply::Events(events.iter().map(event).collect())
}

fn completion() -> UpstreamReply {
    let done = json!({"choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]});
    UpstreamReply::Json(200, done)
}

/// Status, answering model and text.
async fn ask(run: &HeldRun, path: &str, body: &Value) -> (u16, String, String) {
    let response = run
        .request(Method::POST, path)
        .json(body)
        .send()
        .await
        .unwrap();
    let status = response.status().as_u16();
    let model = response.headers().get("x-runnel-model");
    let model = model.map_or("", |model| model.to_str().unwrap()).to_owned();
    (status, model, response.text().await.unwrap())
}

fn paths(upstream: &Upstream) -> Vec<String> {
    let requests = upstream.requests().into_iter();
    requests.map(|request| request.path).collect()
}

#[tokio::test]
async fn failed_candidate_falls_back_in_every_api() {
    let (stage, run, upstream) = remote_of(&routes(), grant_routes).await;
    let overloaded = format!(
        "data: {}",
        json!({"error": {"message": "overloaded", "code": 503}})
    );
    let stream = |mut body: Value| {
        body["stream"] = json!(true);
        body
    };
    // The server has two keys, and a rate-limited one is followed by the other.
    let limited = || [failed(429, Some("60")), failed(429, Some("60"))];
    let rows: [(String, Value, Vec<UpstreamReply>); ROUTES] = [
        (
            "/models/r0/invoke".to_owned(),
            request_to("", ""),
            vec![failed(500, None), message()],
        ),
        (
            CHAT.to_owned(),
            request_to(CHAT, "r1"),
            limited().into_iter().chain([message()]).collect(),
        ),
        (
            CHAT.to_owned(),
            stream(request_to(CHAT, "r2")),
            vec![UpstreamReply::Events(vec![overloaded]), streamed_message()],
        ),
        (
            "/models/r3/stream".to_owned(),
            request_to("", ""),
            vec![UpstreamReply::Cut(Vec::new()), streamed_message()],
        ),
        (
            RESPONSES.to_owned(),
            request_to(RESPONSES, "r4"),
            vec![failed(529, None), message()],
        ),
        (
            MESSAGES.to_owned(),
            request_to(MESSAGES, "r5"),
            vec![failed(503, None), message()],
        ),
        (
            GEMINI.to_owned(),
            request_to(GEMINI, ""),
            vec![failed(500, None), streamed_message()],
        ),
    ];
    for (n, (path, body, replies)) in rows.into_iter().enumerate() {
        for reply in replies {
            upstream.reply(reply);
        }
        let (status, model, text) = ask(&run, &path, &body).await;
        assert_eq!((status, model.as_str()), (200, "answer"), "r{n}: {text}");
        assert!(text.contains("from the fallback"), "r{n}: {text}");
    }
    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("the calls to be counted", async || {
        stage.client.get(&path).await.body["total"]["calls"] == 2 * ROUTES
    })
    .await;
    let usage = stage.client.get(&path).await.body;
    let items = usage["items"].as_array().unwrap();
    let of_answer = items
        .iter()
        .find(|item| item["resource"] == "answer")
        .unwrap();
    assert_eq!(of_answer["calls"], ROUTES, "{usage}");
    // At the price of the model that answers.
    assert_eq!(of_answer["cost"], 0.0084, "{usage}");
    let entries = audit(&stage, &run).await;
    let of_route: Vec<_> = entries
        .iter()
        .filter(|entry| entry["resource"] == "r0")
        .collect();
    let shown =
        |key: &str| -> Vec<Value> { of_route.iter().map(|entry| entry[key].clone()).collect() };
    assert_eq!(shown("model"), ["h0", "answer"], "{of_route:?}");
    assert_eq!(shown("outcome"), ["runtime_error", "ok"], "{of_route:?}");
    run.end(&stage).await;
}

#[tokio::test]
async fn grant_of_a_route_opens_no_candidate() {
    let (stage, run, upstream) = remote_of(&routes(), grant_routes).await;
    for model in ["h0", "answer"] {
        let refused = run.call(CHAT, &request_to(CHAT, model)).await.expect(403);
        assert_eq!(refused.error("details")["model"], model);
    }
    let listed = run.get("/openai/v1/models").await.body.to_string();
    assert!(listed.contains("r0") && !listed.contains("h0"), "{listed}");
    let refused = run
        .call(
            "/openai/v1/embeddings",
            &json!({"model": "r0", "input": "a"}),
        )
        .await;
    assert_eq!(
        refused.status, 400,
        "a route makes no vectors: {}",
        refused.body
    );
    assert!(upstream.requests().is_empty());
    run.end(&stage).await;
}

#[tokio::test]
async fn calls_no_other_model_after_the_first_byte() {
    let (stage, run, upstream) = remote_of(&routes(), grant_routes).await;
    upstream.reply(UpstreamReply::Cut(vec![chunk(&json!({"content": "half"}))]));
    let mut body = request_to(CHAT, "r0");
    body["stream"] = json!(true);
    let (status, model, text) = ask(&run, CHAT, &body).await;
    assert_eq!((status, model.as_str()), (200, "h0"), "{text}");
    assert!(
        text.contains("half") && text.contains("upstream_broken"),
        "{text}"
    );
    assert_eq!(upstream.requests().len(), 1);
    run.end(&stage).await;
}

#[tokio::test]
async fn reports_refused_requests_without_fallback() {
    let (stage, run, upstream) = remote_of(&routes(), grant_routes).await;
    let refusal = json!({"error": {"message": "unknown role"}});
    upstream.reply(UpstreamReply::Json(400, refusal));
    let refused = run.call(CHAT, &request_to(CHAT, "r0")).await.expect(400);
    assert_eq!(refused.error("details")["reason"], "upstream_refused");
    assert_eq!(upstream.requests().len(), 1);
    // A short wait of a rate limit repeats the same model.
    for _ in 0..2 {
        upstream.reply(failed(429, Some("0")));
    }
    upstream.reply(completion());
    let (status, model, text) = ask(&run, CHAT, &request_to(CHAT, "r1")).await;
    assert_eq!((status, model.as_str()), (200, "h1"), "{text}");
    run.end(&stage).await;
}

#[tokio::test]
async fn untranslatable_requests_exclude_the_candidate() {
    let (stage, run, upstream) = remote_of(&routes(), grant_routes).await;
    let source = json!({"type": "url", "url": "https://example.org/a.pdf"});
    let mut body = request_to(MESSAGES, "r0");
    body["messages"][0]["content"] = json!([{"type": "document", "source": source}]);
    upstream.reply(message());
    let (status, model, text) = ask(&run, MESSAGES, &body).await;
    assert_eq!((status, model.as_str()), (200, "answer"), "{text}");
    assert_eq!(paths(&upstream), ["/v1/messages"]);
    run.end(&stage).await;
}

#[tokio::test]
async fn full_provider_queue_moves_to_the_next_model() {
    let more = format!("concurrency = 1\nqueue_seconds = 0.1\n{}", routes());
    let (stage, run, upstream) = remote_of(&more, grant_routes).await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "a"}))]));
    let held = run.request(Method::POST, "/models/remote/stream");
    let mut held = held.json(&chat_request("hello")).send().await.unwrap();
    assert!(held.chunk().await.unwrap().is_some());
    let busy = run
        .call(CHAT, &request_to(CHAT, "remote"))
        .await
        .expect(429);
    assert_eq!(busy.error("details")["reason"], "provider_concurrency");
    upstream.reply(message());
    let (status, model, text) = ask(&run, CHAT, &request_to(CHAT, "r0")).await;
    assert_eq!((status, model.as_str()), (200, "answer"), "{text}");
    drop(held);
    upstream.left(1).await;
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&json!({"content": "b"})),
        END.to_owned(),
    ]));
    let again = run.request(Method::POST, "/models/remote/stream");
    let (status, text) = text_of(again.json(&chat_request("hello"))).await;
    assert_eq!(status, 200, "{text}");
    run.end(&stage).await;
}

#[tokio::test]
async fn full_model_leaves_other_models_of_its_provider_free() {
    let limited = "model_id = \"h0\"\nconcurrency = 1\nrate = 1000\nqueue_seconds = 0.1";
    let more = routes().replace("model_id = \"h0\"", limited);
    let more = format!("concurrency = 9\n{more}");
    let grant_h0 = |config: &mut Config| {
        config.agents = vec![Agent {
            resources: r#"models = ["h0", "r0", "remote"]"#,
            ..Agent::default()
        }];
    };
    let (stage, run, upstream) = remote_of(&more, grant_h0).await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "a"}))]));
    let held = run.request(Method::POST, "/models/h0/stream");
    let mut held = held.json(&chat_request("hello")).send().await.unwrap();
    assert!(held.chunk().await.unwrap().is_some());
    let busy = run.call(CHAT, &request_to(CHAT, "h0")).await.expect(429);
    assert_eq!(busy.error("details")["reason"], "model_concurrency");
    assert_eq!(busy.headers["retry-after"], "1");
    upstream.reply(completion());
    let (status, _, text) = ask(&run, CHAT, &request_to(CHAT, "remote")).await;
    assert_eq!(status, 200, "{text}");
    upstream.reply(message());
    let (status, model, text) = ask(&run, CHAT, &request_to(CHAT, "r0")).await;
    assert_eq!((status, model.as_str()), (200, "answer"), "{text}");
    let limiters = stage.admin.get("/v1/limits").await.expect(200).body;
    let expected = json!([
        {"kind": "model", "id": "h0", "name": "h0", "limit": "rate", "max": 1000, "burst": 1000,
            "in_flight": null, "available": null, "queued": 0, "refused": 0},
        {"kind": "model", "id": "h0", "name": "h0", "limit": "concurrency", "max": 1, "burst": null,
            "in_flight": 1, "available": null, "queued": 0, "refused": 2},
        {"kind": "model_provider", "id": "openai", "name": "openai", "limit": "concurrency", "max": 9,
            "burst": null, "in_flight": 1, "available": null, "queued": 0, "refused": 0},
    ]);
    assert_eq!(limiters["items"], expected);
    // The provider is one, also for a model with limits.
    let providers = stage
        .admin
        .get("/v1/model-providers")
        .await
        .expect(200)
        .body;
    let models = providers["items"][0]["models"].as_array().unwrap();
    assert!(models.contains(&json!("h0")), "{models:?}");
    drop(held);
    run.end(&stage).await;
}
