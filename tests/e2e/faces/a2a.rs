//! A2A 1.0 over agents.

use std::sync::atomic::{AtomicUsize, Ordering};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;

use super::{TALK, asking, key, last_context, stage, talk, waiting};
use crate::support::client::{ApiResponse, Client, send};
use crate::support::peer::ask;
use crate::support::python::python_with_a2a;
use crate::support::repository::repository_file;
use crate::support::script::{Gate, sse, sse_around};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, within};

const PATH: &str = "/faces/a2a/main";
const CARD: &str = "/.well-known/agent-card.json";

fn rpc(client: &Client, path: &str, method: &str, params: &Value) -> RequestBuilder {
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let request = client.request(Method::POST, path).json(&body);
    request.header("a2a-version", "1.0")
}

async fn call(client: &Client, method: &str, params: &Value) -> ApiResponse {
    send(rpc(client, PATH, method, params)).await.unwrap()
}

async fn result(client: &Client, method: &str, params: &Value) -> Value {
    let answer = call(client, method, params).await.expect(200);
    assert_members!(answer.body, {"jsonrpc": "2.0", "id": 7});
    assert!(answer.body["error"].is_null(), "{}", answer.body);
    answer.body["result"].clone()
}

fn message(parts: &Value) -> Value {
    json!({"message": {"messageId": Uuid::new_v4(), "role": "ROLE_USER", "parts": parts}})
}

fn text(text: &str) -> Value {
    message(&json!([{"text": text}]))
}

fn state(task: &Value) -> &str {
    task["status"]["state"].as_str().unwrap()
}

/// Ids and results of the frames of a stream, to its end.
async fn frames(request: RequestBuilder) -> Vec<(String, Value)> {
    let response = within("the head of a stream", request.send())
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let text = within("the end of a stream", response.text())
        .await
        .unwrap();
    let frames = text.split("\n\n").filter_map(|frame| {
        let (id, data) = frame.strip_prefix("id: ")?.split_once("\ndata: ")?;
        let body: Value = serde_json::from_str(data).unwrap();
        Some((id.to_owned(), body["result"].clone()))
    });
    frames.collect()
}

#[rstest]
#[tokio::test]
async fn official_client_talks_cuts_answers_and_cancels(
    #[values("JSONRPC", "HTTP+JSON")] binding: &str,
) {
    let python = or_skip!(python_with_a2a().await);
    let stage = stage(Sqlite).await.unwrap();
    let (first, second, never) = (Gate::new(), Gate::new(), Gate::new());
    let count = AtomicUsize::new(0);
    stage
        .runner
        .answer_all(move |run| match count.fetch_add(1, Ordering::Relaxed) {
            2 => {
                let rest = run.delta(2, "b") + &run.completed(3);
                sse_around(&first, run.delta(1, "a"), rest)
            }
            4 => waiting(&second)(run),
            6 => sse_around(&never, run.delta(1, "a"), run.completed(2)),
            other => {
                if other == 3 {
                    first.cancel();
                } else if other == 5 {
                    second.cancel();
                }
                talk(run)
            }
        });
    let mut program = Command::new(python);
    program.arg(repository_file("tests/peer/a2a_client.py"));
    let given = json!({"url": stage.client.url, "key": stage.client.key, "binding": binding});
    let got = ask(&mut program, &given).await;
    let (working, completed) = ("TASK_STATE_WORKING", "TASK_STATE_COMPLETED");
    assert_eq!(got["card"], json!(["main", ["JSONRPC", "HTTP+JSON"], true]));
    let kinds = ["task", "status_update", "artifact_update", "status_update"];
    let states = ["TASK_STATE_SUBMITTED", working, completed];
    assert_eq!(got["talk"], json!([TALK, kinds, states]));
    assert_eq!(got["once"], json!([TALK, [completed]]));
    assert_eq!(got["task"], json!([TALK, completed, true]));
    assert_eq!(got["cut"], json!(["a", "ab", completed]));
    let paused = ["TASK_STATE_SUBMITTED", working, "TASK_STATE_INPUT_REQUIRED"];
    assert_eq!(got["paused"], json!(paused));
    assert_eq!(got["answered"], json!(["Booked.", completed, true]));
    assert_eq!(got["canceled"], "TASK_STATE_CANCELED");
    // Over HTTP, their paths do not exist.
    let push = match binding {
        "JSONRPC" => "PushNotificationNotSupportedError",
        _ => "MethodNotFoundError",
    };
    let refused = json!([
        "TaskNotFoundError",
        "TaskNotCancelableError",
        push,
        "UnsupportedOperationError"
    ]);
    assert_eq!(got["refused"], refused);
    assert_eq!(got["absent"], "AgentCardResolutionError");
}

