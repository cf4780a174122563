//! Google's official clients against the Gemini API, with each kind of provider.

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::super::{END, chunk};
use super::provider::{candidate, event, gemini_stage};
use super::{HeldRun, Sqlite, Upstream, UpstreamReply, remote, scripted};
use crate::support::node::NodeProject;
use crate::support::peer::ask;
use crate::support::python::python_with_gemini;
use crate::support::repository::repository_file;

static NODE: NodeProject = NodeProject::at("tests/clients/gemini");

/// Answer of the scripted model, which the fake servers give in two pieces.
pub(super) const EXPECTED_TEXT: &str = "You said: hello";
const EXPECTED_FORECAST: &str = "It is cold.";
const CALL_ID: &str = "call_01-Ab_9";

/// Language of a client.
#[derive(Clone, Copy, Debug)]
enum GeminiClientLanguage {
    Python,
    Node,
}
use GeminiClientLanguage::{Node, Python};

impl GeminiClientLanguage {
    /// The client as a program. Its packages are installed before a test starts its run: an installation may take
    /// longer than the run's deadline.
    async fn program(self) -> Option<Command> {
        let (interpreter, script) = match self {
            Python => (
                python_with_gemini().await?,
                repository_file("tests/peer/gemini_client.py"),
            ),
            Node => ("node".into(), NODE.built("node").await?.join("client.mjs")),
        };
        let mut program = Command::new(interpreter);
        program.arg(script);
        Some(program)
    }
}

fn given(run: &HeldRun, model: &str) -> Value {
    let base_url = format!("{}/gemini", run.host.url);
    json!({"base_url": base_url, "token": run.token, "model": model})
}

/// The expected results of a client, for every provider.
fn check(got: &Value, model: &str, models: &Value) {
    assert_eq!(got["complete"], EXPECTED_TEXT, "{got}");
    assert_eq!(got["pieces"], EXPECTED_TEXT);
    assert_eq!(got["model"], model);
    assert_eq!(got["stop"], json!(["STOP", "STOP"]));
    assert_eq!([&got["usage"], &got["counted"]], [true, true]);
    assert_eq!(got["call"], json!(["get_weather", {"city": "Oslo"}]));
    assert_eq!(got["reasoning"], "which city?");
    assert_eq!(got["answer"], EXPECTED_FORECAST);
    assert_eq!(&got["models"], models);
    assert_eq!(got["model_of_id"], format!("models/{model}"));
    let refused = &got["refused"];
    assert_eq!(refused[0][1], 403, "{refused}");
    assert_eq!(refused[0][2], "PERMISSION_DENIED");
    assert_eq!(refused[1][1], 429);
    assert_eq!(refused[1][2], "RESOURCE_EXHAUSTED");
}

/// A stream that broke: the text before it, and the error.
fn check_broken(got: &Value, language: GeminiClientLanguage) {
    assert_eq!(got["broken"][0][0], "half", "{got}");
    let error = match language {
        Python => "UNAVAILABLE",
        Node => "502",
    };
    assert_eq!(got["broken"][1], error, "{got}");
}

/// Scripts an OpenAI-compatible server for one client. Each of its two keys is rate-limited once.
fn script_openai(upstream: &Upstream) {
    let (begin, end) = EXPECTED_TEXT.split_at(10);
    let completion = |text: &str| {
        let message = json!({"role": "assistant", "content": text});
        json!({"id": "c", "choices": [{"message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 5, "completion_tokens": 4}})
    };
    let usage =
        json!({"id": "x", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}});
    let usage = format!("data: {usage}");
    let call = |call: Value| chunk(&json!({"tool_calls": [call]}));
    let done = || "data: [DONE]".to_owned();
    upstream.reply(UpstreamReply::Json(200, completion(EXPECTED_TEXT)));
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&json!({"role": "assistant", "content": begin})),
        chunk(&json!({"content": end})),
        END.to_owned(),
        usage.clone(),
        done(),
    ]));
    upstream.reply(UpstreamReply::Events(vec![
        chunk(&json!({"reasoning_content": "which city?"})),
        call(json!({"index": 0, "id": CALL_ID, "type": "function",
            "function": {"name": "get_weather", "arguments": ""}})),
        call(json!({"index": 0, "function": {"arguments": "{\"city\":"}})),
        call(json!({"index": 0, "function": {"arguments": "\"Oslo\"}"}})),
        END.replace("stop", "tool_calls"),
        usage,
        done(),
    ]));
    upstream.reply(UpstreamReply::Json(200, completion(EXPECTED_FORECAST)));
    for _ in 0..2 {
        let busy = json!({"error": {"message": "busy"}});
        upstream.reply(UpstreamReply::Json(429, busy));
    }
    upstream.reply(UpstreamReply::Cut(vec![chunk(&json!({"content": "half"}))]));
}

