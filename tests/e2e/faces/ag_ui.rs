//! AG-UI 1.0 over agents.

use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::{asking, key, last_context, open_after_answer, stage, talk, waiting};
use crate::support::client::{ApiResponse, Client, send};
use crate::support::node::NodeProject;
use crate::support::peer::ask;
use crate::support::script::{Gate, sse, sse_around};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, within};

static EXAMPLE: NodeProject = NodeProject::at("examples/typescript/ag-ui");
static AG_UI_NODE: NodeProject = NodeProject::at("tests/clients/ag_ui");
const PATH: &str = "/faces/ag-ui/main";

fn input(run_id: &str, text: &str) -> Value {
    json!({"threadId": "t-1", "runId": run_id, "tools": [], "context": [], "state": {}, "forwardedProps": {},
        "messages": [{"id": "m-1", "role": "user", "content": text}]})
}

fn answer(run_id: &str, interrupt: &Value, payload: &Value) -> Value {
    let mut body = input(run_id, "a table");
    body["resume"] = json!([{"interruptId": interrupt, "status": "resolved", "payload": payload}]);
    body
}

fn running(client: &Client, body: &Value) -> RequestBuilder {
    client.request(Method::POST, PATH).json(body)
}

async fn refused(client: &Client, body: &Value) -> ApiResponse {
    send(running(client, body)).await.unwrap()
}

/// Ids and events of a stream, at most `count`. A frame without an id has an empty one.
async fn events(request: RequestBuilder, count: usize) -> Vec<(String, Value)> {
    let mut response = within("the head of a stream", request.send())
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut text, mut events) = (String::new(), Vec::new());
    while events.len() < count
        && let Some(bytes) = within("a frame", response.chunk()).await.unwrap()
    {
        text += std::str::from_utf8(&bytes).unwrap();
        while let Some((frame, rest)) = text.split_once("\n\n") {
            if let Some((id, data)) = frame.split_once("data: ") {
                let id = id.trim_start_matches("id: ").trim().to_owned();
                events.push((id, serde_json::from_str(data).unwrap()));
            }
            text = rest.to_owned();
        }
    }
    events
}

async fn all(client: &Client, body: &Value) -> Vec<(String, Value)> {
    events(running(client, body), usize::MAX).await
}

fn texts(events: &[(String, Value)]) -> String {
    let deltas = events
        .iter()
        .filter(|(_, event)| event["type"] == "TEXT_MESSAGE_CONTENT");
    deltas
        .map(|(_, event)| event["delta"].as_str().unwrap())
        .collect()
}

fn outcome(events: &[(String, Value)]) -> &Value {
    &events.last().unwrap().1["outcome"]
}

fn interrupt(events: &[(String, Value)]) -> &Value {
    &outcome(events)["interrupts"][0]
}

async fn run_count(stage: &OwnStage) -> usize {
    let runs = stage.client.get("/v1/runs").await.body;
    runs["items"].as_array().unwrap().len()
}

#[tokio::test]
async fn official_client_runs_resumes_and_answers() {
    let project = or_skip!(AG_UI_NODE.built("node").await);
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    let (count, asks) = (AtomicUsize::new(0), waiting(&gate));
    let answers = move |run: &_| match count.fetch_add(1, Ordering::Relaxed) {
        0 => talk(run),
        _ => asks(run),
    };
    stage.runner.answer_all(answers);
    let mut node = Command::new("node");
    node.arg(project.join("client.mjs"));
    let given = json!({"url": stage.client.url, "key": stage.client.key});
    let answered = open_after_answer(&stage, &gate);
    let (got, ()) = tokio::join!(ask(&mut node, &given), answered);
    let kinds = [
        "RUN_STARTED",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "TOOL_CALL_RESULT",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ];
    assert_eq!(got["talk"]["kinds"], json!(kinds));
    let texts = ["Two tables.", "Which one?"];
    assert_eq!(got["talk"]["texts"], json!(texts));
    assert_eq!(got["cuts"], json!([true]));
    assert_eq!(got["paused"], "RUN_FINISHED");
    let interrupt = json!({"message": "Which room?", "actions": ["book"]});
    assert_eq!(got["interrupt"], interrupt);
    assert_members!(got["answered"], {"texts": ["Booked."]});
    assert_eq!(got["answered"]["outcome"], json!({"type": "success"}));
    assert_eq!(got["refused"], json!([404, "RUN_ERROR"]));
    assert_eq!(got["warnings"], json!([]));
    assert_eq!(run_count(&stage).await, 2);
}

