//! Errors of the Messages API: their format, and the end of failed calls.

use reqwest::Method;
use serde_json::{Value, json};

use super::super::{chunk, remote, remote_of, scripted, scripted_with, text_of};
use super::{COUNT, MESSAGES, asks, event, kinds, stream_events, streams, wait_for_requests};
use crate::support::Sqlite;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::upstream::UpstreamReply;
use crate::tools::SHORT;

/// Checks the format of an error and returns its type.
fn kind_of(body: &Value) -> &str {
    assert_eq!(body["type"], "error", "{body}");
    let message = body["error"]["message"].as_str().unwrap();
    assert!(!message.is_empty(), "{body}");
    body["error"]["type"].as_str().unwrap()
}

async fn check(run: &HeldRun, body: &Value, status: u16, kind: &str, words: &str) {
    let refused = run.call(MESSAGES, body).await;
    assert_eq!(refused.status, status, "{body}: {}", refused.body);
    assert_eq!(kind_of(&refused.body), kind);
    let message = refused.error("message").as_str().unwrap();
    assert!(message.contains(words), "{message}");
    let id = refused.headers["request-id"].to_str().unwrap();
    assert_eq!(refused.body["request_id"], id);
}

fn with(pointer: &str, value: Value) -> Value {
    let mut body = asks("talker", "hello");
    body[pointer] = value;
    body
}

#[tokio::test]
async fn rejects_bad_requests_by_json_pointer() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let file = json!({"type": "image", "source": {"type": "file", "file_id": "f"}});
    let inside =
        json!({"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/a.png"}});
    let gone = json!({"type": "image", "source": {"type": "url", "url": "artifact:x"}});
    let of = |block: &Value| with("messages", json!([{"role": "user", "content": [block]}]));
    let invalid = "invalid_request_error";
    for (body, words) in [
        (with("model", json!(null)), "/model "),
        (with("max_tokens", json!(null)), "/max_tokens "),
        (with("max_tokens", json!(0)), "/max_tokens "),
        (with("messages", json!([])), "/messages "),
        (
            with("messages", json!([{"role": "tool", "content": "x"}])),
            "/messages/0/role ",
        ),
        (with("service_tier", json!("auto")), "/service_tier "),
        (with("mcp_servers", json!([])), "/mcp_servers "),
        (
            with(
                "tools",
                json!([{"type": "web_search_20250305", "name": "web_search"}]),
            ),
            "/tools/0/type ",
        ),
        (of(&file), "/messages/0/content/0/source/type "),
        (of(&inside), "/messages/0/content/0/source/url "),
    ] {
        check(&run, &body, 400, invalid, words).await;
    }
    check(
        &run,
        &of(&gone),
        403,
        "permission_error",
        "/messages/0/content/0/source/url",
    )
    .await;
    let (status, text) = text_of(
        run.request(Method::POST, MESSAGES)
            .header("content-type", "application/json")
            .body("{\"model\":"),
    )
    .await;
    let body: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, kind_of(&body)), (400, invalid));
}

#[tokio::test]
async fn every_error_has_anthropic_format() {
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    check(
        &run,
        &asks("forbidden", "hi"),
        403,
        "permission_error",
        "granted",
    )
    .await;
    check(
        &run,
        &asks("talker", "too long"),
        400,
        "invalid_request_error",
        "prompt is too long",
    )
    .await;
    let busy = run.call(MESSAGES, &asks("talker", "busy")).await;
    assert_eq!(
        (busy.status, kind_of(&busy.body)),
        (429, "rate_limit_error")
    );
    assert_eq!(busy.headers["retry-after"], "7");
    assert_eq!(busy.headers["x-should-retry"], "true");
    let large = with("metadata", json!({"user_id": "x".repeat(21 * 1024 * 1024)}));
    check(&run, &large, 413, "request_too_large", "bytes").await;
    for (method, path, status, kind) in [
        (
            Method::GET,
            "/anthropic/v1/models/forbidden",
            404,
            "not_found_error",
        ),
        (
            Method::POST,
            "/anthropic/v1/complete",
            404,
            "not_found_error",
        ),
        (
            Method::GET,
            "/anthropic/v1/messages",
            405,
            "invalid_request_error",
        ),
    ] {
        let (got, text) = text_of(run.request(method, path)).await;
        let body: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((got, kind_of(&body)), (status, kind), "{path}");
    }
    let counted = run
        .call(COUNT, &json!({"model": "forbidden", "messages": []}))
        .await;
    assert_eq!(
        (counted.status, kind_of(&counted.body)),
        (403, "permission_error")
    );
}

