//! The official clients against the Responses API, with each kind of provider.

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::super::{END, OPENAI_NODE, chunk, remote, scripted};
use crate::support::held::HeldRun;
use crate::support::peer::ask;
use crate::support::python::python_with_openai;
use crate::support::repository::repository_file;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{OwnStage, Sqlite};

/// Provider of the model.
#[derive(Clone, Copy, Debug)]
enum ProviderKind {
    Script,
    Chat,
    Messages,
}
use ProviderKind::{Chat, Messages, Script};

/// A run, its stage, its model, and the model's answer to hello.
struct ClientRun {
    stage: OwnStage,
    run: HeldRun,
    model: &'static str,
    text: &'static str,
    _upstream: Option<Upstream>,
}

impl ProviderKind {
    async fn start(self) -> ClientRun {
        if matches!(self, Script) {
            let (stage, run) = scripted(Sqlite).await.unwrap();
            return ClientRun {
                stage,
                run,
                model: "talker",
                text: "<think>hidden</think>You said: hello",
                _upstream: None,
            };
        }
        let (stage, run, upstream) = remote("").await;
        let is_chat = matches!(self, Chat);
        for reply in if is_chat { of_chat() } else { of_messages() } {
            upstream.reply(reply);
        }
        // Every key is rate-limited once.
        let busy = if is_chat { 2 } else { 1 };
        for _ in 0..busy {
            upstream.reply(UpstreamReply::Json(
                429,
                json!({"error": {"message": "later"}}),
            ));
        }
        ClientRun {
            stage,
            run,
            model: if is_chat { "remote" } else { "claude" },
            text: "You said: hello",
            _upstream: Some(upstream),
        }
    }
}

fn of_chat() -> Vec<UpstreamReply> {
    let usage = json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7});
    let completion = |message: Value, reason: &str| {
        let choice = json!({"index": 0, "message": message, "finish_reason": reason});
        UpstreamReply::Json(200, json!({"id": "c", "choices": [choice], "usage": usage}))
    };
    let stream = |deltas: &[Value], reason: &str| {
        let mut events: Vec<_> = deltas.iter().map(chunk).collect();
        events.push(END.replace("stop", reason));
        events.push(format!(
            "data: {}",
            json!({"id": "x", "choices": [], "usage": usage})
        ));
        events.push("data: [DONE]".to_owned());
        UpstreamReply::Events(events)
    };
    let call = |name: &str, arguments: &Value| {
        json!([{"index": 0, "id": "call_1", "type": "function",
            "function": {"name": name, "arguments": arguments.to_string()}}])
    };
    let weather = call("get_weather", &json!({"city": "Oslo"}));
    let patch = call("apply_patch", &json!({"input": "*** Begin Patch"}));
    vec![
        completion(json!({"content": "You said: hello"}), "stop"),
        stream(
            &[
                json!({"content": "You said"}),
                json!({"content": ": hello"}),
            ],
            "stop",
        ),
        stream(
            &[
                json!({"reasoning_content": "which city?"}),
                json!({"tool_calls": weather}),
            ],
            "tool_calls",
        ),
        completion(json!({"content": "It is cold."}), "stop"),
        completion(json!({"content": null, "tool_calls": patch}), "tool_calls"),
    ]
}

fn of_messages() -> Vec<UpstreamReply> {
    let usage = json!({"input_tokens": 5, "output_tokens": 2});
    let completion = |block: Value, reason: &str| {
        UpstreamReply::Json(
            200,
            json!({"id": "m", "model": "c", "content": [block], "stop_reason": reason, "usage": usage}),
        )
    };
    let stream = |block: Value, deltas: &[Value], reason: &str| {
        let start =
            json!({"type": "message_start", "message": {"id": "m", "model": "c", "usage": usage}});
        let begin = json!({"type": "content_block_start", "index": 0, "content_block": block});
        let mut events = vec![start, begin];
        events.extend(
            deltas
                .iter()
                .map(|delta| json!({"type": "content_block_delta", "index": 0, "delta": delta})),
        );
        events.push(json!({"type": "content_block_stop", "index": 0}));
        events.push(
            json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}),
        );
        events.push(json!({"type": "message_stop"}));
        let frames = events
            .iter()
            .map(|data| format!("event: {}\ndata: {data}", data["type"].as_str().unwrap()));
        UpstreamReply::Events(frames.collect())
    };
    let text = |text: &str| json!({"type": "text", "text": text});
    let piece = |text: &str| json!({"type": "text_delta", "text": text});
    let json_piece = |text: &str| json!({"type": "input_json_delta", "partial_json": text});
    let weather = json!({"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}});
    let patch = json!({"type": "tool_use", "id": "toolu_2", "name": "apply_patch",
        "input": {"input": "*** Begin Patch"}});
    vec![
        completion(text("You said: hello"), "end_turn"),
        stream(text(""), &[piece("You said"), piece(": hello")], "end_turn"),
        stream(
            weather,
            &[json_piece("{\"city\":"), json_piece("\"Oslo\"}")],
            "tool_use",
        ),
        completion(text("It is cold."), "end_turn"),
        completion(patch, "tool_use"),
    ]
}

/// The expected results of a client.
fn check_client(got: &Value, client_run: &ClientRun) {
    assert_eq!(got["whole"], client_run.text);
    assert_members!(got, {"pieces": got["whole"], "last": got["whole"]});
    assert_members!(got, {"model": client_run.model, "stored": false});
    assert_eq!(got["usage"], true);
    let types = got["types"].as_array().unwrap();
    assert_eq!(types[0], "response.created");
    assert_eq!(types.last().unwrap(), "response.completed");
    assert_eq!(got["call"], json!(["get_weather", {"city": "Oslo"}]));
    assert_eq!(got["told"], "It is cold.");
    assert_eq!(got["custom"], json!(["apply_patch", "*** Begin Patch"]));
    assert!(got["tokens"].as_u64().unwrap() >= 8, "{got}");
    assert_eq!(
        got["refused"],
        json!([
            ["PermissionDeniedError", 403, "unauthorized", null],
            [
                "BadRequestError",
                400,
                "previous_response_not_found",
                "/previous_response_id"
            ],
            ["BadRequestError", 400, "invalid_argument", "/tools/0/type"],
            ["RateLimitError", 429, "rate_limited", null]
        ])
    );
}

async fn check(mut program: Command, behind: ProviderKind) {
    let client_run = behind.start().await;
    let base_url = format!("{}/openai/v1", client_run.run.host.url);
    let given =
        json!({"base_url": base_url, "token": client_run.run.token, "model": client_run.model});
    check_client(&ask(&mut program, &given).await, &client_run);
    client_run.run.end(&client_run.stage).await;
}

#[rstest]
#[tokio::test]
async fn official_python_client_uses_responses_api(
    #[values(Script, Chat, Messages)] behind: ProviderKind,
) {
    let openai = or_skip!(python_with_openai().await);
    let mut python = Command::new(openai);
    python.arg(repository_file("tests/peer/openai_responses.py"));
    check(python, behind).await;
}

#[rstest]
#[tokio::test]
async fn official_node_client_uses_responses_api(
    #[values(Script, Chat, Messages)] behind: ProviderKind,
) {
    let project = or_skip!(OPENAI_NODE.built("node").await);
    let mut node = Command::new("node");
    node.arg(project.join("responses.mjs"));
    check(node, behind).await;
}
