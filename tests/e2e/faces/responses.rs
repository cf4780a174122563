//! OpenAI's responses over agents.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{OPENAI, ask_user, asking, key, last_context, open_after_answer, stage, waiting};
use crate::models::OPENAI_NODE;
use crate::support::client::{ApiResponse, Client, message, send, stream};
use crate::support::peer::ask;
use crate::support::python::python_with_openai;
use crate::support::repository::repository_file;
use crate::support::script::{Gate, sse, sse_around};
use crate::support::{Engine, Postgres, Sqlite, Stage, until};

const PATH: &str = "/faces/openai/v1/responses";

fn input(text: &str) -> Value {
    json!({"model": "main", "input": text})
}

pub(super) async fn respond(client: &Client, body: &Value) -> ApiResponse {
    client.create(PATH, body).await
}

fn path_of(id: &Value, rest: &str) -> String {
    format!("{PATH}/{}{rest}", id.as_str().unwrap())
}

/// The events of a stream, at most `count`.
pub(super) async fn events(request: reqwest::RequestBuilder, count: usize) -> Vec<Value> {
    let mut stream = stream(request).await.unwrap();
    assert_eq!(stream.response.status(), 200);
    let mut events = Vec::new();
    while events.len() < count
        && let Some(frame) = stream.frame().await
    {
        if !frame.data.is_empty() {
            events.push(serde_json::from_str::<Value>(&frame.data).unwrap());
        }
    }
    events
}

pub(super) fn streamed(client: &Client, body: &Value) -> reqwest::RequestBuilder {
    let mut body = body.clone();
    body["stream"] = json!(true);
    client.request(Method::POST, PATH).json(&body)
}

fn resumed(client: &Client, id: &Value, seen: Option<usize>) -> reqwest::RequestBuilder {
    let seen = seen.map_or(String::new(), |seen| format!("&starting_after={seen}"));
    client.request(Method::GET, &path_of(id, &format!("?stream=true{seen}")))
}

/// Text of the messages of a response.
pub(super) fn texts(response: &Value) -> Vec<&str> {
    let items = response["output"].as_array().unwrap().iter();
    let messages = items.filter(|item| item["type"] == "message");
    messages
        .map(|item| item["content"][0]["text"].as_str().unwrap())
        .collect()
}

async fn check_client(mut program: Command) {
    let stage = stage(Sqlite).await.unwrap();
    let given =
        json!({"base_url": format!("{}{OPENAI}", stage.client.url), "key": stage.client.key});
    let got = ask(&mut program, &given).await;
    let text = "Two tables.Which one?";
    assert_members!(got, {"text": text, "pieces": text, "resumed": text, "read": text, "status": "completed"});
    assert_eq!(got["kinds"], json!(["mcp_call", "message", "message"]));
    assert_eq!(got["is_continued"], true);
    assert_eq!(got["cancelled"], "completed");
    assert_eq!(
        got["refused"],
        json!(["BadRequestError", 400, "previous_response_not_found"])
    );
}

#[tokio::test]
async fn official_python_client_reads_and_resumes_responses() {
    let openai = or_skip!(python_with_openai().await);
    let mut python = Command::new(openai);
    python.arg(repository_file("tests/peer/openai_agent_responses.py"));
    check_client(python).await;
}

#[tokio::test]
async fn official_node_client_reads_and_resumes_responses() {
    let project = or_skip!(OPENAI_NODE.built("node").await);
    let mut node = Command::new("node");
    node.arg(project.join("agent_responses.mjs"));
    check_client(node).await;
}

#[rstest]
#[tokio::test]
async fn streams_resume_after_each_event(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let all = events(streamed(&stage.client, &input("hi")), usize::MAX).await;
    assert_eq!(all[0]["type"], "response.created");
    assert_eq!(all.last().unwrap()["type"], "response.completed");
    let id = &all[0]["response"]["id"];
    for (number, event) in all.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
        let rest = events(resumed(&stage.client, id, Some(number)), usize::MAX).await;
        assert_eq!(rest, all[number + 1..]);
    }
    let again = events(resumed(&stage.client, id, None), usize::MAX).await;
    assert_eq!(again, all);
    let read = stage.client.get(&path_of(id, "")).await.expect(200).body;
    assert_eq!(read, all.last().unwrap()["response"]);
}

/// The run goes on while no stream is open.
#[tokio::test]
async fn stream_cut_during_the_run_resumes_live() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer_all(move |run| {
        sse_around(
            &hold,
            run.delta(1, "a"),
            run.delta(2, "b") + &run.completed(3),
        )
    });
    let mut seen = events(streamed(&stage.client, &input("hi")), 5).await;
    assert_eq!(seen[4]["delta"], "a");
    let id = seen[0]["response"]["id"].clone();
    let live = stage.client.get(&path_of(&id, "")).await.expect(200).body;
    assert_eq!(
        (&live["status"], texts(&live)),
        (&json!("in_progress"), vec!["a"])
    );
    let resumed = resumed(&stage.client, &id, Some(4));
    gate.cancel();
    seen.extend(events(resumed, usize::MAX).await);
    let complete = events(
        super::responses::resumed(&stage.client, &id, None),
        usize::MAX,
    )
    .await;
    assert_eq!(seen, complete);
    assert_eq!(texts(&seen.last().unwrap()["response"]), ["ab"]);
}

