//! Credentials that lose their rights while a request body is in transit. Each route with a body in the OpenAPI
//! document rejects the request and has no effect.

use futures_util::future::join_all;
use rstest::rstest;
use serde_json::{Value, json};

use super::interactions::{asking_event, question};
use crate::support::client::{ApiResponse, Client, message};
use crate::support::database::rows;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::paused_request::{PausedRequest, RequestParts};
use crate::support::routes::{Face, Operation, operations};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, ScriptStep, send as step, sse_head};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

/// Routes that save a runner's work: they stay open during the grace period of a cancel.
const OPEN_AFTER_CANCEL: [&str; 3] = ["append_results", "cancel_own_run", "put_state"];

const BASES: &str = "[[knowledge_bases]]\nkb_id = \"handbook\"\nkb_name = \"The handbook\"\n";

/// A runner that may upload, store and search.
fn listed() -> Value {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["knowledge_retrieval"] = json!(true);
    manifest["permissions"] = json!({
        "artifacts": ["metadata", "read", "create"], "storage": ["plugin"], "history": ["page", "search"],
        "knowledge_bases": ["list", "retrieve"],
    });
    manifest
}

fn configure(config: &mut Config) {
    config.agents[0].resources = r#"artifacts = ["metadata", "read", "create"], storage = ["plugin"],
        history = ["page", "search"], knowledge_bases = ["handbook"]"#;
    BASES.clone_into(&mut config.rest);
    config.runs = "cancel_grace_seconds = 50".into();
}

async fn stage(engine: Engine) -> Option<OwnStage> {
    stage_with(engine, |_| {}).await
}

async fn stage_with(engine: Engine, change: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let runner = StubRunner::start_as(listed()).await;
    OwnStage::of(engine, runner, |config| {
        configure(config);
        change(config);
    })
    .await
}

/// A valid body of the route, if a short one exists.
fn body_of(operation: &Operation) -> Vec<u8> {
    if operation.body.as_deref() != Some("application/json") {
        return b"some bytes of a file".to_vec();
    }
    let body = match operation.id.as_str() {
        "post_event" => message("late"),
        "create_api_key" => json!({"name": "late", "role": "admin"}),
        "create_agent" => {
            json!({"name": "late", "event_types": ["test.late"], "runner_id": RUNNER_ID})
        }
        "put_state" | "put_checkpoint" => json!({"value": "late"}),
        "cancel_own_run" | "cancel_scope_run" | "cancel_child_run" => json!({"reason": "late"}),
        "start_child_run" => {
            json!({"agent_id": "helper", "input": {"text": "late"}, "idempotency_key": "late"})
        }
        "search_history" | "retrieve_knowledge" | "search_knowledge_base" => {
            json!({"query": "hello"})
        }
        "restore_agent" => json!({"change_id": "01900000-0000-7000-8000-000000000000"}),
        "speak_mcp" | "speak_agent_mcp" => {
            json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        }
        "pull_steering" => json!({"mode": "all"}),
        _ => json!({"late": true}),
    };
    body.to_string().into_bytes()
}

fn path_of(operation: &Operation, run_id: &str) -> String {
    operation.path_with(|name| match name {
        "scope" => "conversation".to_owned(),
        "area" => "plugin".to_owned(),
        "version" => "v1beta".to_owned(),
        "kb_id" => "handbook".to_owned(),
        "run_id" | "agent_id" => run_id.to_owned(),
        // An id that cannot be parsed is answered before the body.
        "approval_id" | "schedule_id" | "source_id" | "webhook_id" => {
            uuid::Uuid::now_v7().to_string()
        }
        _ => "late".to_owned(),
    })
}

async fn paused_request(
    url: &str,
    operation: &Operation,
    credential: Option<&str>,
    path: &str,
    body: &[u8],
) -> PausedRequest {
    let media_type = operation.body.as_deref().unwrap();
    let sent = RequestParts {
        method: &operation.method,
        path,
        credential,
        media_type: if operation.id == "put_document" {
            "text/plain"
        } else {
            media_type
        },
        body,
    };
    PausedRequest::begin(url, &sent).await
}

/// Sends half a request to each route with a body of these APIs.
async fn half_sent_to_all(
    client: &Client,
    url: &str,
    faces: &[Face],
    credential: &str,
    run_id: &str,
) -> Vec<(Operation, PausedRequest)> {
    let mut routes = operations(client).await;
    routes.retain(|route| route.body.is_some() && faces.contains(&route.face));
    let begun = routes.into_iter().map(async |route| {
        let path = path_of(&route, run_id);
        let sent = paused_request(url, &route, Some(credential), &path, &body_of(&route)).await;
        (route, sent)
    });
    join_all(begun).await
}

