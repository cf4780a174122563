//! Agents as MCP servers.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};

use reqwest::header::ACCEPT;
use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{TALK, asking, key, last_context, open_after_answer, stage, talk, waiting};
use crate::mcp_tools::{PYTHON, json_output};
use crate::support::client::{ApiResponse, Client, send};
use crate::support::peer::environment;
use crate::support::repository::repository_file;
use crate::support::script::{Gate, sse, sse_around};
use crate::support::stream::Stream;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, skipped, until, within};
use crate::tool_servers::PEERS;

const PATH: &str = "/faces/mcp/main";
const BOTH: &str = "application/json, text/event-stream";

fn rpc(id: u64, method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

/// A call of `ask` in a version with a handshake.
fn call(id: u64, arguments: &Value) -> Value {
    rpc(
        id,
        "tools/call",
        &json!({"name": "ask", "arguments": arguments, "_meta": {"progressToken": id}}),
    )
}

fn posting(client: &Client, body: &Value) -> RequestBuilder {
    client
        .request(Method::POST, PATH)
        .header(ACCEPT, BOTH)
        .json(body)
}

async fn posted(client: &Client, body: &Value) -> ApiResponse {
    send(posting(client, body)).await.unwrap()
}

/// A call of `ask` in the stateless version.
fn stateless_call(client: &Client, more: &Value) -> RequestBuilder {
    let mut params = json!({"name": "ask", "_meta": {
        "progressToken": 1,
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    }});
    let more = more.as_object().unwrap().clone();
    params.as_object_mut().unwrap().extend(more);
    posting(client, &rpc(1, "tools/call", &params))
        .header("mcp-protocol-version", "2026-07-28")
        .header("mcp-method", "tools/call")
        .header("mcp-name", "ask")
}

async fn open(request: RequestBuilder) -> Stream {
    let response = within("the head of a stream", request.send()).await;
    let response = response.unwrap();
    assert_eq!(response.status(), 200);
    Stream::new(response)
}

/// The next message of a stream.
async fn next(stream: &mut Stream) -> Option<Value> {
    loop {
        let frame = stream.frame().await?;
        if !frame.data.is_empty() {
            return Some(serde_json::from_str(&frame.data).unwrap());
        }
    }
}

/// The result of a call, and the messages of its progress.
async fn result(request: RequestBuilder) -> (Value, Vec<Value>) {
    let mut stream = open(request).await;
    let mut progress = Vec::new();
    while let Some(message) = next(&mut stream).await {
        if message["method"] == "notifications/progress" {
            progress.push(message["params"].clone());
        } else {
            assert!(message["result"].is_object(), "{message}");
            return (message["result"].clone(), progress);
        }
    }
    panic!("no result after {progress:?}");
}

async fn answer_to(client: &Client, id: u64, arguments: &Value) -> Value {
    result(posting(client, &call(id, arguments))).await.0
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

async fn run_of(stage: &OwnStage, result: &Value) -> Value {
    let id = result["structuredContent"]["run_id"].as_str().unwrap();
    stage.client.run(id).await
}

async fn run_count(stage: &OwnStage) -> usize {
    let runs = stage.client.get("/v1/runs").await.body;
    runs["items"].as_array().unwrap().len()
}

fn given(stage: &OwnStage, mode: &str, calls: &Value) -> Value {
    let url = format!("{}{PATH}", stage.client.url);
    json!({"url": url, "token": stage.client.key, "mode": mode, "calls": calls})
}

/// Python with the official client. `None`: it could not be installed.
async fn python() -> Option<PathBuf> {
    static SKIPPED: Once = Once::new();
    let environment = environment(&PYTHON.replace("==", "-"), &[PYTHON]).await;
    if environment.is_none() {
        skipped(&SKIPPED, "mcp", "pip could not install the client");
    }
    Some(environment?.join("bin/python"))
}

async fn output_of(python: &Path, given: &Value) -> Value {
    let mut python = Command::new(python);
    python
        .arg(repository_file("tests/clients/mcp_python/face.py"))
        .arg(given.to_string());
    json_output(&mut python).await
}

/// The result of one call of `talk`, with the texts of its progress.
fn check_talk(result: &Value, progress: &str) {
    assert_eq!(text(result), TALK);
    assert_eq!(progress, TALK);
    assert_members!(result["structuredContent"], {"status": "completed"});
}

#[tokio::test]
async fn official_typescript_client_asks_and_cancels() {
    let peers = or_skip!(PEERS.built("mcp").await);
    let stage = stage(Sqlite).await.unwrap();
    let (gate, count) = (Gate::new(), AtomicUsize::new(0));
    stage
        .runner
        .answer_all(move |run| match count.fetch_add(1, Ordering::Relaxed) {
            0 => talk(run),
            _ => sse_around(&gate, run.delta(1, "a"), run.completed(2)),
        });
    let calls = json!([
        ["ask", {"message": "a table?", "conversation": "c-1"}],
        ["ask", {"message": "wait"}, "a"],
        ["other", {"message": "hi"}],
    ]);
    let mut node = Command::new("node");
    node.arg(peers.join("face.mjs"))
        .arg(given(&stage, "", &calls).to_string());
    let got = json_output(&mut node).await;
    assert_members!(got["server"], {"name": "runnel", "title": "main"});
    assert_eq!(got["tools"].as_array().unwrap().len(), 1);
    assert_members!(got["tools"][0], {"name": "ask"});
    assert_eq!(
        got["tools"][0]["inputSchema"]["required"],
        json!(["message"])
    );
    let progress = got["progress"][0].as_array().unwrap();
    let texts = progress.iter().filter_map(|one| one["message"].as_str());
    check_talk(&got["results"][0], &texts.collect::<String>());
    let counts = progress.iter().map(|one| one["progress"].as_u64().unwrap());
    assert!(counts.is_sorted_by(|one, next| one < next), "{progress:?}");
    assert_members!(got["results"][0]["structuredContent"], {"conversation_id": "c-1"});
    assert_eq!(got["results"][2]["code"], -32602, "{got}");
    let runs = stage.client.get("/v1/runs").await.body;
    let cancelled = runs["items"][0]["run_id"].as_str().unwrap();
    assert_eq!(
        stage.client.finished(cancelled).await["status"],
        "cancelled"
    );
}

#[tokio::test]
async fn official_python_client_asks_in_all_versions() {
    let python = or_skip!(python().await);
    let stage = stage(Sqlite).await.unwrap();
    let calls = json!([["ask", {"message": "a table?"}]]);
    for mode in ["legacy", "auto", "2026-07-28"] {
        let got = output_of(&python, &given(&stage, mode, &calls)).await;
        let progress = got["progress"][0].as_array().unwrap();
        let texts = progress.iter().filter_map(Value::as_str);
        check_talk(&got["results"][0], &texts.collect::<String>());
    }
    assert_eq!(last_context(&stage)["delivery"]["surface"], "mcp");
}

#[tokio::test]
async fn official_python_client_fills_forms() {
    let python = or_skip!(python().await);
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let calls = json!([["ask", {"message": "a table?"}]]);
    let mut given = given(&stage, "2026-07-28", &calls);
    given["form"] = json!({"action": "accept", "content": {"room": "a"}});
    let answered = open_after_answer(&stage, &gate);
    let (got, ()) = tokio::join!(output_of(&python, &given), answered);
    assert_eq!(text(&got["results"][0]), "Booked.");
    let form = &got["forms"][0];
    assert_contains!(form["message"].as_str().unwrap(), "Which ");
    assert_eq!(form["requestedSchema"]["required"], json!(["room"]));
}

#[rstest]
#[tokio::test]
async fn answers_continue_waiting_runs(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let waits = answer_to(&stage.client, 1, &json!({"message": "a table"})).await;
    assert_members!(waits["structuredContent"], {"status": "input_required"});
    assert_contains!(
        text(&waits),
        "Which room?",
        "call ask with the conversation"
    );
    let conversation = &waits["structuredContent"]["conversation_id"];
    let answer = |message: &str| json!({"message": message, "conversation": conversation});
    let refused = answer_to(&stage.client, 2, &answer("the best")).await;
    assert_eq!(refused["isError"], true);
    assert_contains!(text(&refused), "must answer the open question");
    let answer = answer("B");
    let answering = answer_to(&stage.client, 3, &answer);
    let (answered, ()) = tokio::join!(answering, open_after_answer(&stage, &gate));
    assert_eq!(text(&answered), "Booked.");
    let run = |result: &Value| result["structuredContent"]["run_id"].clone();
    assert_eq!(run(&answered), run(&waits));
}

#[tokio::test]
async fn answers_after_the_end_are_json() {
    let stage = stage(Sqlite).await.unwrap();
    stage.runner.answer_all(asking(json!({})));
    let questioned = answer_to(&stage.client, 1, &json!({"message": "a table"})).await;
    let structured = &questioned["structuredContent"];
    assert_members!(structured, {"status": "input_required"});
    assert_contains!(text(&questioned), "One question.\n\nWhich ");
    stage.runner.answer_all(talk);
    let answer = |message: &Value| json!({"message": message, "conversation": structured["conversation_id"]});
    answer_to(&stage.client, 2, &answer(&json!("b"))).await;
    assert_eq!(last_context(&stage)["input"]["text"], "b");
    let foreign = json!({"question": "none", "values": {"room": "b"}}).to_string();
    let refused = answer_to(&stage.client, 3, &answer(&json!(foreign))).await;
    assert_contains!(text(&refused), "names no open question");
    let data = json!({"question": structured["question"]["id"], "values": {"room": "b"}});
    let next = answer_to(&stage.client, 4, &answer(&json!(data.to_string()))).await;
    assert_eq!(text(&next), TALK);
    let submitted = &last_context(&stage)["input"]["interaction"];
    assert_eq!(submitted["values"], json!({"room": "b"}));
}

#[tokio::test]
async fn declined_forms_cancel_the_waiting_run() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let arguments = json!({"message": "a table"});
    let request = stateless_call(&stage.client, &json!({"arguments": arguments}));
    let (required, _) = result(request).await;
    assert_eq!(required["resultType"], "input_required");
    let again = |state: &Value| {
        let more = json!({"arguments": arguments, "requestState": state,
            "inputResponses": {"answer": {"action": "decline"}}});
        result(stateless_call(&stage.client, &more))
    };
    let (foreign, _) = again(&json!("none")).await;
    assert_eq!(foreign["isError"], true, "{foreign}");
    let (declined, _) = again(&required["requestState"]).await;
    assert_members!(declined["structuredContent"], {"status": "cancelled"});
    assert_eq!(declined["isError"], true);
    assert_eq!(run_count(&stage).await, 1);
}

#[tokio::test]
async fn failed_runs_are_error_results() {
    let stage = stage(Sqlite).await.unwrap();
    stage
        .runner
        .answer_all(|run| sse(run.delta(1, "a") + &run.failed(2)));
    let failed = answer_to(&stage.client, 1, &json!({"message": "hi"})).await;
    assert_eq!(
        (&failed["isError"], text(&failed)),
        (&json!(true), "boom: it broke")
    );
    assert_members!(failed["structuredContent"], {"status": "failed"});
    assert_members!(failed["structuredContent"]["error"], {"code": "boom"});
}

#[tokio::test]
async fn sessions_name_requests_and_cancel_them() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    stage
        .runner
        .answer_all(move |run| sse_around(&gate, run.delta(1, "a"), run.completed(2)));
    let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"}});
    let hello = posted(&stage.client, &rpc(1, "initialize", &hello)).await;
    let session = hello.headers["mcp-session-id"].to_str().unwrap().to_owned();
    let body = call(2, &json!({"message": "hi"}));
    let calling = |session: &str| posting(&stage.client, &body).header("mcp-session-id", session);
    let first = open(calling(&session)).await;
    until("the run", async || run_count(&stage).await == 1).await;
    drop(first);
    let mut again = open(calling(&session)).await;
    let progress = next(&mut again).await.unwrap();
    assert_members!(progress["params"], {"progress": 1.0, "progressToken": 2});
    assert_eq!(run_count(&stage).await, 1);
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
    for session in ["other", &session] {
        let cancelling = posting(&stage.client, &cancel).header("mcp-session-id", session);
        send(cancelling).await.unwrap().expect(202);
    }
    let mut last = progress;
    while let Some(message) = next(&mut again).await {
        last = message;
    }
    let run = run_of(&stage, &last["result"]).await;
    assert_eq!(run["status"], "cancelled");
    assert_members!(last["result"]["structuredContent"], {"status": "cancelled"});
}

