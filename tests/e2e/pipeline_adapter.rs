//! The pipeline adapter: a LangBot bot pipeline's Query becomes an event like any other.

use reqwest::{Method, RequestBuilder};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send, stream};
use crate::support::held::HeldRun;
use crate::support::peer::LangbotPeer;
use crate::support::script::{Gate, Run, ScriptStep, sse, sse_around};
use crate::support::{Engine, Postgres, Sqlite, Stage};

const ROUTE: &str = "/v1/adapters/pipeline/queries";

fn quick(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(2).concat())
}

/// A Query as LangBot's `Query.model_dump()` makes it, with the variables and the message of its preprocessing.
pub fn query(query_id: impl Into<Value>) -> Value {
    let query_id = query_id.into();
    let sender = json!({"id": 77, "member_name": "Ada", "permission": "MEMBER",
        "group": {"id": 42, "name": "Team", "permission": "MEMBER"}});
    let chain = json!([
        {"type": "Source", "id": "m-1", "timestamp": 1_795_291_200},
        {"type": "Plain", "text": "what is this? "},
        {"type": "Image", "image_id": "i-1", "url": "https://x.test/a.png", "path": "", "base64": ""},
        {"type": "Face", "face_type": "face", "face_id": 3},
    ]);
    json!({
        "workspace_uuid": "of-langbot",
        "query_id": query_id,
        "launcher_type": "group",
        "launcher_id": 42,
        "sender_id": 77,
        "message_event": {"type": "GroupMessage", "sender": sender, "message_chain": chain, "time": 1_795_291_200.5},
        "message_chain": chain,
        "bot_uuid": "bot-1",
        "pipeline_uuid": "pipe-1",
        "pipeline_config": {"ai": {"runner": {"runner": "dify-service-api"}, "dify-service-api": {"api-key": "app-hidden"}}},
        "session": {"launcher_type": "group", "launcher_id": 42, "using_conversation": null, "conversations": []},
        "messages": [{"role": "user", "content": "an older message"}],
        "prompt": {"name": "default", "messages": [{"role": "system", "content": "Answer briefly."}]},
        "variables": {
            "session_id": "group_42", "user_message_text": "what is this?", "msg_create_time": 1_795_291_200,
            "_pipeline_bound_plugins": ["a/b"], "dify_api_key": "app-hidden", "userToken": "hidden",
            "profile": {"tier": 3, "password": "hidden"},
        },
        "use_funcs": [{"name": "search"}],
        "resp_messages": [],
    })
}

fn posting(client: &Client, query: &Value) -> RequestBuilder {
    client.request(Method::POST, ROUTE).json(query)
}

async fn post(stage: &Stage, query: &Value) -> ApiResponse {
    send(posting(&stage.client, query)).await.unwrap()
}

#[rstest]
#[tokio::test]
async fn passes_query_to_runner_without_private_fields(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(quick);
    let posted = post(&stage, &query("q-1")).await;
    assert_eq!(posted.body["event_id"], "q-1");
    assert_eq!(posted.body["status"], "created");
    let run_id = posted.run_id();
    let context = stage.runner.context_of(&run_id).await;
    for (pointer, expected) in [
        ("/run_id", json!(run_id)),
        (
            "/trigger",
            json!({"type": "message.received", "source": "host_adapter", "timestamp": 1_795_291_200}),
        ),
        ("/event/event_id", json!("q-1")),
        ("/event/source", json!("host_adapter")),
        ("/event/source_event_type", json!("GroupMessage")),
        (
            "/event/data",
            json!({"type": "GroupMessage", "time": 1_795_291_200.5}),
        ),
        ("/conversation/conversation_id", json!("group_42")),
        ("/conversation/launcher_type", json!("group")),
        ("/conversation/launcher_id", json!("42")),
        ("/conversation/sender_id", json!("77")),
        ("/conversation/bot_id", json!("bot-1")),
        ("/conversation/workspace_id", json!(stage.workspace)),
        (
            "/actor",
            json!({"actor_type": "user", "actor_id": "77", "actor_name": "Ada"}),
        ),
        ("/subject/subject_type", json!("message")),
        ("/subject/subject_id", json!("m-1")),
        ("/input/text", json!("what is this? ")),
        (
            "/input/contents",
            json!([
                {"type": "text", "text": "what is this? "},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            ]),
        ),
        (
            "/input/attachments",
            json!([{"type": "image", "source": "url", "url": "https://x.test/a.png"}]),
        ),
        ("/delivery/surface", json!("platform")),
        ("/delivery/automatic_reply", json!(true)),
        (
            "/delivery/reply_target",
            json!({"target_type": "group", "target_id": "42", "message_id": "m-1"}),
        ),
        ("/context/inline_policy/mode", json!("current_event")),
        ("/context/available_apis/prompt_get", json!(true)),
        ("/config", json!({"timeout": 50.0})),
        (
            "/variables",
            json!({
                "session_id": "group_42", "user_message_text": "what is this?",
                "msg_create_time": 1_795_291_200, "query_id": "q-1",
            }),
        ),
        (
            "/adapter/extra",
            json!({
                "params": {
                    "session_id": "group_42", "user_message_text": "what is this?",
                    "msg_create_time": 1_795_291_200, "profile": {"tier": 3},
                },
                "query_id": "q-1", "pipeline_uuid": "pipe-1", "omitted_elements": ["Face"],
            }),
        ),
    ] {
        assert_eq!(
            context.pointer(pointer),
            Some(&expected),
            "{pointer}: {context}"
        );
    }
    let text = context.to_string();
    for private in [
        "hidden",
        "a/b",
        "an older message",
        "Answer briefly",
        "of-langbot",
    ] {
        assert!(!text.contains(private), "{private}: {text}");
    }
    assert_ne!(run_id, "q-1");

    stage.outcome(&run_id).await.assert(
        "completed",
        &["message.delta", "message.delta", "run.completed"],
    );
    let path = "/v1/conversations/group_42/history?bot_id=bot-1";
    let history = stage.client.get(path).await;
    assert_eq!(
        history.body["items"].as_array().unwrap().len(),
        2,
        "{}",
        history.body
    );
}

