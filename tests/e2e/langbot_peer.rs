//! LangBot's SDK parses the gateway's output, and the gateway parses that SDK's output.

use serde_json::{Value, json};

use crate::support::client::message;
use crate::support::held::HeldRun;
use crate::support::peer::LangbotPeer;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{frame, sse};
use crate::support::{Sqlite, Stage, skill};

const CATALOG: &str = r#"
[[model_providers]]
name = "openai"
kind = "scripted"
[[models]]
model_id = "openai/gpt-5"
provider = "openai"
context_window_tokens = 200000
[[models]]
model_id = "reranker"
provider = "openai"
model_type = "rerank"
operations = ["rerank"]
[[tools]]
tool_name = "search"
url = "https://tools.example/search"
tool_type = "mcp"
description = "Finds things."
parameters = { type = "object", properties = { query = { type = "string" } }, required = ["query"] }
[[tools]]
tool_name = "bare"
url = "https://tools.example/bare"
[[knowledge_bases]]
kb_id = "kb-1"
kb_name = "Handbook"
kb_type = "embedded"
[[skills]]
skill_name = "summary"
directory = "{SKILL}"
display_name = "Summary"
description = "Makes it short."
"#;

/// An agent and a runner with all permissions.
async fn generous() -> Stage {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["skill_authoring"] = json!(true);
    manifest["permissions"] = json!({
        "models": ["invoke", "stream", "rerank", "count_tokens"],
        "tools": ["detail", "call"],
        "knowledge_bases": ["list", "retrieve"],
        "history": ["page", "search"],
        "events": ["get", "page"],
        "storage": ["plugin", "workspace"],
    });
    let runner = StubRunner::start_as(manifest).await;
    let stage = Stage::of(Sqlite, runner, |config| {
        config.rest = CATALOG.replace("{SKILL}", &skill("summary"));
        config.agents[0].event_types = "*";
        config.agents[0].state_scopes = r#""conversation", "actor", "subject", "runner""#;
        config.agents[0].resources = r#"models = "*", tools = "*", knowledge_bases = "*",
            skills = "*", storage = ["plugin"], history = ["page", "search"], events = ["get"]"#
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            .leak();
    });
    stage.await.expect("SQLite is always at hand")
}

fn events() -> Vec<Value> {
    let full = json!({
        "event_type": "message.received", "event_id": "full", "source": "webui",
        "source_event_type": "FriendMessage", "event_time": 1_795_291_200, "bot_id": "bot-1",
        "conversation": {"conversation_id": "c-7", "thread_id": "t-1"},
        "actor": {"actor_type": "user", "actor_id": "u-1", "actor_name": "Ada",
            "metadata": {"tier": 3}},
        "subject": {"subject_type": "message", "subject_id": "m-1", "data": {"x": [1, null]}},
        "input": {
            "text": "look at this",
            "contents": [
                {"type": "text", "text": "look at this"},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
                {"type": "file_url", "file_url": "https://x.test/a.pdf", "file_name": "a.pdf"},
            ],
            "attachments": [
                {"type": "image", "mime_type": "image/png", "size": 12, "name": "a.png",
                    "url": "https://x.test/a.png", "id": "a-1"},
                {"type": "file", "path": "/sandbox/a.pdf", "source": "platform"},
            ],
        },
        "delivery": {"surface": "webui", "supports_streaming": true, "supports_edit": true,
            "max_message_size": 4096, "reply_target": {"chat": "c-7"}, "automatic_reply": true,
            "interactions": {"field_types": ["select", "file"], "action_styles": ["danger"],
                "supports_updates": true, "max_fields": 5},
            "platform_capabilities": {"cards": true}},
        "data": {"raw": {"deep": [true]}},
    });
    let mut alone = message("alone");
    alone.as_object_mut().unwrap().remove("conversation");
    alone.as_object_mut().unwrap().remove("actor");
    alone["source"] = json!("a source of its own");
    let silent = json!({"event_type": "tick.hourly", "event_id": "silent"});
    vec![full, alone, message("plain"), silent]
}

