//! The Messages API with a chat completions provider.

use reqwest::Method;
use serde_json::{Value, json};

use super::super::{END, all_models, chunk, remote};
use super::{MESSAGES, asks, pieces, stream_events, streams, used};
use crate::support::client::{message, send};
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{OwnStage, Sqlite};

fn completion(text: &str) -> Value {
    json!({"id": "c", "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}})
}

#[tokio::test]
async fn sends_chat_completions_with_limits_and_names() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Json(200, completion("ok")));
    let mut body = asks("remote", "hello");
    body["max_tokens"] = json!(4000);
    body["system"] =
        json!([{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}]);
    body["stop_sequences"] = json!(["END"]);
    body["thinking"] = json!({"type": "adaptive"});
    body["metadata"] = json!({"user_id": "u"});
    body["tools"] = json!([{"name": "f", "description": "d", "input_schema": {"type": "object"}}]);
    body["tool_choice"] = json!({"type": "auto", "disable_parallel_tool_use": true});
    let answer = run.call(MESSAGES, &body).await.expect(200);
    let usage = json!({"input_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4,
        "output_tokens": 2});
    assert_eq!(answer.body["usage"], usage);
    let request = upstream.requests().remove(0);
    assert_eq!(request.path, "/v1/chat/completions");
    let function = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(
        request.body,
        json!({"model": "gpt", "max_tokens": 50, "stop": ["END"], "messages": [
            {"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}],
            "tools": [{"type": "function", "function": function}], "tool_choice": "auto", "parallel_tool_calls": false})
    );
    let used = used(&stage, &run, 1).await;
    assert_eq!([&used["prompt_tokens"], &used["completion_tokens"]], [9, 2]);
    run.end(&stage).await;
}

#[tokio::test]
async fn requests_usage_in_every_stream() {
    let (stage, run, upstream) = remote("").await;
    let usage =
        json!({"id": "x", "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}});
    let hello = chunk(&json!({"content": "hello"}));
    upstream.reply(UpstreamReply::Events(vec![
        hello,
        END.to_owned(),
        format!("data: {usage}"),
        "data: [DONE]".to_owned(),
    ]));
    let events = stream_events(&run, &streams(asks("remote", "hi"))).await;
    assert_eq!(pieces(&events, "text"), "hello");
    let end = &events[events.len() - 2]["usage"];
    assert_eq!([&end["input_tokens"], &end["output_tokens"]], [7, 3]);
    let request = &upstream.requests()[0].body;
    assert_eq!(request["stream_options"], json!({"include_usage": true}));
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_content_unsupported_by_provider() {
    let (_stage, run, upstream) = remote("").await;
    let document =
        json!({"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}});
    let mut body = asks("remote", "hello");
    body["messages"] = json!([{"role": "user", "content": [document]}]);
    let refused = run.call(MESSAGES, &body).await.expect(400);
    let message = refused.error("message").as_str().unwrap();
    assert_starts_with!(
        message,
        "/messages/0/content/0/source must contain the data"
    );
    assert!(message.contains("provider of remote"), "{message}");
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn sends_artifacts_as_image_bytes() {
    let upstream = Upstream::start().await;
    let mut manifest = all_models();
    manifest["permissions"]["artifacts"] = json!(["read", "create"]);
    let runner = StubRunner::start_as(manifest).await;
    let stage = OwnStage::of(Sqlite, runner, |config| {
        config.agents = vec![Agent {
            resources: r#"models = ["remote", "claude"], artifacts = ["read", "create"]"#,
            ..Agent::default()
        }];
        config.rest = format!(
            "[[model_providers]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\n\
             [[model_providers]]\nname = \"anthropic\"\nkind = \"anthropic\"\nbase_url = \"{url}\"\n\
             [[models]]\nmodel_id = \"remote\"\nprovider = \"openai\"\n\
             [[models]]\nmodel_id = \"claude\"\nprovider = \"anthropic\"\n",
            url = upstream.url
        );
    })
    .await
    .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let upload = run.request(Method::POST, "/artifacts");
    let made = send(upload.body(&b"\x89PNG\r\n\x1a\n"[..])).await.unwrap();
    let id = made.body["artifact_id"].as_str().unwrap();
    let image =
        json!({"type": "image", "source": {"type": "url", "url": format!("artifact:{id}")}});
    let asking = |model: &str| {
        let mut body = asks(model, "hello");
        body["messages"] = json!([{"role": "user", "content": [image]}]);
        body
    };
    let data = "iVBORw0KGgo=";
    upstream.reply(UpstreamReply::Json(200, completion("ok")));
    assert_eq!(run.call(MESSAGES, &asking("remote")).await.status, 200);
    let message = json!({"type": "message", "content": [], "usage": {}});
    upstream.reply(UpstreamReply::Json(200, message));
    assert_eq!(run.call(MESSAGES, &asking("claude")).await.status, 200);
    let requests = upstream.requests();
    let parts = |n: usize| requests[n].body["messages"][0]["content"][0].clone();
    assert_eq!(
        parts(0)["image_url"]["url"],
        format!("data:image/png;base64,{data}")
    );
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    assert_eq!(parts(1)["source"], source);
    run.end(&stage).await;
}
