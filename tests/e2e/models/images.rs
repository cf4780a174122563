//! Artifact images in model requests.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{all_models, audit, text_of};
use crate::support::client::{message, send};
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

/// One agent whose runs may read artifacts, and one without this permission.
async fn stage(engine: Engine, upstream: &Upstream) -> Option<OwnStage> {
    let mut manifest = all_models();
    manifest["permissions"]["artifacts"] = json!(["read", "create"]);
    let runner = StubRunner::start_as(manifest).await;
    OwnStage::of(engine, runner, |config| {
        config.agents = vec![
            Agent {
                resources: r#"models = ["remote", "claude"], artifacts = ["read", "create"]"#,
                ..Agent::default()
            },
            Agent {
                name: "blind",
                event_types: "test.blind",
                resources: r#"models = ["remote"], artifacts = ["create"]"#,
                ..Agent::default()
            },
        ];
        config.environment.push(("KEY", "a-secret-key".to_owned()));
        config.rest = format!(
            "[[model_providers]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"{url}/v1\"\n\
             api_keys = [\"env:KEY\"]\n\
             [[model_providers]]\nname = \"anthropic\"\nkind = \"anthropic\"\nbase_url = \"{url}\"\n\
             api_keys = [\"env:KEY\"]\n\
             [[models]]\nmodel_id = \"remote\"\nprovider = \"openai\"\nupstream_model = \"gpt\"\n\
             [[models]]\nmodel_id = \"claude\"\nprovider = \"anthropic\"\n",
            url = upstream.url
        );
    })
    .await
}

fn picture(bytes: usize) -> Vec<u8> {
    [&b"\x89PNG\r\n\x1a\n"[..], &vec![7; bytes]].concat()
}

async fn upload(run: &HeldRun, bytes: Vec<u8>) -> String {
    let request = run.request(Method::POST, "/artifacts");
    let made = send(request.body(bytes)).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.body);
    format!("artifact:{}", made.body["artifact_id"].as_str().unwrap())
}

/// A message with these images.
fn asks(urls: &[&str]) -> Value {
    let mut parts = vec![json!({"type": "text", "text": "what is it?"})];
    parts.extend(
        urls.iter()
            .map(|url| json!({"type": "image_url", "image_url": {"url": url}})),
    );
    json!({"messages": [{"role": "user", "content": parts}]})
}

fn of(mut event: Value, event_type: &str) -> Value {
    event["event_type"] = json!(event_type);
    event["conversation"]["conversation_id"] = event["event_id"].clone();
    event
}