#[tokio::test]
async fn langbot_sdk_parses_every_context() {
    let peer = or_skip!(LangbotPeer::find().await);
    let stage = generous().await;
    let mut questions = Vec::new();
    for event in events() {
        let run = HeldRun::start(&stage, &event).await;
        questions.push(json!(["RunnerContext", run.run_request["context"]]));
        run.end(&stage).await;
    }

    let answers = peer.ask("check", &json!(questions)).await;
    for (question, answer) in questions.iter().zip(answers.as_array().unwrap()) {
        let sent = &question[1];
        assert_eq!(answer["refused"], Value::Null, "{sent:#}");
        assert_only_newer_fields(answer);
        let read = &answer["read"];
        for part in ["run_id", "config"] {
            assert_eq!(read[part], sent[part], "{part}");
        }
        for part in ["trace_id", "deadline_at", "metadata"] {
            assert_eq!(read["runtime"][part], sent["runtime"][part], "{part}");
        }
        for kind in ["tools", "skills", "knowledge_bases", "models"] {
            let mut existing = sent["resources"][kind].clone();
            for resource in existing.as_array_mut().unwrap() {
                let resource = resource.as_object_mut().unwrap();
                let newer = ["source", "effect", "effect_source", "idempotent"];
                resource.retain(|name, _| !newer.contains(&name.as_str()));
            }
            assert_covers(&read["resources"][kind], &existing);
            assert_ne!(read["resources"][kind], json!([]), "{kind}");
        }
        for part in [
            "event",
            "input",
            "delivery",
            "actor",
            "subject",
            "conversation",
            "trigger",
        ] {
            assert_covers(&read[part], &sent[part]);
        }
    }
}

/// Fields that newer protocol versions added; this SDK ignores them.
fn assert_only_newer_fields(answer: &Value) {
    const NEWER: [&str; 14] = [
        "/context/available_apis/artifact_metadata",
        "/context/available_apis/artifact_read",
        "/context/available_apis/interactions",
        "/context/static_refs",
        "/resources/files",
        "/resources/storage/binding_storage",
        "/resources/tools/-/effect",
        "/resources/tools/-/effect_source",
        "/resources/tools/-/idempotent",
        "/resources/tools/-/source",
        "/state/binding",
        "/runtime/host",
        "/runtime/protocol_version",
        "/runtime/static_refs",
    ];
    let unknown = answer["unknown"].as_array().unwrap();
    let surprising: Vec<_> = unknown
        .iter()
        .filter(|path| !NEWER.contains(&path.as_str().unwrap()))
        .collect();
    assert!(surprising.is_empty(), "{surprising:?}");
}

/// Every member of `sent` is in `read`; `read` may have further defaults.
#[track_caller]
fn assert_covers(read: &Value, sent: &Value) {
    match (read, sent) {
        (Value::Object(read), Value::Object(sent)) => {
            for (name, value) in sent {
                let found = read.get(name);
                assert_covers(found.unwrap_or_else(|| panic!("{name} is lost")), value);
            }
        }
        (Value::Array(read), Value::Array(sent)) if read.len() == sent.len() => {
            for (read, sent) in read.iter().zip(sent) {
                assert_covers(read, sent);
            }
        }
        _ => assert_eq!(read, sent),
    }
}

