//! API keys that are restricted to agents.

use std::collections::BTreeSet;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};

use crate::isolation::{ResourceIds, absent_ids, act, ask, request, visible_response};
use crate::pipeline_adapter::query;
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::routes::{Face, operations};
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const OTHER: &str = "test.other";
/// Matches two agents with equal right.
const TIE: &str = "test.tie";

/// Each client operation, with the status of a restricted key for objects of its agent, and of another agent.
const ROWS: &[(&str, u16, u16)] = &[
    // Their bodies are not valid; other tests post events.
    ("post_event", 400, 400),
    ("stream_event", 400, 400),
    ("post_event_batch", 400, 400),
    ("post_pipeline_query", 400, 400),
    ("stream_pipeline_query", 400, 400),
    ("get_event", 200, 404),
    ("list_runs", 200, 200),
    ("count_runs", 200, 200),
    ("stream_workspace_feed", 200, 200),
    ("list_feed_messages", 200, 200),
    ("get_own_key", 200, 200),
    ("get_run", 200, 404),
    ("list_run_events", 200, 404),
    ("stream_run_events", 200, 404),
    ("list_run_rejections", 200, 404),
    ("get_run_authorization", 200, 404),
    ("list_run_audit", 200, 404),
    ("get_run_usage", 200, 404),
    ("report_usage", 200, 200),
    ("cancel_run", 200, 404),
    // It has completed.
    ("retry_run", 409, 404),
    ("link_run_stream", 200, 404),
    ("list_interactions", 200, 200),
    ("get_interaction", 200, 404),
    ("link_interaction", 200, 404),
    ("submit_interaction", 202, 404),
    ("list_platform_actions", 200, 200),
    ("get_platform_action", 200, 404),
    // Their tokens are not those of a claim.
    ("claim_platform_action", 409, 404),
    ("report_action_result", 409, 404),
    ("complete_agent_chat", 200, 404),
    ("create_agent_response", 200, 404),
    ("get_agent_response", 200, 404),
    ("cancel_agent_response", 200, 404),
    ("list_agent_models", 200, 200),
    ("get_agent_model", 200, 404),
    ("run_ag_ui_agent", 200, 404),
    ("call_a2a_agent", 200, 404),
    ("speak_agent_mcp", 200, 404),
    // They have no message, and the task has ended.
    ("send_a2a_message", 400, 404),
    ("stream_a2a_message", 400, 404),
    ("get_a2a_task", 200, 404),
    ("act_on_a2a_task", 400, 404),
    ("get_agent_card", 200, 404),
    ("get_artifact", 200, 404),
    ("get_artifact_content", 200, 404),
    // They concern the complete workspace.
    ("list_events", 403, 403),
    ("list_conversations", 403, 403),
    ("get_conversation_history", 403, 403),
    ("search_conversation_history", 403, 403),
    ("upload_artifact", 403, 403),
    ("cancel_runs", 403, 403),
    ("retry_runs", 403, 403),
    ("list_jobs", 403, 403),
    ("get_job", 403, 403),
    ("cancel_job", 403, 403),
];

fn event(event_id: &str, event_type: &str) -> Value {
    let mut event = message(event_id);
    event["event_type"] = json!(event_type);
    event
}

fn with_file(mut event: Value) -> Value {
    let large = BASE64_STANDARD.encode("large ".repeat(20_000));
    event["input"]["attachments"] = json!([{"name": "large.txt", "content": large}]);
    event
}

async fn stage(engine: Engine) -> Option<OwnStage> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config| {
        for (name, event_types) in [("other", OTHER), ("twin one", TIE), ("twin two", TIE)] {
            config.agents.push(Agent {
                name,
                event_types,
                ..Agent::default()
            });
        }
    })
    .await
}

async fn agent_id(stage: &OwnStage, name: &str) -> String {
    let agents = stage.admin.get("/v1/agents?limit=100").await.body;
    let agents = agents["items"].as_array().unwrap();
    let found = agents.iter().find(|agent| agent["name"] == name).unwrap();
    found["id"].as_str().unwrap().to_owned()
}

/// An agent that takes messages of one bot.
async fn spare_agent(stage: &OwnStage) -> String {
    let spec = json!({
        "name": "spare", "event_types": ["message.received"], "scope": {"kind": "bot", "bot_id": "b"},
        "runner_id": crate::support::runner::RUNNER_ID,
    });
    let made = stage.admin.create("/v1/agents", &spec).await.expect(201);
    made.body["id"].as_str().unwrap().to_owned()
}

async fn create_key(stage: &OwnStage, agents: &Value) -> ApiResponse {
    let spec = json!({"name": "restricted", "role": "client", "agents": agents});
    stage.admin.create("/v1/api-keys", &spec).await
}

async fn restricted_to(stage: &OwnStage, agents: &Value) -> Client {
    let made = create_key(stage, agents).await.expect(201);
    Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
}

