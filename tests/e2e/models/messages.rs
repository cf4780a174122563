//! Granted models through Anthropic's Messages API.

#[path = "messages/anthropic.rs"]
mod anthropic;
#[path = "messages/clients.rs"]
mod clients;
#[path = "messages/errors.rs"]
mod errors;
#[path = "messages/translated.rs"]
mod translated;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::{audit, chat_request, events_in, scripted, scripted_with, text_of, used};
use crate::metrics::listener;
use crate::support::client::Client;
use crate::support::held::HeldRun;
use crate::support::upstream::Upstream;
use crate::support::{Sqlite, until};

const MESSAGES: &str = "/anthropic/v1/messages";
const COUNT: &str = "/anthropic/v1/messages/count_tokens";

/// A request for a short answer.
fn asks(model: &str, text: &str) -> Value {
    let mut body = chat_request(text);
    body["model"] = json!(model);
    body["max_tokens"] = json!(40);
    body
}

/// The same request with streaming.
fn streams(mut body: Value) -> Value {
    body["stream"] = json!(true);
    body
}

/// The events of a stream; each name equals its type.
async fn stream_events(run: &HeldRun, body: &Value) -> Vec<Value> {
    let request = run.request(Method::POST, MESSAGES).json(body);
    let (status, text) = text_of(request).await;
    assert_eq!(status, 200, "{text}");
    let events = events_in(&text).into_iter();
    events
        .map(|(name, event)| {
            assert_eq!(event["type"], name.as_str(), "{event}");
            event
        })
        .collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.collect()
}

/// The joined text of all deltas of one kind.
fn pieces(events: &[Value], name: &str) -> String {
    let pieces = events
        .iter()
        .filter_map(|event| event["delta"][name].as_str());
    pieces.collect()
}

/// An event as an Anthropic provider sends it.
fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}", data["type"].as_str().unwrap())
}

/// A request without the test client's credential.
fn anonymous(run: &HeldRun, body: &Value) -> RequestBuilder {
    let client = Client::new(&run.host.url, "");
    client.anonymous(Method::POST, MESSAGES).json(body)
}

#[tokio::test]
async fn answers_messages_plain_and_streamed() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    let full_response = run.call(MESSAGES, &asks("talker", "hello")).await;
    assert_eq!(full_response.status, 200, "{}", full_response.body);
    let body = &full_response.body;
    assert_eq!(
        [
            &body["type"],
            &body["role"],
            &body["model"],
            &body["stop_reason"]
        ],
        ["message", "assistant", "talker", "end_turn"]
    );
    let content = json!([{"type": "text", "text": "You said: hello"}]);
    assert_eq!(body["content"], content);
    assert!(
        body["usage"]["output_tokens"].as_u64().unwrap() > 0,
        "{body}"
    );
    assert!(full_response.headers.contains_key("request-id"));

    let events = stream_events(&run, &streams(asks("talker", "hello"))).await;
    assert_eq!(pieces(&events, "text"), "You said: hello");
    let kinds = kinds(&events);
    let (first, last) = (&kinds[..2], &kinds[kinds.len() - 3..]);
    assert_eq!(first, ["message_start", "content_block_start"]);
    assert_eq!(
        last,
        ["content_block_stop", "message_delta", "message_stop"]
    );
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "end_turn");
    assert!(end["usage"]["input_tokens"].as_u64().unwrap() > 0, "{end}");
    until("the outcomes", async || {
        let rows = audit(&stage, &run).await;
        let ok = |action: &str| {
            let is_ok = |row: &&Value| row["action"] == action && row["outcome"] == "ok";
            rows.iter().filter(is_ok).count()
        };
        (ok("models_invoke"), ok("models_stream")) == (1, 1)
    })
    .await;
}

#[tokio::test]
async fn streams_tool_arguments_and_accepts_results() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let mut body = asks("talker", "the weather, please");
    body["tools"] =
        json!([{"name": "get_weather", "description": "d", "input_schema": {"type": "object"}}]);
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    let events = stream_events(&run, &streams(body.clone())).await;
    assert_eq!(pieces(&events, "thinking"), "which city?");
    assert_eq!(pieces(&events, "signature"), "runnel:talker");
    let input: Value = serde_json::from_str(&pieces(&events, "partial_json")).unwrap();
    assert_eq!(input, json!({"city": "Oslo"}));
    let mut starts = events
        .iter()
        .filter(|event| event["content_block"]["type"] == "tool_use");
    let call = starts.next().unwrap()["content_block"].clone();
    assert_eq!(call["name"], "get_weather");
    let end = &events[events.len() - 2]["delta"];
    assert_eq!(end["stop_reason"], "tool_use");

    let call = json!({"type": "tool_use", "id": call["id"], "name": call["name"], "input": input});
    let result = json!([{"type": "tool_result", "tool_use_id": call["id"], "content": "cold"}]);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": [call]}));
    messages.push(json!({"role": "user", "content": result}));
    let full_response = run.call(MESSAGES, &body).await.body;
    assert_members!(full_response["content"][0], {"text": "It is cold."});
}