#[tokio::test]
async fn langbot_sdk_parses_runs_histories_and_ledgers() {
    let peer = or_skip!(LangbotPeer::find().await);
    let stage = generous().await;
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let ended = first.end(&stage).await;
    let second = HeldRun::start(&stage, &message("m-2")).await;
    let mut questions = vec![
        json!(["AgentRun", second.get("/run").await.body]),
        json!(["HistoryPage", second.get("/history?limit=1").await.body]),
        json!(["HistoryPage", second.get("/history").await.body]),
        json!(["AgentRun", ended.run]),
    ];
    let body = json!({"query": "hello", "filters": {}, "top_k": 10});
    let found = second.call("/history/search", &body).await.body;
    assert_eq!(found["total_count"], 2, "{found}");
    questions.push(json!(["HistorySearchResult", found]));
    second.end(&stage).await;
    let events = format!("/v1/runs/{}/events", first.run_id);
    for (class, path) in [
        ("RunPage", "/v1/runs".to_owned()),
        ("RunPage", "/v1/runs?limit=1".to_owned()),
        ("RunEventPage", events.clone()),
        ("RunEventPage", format!("{events}?limit=1")),
    ] {
        questions.push(json!([class, stage.client.get(&path).await.body]));
    }
    let refused = second.get("/run").await;
    assert_eq!(refused.status, 401);
    questions.push(json!(["AgentAPIError", refused.body["error"]]));

    let answers = peer.ask("check", &json!(questions)).await;
    for (question, answer) in questions.iter().zip(answers.as_array().unwrap()) {
        assert_eq!(answer["refused"], Value::Null, "{question:#}");
    }
    assert_eq!(answers[2]["read"]["items"].as_array().unwrap().len(), 3);
    assert_eq!(answers[4]["read"]["items"].as_array().unwrap().len(), 2);
    assert_eq!(answers[5]["read"]["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn accepts_every_result_of_langbot_sdk() {
    let peer = or_skip!(LangbotPeer::find().await);
    let stage = Stage::new().await;
    let dumped = peer.ask("results", &json!("THE-RUN")).await;
    let dumped = dumped.as_array().unwrap().clone();
    let types: Vec<_> = dumped
        .iter()
        .map(|result| result["type"].as_str().unwrap().to_owned())
        .collect();
    let mut data: Vec<_> = dumped.iter().map(|result| result["data"].clone()).collect();
    assert_eq!(data[13]["file_ids"], json!([]));
    assert_eq!(data[0]["chunk"]["tool_calls"], Value::Null);

    let outcome = stage
        .play(move |run| {
            let frames = dumped
                .iter()
                .map(|result| frame(&result.to_string().replace("THE-RUN", &run.id)));
            sse(frames.collect::<String>())
        })
        .await;

    outcome.assert(
        "completed",
        &types.iter().map(String::as_str).collect::<Vec<_>>(),
    );
    outcome.assert_rejected(&[]);
    // The terminal omits the message, because it was delivered before.
    data[14] = json!({"finish_reason": "stop"});
    for (event, data) in outcome.ledger.events().iter().zip(&data) {
        assert_eq!(event["data"], *data);
    }
    assert_eq!(outcome.run["output"]["content"], "hello big world");
    assert_eq!(outcome.run["usage"]["cached_tokens"], 1);
    let ended = peer.ask("check", &json!([["AgentRun", outcome.run]])).await;
    assert_eq!(ended[0]["refused"], Value::Null);
}

#[tokio::test]
async fn accepts_failure_result_of_langbot_sdk() {
    let peer = or_skip!(LangbotPeer::find().await);
    let stage = Stage::new().await;
    let outcome = stage
        .play(|run| {
            let data = r#"{"error":"no such model","code":"runner.error","retryable":false}"#;
            let id = &run.id;
            let nulls = r#""usage":null,"sequence":null,"timestamp":null"#;
            let result =
                format!(r#"{{"run_id":"{id}","type":"run.failed","data":{data},{nulls}}}"#);
            sse(frame(&result))
        })
        .await;
    outcome.assert("failed runner.error", &["run.failed"]);
    assert_eq!(outcome.run["error"]["message"], "no such model");

    let event = outcome.ledger.last();
    let checked = peer
        .ask("check", &json!([["RunFailedPayload", event["data"]]]))
        .await;
    assert_eq!(checked[0]["refused"], Value::Null, "{event}");
}
