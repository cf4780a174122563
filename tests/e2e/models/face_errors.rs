//! Errors and settings in the form of each face.

use serde_json::{Value, json};

use super::{remote, scripted, scripted_with};
use crate::support::Sqlite;
use crate::support::client::ApiResponse;
use crate::support::upstream::UpstreamReply;

const CHAT: &str = "/openai/v1/chat/completions";
const RESPONSES: &str = "/openai/v1/responses";
const MESSAGES: &str = "/anthropic/v1/messages";

fn asks(path: &str, model: &str, text: &str) -> Value {
    if path == RESPONSES {
        return json!({"model": model, "input": text});
    }
    json!({"model": model, "max_tokens": 40, "messages": [{"role": "user", "content": text}]})
}

fn hint(answer: &ApiResponse) -> &str {
    answer.headers["x-should-retry"].to_str().unwrap()
}

#[tokio::test]
async fn overloaded_providers_have_each_faces_status() {
    let (stage, run, upstream) = remote("").await;
    for upstream_status in [503, 529] {
        for (path, status, kind) in [
            (CHAT, 503, "server_error"),
            (RESPONSES, 503, "server_error"),
            (MESSAGES, 529, "overloaded_error"),
        ] {
            let headers = vec![("retry-after", "7".to_owned())];
            let body = json!({"error": {"message": "Overloaded"}}).to_string();
            upstream.reply(UpstreamReply::Headed(upstream_status, headers, body));
            let failed = run.call(path, &asks(path, "remote", "hi")).await;
            assert_eq!(failed.status, status, "{path}: {}", failed.body);
            assert_eq!(failed.error("type"), kind, "{path}");
            assert_eq!(failed.headers["retry-after"], "7", "{path}");
            assert_eq!(hint(&failed), "true", "{path}");
        }
    }
    for path in [CHAT, RESPONSES, MESSAGES] {
        for _ in 0..2 {
            upstream.reply(UpstreamReply::Json(
                401,
                json!({"error": {"message": "bad key"}}),
            ));
        }
        let failed = run.call(path, &asks(path, "remote", "hi")).await;
        assert_eq!(
            (failed.status, hint(&failed)),
            (502, "false"),
            "{path}: {}",
            failed.body
        );
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn spent_budgets_and_long_prompts_have_openai_codes() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    for path in [CHAT, RESPONSES] {
        let long = run.call(path, &asks(path, "talker", "too long")).await;
        long.assert_error(400, "code", "context_length_exceeded");
        assert_eq!(long.error("type"), "invalid_request_error");
        assert_eq!(hint(&long), "false");
    }
    run.end(&stage).await;
    let budget = "[[budgets]]\nname = \"run-calls\"\nscope = \"run\"\ncalls = 1\n";
    let (stage, run) = scripted_with(Sqlite, budget).await.unwrap();
    run.call(CHAT, &asks(CHAT, "talker", "hi"))
        .await
        .expect(200);
    for path in [CHAT, RESPONSES] {
        let spent = run.call(path, &asks(path, "talker", "hi")).await;
        assert_eq!(
            (spent.status, hint(&spent)),
            (429, "false"),
            "{}",
            spent.body
        );
        assert_eq!(spent.error("code"), "insufficient_quota");
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn threads_are_refused_by_their_code() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    for streams in [false, true] {
        let mut body = asks(MESSAGES, "talker", "hi");
        body["thread"] = json!({"type": "create"});
        body["stream"] = json!(streams);
        let refused = run.call(MESSAGES, &body).await;
        refused.assert_error(400, "type", "invalid_request_error");
        assert_members!(refused.error("details"), {"error_code": "thread_unsupported_request"});
        let counted = run.call("/anthropic/v1/messages/count_tokens", &body).await;
        assert_eq!(counted.status, 200, "{}", counted.body);
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn answer_schemas_reach_claude_models() {
    let (stage, run, upstream) = remote("").await;
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
        "additionalProperties": false});
    let format = json!({"name": "n", "strict": true, "schema": schema});
    let mut chat = asks(CHAT, "claude", "hi");
    chat["response_format"] = json!({"type": "json_schema", "json_schema": format});
    let mut response = asks(RESPONSES, "claude", "hi");
    response["text"] =
        json!({"format": {"type": "json_schema", "name": "n", "strict": true, "schema": schema}});
    for (path, body) in [(CHAT, chat), (RESPONSES, response)] {
        let content = json!([{"type": "text", "text": "{\"a\":1}"}]);
        let message = json!({"content": content, "stop_reason": "end_turn"});
        upstream.reply(UpstreamReply::Json(200, message));
        let answer = run.call(path, &body).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let request = upstream.requests().pop().unwrap().body;
        let expected = json!({"type": "json_schema", "schema": schema});
        assert_eq!(request["output_config"]["format"], expected, "{path}");
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn refused_effort_levels_are_sent_once() {
    let (stage, run, upstream) = remote("").await;
    let error = "Unsupported value: 'reasoning_effort' does not support 'xhigh' with this model";
    upstream.reply(UpstreamReply::Json(
        400,
        json!({"error": {"message": error}}),
    ));
    for _ in 0..2 {
        let message = json!({"role": "assistant", "content": "hi"});
        let choice = json!({"message": message, "finish_reason": "stop"});
        upstream.reply(UpstreamReply::Json(200, json!({"choices": [choice]})));
        let mut body = asks(MESSAGES, "remote", "hi");
        body["output_config"] = json!({"effort": "xhigh"});
        run.call(MESSAGES, &body).await.expect(200);
    }
    let requests = upstream.requests();
    let levels: Vec<_> = requests
        .iter()
        .map(|request| &request.body["reasoning_effort"])
        .collect();
    assert_eq!(levels, ["xhigh", "high", "high"]);
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_urls_of_other_schemes_and_stored_files() {
    let (stage, run, upstream) = remote("").await;
    let part = |part: Value| json!([{"role": "user", "content": [part]}]);
    let file = |member: &str, value: &str| json!({"type": "file", "file": {member: value}});
    let input = |value: &str| json!({"type": "input_file", "filename": "a.pdf", "file_url": value});
    for (path, name, part) in [
        (
            RESPONSES,
            "input",
            part(input("view-source:http://127.0.0.1/")),
        ),
        (RESPONSES, "input", part(input("netdoc:/etc/passwd"))),
        (
            CHAT,
            "messages",
            part(file("file_data", "view-source:http://127.0.0.1/")),
        ),
        (CHAT, "messages", part(file("file_id", "file-1"))),
    ] {
        let body = json!({"model": "remote", name: part});
        let refused = run.call(path, &body).await;
        assert_eq!(refused.status, 400, "{body}: {}", refused.body);
    }
    assert!(upstream.requests().is_empty());
    run.end(&stage).await;
}