/// A completed run with one object of each kind.
async fn objects_of(stage: &OwnStage, event_id: &str, event_type: &str) -> ResourceIds {
    let posted = stage
        .client
        .post(&with_file(event(event_id, event_type)))
        .await;
    let run_id = posted.run_id();
    stage.client.finished(&run_id).await;
    let sql = format!("SELECT id FROM artifacts WHERE event_id = '{event_id}'");
    let artifact = rows(&stage.gateway.database_url(), &sql).await.remove(0);
    let interaction = ask(stage, "default", &run_id, "q").await;
    let action = act(stage, "default", &run_id, "q").await;
    let ids = [
        ("run_id", run_id),
        ("event_id", event_id.to_owned()),
        ("artifact_id", artifact),
        ("interaction", interaction),
        ("action_id", action),
        ("conversation_id", "c-7".to_owned()),
    ];
    absent_ids().into_iter().chain(ids).collect()
}

#[rstest]
#[tokio::test]
async fn restricted_keys_reach_only_their_agents(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let client = restricted_to(&stage, &json!(["main"])).await;
    let mut own = objects_of(&stage, "m-1", "message.received").await;
    let mut foreign = objects_of(&stage, "o-1", OTHER).await;
    own.insert("agent_id", agent_id(&stage, "main").await);
    foreign.insert("agent_id", spare_agent(&stage).await);
    let served = operations(&stage.client).await;
    let of_clients = served.iter().filter(|one| one.face == Face::Client);
    let of_clients: BTreeSet<_> = of_clients.map(|one| one.id.as_str()).collect();
    let listed: BTreeSet<_> = ROWS.iter().map(|(id, ..)| *id).collect();
    assert_eq!(of_clients, listed, "each client operation has one row");
    for operation in &served {
        if operation.face == Face::Admin {
            let answer = visible_response(request(&client, operation, &own)).await;
            assert_eq!(answer.status, 403, "{}", operation.id);
        }
    }
    for (id, of_own, of_foreign) in ROWS {
        let operation = served.iter().find(|one| one.id == *id).unwrap();
        for (ids, expected) in [(&foreign, of_foreign), (&own, of_own)] {
            let answer = visible_response(request(&client, operation, ids)).await;
            assert_eq!(answer.status, *expected, "{id}: {}", answer.body);
            if *expected == 403 {
                assert!(answer.body.contains("key_agents"), "{id}: {}", answer.body);
            }
            // A task is at the agent of its run only, and `other` takes no messages: its tasks are nowhere.
            if *expected == 404 && !id.ends_with("a2a_task") {
                let full_response = visible_response(request(&stage.client, operation, ids)).await;
                assert_ne!(
                    full_response.status, 404,
                    "{id}: the object exists: {}",
                    full_response.body
                );
            }
        }
    }
    let other = agent_id(&stage, "other").await;
    // Runs of the event, of the answer to its question, of a chat, of a response and of a user interface.
    until("five completed runs", async || {
        let runs = client.get("/v1/runs?statuses=completed").await.body;
        runs["items"].as_array().unwrap().len() == 5
    })
    .await;
    let runs = client.get("/v1/runs").await.body;
    let runs = runs["items"].as_array().unwrap();
    assert_eq!(runs.len(), 5, "{runs:?}");
    assert!(
        runs.iter().all(|run| run["agent_name"] == "main"),
        "{runs:?}"
    );
    let runs = client.get(&format!("/v1/runs?agent_id={other}")).await.body;
    assert_eq!(runs["items"], json!([]));
    let found = client.get("/v1/interactions").await.body;
    let found = found["items"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["run_id"], own["run_id"].as_str());
    let both = restricted_to(&stage, &json!(["main", other])).await;
    for (path, least) in [("/v1/runs", 3), ("/v1/interactions", 2)] {
        let found = both.get(path).await.body;
        assert!(
            found["items"].as_array().unwrap().len() >= least,
            "{path}: {found}"
        );
    }
}

#[rstest]
#[tokio::test]
async fn refuses_events_that_leave_the_restriction(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let client = restricted_to(&stage, &json!(["main"])).await;
    let main = agent_id(&stage, "main").await;
    let other = agent_id(&stage, "other").await;
    let refused = |answer: &ApiResponse| {
        answer.assert_detail(403, "reason", "key_agents");
        assert_eq!(answer.detail("agents"), &json!([main]));
        let body = answer.body.to_string();
        assert!(!body.contains("twin") && !body.contains(&other), "{body}");
    };
    for (id, event_type) in [("o-1", OTHER), ("t-1", TIE), ("n-1", "test.nobody")] {
        let answer = client.post(&with_file(event(id, event_type))).await;
        refused(&answer);
        refused(
            &client
                .create("/v1/runs/stream", &event(id, event_type))
                .await,
        );
        stage
            .client
            .get(&format!("/v1/events/{id}"))
            .await
            .expect(404);
    }
    let sql = "SELECT id FROM artifacts WHERE status = 'ready'";
    let stored = rows(&stage.gateway.database_url(), sql).await;
    assert_eq!(stored.len(), 0, "files of refused events are released");
    let posted = client.post(&message("m-1")).await;
    stage.client.finished(&posted.run_id()).await;
    assert!(client.post(&message("m-1")).await.is_replay());

    let batch = |id: &str, event_type: &str| {
        let data = json!({"input": {"text": "hello"}});
        json!({"specversion": "1.0", "id": id, "source": "/s", "type": event_type, "data": data})
    };
    let batch = json!([batch("1", "message.received"), batch("2", OTHER)]);
    let request = client.request(Method::POST, "/v1/event-batches");
    let request = request.header(CONTENT_TYPE, "application/cloudevents-batch+json");
    let answer = send(request.body(batch.to_string())).await.unwrap();
    assert_eq!(answer.status, 207, "{}", answer.body);
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<_> = items.iter().map(|item| item["status"].clone()).collect();
    assert_eq!(statuses, [json!(202), json!(403)]);

    let to_other = restricted_to(&stage, &json!(["other"])).await;
    for (path, id) in [("", 1), ("/stream", 2)] {
        let path = format!("/v1/adapters/pipeline/queries{path}");
        to_other.create(&path, &query(id)).await.expect(403);
    }
}

