//! The Messages API with an Anthropic-compatible provider.

use serde_json::{Value, json};

use super::super::{remote, remote_of};
use super::{
    MESSAGES, asks, event, kinds, pieces, stream_events, streams, used, wait_for_requests,
};
use crate::support::gateway::Config;
use crate::support::upstream::UpstreamReply;

/// A message with members that the gateway does not interpret.
fn message() -> Value {
    json!({"id": "msg_up", "type": "message", "role": "assistant", "model": "claude-up", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "EqMDsigned"},
        {"type": "text", "text": "four", "citations": [{"type": "char_location", "cited_text": "4", "document_index": 0}]},
        {"type": "tool_use", "id": "toolu_A-1", "name": "f", "input": {"a": [1]}, "caller": {"type": "direct"}}],
        "stop_reason": "tool_use", "stop_sequence": null, "container": null,
        "usage": {"input_tokens": 3, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 4,
            "output_tokens": 8, "service_tier": "standard"}})
}

#[tokio::test]
async fn passes_bodies_and_answers_unchanged() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Json(200, message()));
    let cached = json!({"type": "ephemeral", "ttl": "1h"});
    let mut body = asks("claude", "hello");
    body["max_tokens"] = json!(4000);
    body["system"] = json!([{"type": "text", "text": "be kind", "cache_control": cached}]);
    body["messages"] = json!([
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": cached}, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": message()["content"]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_A-1", "is_error": true,
            "content": [{"type": "text", "text": "no"}]}]},
    ]);
    body["tools"] = json!([{"name": "f", "input_schema": {"type": "object"}, "cache_control": cached},
        {"type": "bash_20250124", "name": "bash"}]);
    body["thinking"] = json!({"type": "enabled", "budget_tokens": 1024});
    body["metadata"] = json!({"user_id": "u"});
    let request = run.request(reqwest::Method::POST, MESSAGES).json(&body);
    let betas = "interleaved-thinking-2025-05-14,context-1m-2025-08-07";
    let answer = request
        .header("anthropic-beta", betas)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    let mut expected = message();
    expected["model"] = json!("claude");
    assert_eq!(answer.json::<Value>().await.unwrap(), expected);

    let request = upstream.requests().remove(0);
    assert_eq!(request.path, "/v1/messages");
    let beta = request.headers.get_all("anthropic-beta").iter();
    assert_eq!(
        beta.collect::<Vec<_>>(),
        ["interleaved-thinking-2025-05-14"]
    );
    assert_eq!(request.headers["x-api-key"], "first-secret-key");
    assert!(!request.headers.contains_key("authorization"));
    body["messages"][0]["content"].as_array_mut().unwrap().pop();
    assert_eq!(request.body, body);
    let used = used(&stage, &run, 1).await;
    assert_eq!([&used["prompt_tokens"], &used["completion_tokens"]], [9, 8]);
    run.end(&stage).await;
}

#[tokio::test]
async fn relays_events_with_own_model_name() {
    let (stage, run, upstream) = remote("").await;
    let mut begun = message();
    begun["content"] = json!([]);
    let delta = |delta: Value| json!({"type": "content_block_delta", "index": 0, "delta": delta});
    let sent = [
        json!({"type": "message_start", "message": begun}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}}),
        delta(json!({"type": "thinking_delta", "thinking": "hm"})),
        delta(json!({"type": "signature_delta", "signature": "EqMDsigned"})),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "pause_turn"}, "usage": {"output_tokens": 9}}),
        json!({"type": "message_stop"}),
    ];
    upstream.reply(UpstreamReply::Events(sent.iter().map(event).collect()));
    let events = stream_events(&run, &streams(asks("claude", "hello"))).await;
    let mut expected = sent.to_vec();
    expected[0]["message"]["model"] = json!("claude");
    assert_eq!(events, expected);
    let used = used(&stage, &run, 1).await;
    assert_eq!([&used["prompt_tokens"], &used["completion_tokens"]], [9, 9]);
    run.end(&stage).await;
}

#[tokio::test]
async fn pings_while_the_provider_is_silent() {
    let often = |config: &mut Config| config.server = "heartbeat_seconds = 0.05".to_owned();
    let (stage, run, upstream) = remote_of("", often).await;
    for (model, begun) in [
        (
            "claude",
            event(&json!({"type": "message_start", "message": {"id": "m"}})),
        ),
        ("remote", super::super::chunk(&json!({"content": "hi"}))),
    ] {
        upstream.reply(UpstreamReply::Hold(vec![begun]));
        let request = run.request(reqwest::Method::POST, MESSAGES);
        let request = request.json(&streams(asks(model, "hello")));
        let mut answer = request.send().await.unwrap();
        let mut text = String::new();
        while text
            .matches("event: ping\ndata: {\"type\":\"ping\"}\n\n")
            .count()
            < 2
        {
            let piece = answer.chunk().await.unwrap().expect("the next piece");
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        assert!(text.contains("event: message_start"), "{text}");
    }
    wait_for_requests(&upstream, 2).await;
    run.end(&stage).await;
}

#[tokio::test]
async fn withholds_reasoning_of_other_models() {
    let (stage, run, upstream) = remote("").await;
    let thought = json!({"type": "thinking", "thinking": "hm", "signature": "runnel:remote"});
    let block = json!({"type": "text", "text": "ok"});
    let mut body = asks("claude", "hello");
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": [thought, block]}));
    messages.push(json!({"role": "user", "content": "go on"}));
    upstream.reply(UpstreamReply::Json(200, message()));
    run.call(MESSAGES, &body).await.expect(200);
    let back = &upstream.requests()[0].body["messages"][1]["content"];
    assert_eq!(*back, json!([block]));
    run.end(&stage).await;
}

#[tokio::test]
async fn truncated_message_ends_with_error() {
    let (_stage, run, upstream) = remote("").await;
    let sent = [
        json!({"type": "message_start", "message": {"id": "m"}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hi"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}),
    ];
    upstream.reply(UpstreamReply::Events(sent.iter().map(event).collect()));
    let events = stream_events(&run, &streams(asks("claude", "hello"))).await;
    assert_eq!(kinds(&events).last(), Some(&"message_stop"));
    assert_eq!(pieces(&events, "text"), "");
}