#[tokio::test]
async fn accepts_run_token_in_either_header() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let body = asks("talker", "hello");
    let bearer = format!("Bearer {}", run.token);
    for (headers, status) in [
        (vec![("x-api-key", run.token.as_str())], 200),
        (vec![("authorization", bearer.as_str())], 200),
        (
            vec![("x-api-key", &run.token), ("authorization", &bearer)],
            200,
        ),
        (
            vec![("x-api-key", "sk-ant-other"), ("authorization", &bearer)],
            401,
        ),
        (
            vec![("x-api-key", &run.token), ("authorization", "Bearer other")],
            401,
        ),
        (vec![("x-api-key", "sk-ant-other")], 401),
        (vec![], 401),
    ] {
        let mut request = anonymous(&run, &body);
        for (name, value) in &headers {
            request = request.header(*name, *value);
        }
        let (got, text) = text_of(request).await;
        assert_eq!(got, status, "{headers:?}: {text}");
        let is_refusal = text.contains("authentication_error");
        assert_eq!(is_refusal, status == 401, "{headers:?}: {text}");
    }
    // Other routes do not accept this header as a credential.
    let native = Client::new(&run.host.url, "").anonymous(Method::GET, "/models");
    let (status, _) = text_of(native.header("x-api-key", &run.token)).await;
    assert_eq!(status, 401);
}

#[tokio::test]
async fn ignores_queries_versions_and_unknown_betas() {
    let (metrics, listen) = listener();
    let (_stage, run) = scripted_with(Sqlite, &listen).await.unwrap();
    let request = run.request(Method::POST, &format!("{MESSAGES}?beta=true"));
    let request = request.header("anthropic-version", "2099-01-01");
    let request = request.header("anthropic-beta", "of-tomorrow-2099-01-01,pdfs-2024-09-25");
    let (status, text) = text_of(request.json(&asks("talker", "hello"))).await;
    assert_eq!(status, 200, "{text}");
    let (status, text) = text_of(run.request(Method::GET, "/anthropic/v1/models?limit=1000")).await;
    assert_eq!(status, 200, "{text}");
    let (_, metrics) = text_of(metrics.anonymous(Method::GET, "/metrics")).await;
    for kind in ["unknown_anthropic_beta", "unknown_anthropic_version"] {
        let counted = metrics
            .lines()
            .any(|line| line.contains(kind) && line.ends_with(" 1"));
        assert!(counted, "{kind}: {metrics}");
    }
}

#[tokio::test]
async fn counts_tokens_with_gateway_counter() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let native = run
        .call("/models/talker/count-tokens", &chat_request("hello"))
        .await;
    let mut body = chat_request("hello");
    body["model"] = json!("talker");
    let counted = run.call(COUNT, &body).await.expect(200);
    assert_eq!(counted.body, json!({"input_tokens": native.body["tokens"]}));
    body["system"] = json!("be kind");
    let more = run.call(COUNT, &body).await.body;
    assert!(more["input_tokens"].as_u64() > counted.body["input_tokens"].as_u64());
}

#[tokio::test]
async fn lists_granted_models_in_anthropic_format() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let listed = run.get("/anthropic/v1/models").await.body;
    let ids: Vec<_> = listed["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["talker", "ranker"]);
    assert_members!(listed, {"has_more": false, "first_id": "talker", "last_id": "ranker"});
    let one = run.get("/anthropic/v1/models/talker").await.body;
    assert_members!(one, {"type": "model", "id": "talker", "max_tokens": 100});
    assert_eq!(run.get("/anthropic/v1/models/forbidden").await.status, 404);
}

/// Waits until the provider has this many requests.
async fn wait_for_requests(upstream: &Upstream, count: usize) {
    until("the provider request", async || {
        upstream.requests().len() >= count
    })
    .await;
}