#[tokio::test]
async fn previous_response_names_the_conversation() {
    let stage = stage(Sqlite).await.unwrap();
    let mut body = input("hi");
    body["instructions"] = json!("be kind");
    body["metadata"] = json!({"shop": "berlin"});
    let first = respond(&stage.client, &body).await.expect(200).body;
    assert_members!(first, {"status": "completed", "instructions": "be kind"});
    assert_eq!(first["metadata"], body["metadata"]);
    let context = last_context(&stage);
    let conversation = context["conversation"]["conversation_id"].clone();
    assert_eq!(first["conversation"]["id"], conversation);
    assert!(
        conversation.as_str().unwrap().starts_with("conv_"),
        "{conversation}"
    );
    let mut next = input("and now?");
    next["previous_response_id"] = first["id"].clone();
    let second = respond(&stage.client, &next).await.expect(200).body;
    assert_eq!(second["previous_response_id"], first["id"]);
    assert_eq!(
        last_context(&stage)["conversation"]["conversation_id"],
        conversation
    );
    let mut named = input("elsewhere");
    named["conversation"] = json!({"id": "c-9"});
    respond(&stage.client, &named).await.expect(200);
    assert_eq!(
        last_context(&stage)["conversation"]["conversation_id"],
        "c-9"
    );
    let without = json!({"event_type": "message.received", "input": {"text": "hi"}});
    let native = stage.client.post(&without).await.run_id();
    stage.client.finished(&native).await;
    for id in [
        "resp_1".to_owned(),
        format!("resp_{}", native.replace('-', "")),
    ] {
        next["previous_response_id"] = json!(id);
        let refused = respond(&stage.client, &next).await;
        refused.assert_error(400, "param", "/previous_response_id");
    }
}

#[tokio::test]
async fn background_responses_are_read_and_cancelled() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    let hold = gate.clone();
    stage
        .runner
        .answer_all(move |run| sse_around(&hold, run.delta(1, "a"), run.completed(2)));
    let mut body = input("hi");
    body["background"] = json!(true);
    let started = respond(&stage.client, &body).await.expect(200).body;
    assert_eq!(started["background"], true);
    let id = &started["id"];
    until("the first text", async || {
        let read = stage.client.get(&path_of(id, "")).await.body;
        read["output"][0]["content"][0]["text"] == "a"
    })
    .await;
    stage
        .client
        .create(&path_of(id, "/cancel"), &json!({}))
        .await
        .expect(200);
    until("the cancel", async || {
        stage.client.get(&path_of(id, "")).await.body["status"] == "cancelled"
    })
    .await;
    let cancelled = stage
        .client
        .create(&path_of(id, "/cancel"), &json!({}))
        .await
        .expect(200);
    assert_eq!(cancelled.body["status"], "cancelled");
    let last = events(resumed(&stage.client, id, None), usize::MAX)
        .await
        .pop()
        .unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.failed"), &json!("cancelled"))
    );
    gate.cancel();
}

/// The call of `ask_user` in a response.
fn call(response: &Value) -> &Value {
    let output = response["output"].as_array().unwrap();
    output
        .iter()
        .find(|item| item["type"] == "function_call")
        .unwrap()
}

fn answer(question: &Value, room: &str) -> Value {
    let output = json!({"action_id": "book", "values": {"room": room}}).to_string();
    json!({"model": "main", "previous_response_id": question["id"],
        "input": [{"type": "function_call_output", "call_id": call(question)["call_id"], "output": output}]})
}

async fn question_of_run(stage: &Stage) -> Value {
    let mut body = input("a table");
    let mut tool = ask_user();
    tool["type"] = json!("function");
    body["tools"] = json!([tool]);
    let question = respond(&stage.client, &body).await.expect(200).body;
    assert_members!(question, {"status": "completed"});
    assert_eq!(call(&question)["name"], "ask_user");
    question
}

#[tokio::test]
async fn answers_of_ended_runs_start_runs() {
    let stage = stage(Sqlite).await.unwrap();
    stage.runner.answer_all(asking(json!({})));
    let question = question_of_run(&stage).await;
    assert_eq!(texts(&question), ["One question."]);
    stage.runner.answer_all(super::talk);
    let wrong = respond(&stage.client, &answer(&question, "c")).await;
    wrong.assert_error(400, "param", "/values/room");
    let answered = respond(&stage.client, &answer(&question, "b"))
        .await
        .expect(200)
        .body;
    assert_eq!(texts(&answered), ["Two tables.", "Which one?"]);
    let context = last_context(&stage);
    assert_eq!(
        context["input"]["interaction"]["values"],
        json!({"room": "b"})
    );
    assert_eq!(
        context["conversation"]["conversation_id"],
        question["conversation"]["id"]
    );
    // The same answer again gets the same response.
    let again = respond(&stage.client, &answer(&question, "b"))
        .await
        .expect(200)
        .body;
    assert_eq!(again, answered);
    let other = respond(&stage.client, &answer(&question, "a")).await;
    other.assert_detail(409, "reason", "already_submitted");
}

