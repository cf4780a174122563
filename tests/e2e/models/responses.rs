//! OpenAI's Responses API over the granted models, with every kind of provider.

#[path = "responses/clients.rs"]
mod clients;
#[path = "responses/codex.rs"]
mod codex;
#[path = "responses/passthrough.rs"]
mod passthrough;

use reqwest::Method;
use serde_json::{Value, json};

use super::{END, audit, chunk, events_in, remote, scripted, scripted_with, text_of};
use crate::support::held::HeldRun;
use crate::support::upstream::UpstreamReply;
use crate::support::{Sqlite, until};

const RESPONSES: &str = "/openai/v1/responses";
const INPUT_TOKENS: &str = "/openai/v1/responses/input_tokens";

fn asks(model: &str, more: &Value) -> Value {
    let mut body = json!({"model": model, "input": "hello"});
    let members = body.as_object_mut().unwrap();
    members.extend(more.as_object().unwrap().clone());
    body
}

/// The events of a streamed response.
async fn stream(run: &HeldRun, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let (status, text) = text_of(run.request(Method::POST, RESPONSES).json(&body)).await;
    assert_eq!(status, 200, "{text}");
    let events = events_in(&text).into_iter().map(|(name, data)| {
        assert_eq!(data["type"], name.as_str(), "the event's name is its type");
        data
    });
    events.collect()
}

fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().filter_map(|event| event["type"].as_str());
    names
        .map(|name| name.trim_start_matches("response."))
        .collect()
}

#[tokio::test]
async fn streams_events_in_api_order() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    let tool = json!({"type": "function", "name": "get_weather", "parameters": {"type": "object"}});
    let request = asks(
        "talker",
        &json!({"input": "the weather", "tools": [tool], "store": true}),
    );
    let events = stream(&run, request).await;
    assert_eq!(
        names(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["sequence_number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..13).collect::<Vec<_>>());
    let response = &events[12]["response"];
    assert_members!(response, {"output": json!([events[7]["item"], events[11]["item"]])});
    let members = ["model", "store", "status"].map(|name| &response[name]);
    assert_eq!(
        members,
        [&json!("talker"), &json!(false), &json!("completed")]
    );
    until("the outcome", async || {
        let rows = audit(&stage, &run).await;
        rows.iter()
            .any(|row| row["action"] == "models_stream" && row["outcome"] == "ok")
    })
    .await;
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_requests_by_pointer_before_calling_provider() {
    let (stage, run, upstream) = remote("").await;
    let image = |url: &str| {
        json!([{"role": "user", "content": [{"type": "input_text", "text": "look"},
        {"type": "input_image", "image_url": url}]}])
    };
    for (more, pointer) in [
        (
            json!({"previous_response_id": "resp_1"}),
            "/previous_response_id",
        ),
        (json!({"conversation": "conv_1"}), "/conversation"),
        (json!({"background": true}), "/background"),
        (json!({"tools": [{"type": "web_search"}]}), "/tools/0/type"),
        (json!({"service_tier": "priority"}), "/service_tier"),
        (json!({"max_output_tokens": 0}), "/max_output_tokens"),
        (json!({"stream": "yes"}), "/stream"),
        (
            json!({"input": [{"type": "item_reference", "id": "i"}]}),
            "/input/0",
        ),
        (
            json!({"input": image("http://169.254.169.254/a.png")}),
            "/input/0/content/1/image_url",
        ),
        (
            json!({"input": image("artifact:absent")}),
            "/input/0/content/1/image_url",
        ),
    ] {
        let refused = run.call(RESPONSES, &asks("remote", &more)).await;
        assert!(
            [400, 403, 404].contains(&refused.status),
            "{more}: {}",
            refused.body
        );
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
        assert_eq!(refused.error("param"), pointer);
        assert!(!refused.error("message").to_string().contains("/messages"));
    }
    let response = run.get("/openai/v1/responses/resp_1").await;
    response.assert_error(400, "param", "/response_id");
    assert!(upstream.requests().is_empty());
    run.end(&stage).await;
}

#[tokio::test]
async fn broken_streams_end_as_response_failed() {
    let (stage, run, upstream) = remote("").await;
    let half = vec![chunk(&json!({"content": "The bridge is"}))];
    upstream.reply(UpstreamReply::Events(half.clone()));
    upstream.reply(UpstreamReply::Cut(half));
    for _ in 0..2 {
        let events = stream(&run, asks("remote", &json!({}))).await;
        let last = events.last().unwrap();
        assert_eq!(last["type"], "response.failed");
        assert_eq!(last["response"]["status"], "failed");
        assert_eq!(last["response"]["error"]["code"], "server_error");
        assert!(
            !last["response"]["error"]["message"]
                .as_str()
                .unwrap()
                .is_empty()
        );
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn cancelled_runs_end_streams_and_reject_calls() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "hi"}))]));
    let cancelling = async {
        until("the provider request", async || {
            !upstream.requests().is_empty()
        })
        .await;
        stage.client.cancel(&run.run_id).await;
        upstream.left(1).await;
    };
    let (events, ()) = tokio::join!(stream(&run, asks("remote", &json!({}))), cancelling);
    let error = &events.last().unwrap()["response"]["error"];
    assert_eq!(error["code"], "cancelled");
    let after = run.call(RESPONSES, &asks("remote", &json!({}))).await;
    after.assert_error(409, "code", "cancelled");
    run.end(&stage).await;
    for path in [RESPONSES, INPUT_TOKENS] {
        let dead = run.call(path, &asks("remote", &json!({}))).await;
        dead.assert_error(401, "type", "authentication_error");
    }
}

