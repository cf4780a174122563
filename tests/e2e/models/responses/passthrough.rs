//! Providers that implement the Responses API themselves.

use serde_json::{Value, json};

use super::super::used;
use super::{RESPONSES, asks, names, remote, stream};
use crate::support::upstream::UpstreamReply;

fn event(data: &Value) -> String {
    format!("event: {}\ndata: {data}", data["type"].as_str().unwrap())
}

fn response(status: &str) -> Value {
    json!({"id": "resp_far", "object": "response", "model": "gpt", "status": status, "store": true, "error": null,
        "service_tier": "default", "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
                "content": [{"type": "output_text", "text": "hi", "annotations": []}]}],
        "usage": {"input_tokens": 5, "output_tokens": 3, "total_tokens": 8,
            "output_tokens_details": {"reasoning_tokens": 2}}})
}

#[tokio::test]
async fn forwards_requests_to_responses_providers_unchanged() {
    let (stage, run, upstream) = remote("responses = true").await;
    upstream.reply(UpstreamReply::Json(200, response("completed")));
    let custom = json!({"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark"}});
    let reasoning =
        json!({"type": "reasoning", "id": "rs_0", "summary": [], "encrypted_content": "gOLD"});
    let request = asks(
        "remote",
        &json!({"instructions": "be kind", "store": true, "max_output_tokens": 900,
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"}, "prompt_cache_key": "k", "client_metadata": {"a": "b"}, "tools": [custom],
        "input": [reasoning, {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}),
    );
    let answered = run.call(RESPONSES, &request).await.expect(200);
    let mut expected = response("completed");
    (expected["model"], expected["store"]) = (json!("remote"), json!(false));
    assert_eq!(answered.body, expected);
    let sent = upstream.requests().pop().unwrap();
    assert_eq!(sent.path, "/v1/responses");
    assert_eq!(
        sent.body,
        json!({"model": "gpt", "instructions": "be kind", "store": false, "max_output_tokens": 50,
            "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "low"}, "prompt_cache_key": "k", "tools": [custom], "input": request["input"]})
    );
    let used = used(&stage, &run, 1).await;
    assert_members!(used, {"prompt_tokens": 5, "completion_tokens": 3});
    run.end(&stage).await;
}

#[tokio::test]
async fn relays_and_counts_provider_events() {
    let (stage, run, upstream) = remote("responses = true").await;
    let created = json!({"type": "response.created", "sequence_number": 0, "response": response("in_progress")});
    let delta = json!({"type": "response.output_text.delta", "sequence_number": 1, "delta": "hi"});
    let done = json!({"type": "response.completed", "sequence_number": 2, "response": response("completed")});
    upstream.reply(UpstreamReply::Events(vec![
        event(&created),
        event(&delta),
        event(&done),
    ]));
    let events = stream(&run, asks("remote", &json!({}))).await;
    assert_eq!(
        names(&events),
        ["created", "output_text.delta", "completed"]
    );
    assert_eq!(events[1], delta);
    assert_eq!(events[2]["response"]["model"], "remote");
    assert_eq!(events[2]["response"]["service_tier"], "default");
    assert_eq!(
        events[2]["response"]["output"],
        response("completed")["output"]
    );
    assert_eq!(used(&stage, &run, 1).await["completion_tokens"], 3);
    run.end(&stage).await;
}

#[tokio::test]
async fn reports_provider_failures_once() {
    let (stage, run, upstream) = remote("responses = true").await;
    let created = json!({"type": "response.created", "sequence_number": 0, "response": response("in_progress")});
    let mut failed = response("failed");
    failed["error"] = json!({"code": "server_error", "message": "it is over first-secret-key"});
    let failed = json!({"type": "response.failed", "sequence_number": 1, "response": failed});
    upstream.reply(UpstreamReply::Events(vec![event(&created), event(&failed)]));
    upstream.reply(UpstreamReply::Events(vec![event(&created)]));
    for message in [
        "it is over [redacted]",
        "the provider's answer cannot be read: the stream ended before the answer did",
    ] {
        let events = stream(&run, asks("remote", &json!({}))).await;
        assert_eq!(names(&events), ["created", "failed"]);
        assert_eq!(events[1]["sequence_number"], 1);
        assert_eq!(events[1]["response"]["error"]["message"], message);
    }
    let wrong = json!({"error": {"message": "no such model", "code": "model_not_found"}});
    upstream.reply(UpstreamReply::Json(400, wrong));
    let refused = run
        .call(RESPONSES, &asks("remote", &json!({"stream": true})))
        .await;
    refused.assert_error(400, "type", "invalid_request_error");
    assert_contains!(refused.error("message").as_str().unwrap(), "no such model");
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_provider_side_tools_state_and_files() {
    let (stage, run, upstream) = remote("responses = true").await;
    for (more, pointer) in [
        (
            json!({"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]}),
            "/tools/0/type",
        ),
        (
            json!({"previous_response_id": "resp_1"}),
            "/previous_response_id",
        ),
        (json!({"service_tier": "flex"}), "/service_tier"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "https://10.0.0.1/a"}]}]}),
            "/input/0/content/0/image_url",
        ),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "file-1"}]}]}),
            "/input/0/content/0/file_id",
        ),
    ] {
        let refused = run.call(RESPONSES, &asks("remote", &more)).await;
        assert_eq!(
            (refused.status, refused.error("param")),
            (400, &json!(pointer)),
            "{more}"
        );
    }
    assert!(upstream.requests().is_empty());
    run.end(&stage).await;
}