#[rstest]
#[tokio::test]
async fn replays_and_retries_stay_within_the_restriction(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine).await);
    let client = restricted_to(&stage, &json!(["main"])).await;
    for (id, event_type) in [("o-1", OTHER), ("n-1", "test.nobody")] {
        let event = event(id, event_type);
        assert_eq!(stage.client.post(&event).await.status, 202);
        let answer = client.post(&event).await;
        answer.assert_detail(403, "reason", "key_agents");
        assert!(stage.client.post(&event).await.is_replay());
    }
    let upload = stage
        .client
        .request(Method::POST, "/v1/artifacts")
        .body("bytes");
    let upload = send(upload).await.unwrap().body["artifact_id"].clone();
    let upload = upload.as_str().unwrap();
    client
        .get(&format!("/v1/artifacts/{upload}"))
        .await
        .expect(404);
    let mut with_upload = message("m-1");
    with_upload["input"]["attachments"] = json!([{"url": format!("artifact:{upload}")}]);
    let answer = client.post(&with_upload).await;
    answer.assert_detail(400, "pointer", "/input/attachments/0/url");

    let run = HeldRun::start_as(&stage, &client, &message("m-2")).await;
    assert_eq!(client.cancel(&run.run_id).await.status, 202);
    run.release();
    stage.client.finished(&run.run_id).await;
    let mut successor = Agent {
        name: "successor",
        ..Agent::default()
    }
    .spec();
    successor["priority"] = json!(10);
    stage
        .admin
        .create("/v1/agents", &successor)
        .await
        .expect(201);
    let retry = format!("/v1/runs/{}/retry", run.run_id);
    client.create(&retry, &json!({})).await.expect(403);
    assert_eq!(stage.client.create(&retry, &json!({})).await.status, 202);
    // The new run is that of another agent.
    client.create(&retry, &json!({})).await.expect(403);
}

#[tokio::test]
async fn keys_name_their_agents_by_name_or_id() {
    let stage = or_skip!(stage(Sqlite).await);
    let (main, other) = (
        agent_id(&stage, "main").await,
        agent_id(&stage, "other").await,
    );
    let made = create_key(&stage, &json!(["main", other, main])).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_eq!(made.body["agents"], json!([main, other]));
    let path = format!("/v1/api-keys/{}", made.body["id"].as_str().unwrap());
    assert_members!(stage.admin.get(&path).await.body, {"agents": json!([main, other])});
    for (spec, pointer) in [
        (json!({"role": "client", "agents": []}), "/agents"),
        (json!({"role": "admin", "agents": ["main"]}), "/agents"),
        (
            json!({"role": "client", "agents": ["main", "absent"]}),
            "/agents/1",
        ),
        (json!({"role": "client", "agents": "main"}), "/agents"),
        (
            json!({"role": "client", "agents": vec!["main"; 17]}),
            "/agents",
        ),
    ] {
        let mut spec = spec;
        spec["name"] = json!("x");
        let answer = stage.admin.create("/v1/api-keys", &spec).await;
        assert_eq!(answer.status, 400, "{spec}: {}", answer.body);
        assert_eq!(answer.detail("pointer"), pointer, "{spec}");
    }
    let create = ["token", "create", "--name", "x", "--json", "--role"];
    for (arguments, fault) in [
        (
            &["client", "--agent", "main", "--agent", other.as_str()][..],
            None,
        ),
        (&["client", "--agent", "absent"], Some("runnel agents list")),
        (&["admin", "--agent", "main"], Some("--agent")),
    ] {
        let printed = stage
            .gateway
            .command(&[&create[..], arguments].concat())
            .await;
        match fault {
            None => {
                let made = printed.json();
                assert_eq!(made["agents"], json!([main, other]));
                let listed = stage.gateway.command(&["token", "list"]).await;
                let is_shown = |row: &str| {
                    let columns: Vec<_> = row.split_whitespace().collect();
                    made["id"] == columns[0] && columns[3] == "2"
                };
                assert!(listed.stdout.lines().any(is_shown), "{listed:?}");
            }
            Some(fault) => {
                assert_eq!(printed.status.code(), Some(1), "{printed:?}");
                let output = printed.stdout + &printed.stderr;
                assert!(output.contains(fault), "{output}");
            }
        }
    }
}