#[rstest]
#[tokio::test]
async fn message_becomes_an_event_of_its_context(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let mut params = message(&json!([{"text": "a table"}, {"data": {"seats": 4}}]));
    params["message"]["contextId"] = json!("c-9");
    params["metadata"] = json!({"shop": "berlin"});
    let task = result(&stage.client, "SendMessage", &params).await["task"].clone();
    assert_members!(task, {"contextId": "c-9"});
    assert_eq!(state(&task), "TASK_STATE_COMPLETED");
    let artifacts = json!([
        {"artifactId": "message-1", "parts": [{"text": "Two tables."}]},
        {"artifactId": "message-2", "parts": [{"text": "Which one?"}]},
    ]);
    assert_eq!(task["artifacts"], artifacts);
    let context = last_context(&stage);
    assert_eq!(context["input"]["text"], "a table\n{\"seats\":4}");
    assert_eq!(context["conversation"]["conversation_id"], "c-9");
    assert_eq!(
        context["event"]["data"],
        json!({"metadata": {"shop": "berlin"}})
    );
    assert_eq!(context["delivery"]["surface"], "a2a");

    let again = result(&stage.client, "SendMessage", &params).await["task"].clone();
    assert_eq!(again, task);
    params["message"]["parts"] = json!([{"text": "other"}]);
    let other = call(&stage.client, "SendMessage", &params).await;
    assert_eq!(other.body["error"]["code"], -32602);

    let mut params = text("at once");
    params["configuration"] = json!({"returnImmediately": true});
    let gate = Gate::new();
    let hold = gate.clone();
    stage
        .runner
        .answer_all(move |run| sse_around(&hold, run.delta(1, "a"), run.completed(2)));
    let task = result(&stage.client, "SendMessage", &params).await["task"].clone();
    assert!(["TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"].contains(&state(&task)));
    gate.cancel();
    let run_id = task["id"].as_str().unwrap();
    stage.client.finished(run_id).await;
    let task = result(&stage.client, "GetTask", &json!({"id": run_id})).await;
    assert_eq!(state(&task), "TASK_STATE_COMPLETED");
}

#[tokio::test]
async fn stream_continues_after_each_frame() {
    let stage = stage(Sqlite).await.unwrap();
    let request = rpc(&stage.client, PATH, "SendStreamingMessage", &text("hi"));
    let full = frames(request).await;
    let task = json!({"id": full[0].1["task"]["id"]});
    for (at, (id, _)) in full.iter().enumerate() {
        let request = rpc(&stage.client, PATH, "SubscribeToTask", &task);
        let rest = frames(request.header("last-event-id", id)).await;
        assert_eq!(rest, full[at + 1..], "after {id}");
    }
    let request = rpc(&stage.client, PATH, "SubscribeToTask", &task);
    let refused = send(request.header("last-event-id", "999")).await.unwrap();
    assert_eq!(refused.body["error"]["code"], -32602);
}

fn http(client: &Client, method: Method, path: &str) -> RequestBuilder {
    let request = client.request(method, &format!("{PATH}{path}"));
    request.header("a2a-version", "1.0")
}

/// The same answers as of JSON-RPC, without its envelope.
#[rstest]
#[tokio::test]
async fn http_binding_has_the_same_tasks(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let client = &stage.client;
    let body = text("a table");
    let sent = http(client, Method::POST, "/message:send").json(&body);
    let sent = send(sent).await.unwrap().expect(200).body;
    assert_eq!(sent, result(client, "SendMessage", &body).await);
    let id = sent["task"]["id"].as_str().unwrap();
    let read = http(client, Method::GET, &format!("/tasks/{id}"));
    assert_eq!(send(read).await.unwrap().expect(200).body, sent["task"]);
    let cancel = http(client, Method::POST, &format!("/tasks/{id}:cancel"));
    let refused = send(cancel).await.unwrap().expect(400).body;
    assert_members!(refused["error"], {"code": 400, "status": "FAILED_PRECONDITION"});
    assert_eq!(
        refused["error"]["details"][0]["reason"],
        "TASK_NOT_CANCELABLE"
    );
    let mut wrong = text("hi");
    wrong["message"]["role"] = json!("ROLE_AGENT");
    let wrong = http(client, Method::POST, "/message:send").json(&wrong);
    let refused = send(wrong).await.unwrap().expect(400).body;
    let violation = &refused["error"]["details"][1]["fieldViolations"][0];
    assert_eq!(violation["field"], "/message/role");
    for (method, path) in [(Method::POST, "/tasks/7"), (Method::GET, "/tasks/7:cancel")] {
        send(http(client, method, path)).await.unwrap().expect(404);
    }
    let unversioned = client.request(Method::GET, &format!("{PATH}/tasks/{id}"));
    send(unversioned).await.unwrap().expect(400);
    let elsewhere = client.request(Method::GET, &format!("/faces/a2a/unallowed/tasks/{id}"));
    let elsewhere = elsewhere.header("a2a-version", "1.0");
    send(elsewhere).await.unwrap().expect(404);
}