#[rstest]
#[tokio::test]
async fn sends_artifact_images_unchanged_to_model(#[values(Sqlite, Postgres)] engine: Engine) {
    let upstream = Upstream::start().await;
    let stage = or_skip!(stage(engine, &upstream).await);
    let attached = picture(100_000);
    let mut event = message("m-1");
    let inline = format!(
        "data:image/png;base64,{}",
        BASE64_STANDARD.encode(&attached)
    );
    event["input"]["contents"] = json!([{"type": "image_base64", "image_base64": inline}]);
    let run = HeldRun::start(&stage, &event).await;
    let of_event = &run.run_request["context"]["input"]["contents"][0]["image_url"]["url"];
    let of_event = of_event.as_str().unwrap();
    assert!(of_event.starts_with("artifact:"), "{of_event}");
    let own = picture(10);
    let of_run = upload(&run, own.clone()).await;
    let encoded = [attached, own].map(|bytes| BASE64_STANDARD.encode(bytes));
    let urls = encoded
        .clone()
        .map(|text| format!("data:image/png;base64,{text}"));

    let body = asks(&[of_event, &of_run, "https://example.com/a.png"]);
    let mut of_openai = body.clone();
    of_openai["model"] = json!("remote");
    for (path, body) in [
        ("/models/remote/invoke", &body),
        ("/models/remote/stream", &body),
        ("/openai/v1/chat/completions", &of_openai),
    ] {
        let completion =
            json!({"choices": [{"message": {"role": "assistant", "content": "a cat"}}]});
        upstream.reply(match path {
            "/models/remote/stream" => UpstreamReply::Events(vec![
                format!("data: {}", json!({"choices": [{"index": 0, "delta": {"content": "a cat"}, "finish_reason": "stop"}]})),
                "data: [DONE]".to_owned(),
            ]),
            _ => UpstreamReply::Json(200, completion),
        });
        let (status, text) = text_of(run.request(Method::POST, path).json(body)).await;
        assert!(status == 200 && text.contains("a cat"), "{path}: {text}");
        let request = upstream.requests().pop().unwrap().body;
        let parts = &request["messages"][0]["content"];
        for (index, url) in urls.iter().enumerate() {
            assert!(
                parts[index + 1]["image_url"]["url"] == json!(url),
                "{path} {index}"
            );
        }
        assert_eq!(parts[3]["image_url"]["url"], "https://example.com/a.png");
    }
    upstream.reply(UpstreamReply::Json(
        200,
        json!({"id": "m", "type": "message", "role": "assistant", "model": "c", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": "a cat"}], "usage": {"input_tokens": 1, "output_tokens": 1}}),
    ));
    let claude = run.call("/models/claude/invoke", &asks(&[&of_run])).await;
    assert_eq!(claude.status, 200, "{}", claude.body);
    let request = upstream.requests().pop().unwrap().body;
    assert_eq!(
        request["messages"][0]["content"][1]["source"],
        json!({"type": "base64", "media_type": "image/png", "data": encoded[1]})
    );
    let read = |row: &Value| row["action"] == "artifact_read" && row["outcome"] == "ok";
    until("each reading to be on record", async || {
        audit(&stage, &run).await.into_iter().filter(read).count() == 7
    })
    .await;
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_unreadable_or_non_image_artifacts_by_pointer() {
    let upstream = Upstream::start().await;
    let stage = stage(Sqlite, &upstream).await.unwrap();
    let run = HeldRun::start(&stage, &of(message("m-1"), "message.received")).await;
    let other = HeldRun::start(&stage, &of(message("m-2"), "message.received")).await;
    let blind = HeldRun::start(&stage, &of(message("m-3"), "test.blind")).await;
    let own = upload(&run, picture(10)).await;
    let text = upload(&run, b"words".to_vec()).await;
    let half = upload(&run, picture(8 * 1024 * 1024)).await;
    let theirs = upload(&other, picture(10)).await;
    let blinds = upload(&blind, picture(10)).await;
    let nobodys = format!("artifact:{}", uuid::Uuid::now_v7());
    let many = vec![own.as_str(); 33];
    for (run, urls, expected, index) in [
        (
            &run,
            vec![own.as_str(), &text],
            (400, "invalid_argument"),
            2,
        ),
        (&run, vec![&theirs], (404, "not_found"), 1),
        (&run, vec![&nobodys], (404, "not_found"), 1),
        (
            &run,
            vec!["artifact:../../etc/passwd"],
            (404, "not_found"),
            1,
        ),
        (&run, vec![&half, &half], (413, "payload_too_large"), 2),
        (&run, many, (400, "invalid_argument"), 33),
        (&blind, vec![&blinds], (403, "unauthorized"), 1),
    ] {
        let pointer = format!("/messages/0/content/{index}/image_url/url");
        let mut body = asks(&urls);
        let native = run.call("/models/remote/invoke", &body).await;
        body["model"] = json!("remote");
        let openai = run.call("/openai/v1/chat/completions", &body).await;
        for refused in [native, openai] {
            let code = refused.error("code").as_str().unwrap();
            assert_eq!(
                (refused.status, code),
                expected,
                "{urls:?}: {}",
                refused.body
            );
            assert_eq!(refused.error("details")["pointer"], json!(pointer));
        }
    }
    assert!(upstream.requests().is_empty(), "a provider was called");
    let denied = |row: &Value| row["action"] == "artifact_read" && row["decision"] == "deny";
    until("the denial to be on record", async || {
        audit(&stage, &blind).await.iter().any(denied)
    })
    .await;
    for run in [run, other, blind] {
        run.end(&stage).await;
    }
}