async fn finished(all: Vec<(Operation, PausedRequest)>) -> Vec<(String, ApiResponse)> {
    let finished = all
        .into_iter()
        .map(async |(route, sent)| (route.id, sent.finish().await));
    join_all(finished).await
}

async fn counts(stage: &OwnStage) -> Vec<String> {
    let tables = [
        "events",
        "runs",
        "api_keys",
        "agents",
        "runner_endpoints",
        "knowledge_documents",
        "state_entries",
        "storage_blobs",
        "artifacts",
    ];
    let database = stage.gateway.database_url();
    let counted = tables.map(async |table| {
        let sql = format!("SELECT '{table} ' || COUNT(*) FROM {table}");
        rows(&database, &sql).await.remove(0)
    });
    join_all(counted).await
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RightsLoss {
    Ended,
    Cancelled,
}

#[rstest]
#[tokio::test]
async fn rejects_late_bodies_of_ended_runs(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values(RightsLoss::Ended, RightsLoss::Cancelled)] loss: RightsLoss,
) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let url = &stage.client.url;
    let all = half_sent_to_all(&stage.client, url, &[Face::Host], &run.token, &run.run_id).await;
    assert!(all.len() >= 15, "{}", all.len());
    match loss {
        RightsLoss::Ended => {
            run.end(&stage).await;
        }
        RightsLoss::Cancelled => assert_eq!(stage.client.cancel(&run.run_id).await.status, 202),
    }
    let before = counts(&stage).await;
    for (id, answer) in finished(all).await {
        let outcome = (answer.status, answer.code().as_str());
        if loss == RightsLoss::Ended {
            assert_eq!(
                outcome,
                (401, Some("unauthenticated")),
                "{id} {}",
                answer.body
            );
        } else if OPEN_AFTER_CANCEL.contains(&id.as_str()) {
            assert!(![401, 403].contains(&answer.status), "{id} {}", answer.body);
            assert_ne!(outcome, (409, Some("cancelled")), "{id} {}", answer.body);
        } else {
            assert_eq!(outcome, (409, Some("cancelled")), "{id} {}", answer.body);
        }
    }
    if loss == RightsLoss::Ended {
        assert_eq!(counts(&stage).await, before);
    } else {
        let stored = before.iter().map(|count| match count.as_str() {
            "state_entries 0" => "state_entries 1".to_owned(),
            _ => count.clone(),
        });
        assert_eq!(counts(&stage).await, stored.collect::<Vec<_>>());
        run.end(&stage).await;
    }
}

#[derive(Clone, Copy, Debug)]
enum ReplicaLoss {
    Ended,
    Cancelled,
    TakenOver,
}

/// The replica that reads the body does not drive the run and gets no notification.
#[rstest]
#[tokio::test]
async fn rejects_late_bodies_on_another_replica(
    #[values(ReplicaLoss::Ended, ReplicaLoss::Cancelled, ReplicaLoss::TakenOver)] loss: ReplicaLoss,
) {
    let stage = stage_with(Postgres, |config| {
        "public_url = \"http://runnel.invalid\"".clone_into(&mut config.server);
        "kind = \"none\"\npoll_seconds = 60.0".clone_into(&mut config.bus);
    });
    let stage = or_skip!(stage.await);
    let replica = stage.gateway.start_replica().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let url = &replica.client.url;
    let all = half_sent_to_all(&stage.client, url, &[Face::Host], &run.token, &run.run_id).await;
    let expected = match loss {
        ReplicaLoss::Ended => {
            run.end(&stage).await;
            (401, Some("unauthenticated"))
        }
        ReplicaLoss::Cancelled => {
            assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
            (409, Some("cancelled"))
        }
        ReplicaLoss::TakenOver => {
            // Written as by another attempt.
            let sql = format!(
                "UPDATE runs SET attempt = attempt + 1 WHERE id = '{}'",
                run.run_id
            );
            rows(&stage.gateway.database_url(), &sql).await;
            (401, Some("unauthenticated"))
        }
    };
    for (id, answer) in finished(all).await {
        if matches!(loss, ReplicaLoss::Cancelled) && OPEN_AFTER_CANCEL.contains(&id.as_str()) {
            continue;
        }
        let outcome = (answer.status, answer.code().as_str());
        assert_eq!(outcome, expected, "{id} {}", answer.body);
    }
    run.release();
}