#[rstest]
#[tokio::test]
async fn runner_pulls_effective_prompt_with_audit(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer("q-1", move |run| {
        sse_around(&hold, "", run.talk(1).concat())
    });
    let run_id = post(&stage, &query("q-1")).await.run_id();
    let host = stage.host_of(&run_id).await;
    let answer = host.get("/prompt").await.expect(200);
    let expected = json!({"prompt": [{"role": "system", "content": "Answer briefly."}]});
    assert_eq!(answer.body, expected);
    gate.cancel();
    stage.outcome(&run_id).await;
    assert_eq!(host.get("/prompt").await.status, 401, "the run has ended");

    let path = format!("/v1/runs/{run_id}/authorization");
    let authorization = stage.client.get(&path).await.body;
    assert_eq!(authorization["available_apis"]["prompt_get"], true);
    assert_eq!(
        audited(&stage, &run_id).await,
        [json!(["prompt_get", "allow"])]
    );

    // An event without a prompt grants none, and the audit log records the denial.
    let held = HeldRun::start(&stage, &message("m-1")).await;
    let apis = &held.run_request["context"]["context"]["available_apis"];
    assert_eq!(apis["prompt_get"], false);
    assert!(held.run_request["context"]["adapter"].is_null());
    assert_eq!(held.get("/prompt").await.status, 404);
    held.end(&stage).await;
    assert_eq!(
        audited(&stage, &held.run_id).await,
        [json!(["prompt_get", "deny"])]
    );
}

async fn audited(stage: &Stage, run_id: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run_id}/audit");
    let answer = stage.client.get(&path).await;
    let rows = answer.body["items"].as_array().unwrap().clone();
    rows.iter()
        .map(|row| json!([row["action"], row["decision"]]))
        .collect()
}

#[rstest]
#[tokio::test]
async fn duplicate_query_returns_first_answer(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(quick);
    let counted = query(7);
    let first = post(&stage, &counted).await;
    assert!(!first.is_replay());
    let event_id = first.body["event_id"].as_str().unwrap();
    assert!(
        event_id.starts_with("query:") && event_id.len() == 38,
        "{event_id}"
    );

    // Later changes of the Query are not part of the event.
    let mut later = counted.clone();
    later["resp_messages"] = json!([{"role": "assistant", "content": "…"}]);
    later["current_stage_name"] = json!("SendResponseBackStage");
    let again = post(&stage, &later).await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);

    let mut other = counted.clone();
    other["variables"]["session_id"] = json!("else");
    let refused = post(&stage, &other).await;
    refused.assert_detail(409, "reason", "idempotency_mismatch");

    // LangBot restarts its counter: the same query id with another message is a new event.
    let mut restarted = counted.clone();
    restarted["message_chain"][0]["id"] = json!("m-2");
    let fresh = post(&stage, &restarted).await;
    assert!(!fresh.is_replay());
    assert_ne!(fresh.run_id(), first.run_id());

    let with_key = posting(&stage.client, &query("q-9")).header("idempotency-key", "k");
    let keyed = send(with_key).await.unwrap();
    assert_eq!(keyed.body["event_id"], "q-9");
    let refused = post(&stage, &query("q-9")).await;
    assert_eq!(refused.detail("reason"), "event_exists", "{}", refused.body);
}

