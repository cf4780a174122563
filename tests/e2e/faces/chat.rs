//! OpenAI's chat completions over agents.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{OPENAI, TALK, ask_user, asking, key, last_context, open_after_answer, stage, waiting};
use crate::models::OPENAI_NODE;
use crate::support::client::{ApiResponse, Client, send, stream};
use crate::support::peer::ask;
use crate::support::python::python_with_openai;
use crate::support::repository::repository_file;
use crate::support::script::{Gate, sse, sse_around};
use crate::support::{Engine, OwnStage, Postgres, Sqlite};

const PATH: &str = "/faces/openai/v1/chat/completions";

fn user(text: &str) -> Value {
    json!({"model": "main", "messages": [{"role": "user", "content": text}]})
}

async fn chat(client: &Client, body: &Value) -> ApiResponse {
    client.create(PATH, body).await
}

fn content(answer: &ApiResponse) -> &Value {
    &answer.body["choices"][0]["message"]["content"]
}

/// The chunks of a streamed completion, without the last line.
async fn chunks(client: &Client, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = json!(true);
    let request = client.request(Method::POST, PATH).json(&body);
    let mut stream = stream(request).await.unwrap();
    assert_eq!(stream.response.status(), 200);
    let mut chunks = Vec::new();
    while let Some(frame) = stream.frame().await {
        if frame.data == "[DONE]" {
            return chunks;
        }
        if !frame.data.is_empty() {
            chunks.push(serde_json::from_str(&frame.data).unwrap());
        }
    }
    chunks
}

async fn check_client(mut program: Command) {
    let stage = stage(Sqlite).await.unwrap();
    let given =
        json!({"base_url": format!("{}{OPENAI}", stage.client.url), "key": stage.client.key});
    let got = ask(&mut program, &given).await;
    assert_members!(got, {"text": TALK, "pieces": TALK, "models": ["main"], "model": "main"});
    assert_members!(got, {"finish": "stop", "streamed_finish": "stop"});
    assert_eq!(
        got["refused"],
        json!(["NotFoundError", 404, "model_not_found"])
    );
    assert_eq!(got["invalid"], json!(["BadRequestError", 400, "/tools/0"]));
}

#[tokio::test]
async fn official_python_client_chats_with_agents() {
    let openai = or_skip!(python_with_openai().await);
    let mut python = Command::new(openai);
    python.arg(repository_file("tests/peer/openai_agents.py"));
    check_client(python).await;
}

#[tokio::test]
async fn official_node_client_chats_with_agents() {
    let project = or_skip!(OPENAI_NODE.built("node").await);
    let mut node = Command::new("node");
    node.arg(project.join("agents.mjs"));
    check_client(node).await;
}

#[rstest]
#[tokio::test]
async fn last_user_message_becomes_the_event(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let mut body = user("hi");
    body["messages"] = json!([
        {"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"}, {"role": "user", "content": "a table?"},
    ]);
    body["user"] = json!("u-7");
    body["metadata"] = json!({"shop": "berlin"});
    body["temperature"] = json!(0.2);
    let answer = chat(&stage.client, &body).await.expect(200);
    assert_eq!(content(&answer), TALK);
    assert_members!(answer.body, {"object": "chat.completion", "model": "main"});
    let run_id = answer.headers["runnel-run-id"].to_str().unwrap();
    let id = format!("chatcmpl-{}", run_id.replace('-', ""));
    assert_eq!(answer.body["id"], id);
    let context = last_context(&stage);
    assert_eq!(context["input"]["text"], "a table?");
    let earlier = context["input"]["contents"][0]["text"].as_str().unwrap();
    assert!(
        earlier.ends_with("user: hi\n\nassistant: hello"),
        "{earlier}"
    );
    assert_members!(context["actor"], {"actor_id": "u-7"});
    let data = json!({"instructions": "be kind", "metadata": {"shop": "berlin"}, "model": "main"});
    assert_eq!(context["event"]["data"], data);
    assert_eq!(context["delivery"]["surface"], "openai.chat");
    assert!(context.get("conversation").is_none(), "{context}");

    body["metadata"] = json!({"conversation_id": "c-9"});
    chat(&stage.client, &body).await.expect(200);
    let context = last_context(&stage);
    assert_eq!(context["conversation"]["conversation_id"], "c-9");
    assert_eq!(
        context["input"]["contents"],
        json!([{"type": "text", "text": "a table?"}])
    );
    let request = stage.client.request(Method::POST, PATH).json(&body);
    let request = request.header("runnel-conversation-id", "c-10");
    send(request).await.unwrap().expect(200);
    let context = last_context(&stage);
    assert_eq!(context["conversation"]["conversation_id"], "c-10");
}