#[rstest]
#[tokio::test]
async fn rejects_late_bodies_of_revoked_keys(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = stage.admin.clone();
    let made = admin
        .create("/v1/api-keys", &json!({"name": "leaked", "role": "admin"}))
        .await;
    assert_eq!(made.status, 201, "{}", made.body);
    let (key, id) = ["key", "id"]
        .map(|member| made.body[member].as_str().unwrap().to_owned())
        .into();
    let unknown = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";
    let faces = [Face::Client, Face::Admin];
    let url = &stage.client.url;
    let mut all = half_sent_to_all(&stage.client, url, &faces, &key, unknown).await;
    assert!(all.len() >= 10, "{}", all.len());
    let owner = stage.gateway.owner().key;
    all.extend(half_sent_to_all(&stage.client, url, &[Face::Owner], &owner, unknown).await);
    let revoked = admin.delete(&format!("/v1/api-keys/{id}")).await;
    assert_eq!(revoked.status, 204, "{}", revoked.body);
    let revoked = stage.gateway.command(&["token", "revoke", &owner]).await;
    assert!(revoked.status.success(), "{revoked:?}");
    let before = counts(&stage).await;
    for (id, answer) in finished(all).await {
        // JSON-RPC has numbers.
        let code = match id.as_str() {
            "call_a2a_agent" => json!(-32600),
            // `google.rpc.Status` has the status, and AG-UI has an event instead.
            "send_a2a_message" | "stream_a2a_message" => json!(401),
            "run_ag_ui_agent" => Value::Null,
            _ => json!("unauthenticated"),
        };
        let outcome = (answer.status, answer.error("code"));
        assert_eq!(outcome, (401, &code), "{id} {}", answer.body);
    }
    assert_eq!(counts(&stage).await, before);
}

/// A held run with an open interaction. Returns the interaction's id and the gate.
async fn held_question(stage: &Stage) -> (String, String, Gate) {
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer("asks", move |run| {
        let data = json!({"action": "interaction.requested", "payload": question("q", &json!({}))});
        let asking = run.result(1, "action.requested", &data.to_string());
        let end = run.completed(2);
        vec![
            sse_head(),
            step(asking),
            ScriptStep::Hold(hold.clone()),
            step(end),
        ]
    });
    let run_id = stage.client.post(&asking_event("asks")).await.run_id();
    let path = format!("/v1/interactions?run_id={run_id}");
    let mut id = None;
    until("the question", async || {
        let listed = stage.client.get(&path).await.body;
        id = listed["items"][0]["id"].as_str().map(str::to_owned);
        id.is_some()
    })
    .await;
    (run_id, id.unwrap(), gate)
}

async fn link(stage: &Stage, id: &str) -> String {
    let path = format!("/v1/interactions/{id}/link");
    let made = stage.client.create(&path, &json!({})).await.expect(200);
    made.body["token"].as_str().unwrap().to_owned()
}

#[rstest]
#[tokio::test]
async fn rejects_late_answers_for_replaced_links(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(super::interactions::stage(engine).await);
    let (run_id, id, gate) = held_question(&stage).await;
    let mut routes = operations(&stage.client).await;
    routes.retain(|route| route.id.starts_with("submit_interaction"));
    let answer = json!({"interaction_id": "q", "action_id": "book", "values": {"room": "a"}});
    let answer = answer.to_string().into_bytes();
    let begin = async |face: Face, name: &str| {
        let route = routes.iter().find(|route| route.face == face).unwrap();
        let path = route.path_with(|_| name.to_owned());
        let key = (face == Face::Client).then_some(stage.client.key.as_str());
        paused_request(&stage.client.url, route, key, &path, &answer).await
    };

    let replaced = begin(Face::Link, &link(&stage, &id).await).await;
    let current = link(&stage, &id).await;
    let refused = replaced.finish().await.expect(401);
    let message = refused.error("message").as_str().unwrap();
    assert!(message.contains("no open link"), "{message}");

    let late = [
        begin(Face::Link, &current).await,
        begin(Face::Client, &id).await,
    ];
    assert_eq!(stage.client.cancel(&run_id).await.status, 202);
    let before = counts(&stage).await;
    for late in late {
        let refused = late.finish().await;
        refused.assert_detail(410, "reason", "cancelled");
    }
    assert_eq!(counts(&stage).await, before);
    gate.cancel();
}

/// Slow bodies with a valid credential still succeed.
#[tokio::test]
async fn accepts_late_bodies_of_valid_credentials() {
    let stage = stage(Sqlite).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let routes = operations(&stage.client).await;
    let sent = |id: &str| routes.iter().find(|route| route.id == id).unwrap();
    for (id, credential, status) in [
        ("put_state", &run.token, 200),
        ("create_artifact", &run.token, 201),
        ("put_blob", &run.token, 204),
        ("speak_mcp", &run.token, 200),
        ("post_event", &stage.client.key, 202),
    ] {
        let route = sent(id);
        let path = path_of(route, &run.run_id);
        let (url, body) = (&stage.client.url, body_of(route));
        let late = paused_request(url, route, Some(credential), &path, &body);
        let answer = late.await.finish().await;
        assert_eq!(answer.status, status, "{id} {}", answer.body);
    }
    run.end(&stage).await;
}