/// Ids and updates of a stream of the HTTP binding.
async fn updates(request: RequestBuilder) -> Vec<(String, Value)> {
    let response = within("the head of a stream", request.send())
        .await
        .unwrap();
    let text = within("the end of a stream", response.text())
        .await
        .unwrap();
    let frames = text.split("\n\n").filter_map(|frame| {
        let (id, data) = frame.strip_prefix("id: ")?.split_once("\ndata: ")?;
        Some((id.to_owned(), serde_json::from_str(data).unwrap()))
    });
    frames.collect()
}

#[tokio::test]
async fn http_stream_continues_after_each_frame() {
    let stage = stage(Sqlite).await.unwrap();
    let sent = http(&stage.client, Method::POST, "/message:stream").json(&text("hi"));
    let full = updates(sent).await;
    let path = format!(
        "/tasks/{}:subscribe",
        full[0].1["task"]["id"].as_str().unwrap()
    );
    for method in [Method::GET, Method::POST] {
        for (at, (id, _)) in full.iter().enumerate() {
            let rest = http(&stage.client, method.clone(), &path).header("last-event-id", id);
            assert_eq!(updates(rest).await, full[at + 1..], "after {id}");
        }
    }
}

#[tokio::test]
async fn answer_after_the_end_starts_the_next_task() {
    let stage = stage(Sqlite).await.unwrap();
    stage.runner.answer_all(asking(json!({})));
    let first = result(&stage.client, "SendMessage", &text("a table")).await["task"].clone();
    assert_eq!(state(&first), "TASK_STATE_INPUT_REQUIRED");
    let parts = &first["status"]["message"]["parts"];
    assert_eq!(parts[0]["text"], "Which room?");
    let question = &parts[1]["data"]["question"];
    let mut answer = message(&json!([{"text": "the best"}]));
    answer["message"]["taskId"] = first["id"].clone();
    let refused = call(&stage.client, "SendMessage", &answer).await;
    assert_eq!(refused.body["error"]["code"], -32602, "{}", refused.body);
    stage.runner.answer_all(talk);
    let data = json!({"question": question, "action_id": "book", "values": {"room": "b"}});
    answer["message"]["parts"] = json!([{"data": data}]);
    answer["message"]["contextId"] = json!("other");
    let refused = call(&stage.client, "SendMessage", &answer).await;
    let violation = &refused.body["error"]["data"][1]["fieldViolations"][0];
    assert_eq!(violation["field"], "/params/message/contextId");
    answer["message"]["contextId"] = first["contextId"].clone();
    let next = result(&stage.client, "SendMessage", &answer).await["task"].clone();
    assert_eq!(state(&next), "TASK_STATE_COMPLETED");
    assert_eq!(next["contextId"], first["contextId"]);
    assert_ne!(next["id"], first["id"]);
    let submitted = &last_context(&stage)["input"]["interaction"];
    assert_eq!(submitted["values"], json!({"room": "b"}));
    let first = result(&stage.client, "GetTask", &json!({"id": first["id"]})).await;
    assert_eq!(state(&first), "TASK_STATE_COMPLETED");
    let refused = call(&stage.client, "SendMessage", &answer).await;
    assert_eq!(refused.body["error"]["code"], -32004);
}

#[tokio::test]
async fn failed_runs_are_failed_tasks() {
    let stage = stage(Sqlite).await.unwrap();
    stage.runner.answer_all(|run| sse(run.failed(1)));
    let task = result(&stage.client, "SendMessage", &text("hi")).await["task"].clone();
    assert_eq!(state(&task), "TASK_STATE_FAILED");
    let part = json!({"text": "boom: it broke", "metadata": {"code": "boom"}});
    assert_eq!(task["status"]["message"]["parts"], json!([part]));
}

#[tokio::test]
async fn files_of_messages_become_artifacts() {
    let stage = stage(Sqlite).await.unwrap();
    let large = BASE64_STANDARD.encode("large ".repeat(20_000));
    let params = message(&json!([
        {"text": "read these"},
        {"raw": large, "filename": "large.txt", "mediaType": "text/plain"},
        {"raw": "iVBORw0KGgo=", "mediaType": "image/png"},
    ]));
    result(&stage.client, "SendMessage", &params).await;
    let input = &last_context(&stage)["input"];
    assert_eq!(input["text"], "read these");
    let url = input["contents"][1]["file_url"].as_str().unwrap();
    assert!(url.starts_with("artifact:"), "{input}");
    let attachments = input["attachments"].as_array().unwrap();
    let large = attachments.iter().find(|one| one["name"] == "large.txt");
    assert_eq!(large.unwrap()["mime_type"], "text/plain", "{input}");
}