#[rstest]
#[tokio::test]
async fn answers_of_waiting_runs_continue_them(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let question = question_of_run(&stage).await;
    let streamed = streamed(&stage.client, &answer(&question, "a"));
    let streamed = events(streamed, usize::MAX);
    let (all, ()) = tokio::join!(streamed, open_after_answer(&stage, &gate));
    let response = &all.last().unwrap()["response"];
    assert_eq!(texts(response), ["Booked."]);
    assert_eq!(
        response["id"],
        format!("{}_1", question["id"].as_str().unwrap())
    );
    let rest = events(resumed(&stage.client, &response["id"], Some(3)), usize::MAX).await;
    assert_eq!(rest, all[4..]);
    // The part before the question stays a response of its own.
    let first = stage.client.get(&path_of(&question["id"], "")).await.body;
    assert_eq!(first["output"], question["output"]);
}

#[tokio::test]
async fn failed_runs_are_failed_responses() {
    let stage = stage(Sqlite).await.unwrap();
    stage
        .runner
        .answer_all(|run| sse(run.delta(1, "a") + &run.failed(2)));
    let failed = respond(&stage.client, &input("hi")).await.expect(200).body;
    assert_eq!(failed["status"], "failed");
    assert_eq!(
        failed["error"],
        json!({"code": "boom", "message": "it broke"})
    );
    assert_eq!(texts(&failed), ["a"]);
}

#[tokio::test]
async fn repeated_requests_with_a_key_get_one_response() {
    let stage = stage(Sqlite).await.unwrap();
    let keyed = || {
        let request = stage.client.request(Method::POST, PATH).json(&input("hi"));
        request.header("idempotency-key", "k-1")
    };
    let [first, again] = [send(keyed()).await.unwrap(), send(keyed()).await.unwrap()];
    assert_eq!(first.expect(200).body, again.expect(200).body);
    assert_eq!(
        stage.client.get("/v1/runs").await.body["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn responses_of_other_agents_are_absent() {
    let stage = stage(Sqlite).await.unwrap();
    let mut event = message("m-1");
    event["event_type"] = json!("test.unallowed");
    let run_id = stage.client.post(&event).await.run_id();
    stage.client.finished(&run_id).await;
    let id = json!(format!("resp_{}", run_id.replace('-', "")));
    // A response is any run that the key reaches.
    stage.client.get(&path_of(&id, "")).await.expect(200);
    let only = key(&stage, json!({"agents": ["main"]})).await;
    only.get(&path_of(&id, ""))
        .await
        .assert_error(404, "type", "invalid_request_error");
    only.create(&path_of(&id, "/cancel"), &json!({}))
        .await
        .expect(404);
    let mut body = input("hi");
    body["previous_response_id"] = id.clone();
    respond(&only, &body)
        .await
        .assert_error(400, "code", "previous_response_not_found");
    let viewer = key(&stage, json!({"role": "viewer"})).await;
    viewer.get(&path_of(&id, "")).await.expect(200);
    viewer
        .create(&path_of(&id, "/cancel"), &json!({}))
        .await
        .expect(403);
    respond(&viewer, &input("hi")).await.expect(403);
}

#[tokio::test]
async fn faults_of_responses_point_into_the_request() {
    let stage = stage(Sqlite).await.unwrap();
    for (name, value, pointer) in [
        ("model", json!(7), "/model"),
        ("input", json!(null), "/input"),
        ("input", json!([]), "/input"),
        (
            "input",
            json!([{"role": "robot", "content": "hi"}]),
            "/input/0/role",
        ),
        (
            "input",
            json!([{"role": "user", "content": [{"type": "x"}]}]),
            "/input/0/content/0/type",
        ),
        ("tools", json!([{"type": "web_search"}]), "/tools/0"),
        ("prompt", json!({"id": "p"}), "/prompt"),
        (
            "text",
            json!({"format": {"type": "json_schema"}}),
            "/text/format",
        ),
        ("conversation", json!(7), "/conversation"),
        ("conversation", json!(""), "/conversation"),
        ("instructions", json!("x".repeat(70_000)), "/instructions"),
    ] {
        let mut body = input("hi");
        body[name] = value;
        respond(&stage.client, &body)
            .await
            .assert_error(400, "param", pointer);
    }
    let both = json!({"model": "main", "input": "hi", "conversation": "c", "previous_response_id": "resp_1"});
    respond(&stage.client, &both)
        .await
        .assert_error(400, "param", "/conversation");
    stage
        .client
        .get(&format!("{PATH}/resp_1"))
        .await
        .expect(404);
}