/// The client of `examples`, with an answer by text.
#[tokio::test]
async fn example_client_chats_and_answers() {
    let project = or_skip!(EXAMPLE.built("node").await);
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let mut node = Command::new("node");
    node.arg(project.join("dist/chat.js"))
        .env("AGENT_URL", format!("{}{PATH}", stage.client.url))
        .env("RUNNEL_API_KEY", &stage.client.key)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut chat = node.spawn().unwrap();
    let mut stdin = chat.stdin.take().unwrap();
    stdin.write_all(b"a table\nA\n").await.unwrap();
    drop(stdin);
    let printed = within("the end of the chat", chat.wait_with_output());
    let (printed, ()) = tokio::join!(printed, open_after_answer(&stage, &gate));
    let printed = String::from_utf8(printed.unwrap().stdout).unwrap();
    assert_eq!(printed, "> \nWhich room?\n> Booked.\n> ");
}

#[rstest]
#[tokio::test]
async fn run_ids_name_one_run_each(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let mut body = input("r-1", "a table");
    body["state"] = json!({"seats": 4});
    body["context"] = json!([{"description": "city", "value": "Berlin"}]);
    let first = all(&stage.client, &body).await;
    assert_members!(first[0].1, {"type": "RUN_STARTED", "threadId": "t-1", "runId": "r-1"});
    assert_eq!(texts(&first), "Two tables.Which one?");
    let context = last_context(&stage);
    assert_eq!(context["input"]["text"], "a table");
    assert_eq!(context["conversation"]["conversation_id"], "t-1");
    assert_eq!(context["delivery"]["surface"], "ag-ui");
    let data =
        json!({"state": {"seats": 4}, "context": [{"description": "city", "value": "Berlin"}]});
    assert_eq!(context["event"]["data"], data);
    assert_eq!(all(&stage.client, &body).await, first);
    body["messages"][0]["content"] = json!("another table");
    let other = refused(&stage.client, &body).await.expect(409);
    assert_members!(other.body, {"type": "RUN_ERROR"});
    assert_eq!(
        other.body["metadata"]["details"]["reason"],
        "idempotency_mismatch"
    );
    assert_eq!(run_count(&stage).await, 1);
    // Another key has run ids of its own.
    let second = key(&stage, json!({"name": "second"})).await;
    all(&second, &input("r-1", "hi")).await;
    assert_eq!(run_count(&stage).await, 2);
}

#[rstest]
#[tokio::test]
async fn streams_resume_after_each_event(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let body = input("r-1", "hi");
    let full = all(&stage.client, &body).await;
    for (at, (id, _)) in full.iter().enumerate() {
        let request = running(&stage.client, &body).header("last-event-id", id);
        let rest = events(request, usize::MAX).await;
        assert_eq!(rest, full[at + 1..], "after {id}");
    }
    assert_eq!(run_count(&stage).await, 1);
    for id in ["999", "x"] {
        let request = running(&stage.client, &body).header("last-event-id", id);
        send(request).await.unwrap().expect(400);
    }
    let unknown = running(&stage.client, &input("r-2", "hi")).header("last-event-id", "1.1");
    send(unknown).await.unwrap().expect(404);
    assert_eq!(run_count(&stage).await, 1);
}

/// The run continues while no stream is open.
#[tokio::test]
async fn disconnected_client_resumes_live() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer_all(move |run| {
        let rest = run.delta(2, "b") + &run.completed(3);
        sse_around(&hold, run.delta(1, "a"), rest)
    });
    let body = input("r-1", "hi");
    let seen = events(running(&stage.client, &body), 3).await;
    assert_eq!(texts(&seen), "a");
    let resumed = running(&stage.client, &body).header("last-event-id", &seen[2].0);
    gate.cancel();
    let rest = events(resumed, usize::MAX).await;
    assert_eq!([seen, rest].concat(), all(&stage.client, &body).await);
}