#[tokio::test]
async fn disconnects_cancel_in_the_stateless_version_only() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    let hold = gate.clone();
    stage
        .runner
        .answer_all(move |run| sse_around(&hold, run.delta(1, "a"), run.completed(2)));
    let arguments = json!({"message": "hi"});
    let handshake = posting(&stage.client, &call(1, &arguments));
    let stateless = stateless_call(&stage.client, &json!({"arguments": arguments}));
    let mut runs = Vec::new();
    for request in [handshake, stateless] {
        let mut stream = open(request).await;
        next(&mut stream).await.unwrap();
        let newest = stage.client.get("/v1/runs").await.body["items"][0]["run_id"].clone();
        runs.push(newest.as_str().unwrap().to_owned());
    }
    assert_eq!(stage.client.finished(&runs[1]).await["status"], "cancelled");
    gate.cancel();
    assert_eq!(stage.client.finished(&runs[0]).await["status"], "completed");
}

#[rstest]
#[tokio::test]
async fn keys_reach_only_their_agents(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let only = key(&stage, json!({"agents": ["main"]})).await;
    let body = call(1, &json!({"message": "hi"}));
    assert_eq!(
        text(&answer_to(&only, 1, &json!({"message": "hi"})).await),
        TALK
    );
    let other = json!({
        "name": "other", "event_types": ["message.*"], "scope": {"kind": "bot", "bot_id": "b"},
        "runner_id": crate::support::runner::RUNNER_ID,
    });
    let other = stage.admin.create("/v1/agents", &other).await.expect(201);
    let id = other.body["id"].as_str().unwrap();
    for name in ["other", id, "absent", "unpermitted"] {
        let path = format!("/faces/mcp/{name}");
        let request = only.request(Method::POST, &path).header(ACCEPT, BOTH);
        let refused = send(request.json(&body)).await.unwrap();
        refused.assert_detail(404, "reason", "AGENT_NOT_FOUND");
    }
    let viewer = key(&stage, json!({"role": "viewer"})).await;
    posted(&viewer, &body).await.expect(403);
    let unknown = Client::new(&stage.client.url, "rnl_none");
    posted(&unknown, &body).await.expect(401);
}