#[tokio::test]
async fn streams_run_as_query_response_on_request() {
    let stage = Stage::new().await;
    stage.runner.answer_all(quick);
    let stream = stream(posting(&stage.client, &query("q-1"))).await.unwrap();
    assert_eq!(stream.response.status(), 200);
    let run_id = stream.response.headers()["runnel-run-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let frames = stream.rest().await;
    let types: Vec<_> = frames.iter().map(|frame| frame.event.as_str()).collect();
    assert_eq!(types, ["message.delta", "message.delta", "run.completed"]);
    stage.outcome(&run_id).await;
}

#[tokio::test]
async fn rejects_invalid_queries_by_pointer_without_stored_rows() {
    let stage = Stage::new().await;
    stage.runner.answer_all(quick);
    let long = "x".repeat(300);
    for (n, (pointer, value)) in [
        ("/query_id", Value::Null),
        ("/query_id", json!({})),
        ("/launcher_type", json!("")),
        ("/launcher_id", json!([1])),
        ("/bot_uuid", json!(long)),
        ("/message_chain", json!([])),
        ("/message_chain/0/type", Value::Null),
        ("/message_chain/1/text", json!(7)),
        ("/message_event/time", json!("now")),
        ("/variables", json!({"a": "x".repeat(70_000)})),
        (
            "/prompt/messages",
            json!([{"role": "system", "content": "x".repeat(270_000)}]),
        ),
        ("/prompt/messages/0/role", json!(7)),
    ]
    .into_iter()
    .enumerate()
    {
        let valid = query(format!("q-{n}"));
        let mut malformed = valid.clone();
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        let members = malformed
            .pointer_mut(parent)
            .unwrap()
            .as_object_mut()
            .unwrap();
        members.insert(member.to_owned(), value);
        members.retain(|_, value| !value.is_null());
        let refused = post(&stage, &malformed).await;
        assert_eq!(refused.status, 400, "{pointer}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
        assert!(!post(&stage, &valid).await.is_replay(), "{pointer}");
    }
    let anonymous = stage
        .client
        .anonymous(Method::POST, ROUTE)
        .json(&query("q"));
    assert_eq!(send(anonymous).await.unwrap().status, 401);
    let mut forged = message("m-1");
    forged["adapter"] = json!({"extra": {"params": {}}});
    let refused = stage.client.post(&forged).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.detail("pointer"), "/adapter");
}

#[tokio::test]
async fn binds_each_pipeline_to_its_agent() {
    let stage = Stage::with(|config| {
        config.agents.clear();
        for pipeline in ["pipe-1", "pipe-2"] {
            let agent = format!(
                "[[agents]]\nname = \"of {pipeline}\"\nevent_types = [\"message.received\"]\n\
                 scope = {{ kind = \"global\" }}\nrunner_id = \"plugin:test/stub/default\"\n\
                 filters = {{ pipeline_id = [\"{pipeline}\"] }}\nconfig = {{ timeout = 9 }}\n",
            );
            config.rest.push_str(&agent);
        }
    })
    .await;
    stage.runner.answer_all(quick);
    for pipeline in ["pipe-1", "pipe-2"] {
        let mut query = query(pipeline);
        query["pipeline_uuid"] = json!(pipeline);
        let run_id = post(&stage, &query).await.run_id();
        let run = stage.client.finished(&run_id).await;
        assert_eq!(run["status"], "completed", "{run}");
        assert_eq!(
            stage.runner.context_of(&run_id).await["adapter"]["extra"]["pipeline_uuid"],
            pipeline
        );
    }
    let mut other = query("q-3");
    other["pipeline_uuid"] = json!("pipe-3");
    assert_eq!(post(&stage, &other).await.body["reason"], "no_agent");
    let plain = stage.client.post(&message("m-1")).await;
    assert_eq!(plain.body["reason"], "no_agent");
}

#[tokio::test]
async fn exchanges_query_and_context_with_langbot_sdk() {
    let peer = or_skip!(LangbotPeer::find().await);
    let stage = Stage::new().await;
    stage.runner.answer_all(quick);
    let dumped = peer.ask("query", &json!(7)).await;
    let run_id = post(&stage, &dumped).await.run_id();
    let context = stage.runner.context_of(&run_id).await;
    assert_eq!(context["input"]["text"], "@Bob see");
    assert_eq!(
        context["adapter"]["extra"],
        json!({
            "params": {"city": "Rome"}, "query_id": 7, "pipeline_uuid": "pipe-1",
            "quote": {"message_id": "5", "sender_id": "6", "text": "before"}, "omitted_elements": ["Face"],
        })
    );
    let answers = peer
        .ask("check", &json!([["RunnerContext", context]]))
        .await;
    assert_eq!(answers[0]["refused"], Value::Null);
    let read = &answers[0]["read"];
    assert_eq!(read["adapter"], context["adapter"]);
    assert_eq!(read["context"]["available_apis"]["prompt_get"], true);
    let kinds: Vec<_> = read["input"]["attachments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["type"])
        .collect();
    assert_eq!(kinds, ["image", "file", "voice"]);
}