#[tokio::test]
async fn revoked_keys_end_their_streams() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    let hold = gate.clone();
    stage
        .runner
        .answer_all(move |run| sse_around(&hold, run.delta(1, "a"), run.completed(2)));
    let named = json!({"name": "short", "role": "client"});
    let made = stage
        .admin
        .create("/v1/api-keys", &named)
        .await
        .expect(201)
        .body;
    let client = Client::new(&stage.client.url, made["key"].as_str().unwrap());
    let body = input("r-1", "hi");
    let streamed = events(running(&client, &body), usize::MAX);
    let revoked = async {
        let started = events(running(&client, &body), 3).await;
        assert_eq!(texts(&started), "a");
        let path = format!("/v1/api-keys/{}", made["id"].as_str().unwrap());
        stage.admin.delete(&path).await.expect(204);
    };
    let (streamed, ()) = tokio::join!(streamed, revoked);
    let (id, last) = streamed.last().unwrap();
    assert_eq!((id.as_str(), &last["type"]), ("", &json!("RUN_ERROR")));
    refused(&client, &body).await.expect(401);
    gate.cancel();
}

#[rstest]
#[tokio::test]
async fn answers_of_waiting_runs_continue_them(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let paused = all(&stage.client, &input("r-1", "a table")).await;
    let id = &interrupt(&paused)["id"];
    let data = json!({"action_id": "book", "values": {"room": "a"}});
    let mut elsewhere = answer("r-2", id, &data);
    elsewhere["threadId"] = json!("t-2");
    let wrong = answer("r-2", id, &json!({"room": "a"}));
    for (body, pointer) in [(elsewhere, "/threadId"), (wrong, "/resume/0/payload")] {
        let error = refused(&stage.client, &body).await.expect(400).body;
        assert_eq!(error["metadata"]["details"]["pointer"], pointer, "{error}");
    }
    let body = answer("r-2", id, &data);
    let answered = all(&stage.client, &body);
    let (answered, ()) = tokio::join!(answered, open_after_answer(&stage, &gate));
    assert_eq!(texts(&answered), "Booked.");
    assert_eq!(outcome(&answered), &json!({"type": "success"}));
    for (at, (id, _)) in answered.iter().enumerate() {
        let request = running(&stage.client, &body).header("last-event-id", id);
        assert_eq!(events(request, usize::MAX).await, answered[at + 1..]);
    }
    let late = answer(
        "r-3",
        id,
        &json!({"action_id": "book", "values": {"room": "b"}}),
    );
    refused(&stage.client, &late).await.expect(409);
    assert_eq!(run_count(&stage).await, 1);
}

#[tokio::test]
async fn answers_of_ended_runs_start_runs() {
    let stage = stage(Sqlite).await.unwrap();
    stage.runner.answer_all(asking(json!({})));
    let questioned = all(&stage.client, &input("r-1", "a table")).await;
    assert_eq!(texts(&questioned), "One question.");
    stage.runner.answer_all(talk);
    let payload = json!({"values": {"room": "b"}});
    let body = answer("r-2", &interrupt(&questioned)["id"], &payload);
    let answered = all(&stage.client, &body).await;
    assert_eq!(texts(&answered), "Two tables.Which one?");
    let submitted = &last_context(&stage)["input"]["interaction"];
    assert_eq!(submitted["values"], json!({"room": "b"}));
    assert_eq!(all(&stage.client, &body).await, answered);
    assert_eq!(run_count(&stage).await, 2);
}

#[tokio::test]
async fn cancelled_interrupts_cancel_waiting_runs() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let paused = all(&stage.client, &input("r-1", "a table")).await;
    let mut body = answer("r-2", &interrupt(&paused)["id"], &json!(null));
    body["resume"][0]["status"] = json!("cancelled");
    let cancelled = all(&stage.client, &body).await;
    assert_eq!(outcome(&cancelled), &json!({"type": "cancelled"}));
    assert_eq!(all(&stage.client, &body).await, cancelled);
    gate.cancel();
}