/// Scripts a Gemini server for one client.
fn script_gemini(upstream: &Upstream) {
    let (begin, end) = EXPECTED_TEXT.split_at(10);
    let texts = |text: &str| candidate(&json!([{"text": text}]), Some("STOP"));
    let signed = json!({"functionCall": {"id": CALL_ID, "name": "get_weather", "args": {"city": "Oslo"}},
        "thoughtSignature": "U0lH"});
    upstream.reply(UpstreamReply::Json(200, texts(EXPECTED_TEXT)));
    upstream.reply(UpstreamReply::Events(vec![
        event(&candidate(&json!([{"text": begin}]), None)),
        event(&candidate(&json!([{"text": end}]), None)),
        event(&candidate(&json!([{"text": ""}]), Some("STOP"))),
    ]));
    upstream.reply(UpstreamReply::Events(vec![
        event(&candidate(
            &json!([{"text": "which city?", "thought": true}]),
            None,
        )),
        event(&candidate(&json!([signed]), Some("STOP"))),
    ]));
    upstream.reply(UpstreamReply::Json(200, texts(EXPECTED_FORECAST)));
    for _ in 0..2 {
        let busy =
            json!({"error": {"code": 429, "message": "busy", "status": "RESOURCE_EXHAUSTED"}});
        upstream.reply(UpstreamReply::Json(429, busy));
    }
    let half = candidate(&json!([{"text": "half"}]), None);
    upstream.reply(UpstreamReply::Cut(vec![event(&half)]));
}

#[rstest]
#[tokio::test]
async fn client_uses_scripted_model(#[values(Python, Node)] language: GeminiClientLanguage) {
    let mut client = or_skip!(language.program().await);
    let (_stage, run) = scripted(Sqlite).await.unwrap();
    let got = ask(&mut client, &given(&run, "talker")).await;
    check(&got, "talker", &json!(["models/talker", "models/ranker"]));
    check_broken(&got, language);
}

#[rstest]
#[tokio::test]
async fn client_uses_openai_provider(#[values(Python, Node)] language: GeminiClientLanguage) {
    let mut client = or_skip!(language.program().await);
    let (_stage, run, upstream) = remote("").await;
    script_openai(&upstream);
    let got = ask(&mut client, &given(&run, "remote")).await;
    check(&got, "remote", &json!(["models/remote", "models/claude"]));
    check_broken(&got, language);
    assert_eq!(got["call_id"], CALL_ID);
    let back = upstream.requests()[3].body["messages"].to_string();
    assert_eq!(back.matches(&format!("{CALL_ID:?}")).count(), 2, "{back}");
}

#[rstest]
#[tokio::test]
async fn client_uses_gemini_provider(#[values(Python, Node)] language: GeminiClientLanguage) {
    let mut client = or_skip!(language.program().await);
    let (_stage, run, upstream) = gemini_stage("").await;
    script_gemini(&upstream);
    let got = ask(&mut client, &given(&run, "gem")).await;
    check(&got, "gem", &json!(["models/gem"]));
    check_broken(&got, language);
    // The provider gets its own signature and the id of its call back.
    let back = &upstream.requests()[3].body["contents"];
    let call = &back[1]["parts"][0];
    assert_eq!(call["functionCall"]["id"], CALL_ID, "{back}");
    assert_eq!(call["thoughtSignature"], "U0lH");
    assert_eq!(
        back[2]["parts"][0]["functionResponse"],
        json!({"id": CALL_ID, "name": "get_weather", "response": {"output": "cold"}})
    );
}
