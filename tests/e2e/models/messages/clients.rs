//! Anthropic's official clients against the Messages API, with each kind of provider.

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::super::{END, chunk, remote, scripted};
use super::event;
use crate::support::Sqlite;
use crate::support::held::HeldRun;
use crate::support::node::NodeProject;
use crate::support::peer::ask;
use crate::support::python::python_with_anthropic;
use crate::support::repository::repository_file;
use crate::support::upstream::{Upstream, UpstreamReply};

static NODE: NodeProject = NodeProject::at("tests/clients/anthropic");

const EXPECTED_TEXT: &str = "You said: hello";
const EXPECTED_FORECAST: &str = "It is cold.";
const CALL_ID: &str = "toolu_01-Ab_9";

/// Language of a client.
#[derive(Clone, Copy, Debug)]
enum ClientLanguage {
    Python,
    Node,
}
use ClientLanguage::{Node, Python};

impl ClientLanguage {
    /// The client as a program. Its packages are installed before a test starts its run: an installation may take
    /// longer than the run's deadline.
    async fn program(self) -> Option<Command> {
        let (interpreter, script) = match self {
            Python => (
                python_with_anthropic().await?,
                repository_file("tests/peer/anthropic_client.py"),
            ),
            Node => ("node".into(), NODE.built("node").await?.join("client.mjs")),
        };
        let mut program = Command::new(interpreter);
        program.arg(script);
        Some(program)
    }
}

fn given(run: &HeldRun, model: &str) -> Value {
    let base_url = format!("{}/anthropic", run.host.url);
    json!({"base_url": base_url, "token": run.token, "model": model})
}

/// The expected results of a client, for every provider.
fn check(got: &Value, model: &str, models: &Value) {
    assert_eq!(got["whole"], EXPECTED_TEXT, "{got}");
    assert_eq!(got["pieces"], EXPECTED_TEXT);
    assert_eq!(got["model"], model);
    assert_eq!(got["stop"], json!(["end_turn", "end_turn", "tool_use"]));
    assert_eq!([&got["usage"], &got["counted"]], [true, true]);
    assert_eq!(got["call"], json!(["get_weather", {"city": "Oslo"}]));
    assert_eq!(got["told"], EXPECTED_FORECAST);
    assert_eq!(&got["models"], models);
    assert_eq!(got["model_of_id"], model);
    assert_eq!(
        got["refused"],
        json!([
            ["PermissionDeniedError", 403, "permission_error"],
            ["RateLimitError", 429, "rate_limit_error"]
        ])
    );
}

/// Scripts an OpenAI-compatible server for one client. Each of its two keys is rate-limited once.
fn script_openai(upstream: &Upstream) {
    let completion = |text: &str| {
        let message = json!({"role": "assistant", "content": text});
        json!({"id": "c", "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 4}})
    };
    let usage =
        json!({"id": "x", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}});
    let usage = format!("data: {usage}");
    let call = |call: Value| chunk(&json!({"tool_calls": [call]}));
    let ended = END.replace("stop", "tool_calls");
    let done = || "data: [DONE]".to_owned();
    upstream.reply(UpstreamReply::Json(200, completion(EXPECTED_TEXT)));
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&json!({"role": "assistant", "content": "You said: "})),
        chunk(&json!({"content": "hello"})),
        END.to_owned(),
        usage.clone(),
        done(),
    ]));
    upstream.reply(UpstreamReply::Events(vec![
        call(json!({"index": 0, "id": CALL_ID, "type": "function",
            "function": {"name": "get_weather", "arguments": ""}})),
        call(json!({"index": 0, "function": {"arguments": "{\"city\":"}})),
        call(json!({"index": 0, "function": {"arguments": "\"Oslo\"}"}})),
        ended,
        usage,
        done(),
    ]));
    upstream.reply(UpstreamReply::Json(200, completion(EXPECTED_FORECAST)));
    for _ in 0..2 {
        upstream.reply(UpstreamReply::Json(
            429,
            json!({"error": {"message": "busy"}}),
        ));
    }
}

/// Scripts an Anthropic-compatible server for one client.
fn script_anthropic(upstream: &Upstream) {
    let message = |content: Value| {
        json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-up", "content": content,
            "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 5, "output_tokens": 4}})
    };
    let complete = |text: &str| message(json!([{"type": "text", "text": text}]));
    let streamed = |block: Value, deltas: Vec<Value>, reason: &str| {
        let mut begun = message(json!([]));
        begun["stop_reason"] = json!(null);
        let mut events = vec![
            json!({"type": "message_start", "message": begun}),
            json!({"type": "content_block_start", "index": 0, "content_block": block}),
            json!({"type": "ping"}),
        ];
        let deltas = deltas.into_iter();
        events.extend(
            deltas.map(|delta| json!({"type": "content_block_delta", "index": 0, "delta": delta})),
        );
        events.extend([
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": null},
                "usage": {"output_tokens": 4}}),
            json!({"type": "message_stop"}),
        ]);
        UpstreamReply::Events(events.iter().map(event).collect())
    };
    let texts = ["You said: ", "hello"].map(|text| json!({"type": "text_delta", "text": text}));
    let input = ["{\"city\":", "\"Oslo\"}"];
    let input = input.map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
    let call = json!({"type": "tool_use", "id": CALL_ID, "name": "get_weather", "input": {}});
    upstream.reply(UpstreamReply::Json(200, complete(EXPECTED_TEXT)));
    upstream.reply(streamed(
        json!({"type": "text", "text": ""}),
        texts.to_vec(),
        "end_turn",
    ));
    upstream.reply(streamed(call, input.to_vec(), "tool_use"));
    upstream.reply(UpstreamReply::Json(200, complete(EXPECTED_FORECAST)));
    let busy = json!({"type": "error", "error": {"type": "rate_limit_error", "message": "busy"}});
    upstream.reply(UpstreamReply::Json(429, busy));
}

/// Checks the client's results, and that the provider received the same call id back, byte for byte.
fn check_provider(got: &Value, model: &str, upstream: &Upstream) {
    check(got, model, &json!(["remote", "claude"]));
    assert_eq!(got["call_id"], CALL_ID);
    let requests = upstream.requests();
    let id = format!("{CALL_ID:?}");
    let back = requests[3].body["messages"].to_string();
    assert_eq!(back.matches(&id).count(), 2, "{back}");
}

#[rstest]
#[tokio::test]
async fn client_uses_scripted_model(#[values(Python, Node)] language: ClientLanguage) {
    let mut client = or_skip!(language.program().await);
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let got = ask(&mut client, &given(&run, "talker")).await;
    check(&got, "talker", &json!(["talker", "ranker"]));
}

#[rstest]
#[case::openai("remote", script_openai)]
#[case::anthropic("claude", script_anthropic)]
#[tokio::test]
async fn client_uses_remote_provider(
    #[values(Python, Node)] language: ClientLanguage,
    #[case] model: &str,
    #[case] script: fn(&Upstream),
) {
    let mut client = or_skip!(language.program().await);
    let (_stage, run, upstream) = remote("").await;
    script(&upstream);
    let got = ask(&mut client, &given(&run, model)).await;
    check_provider(&got, model, &upstream);
}