#[tokio::test]
async fn maps_provider_failures_to_error_types() {
    let (_stage, run, upstream) = remote("idle_seconds = 0.3").await;
    for model in ["remote", "claude"] {
        upstream.reply(UpstreamReply::Json(
            500,
            json!({"error": {"message": "oops"}}),
        ));
        check(&run, &asks(model, "hi"), 502, "api_error", "oops").await;
        upstream.reply(UpstreamReply::Json(
            404,
            json!({"error": {"message": "no such model"}}),
        ));
        check(
            &run,
            &asks(model, "hi"),
            400,
            "invalid_request_error",
            "no such model",
        )
        .await;
    }
    upstream.reply(UpstreamReply::Hold(Vec::new()));
    check(&run, &asks("remote", "hi"), 504, "timeout_error", "silent").await;
}

#[tokio::test]
async fn failures_after_first_byte_are_error_events() {
    let (_stage, run, upstream) = remote("").await;
    let begun = event(
        &json!({"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 5}}}),
    );
    let overloaded =
        json!({"type": "error", "error": {"type": "overloaded_error", "message": "later"}});
    let hello = chunk(&json!({"content": "hello"}));
    let cut = "ended before";
    for (model, reply, kind, words) in [
        (
            "claude",
            UpstreamReply::Events(vec![begun.clone(), event(&overloaded)]),
            "overloaded_error",
            "later",
        ),
        (
            "claude",
            UpstreamReply::Events(vec![begun]),
            "api_error",
            cut,
        ),
        (
            "remote",
            UpstreamReply::Events(vec![hello.clone()]),
            "api_error",
            cut,
        ),
        (
            "remote",
            UpstreamReply::Cut(vec![hello]),
            "api_error",
            "broke",
        ),
    ] {
        upstream.reply(reply);
        let events = stream_events(&run, &streams(asks(model, "hi"))).await;
        let kinds = kinds(&events);
        assert_eq!(
            [kinds[0], kinds[kinds.len() - 1]],
            ["message_start", "error"],
            "{events:?}"
        );
        let last = events.last().unwrap();
        assert_eq!(kind_of(last), kind);
        assert!(last.to_string().contains(words), "{last}");
    }
}

#[tokio::test]
async fn budget_errors_name_the_budget() {
    let budget = "[[budgets]]\nname = \"run-calls\"\nscope = \"run\"\ncalls = 1\n";
    let (stage, run) = scripted_with(Sqlite, budget).await.unwrap();
    let first = run.call(MESSAGES, &asks("talker", "hello")).await;
    assert_eq!(first.status, 200, "{}", first.body);
    for body in [asks("talker", "hello"), streams(asks("talker", "hello"))] {
        let refused = run.call(MESSAGES, &body).await;
        assert_eq!(
            (refused.status, kind_of(&refused.body)),
            (429, "rate_limit_error")
        );
        let message = refused.error("message").as_str().unwrap();
        assert!(message.contains("run-calls"), "{message}");
        assert_eq!(
            refused.headers["x-should-retry"], "false",
            "it never refills"
        );
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn budget_covers_answers_documents_and_reasoning() {
    let budget = "[[budgets]]\nname = \"run-tokens\"\nscope = \"run\"\ntokens = 3000\n";
    let (_stage, run) = scripted_with(Sqlite, budget).await.unwrap();
    let pdf = json!({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="});
    let document = json!([{"role": "user", "content": [{"type": "document", "source": pdf}]}]);
    let refused = run.call(MESSAGES, &with("messages", document)).await;
    refused.assert_detail(429, "budget", "run-tokens");
    let few = run.call(MESSAGES, &asks("talker", "hello")).await;
    assert_eq!(few.status, 200, "{}", few.body);
}

#[tokio::test]
async fn cancel_ends_stream_and_provider_call() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(&json!({"content": "hi"}))]));
    let body = streams(asks("remote", "hi"));
    let cancelling = async {
        wait_for_requests(&upstream, 1).await;
        stage.client.cancel(&run.run_id).await;
        upstream.left(1).await;
    };
    let (events, ()) = tokio::join!(stream_events(&run, &body), cancelling);
    let last = events.last().unwrap();
    assert_eq!(last["error"]["code"], "cancelled", "{last}");
    let refused = run.call(MESSAGES, &body).await.expect(409);
    assert_eq!(refused.headers["x-should-retry"], "false");
}

#[tokio::test]
async fn deadline_returns_timeout_error() {
    let short = |config: &mut Config| config.agents[0].timeout_seconds = SHORT;
    let (_stage, run, upstream) = remote_of("", short).await;
    upstream.reply(UpstreamReply::Hold(Vec::new()));
    check(
        &run,
        &asks("claude", "hi"),
        504,
        "timeout_error",
        "deadline",
    )
    .await;
}