#[tokio::test]
async fn spent_budgets_return_readable_errors() {
    let budget = "[[budgets]]\nname = \"run-calls\"\nscope = \"run\"\ncalls = 1\n";
    let (stage, run) = scripted_with(Sqlite, budget).await.unwrap();
    let first = stream(&run, asks("talker", &json!({}))).await;
    assert_eq!(first.last().unwrap()["type"], "response.completed");
    for more in [json!({}), json!({"stream": true})] {
        let refused = run.call(RESPONSES, &asks("talker", &more)).await;
        refused.assert_error(429, "code", "insufficient_quota");
        assert_eq!(refused.error("details")["budget"], "run-calls");
        let message = refused.error("message").as_str().unwrap();
        assert!(message.contains("run-calls"), "{message}");
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn counts_input_like_count_tokens() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    let tool = json!({"type": "function", "name": "find", "description": "Finds a thing.",
        "parameters": {"type": "object"}});
    let request = asks(
        "talker",
        &json!({"instructions": "be kind", "tools": [tool]}),
    );
    let counted = run.call(INPUT_TOKENS, &request).await.expect(200);
    assert_eq!(counted.body["object"], "response.input_tokens");
    let native = json!({"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}],
        "tools": [{"name": "find", "description": "Finds a thing.", "parameters": {"type": "object"}}]});
    let native = run.call("/models/talker/count-tokens", &native).await;
    assert_eq!(counted.body["input_tokens"], native.body["tokens"]);
    run.end(&stage).await;
}

#[tokio::test]
async fn returns_reasoning_to_chat_providers() {
    let (stage, run, upstream) = remote("").await;
    let call = json!({"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "S"}}});
    let done = || "data: [DONE]".to_owned();
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&json!({"reasoning_content": "T"})),
        chunk(&json!({"tool_calls": [call]})),
        END.replace("stop", "tool_calls"),
        done(),
    ]));
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&json!({"content": "sunny"})),
        END.to_owned(),
        done(),
    ]));
    let more = json!({"include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "look"}]});
    let events = stream(&run, asks("remote", &more)).await;
    let mut input = events.last().unwrap()["response"]["output"]
        .as_array()
        .unwrap()
        .clone();
    input.push(json!({"type": "function_call_output", "call_id": "c", "output": "blue"}));
    let mut next = asks("remote", &more);
    next["input"] = json!(input);
    stream(&run, next).await;
    let back = upstream.requests().pop().unwrap().body["messages"][0].clone();
    assert_eq!(back["reasoning_content"], "T", "{back}");
    assert_members!(back["tool_calls"][0], {"extra_content": call["extra_content"]});
    run.end(&stage).await;
}