#[rstest]
#[tokio::test]
async fn keys_reach_only_their_agents_and_tasks(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let other = json!({
        "name": "other", "event_types": ["message.*"], "scope": {"kind": "bot", "bot_id": "b"},
        "runner_id": crate::support::runner::RUNNER_ID,
    });
    let other = stage.admin.create("/v1/agents", &other).await.expect(201);
    let only = key(&stage, json!({"agents": ["main"]})).await;
    only.get(&format!("{PATH}{CARD}")).await.expect(200);
    let ids = [
        other.body["id"].as_str().unwrap(),
        "other",
        "absent",
        "unpermitted",
    ];
    for name in ids {
        let path = format!("/faces/a2a/{name}");
        let card = only.get(&format!("{path}{CARD}")).await;
        card.assert_error(404, "code", "not_found");
        let refused = send(rpc(&only, &path, "SendMessage", &text("hi")))
            .await
            .unwrap();
        refused.assert_error(
            404,
            "message",
            &format!("there is no agent {name} for this key that takes messages"),
        );
        assert_members!(refused.body, {"jsonrpc": "2.0", "id": 7});
        assert_eq!(refused.body["error"]["code"], -32600);
    }
    let request = rpc(
        &stage.client,
        "/faces/a2a/other",
        "SendMessage",
        &text("hi"),
    );
    let task = send(request).await.unwrap().expect(200).body["result"]["task"].clone();
    for method in ["GetTask", "CancelTask", "SubscribeToTask"] {
        for id in [task["id"].clone(), json!(Uuid::new_v4()), json!("7")] {
            let absent = call(&stage.client, method, &json!({"id": id}))
                .await
                .expect(200);
            assert_eq!(absent.body["error"]["code"], -32001);
        }
    }
    let viewer = key(&stage, json!({"role": "viewer"})).await;
    viewer.get(&format!("{PATH}{CARD}")).await.expect(200);
    let refused = call(&viewer, "GetTask", &json!({"id": "7"}))
        .await
        .expect(403);
    assert_eq!(refused.body["error"]["code"], -32600);
    let unknown = Client::new(&stage.client.url, "rnl_none");
    call(&unknown, "GetTask", &json!({"id": "7"}))
        .await
        .expect(401);
}

#[tokio::test]
async fn errors_have_codes_and_fields() {
    let stage: OwnStage = stage(Sqlite).await.unwrap();
    let agent = json!({"role": "ROLE_AGENT", "messageId": "m", "parts": [{"text": "hi"}]});
    let empty = message(&json!([]));
    let mut push = text("hi");
    push["configuration"] = json!({"taskPushNotificationConfig": {"url": "https://x"}});
    for (method, params, code, field) in [
        ("tasks/get", json!({"id": "7"}), -32601, ""),
        ("ListTasks", json!({}), -32004, ""),
        ("GetExtendedAgentCard", json!({}), -32004, ""),
        ("ListTaskPushNotificationConfigs", json!({}), -32003, ""),
        ("SendMessage", push, -32003, ""),
        ("GetTask", json!({"id": 7}), -32602, "/params/id"),
        (
            "SendMessage",
            json!({"message": agent}),
            -32602,
            "/params/message/role",
        ),
        ("SendMessage", empty, -32602, "/params/message/parts"),
        (
            "SendMessage",
            message(&json!([{}])),
            -32602,
            "/params/message/parts/0",
        ),
    ] {
        let refused = call(&stage.client, method, &params).await.expect(200);
        let error = &refused.body["error"];
        assert_eq!(error["code"], code, "{}", refused.body);
        let violation = &error["data"][1]["fieldViolations"][0]["field"];
        assert_eq!(violation.as_str().unwrap_or_default(), field);
    }
    let request = stage.client.request(Method::POST, PATH);
    let old = json!({"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": "7"}});
    let refused = send(request.json(&old)).await.unwrap().expect(200);
    assert_eq!(refused.body["error"]["code"], -32009);
    for (body, code) in [
        ("{", -32700),
        (r#"{"jsonrpc": "2.0", "method": "GetTask"}"#, -32600),
        (r#"{"id": 7, "method": "GetTask"}"#, -32600),
    ] {
        let request = stage.client.request(Method::POST, PATH);
        let request = request.header("content-type", "application/json");
        let request = request.header("a2a-version", "1.0").body(body);
        let refused = send(request).await.unwrap().expect(200);
        assert_eq!(refused.body["error"]["code"], code, "{body}");
    }
    assert_eq!(stage.client.get("/v1/runs").await.body["items"], json!([]));
}