#[tokio::test]
async fn failed_runs_are_errors() {
    let stage = stage(Sqlite).await.unwrap();
    stage
        .runner
        .answer_all(|run| sse(run.delta(1, "a") + &run.failed(2)));
    let failed = all(&stage.client, &input("r-1", "hi")).await;
    let error = json!({"type": "RUN_ERROR", "message": "it broke", "code": "boom"});
    assert_eq!(failed.last().unwrap().1, error);
}

#[tokio::test]
async fn files_of_messages_become_artifacts() {
    let stage = stage(Sqlite).await.unwrap();
    let large = BASE64_STANDARD.encode("large ".repeat(20_000));
    let mut body = input("r-1", "");
    body["messages"][0]["content"] = json!([
        {"type": "text", "text": "read these"},
        {"type": "document", "source": {"type": "data", "value": large, "mimeType": "text/plain"}},
        {"type": "image", "source": {"type": "data", "value": "iVBORw0KGgo=", "mimeType": "image/png"}},
    ]);
    all(&stage.client, &body).await;
    let input = &last_context(&stage)["input"];
    assert_eq!(input["text"], "read these");
    let url = input["contents"][1]["file_url"].as_str().unwrap();
    assert!(url.starts_with("artifact:"), "{input}");
    let attachments = input["attachments"].as_array().unwrap();
    let is_text = |one: &Value| one["mime_type"] == "text/plain";
    assert!(attachments.iter().any(is_text), "{input}");
}

#[rstest]
#[tokio::test]
async fn keys_reach_only_their_agents_and_questions(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let other = json!({
        "name": "other", "event_types": ["message.*"], "scope": {"kind": "bot", "bot_id": "b"},
        "runner_id": crate::support::runner::RUNNER_ID,
    });
    let other = stage.admin.create("/v1/agents", &other).await.expect(201);
    stage.runner.answer_all(asking(json!({})));
    let questioned = all(&stage.client, &input("r-1", "a table")).await;
    let id = &interrupt(&questioned)["id"];
    let only = key(&stage, json!({"agents": ["other"]})).await;
    for name in ["main", "absent", "unpermitted"] {
        let request = only.request(Method::POST, &format!("/faces/ag-ui/{name}"));
        let error = send(request.json(&input("r-1", "hi"))).await.unwrap();
        assert_members!(error.expect(404).body, {"type": "RUN_ERROR", "code": "not_found"});
    }
    // The question is of another agent, also for a key that reaches both.
    let body = answer("r-2", id, &json!({"values": {"room": "a"}}));
    let path = format!("/faces/ag-ui/{}", other.body["id"].as_str().unwrap());
    for client in [&only, &stage.client] {
        let request = client.request(Method::POST, &path).json(&body);
        let error = send(request).await.unwrap().expect(400).body;
        let pointer = &error["metadata"]["details"]["pointer"];
        assert_eq!(pointer, "/resume/0/interruptId", "{error}");
    }
    let viewer = key(&stage, json!({"role": "viewer"})).await;
    refused(&viewer, &input("r-1", "hi")).await.expect(403);
}

#[tokio::test]
async fn faults_point_into_the_input() {
    let stage = stage(Sqlite).await.unwrap();
    for (name, value, pointer) in [
        ("threadId", json!(7), "/threadId"),
        ("threadId", json!("x".repeat(300)), "/threadId"),
        ("runId", json!(""), "/runId"),
        ("messages", json!([]), "/messages"),
        ("messages", json!([{"role": "robot"}]), "/messages/0/role"),
        (
            "resume",
            json!([{"interruptId": "i", "status": "resolved"}]),
            "/resume/0/interruptId",
        ),
        ("state", json!({"a": "x".repeat(70_000)}), "/state"),
    ] {
        let mut body = input("r-1", "hi");
        body[name] = value;
        let error = refused(&stage.client, &body).await.expect(400).body;
        assert_members!(error, {"type": "RUN_ERROR", "code": "invalid_argument"});
        assert_eq!(error["metadata"]["details"]["pointer"], pointer, "{error}");
    }
    assert_eq!(run_count(&stage).await, 0);
}