#[tokio::test]
async fn faults_name_the_argument() {
    let stage = stage(Sqlite).await.unwrap();
    for (arguments, argument) in [
        (json!({}), "message"),
        (json!({"message": ""}), "/message"),
        (json!({"message": 7}), "/message"),
        (json!({"message": "hi", "to": "you"}), "to"),
        (
            json!({"message": "hi", "conversation": ""}),
            "/conversation",
        ),
        (
            json!({"message": "hi", "conversation": "x".repeat(300)}),
            "/conversation",
        ),
    ] {
        let refused = answer_to(&stage.client, 1, &arguments).await;
        assert_eq!(refused["isError"], true, "{arguments}");
        assert_contains!(text(&refused), argument);
    }
    let large = call(1, &json!({"message": "x".repeat(1024 * 1024)}));
    posted(&stage.client, &large).await.expect(413);
    let nul = call(1, &json!({"message": "a\u{0}"}));
    posted(&stage.client, &nul).await.expect(400);
    let no_message = posted(&stage.client, &json!({"hello": 1})).await;
    assert_eq!(no_message.status, 400);
    let undeclared = posted(&stage.client, &rpc(1, "prompts/list", &json!({}))).await;
    assert_eq!(undeclared.body["error"]["code"], -32601);
    assert_eq!(run_count(&stage).await, 0);
}
