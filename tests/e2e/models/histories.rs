//! Histories that clients send back: no part from a model or tool makes one unacceptable.

use reqwest::Method;
use serde_json::{Value, json};

use super::{remote, scripted, text_of};
use crate::support::Sqlite;
use crate::support::client::message;
use crate::support::held::HeldRun;
use crate::support::upstream::UpstreamReply;

const CHAT: &str = "/openai/v1/chat/completions";
const RESPONSES: &str = "/openai/v1/responses";
const MESSAGES: &str = "/anthropic/v1/messages";

fn completion(message: &Value) -> UpstreamReply {
    let choice = json!({"message": message, "finish_reason": "stop"});
    UpstreamReply::Json(200, json!({"id": "c", "choices": [choice]}))
}

fn text_reply(text: &str) -> UpstreamReply {
    completion(&json!({"role": "assistant", "content": text}))
}

async fn answered(run: &HeldRun, path: &str, body: &Value) -> Value {
    let answer = run.call(path, body).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer.body
}

#[tokio::test]
async fn replaces_unstorable_characters_on_every_face() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    let says = r#""a\u0000b\ud800c\u001bd""#;
    for (path, members) in [
        (CHAT, r#""model":"talker","messages""#),
        (MESSAGES, r#""model":"talker","max_tokens":40,"messages""#),
        (RESPONSES, r#""model":"talker","input""#),
        ("/models/talker/invoke", r#""messages""#),
        ("/models/talker/count-tokens", r#""messages""#),
        (
            "/anthropic/v1/messages/count_tokens",
            r#""model":"talker","messages""#,
        ),
        (
            "/openai/v1/responses/input_tokens",
            r#""model":"talker","input""#,
        ),
    ] {
        let mut body = format!(r#"{{{members}:[{{"role":"user","content":{says}}}]}}"#);
        // Raw control characters, too.
        body = body.replace("\\u001b", "\u{1b}");
        let asking = run.request(Method::POST, path);
        let asking = asking.header("content-type", "application/json").body(body);
        let (status, text) = text_of(asking).await;
        assert_eq!(status, 200, "{path}: {text}");
        let echoes = !path.contains("tokens");
        assert!(
            !echoes || text.contains("a\u{FFFD}b\u{FFFD}c\\u001bd"),
            "{path}: {text}"
        );
    }
    run.end(&stage).await;
}

/// The first request of Codex 0.171 for models that it knows.
#[tokio::test]
async fn codex_tools_of_items_reach_the_provider() {
    let (stage, run, upstream) = remote("").await;
    let call = json!({"id": "call_1", "type": "function",
        "function": {"name": "functions__exec", "arguments": "{\"input\":\"ls\"}"}});
    upstream.reply(completion(
        &json!({"role": "assistant", "content": null, "tool_calls": [call]}),
    ));
    upstream.reply(text_reply("done"));
    let exec = json!({"type": "custom", "name": "exec", "description": "Runs.", "format": {"type": "text"}});
    let tools = json!({"type": "additional_tools", "id": "at_1", "role": "developer", "tools": [
        {"type": "namespace", "name": "functions", "tools": [exec, {"type": "function", "name": "wait", "strict": false,
            "parameters": {"type": "object", "properties": {}}}]}]});
    let text = |role: &str, text: &str| {
        json!({"type": "message", "id": "msg_1", "role": role,
        "content": [{"type": "input_text", "text": text}]})
    };
    let mut body = json!({"model": "remote", "store": false, "tool_choice": "auto", "parallel_tool_calls": false,
        "reasoning": {"effort": "low", "context": "all_turns"}, "include": ["reasoning.encrypted_content"],
        "text": {"verbosity": "low"}, "client_metadata": {"session_id": "s"},
        "input": [tools, text("developer", "be kind"), text("user", "<environment/>"), text("user", "hello"),
            {"type": "web_search_call", "action": {"type": "search"}}]});
    let first = answered(&run, RESPONSES, &body).await;
    let item = &first["output"][0];
    let names = ["type", "namespace", "name", "input"].map(|name| &item[name]);
    assert_eq!(names, ["custom_tool_call", "functions", "exec", "ls"]);
    let request = upstream.requests().remove(0).body;
    let offered: Vec<_> = request["tools"].as_array().unwrap().iter().collect();
    let offered: Vec<_> = offered
        .iter()
        .map(|tool| &tool["function"]["name"])
        .collect();
    assert_eq!(offered, ["functions__exec", "functions__wait"]);
    assert_eq!(
        request["messages"],
        json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": "<environment/>\n\nhello"}])
    );
    let input = body["input"].as_array_mut().unwrap();
    input.push(item.clone());
    input.push(json!({"type": "custom_tool_call_output", "call_id": "call_1", "output": "a.txt"}));
    answered(&run, RESPONSES, &body).await;
    let request = upstream.requests().pop().unwrap().body;
    assert_members!(request["messages"][2]["tool_calls"][0], {"function": call["function"]});
    assert_eq!(request["messages"][3]["content"], "a.txt");
    let log = stage.gateway.log();
    let reports = log
        .matches("does not read items of type web_search_call")
        .count();
    assert_eq!(reports, 1, "{log}");
    run.end(&stage).await;
}

/// The second step of the AI SDK with its default provider for OpenAI.
#[tokio::test]
async fn references_resolve_to_items_of_the_run() {
    let (stage, run, upstream) = remote("").await;
    let call = json!({"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "S"}}});
    let calls = json!({"role": "assistant", "content": "I look.", "reasoning_content": "T", "tool_calls": [call]});
    upstream.reply(completion(&calls));
    for _ in 0..2 {
        upstream.reply(text_reply("blue"));
    }
    let tools = json!([{"type": "function", "name": "look"}]);
    let first = json!({"model": "remote", "input": "the sky?", "tools": tools});
    let first = answered(&run, RESPONSES, &first).await;
    let ids: Vec<_> = first["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["id"])
        .collect();
    let mut input = vec![json!({"role": "user", "content": "the sky?"})];
    input.extend(
        ids.iter()
            .map(|id| json!({"type": "item_reference", "id": id})),
    );
    let output = json!({"type": "function_call_output", "call_id": "call_1", "output": "blue"});
    input.push(output.clone());
    let second = json!({"model": "remote", "input": input, "tools": tools});
    answered(&run, RESPONSES, &second).await;
    let by_reference = upstream.requests().pop().unwrap().body["messages"].clone();
    assert_eq!(by_reference[1], calls);
    assert_eq!(
        by_reference[2],
        json!({"role": "tool", "tool_call_id": "call_1", "content": "blue"})
    );

    let third = json!({"model": "remote", "previous_response_id": first["id"], "input": [output], "tools": tools});
    let third = answered(&run, RESPONSES, &third).await;
    assert_eq!(third["previous_response_id"], first["id"]);
    let by_response = upstream.requests().pop().unwrap().body["messages"].clone();
    assert_eq!(by_response, by_reference);

    let other = HeldRun::start(&stage, &message("m-2")).await;
    let reference = json!({"model": "remote", "input": [{"type": "item_reference", "id": ids[0]}]});
    let refused = other.call(RESPONSES, &reference).await;
    refused.assert_error(400, "param", "/input/0");
    let chained = json!({"model": "remote", "input": "x", "previous_response_id": first["id"]});
    let refused = other.call(RESPONSES, &chained).await;
    assert_eq!(
        refused.error("code"),
        "previous_response_not_found",
        "{}",
        refused.body
    );
    other.end(&stage).await;
    run.end(&stage).await;
}

#[tokio::test]
async fn signed_reasoning_returns_before_its_call() {
    let (stage, run, upstream) = remote("").await;
    let signed = json!({"type": "thinking", "thinking": "hm", "signature": "EqMD"});
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}});
    let message = |content: Value, reason: &str| {
        json!({"id": "m", "type": "message", "role": "assistant",
        "content": content, "stop_reason": reason, "usage": {"input_tokens": 1, "output_tokens": 1}})
    };
    upstream.reply(UpstreamReply::Json(
        200,
        message(json!([signed, call]), "tool_use"),
    ));
    let text = json!([{"type": "text", "text": "blue"}]);
    upstream.reply(UpstreamReply::Json(200, message(text, "end_turn")));
    let mut body = json!({"model": "claude", "input": [{"role": "user", "content": "the sky?"}],
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"},
        "tools": [{"type": "function", "name": "look"}]});
    let first = answered(&run, RESPONSES, &body).await;
    let input = body["input"].as_array_mut().unwrap();
    input.extend(first["output"].as_array().unwrap().iter().cloned());
    input.push(json!({"type": "function_call_output", "call_id": "toolu_1", "output": "blue"}));
    answered(&run, RESPONSES, &body).await;
    let request = upstream.requests().pop().unwrap().body;
    assert_members!(request["messages"][1], {"content": json!([signed, call])});
    assert!(request["thinking"].is_object(), "{request}");
    run.end(&stage).await;
}

#[tokio::test]
async fn reasoning_with_invalid_signatures_is_left_out() {
    let (stage, run, upstream) = remote("").await;
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}});
    let thinks =
        |signature: &str| json!({"type": "thinking", "thinking": "hm", "signature": signature});
    let body = |blocks: Value| {
        json!({"model": "claude", "max_tokens": 40, "messages": [
        {"role": "user", "content": "the sky?"}, {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "blue"}]}]})
    };
    let done = || {
        let content = json!([{"type": "text", "text": "blue"}]);
        UpstreamReply::Json(200, json!({"content": content, "stop_reason": "end_turn"}))
    };
    upstream.reply(done());
    let unsigned = json!([thinks(""), {"type": "redacted_thinking"}, call]);
    answered(&run, MESSAGES, &body(unsigned)).await;
    let passed = upstream.requests().pop().unwrap().body;
    assert_eq!(passed["messages"][1]["content"], json!([call]));

    let error = "messages.1.content.0: Invalid `signature` in `thinking` block";
    let error =
        json!({"type": "error", "error": {"type": "invalid_request_error", "message": error}});
    upstream.reply(UpstreamReply::Json(400, error));
    upstream.reply(done());
    answered(
        &run,
        MESSAGES,
        &body(json!([thinks("of another account"), call])),
    )
    .await;
    let requests = upstream.requests();
    assert_eq!(requests.len(), 3);
    let contents = [1, 2].map(|n: usize| requests[n].body["messages"][1]["content"].clone());
    assert_eq!(contents[0], json!([thinks("of another account"), call]));
    assert_eq!(contents[1], json!([call]));
    run.end(&stage).await;
}

#[tokio::test]
async fn null_is_absent_in_requests() {
    let (stage, run) = scripted(Sqlite).await.unwrap();
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body) in [
        (
            "/models/talker/invoke",
            json!({"messages": messages, "tools": null, "extra_args": null, "remove_think": null}),
        ),
        (
            CHAT,
            json!({"model": "talker", "messages": messages, "tools": null, "stream": null, "stream_options": null}),
        ),
        (
            MESSAGES,
            json!({"model": "talker", "max_tokens": 40, "messages": messages, "system": null, "thinking": null}),
        ),
        (
            RESPONSES,
            json!({"model": "talker", "input": "hello", "instructions": null, "tools": null, "text": null, "store": null}),
        ),
    ] {
        answered(&run, path, &body).await;
    }
    run.end(&stage).await;
}