#[tokio::test]
async fn streams_text_usage_and_end() {
    let stage = stage(Sqlite).await.unwrap();
    stage.runner.answer_all(|run| {
        let usage = json!({"prompt_tokens": 3, "completion_tokens": 4});
        let mut end: Value =
            serde_json::from_str(&run.json(2, "run.completed", r#"{"finish_reason":"length"}"#))
                .unwrap();
        end["usage"] = usage;
        sse(run.delta(1, "hello") + &format!("data: {end}\n\n"))
    });
    let mut body = user("hi");
    body["stream_options"] = json!({"include_usage": true});
    let chunks = chunks(&stage.client, &body).await;
    let deltas: Vec<_> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"])
        .collect();
    let (first, text) = (
        json!({"role": "assistant", "content": ""}),
        json!({"content": "hello"}),
    );
    assert_eq!(deltas, [&first, &text, &json!({}), &Value::Null]);
    assert_eq!(chunks[2]["choices"][0]["finish_reason"], "length");
    assert_members!(chunks[3]["usage"], {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7});
    let answer = chat(&stage.client, &body).await.expect(200);
    assert_eq!(answer.body["usage"]["total_tokens"], 7);
}

#[tokio::test]
async fn files_of_messages_become_artifacts() {
    let stage = stage(Sqlite).await.unwrap();
    let large = BASE64_STANDARD.encode("large ".repeat(20_000));
    let upload = stage
        .client
        .request(Method::POST, "/v1/artifacts")
        .body("bytes");
    let upload = send(upload).await.unwrap().body["artifact_id"].clone();
    let mut body = user("");
    body["messages"][0]["content"] = json!([
        {"type": "text", "text": "read these"},
        {"type": "file", "file": {"filename": "large.txt", "file_data": format!("data:text/plain;base64,{large}")}},
        {"type": "file", "file": {"file_id": upload}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
    ]);
    chat(&stage.client, &body).await.expect(200);
    let input = &last_context(&stage)["input"];
    assert_eq!(input["text"], "read these");
    let url = input["contents"][1]["file_url"].as_str().unwrap();
    assert!(url.starts_with("artifact:"), "{input}");
    let attachments = input["attachments"].as_array().unwrap();
    assert!(attachments.iter().any(|one| one["id"] == upload), "{input}");
    assert!(
        attachments.iter().any(|one| one["name"] == "large.txt"),
        "{input}"
    );
    assert_eq!(input["contents"][2]["type"], "image_url");
}

#[tokio::test]
async fn questions_are_calls_of_a_declared_function() {
    let stage = stage(Sqlite).await.unwrap();
    stage.runner.answer_all(asking(json!({})));
    let mut body = user("a table");
    let silent = chat(&stage.client, &body).await.expect(200);
    assert_eq!(silent.body["choices"][0]["finish_reason"], "stop");
    body["tools"] = json!([{"type": "function", "function": ask_user()}]);
    body["metadata"] = json!({"conversation_id": "c-1"});
    let first = chat(&stage.client, &body).await.expect(200);
    let choice = &first.body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let call = &choice["message"]["tool_calls"][0];
    assert_eq!(call["function"]["name"], "ask_user");
    let question: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert_members!(question, {"title": "Which room?"});
    let streamed = chunks(&stage.client, &body).await;
    let calls = streamed
        .iter()
        .filter(|chunk| chunk["choices"][0]["delta"]["tool_calls"].is_array());
    assert_eq!(calls.count(), 1);

    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(choice["message"].clone());
    messages.push(json!({"role": "tool", "tool_call_id": call["id"], "content": "a"}));
    let refused = chat(&stage.client, &body).await;
    refused.assert_error(400, "param", "/messages/2/content");
    let answer = json!({"action_id": "book", "values": {"room": "b"}}).to_string();
    body["messages"][2]["content"] = json!(answer);
    stage.runner.answer_all(super::talk);
    let answered = chat(&stage.client, &body).await.expect(200);
    assert_eq!(content(&answered), TALK);
    let context = last_context(&stage);
    assert_eq!(
        context["input"]["interaction"]["values"],
        json!({"room": "b"})
    );
    body["messages"][2]["tool_call_id"] = json!("absent");
    chat(&stage.client, &body).await.expect(404);
}

#[tokio::test]
async fn answers_continue_runs_that_wait() {
    let stage = stage(Sqlite).await.unwrap();
    let gate = Gate::new();
    stage.runner.answer_all(waiting(&gate));
    let mut body = user("a table");
    body["tools"] = json!([{"type": "function", "function": ask_user()}]);
    let first = chat(&stage.client, &body).await.expect(200);
    let message = &first.body["choices"][0]["message"];
    let call = &message["tool_calls"][0]["id"];
    let answer = json!({"action_id": "book", "values": {"room": "a"}}).to_string();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(message.clone());
    messages.push(json!({"role": "tool", "tool_call_id": call, "content": answer}));
    let answering = chat(&stage.client, &body);
    let (answered, ()) = tokio::join!(answering, open_after_answer(&stage, &gate));
    let answered = answered.expect(200);
    assert_eq!(content(&answered), "Booked.");
    let run = |answer: &ApiResponse| answer.headers["runnel-run-id"].clone();
    assert_eq!(run(&answered), run(&first));
}

#[tokio::test]
async fn failed_runs_are_errors_without_retry() {
    let stage = stage(Sqlite).await.unwrap();
    stage
        .runner
        .answer_all(|run| sse(run.delta(1, "a") + &run.failed(2)));
    let failed = chat(&stage.client, &user("hi")).await;
    failed.assert_error(502, "code", "run_failed");
    failed.assert_detail(502, "code", "boom");
    assert_eq!(failed.headers["x-should-retry"], "false");
    let chunks = chunks(&stage.client, &user("hi")).await;
    let last = chunks.last().unwrap();
    assert_members!(last["error"], {"type": "server_error", "code": "run_failed", "message": "boom: it broke"});
}

#[tokio::test]
async fn disconnect_keeps_the_run_and_its_key_repeats_it() {
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
    let mut body = user("hi");
    body["stream"] = json!(true);
    let keyed = |client: &Client, body: &Value| {
        client
            .request(Method::POST, PATH)
            .json(body)
            .header("idempotency-key", "k-1")
    };
    let first = stream(keyed(&stage.client, &body)).await.unwrap();
    let run_id = first.run_id();
    drop(first);
    gate.cancel();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");
    body["stream"] = json!(false);
    let again = send(keyed(&stage.client, &body)).await.unwrap().expect(200);
    assert_eq!(
        (content(&again), &again.headers["runnel-run-id"]),
        (&json!("ab"), &run_id.parse().unwrap())
    );
    body["messages"][0]["content"] = json!("other");
    let other = send(keyed(&stage.client, &body)).await.unwrap();
    other.assert_detail(409, "reason", "idempotency_mismatch");
}

#[rstest]
#[tokio::test]
async fn keys_name_only_agents_in_their_reach(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let other = json!({
        "name": "other", "event_types": ["message.*"], "scope": {"kind": "bot", "bot_id": "b"},
        "runner_id": crate::support::runner::RUNNER_ID,
    });
    let other = stage.admin.create("/v1/agents", &other).await.expect(201);
    let models = async |client: &Client| {
        let list = client
            .get(&format!("{OPENAI}/models"))
            .await
            .expect(200)
            .body;
        let list = list["data"].as_array().unwrap().iter();
        list.map(|model| model["id"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(models(&stage.client).await, ["main", "other"]);
    let only = key(&stage, json!({"agents": ["main"]})).await;
    assert_eq!(models(&only).await, ["main"]);
    let mut body = user("hi");
    chat(&only, &body).await.expect(200);
    let id = other.body["id"].clone();
    for name in [
        &json!("other"),
        &id,
        &json!("absent"),
        &json!("unpermitted"),
    ] {
        body["model"] = name.clone();
        chat(&only, &body)
            .await
            .assert_error(404, "code", "model_not_found");
        let model = format!("{OPENAI}/models/{}", name.as_str().unwrap());
        only.get(&model)
            .await
            .assert_error(404, "code", "model_not_found");
    }
    // The name decides, whatever the agent's scope is.
    body["model"] = json!("other");
    chat(&stage.client, &body).await.expect(200);
    assert_eq!(
        stage.client.get("/v1/runs").await.body["items"][0]["agent_name"],
        "other"
    );
    let viewer = key(&stage, json!({"role": "viewer"})).await;
    let refused = chat(&viewer, &body).await;
    refused.assert_error(403, "type", "permission_error");
    assert_eq!(models(&viewer).await, ["main", "other"]);
    let unknown = chat(&Client::new(&stage.client.url, "rnl_none"), &body).await;
    unknown.assert_error(401, "type", "authentication_error");
}

#[tokio::test]
async fn faults_point_into_the_request() {
    let stage: OwnStage = stage(Sqlite).await.unwrap();
    let message = |role: &str, content: Value| json!([{"role": role, "content": content}]);
    for (name, value, pointer) in [
        ("model", json!(null), "/model"),
        ("messages", json!([]), "/messages"),
        ("messages", message("assistant", json!("hi")), "/messages"),
        (
            "messages",
            message("robot", json!("hi")),
            "/messages/0/role",
        ),
        (
            "messages",
            message("user", json!([{"type": "video"}])),
            "/messages/0/content/0/type",
        ),
        ("n", json!(2), "/n"),
        (
            "response_format",
            json!({"type": "json_object"}),
            "/response_format",
        ),
        ("functions", json!([{}]), "/functions"),
        (
            "metadata",
            json!({"conversation_id": 7}),
            "/metadata/conversation_id",
        ),
        (
            "metadata",
            json!({"conversation_id": ""}),
            "/metadata/conversation_id",
        ),
        (
            "metadata",
            json!({"large": "x".repeat(70_000)}),
            "/metadata",
        ),
        ("user", json!(""), "/user"),
        ("stream", json!("yes"), "/stream"),
    ] {
        let mut body = user("hi");
        body[name] = value;
        let refused = chat(&stage.client, &body).await;
        refused.assert_error(400, "param", pointer);
        assert_eq!(refused.error("type"), "invalid_request_error");
    }
    assert_eq!(stage.client.get("/v1/runs").await.body["items"], json!([]));
}
