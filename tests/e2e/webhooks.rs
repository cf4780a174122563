//! Webhooks: messages about runs, their signatures, faults of receivers, and the messages of the feed.

#[path = "webhooks/api.rs"]
mod api;
#[path = "webhooks/crashes.rs"]
mod crashes;
#[path = "webhooks/faults.rs"]
mod faults;
#[path = "webhooks/feed.rs"]
mod feed;
#[path = "webhooks/libraries.rs"]
mod libraries;

use std::collections::BTreeMap;

use chrono::Utc;
use reqwest::Method;
use rstest::rstest;
use runner_kit::signature::SigningSecret;
use serde_json::{Value, json};

use crate::interactions::{ask, asking_event, question};
use crate::support::client::{Client, message};
use crate::support::database::{change_rows, rows};
use crate::support::gateway::{Agent, Config};
use crate::support::receiver::{ReceivedMessage, Receiver};
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

const WEBHOOKS: &str = "/v1/webhooks";
const OTHER: &str = "test.other";

fn two_agents(config: &mut Config) {
    config.agents.push(Agent {
        name: "other",
        event_types: OTHER,
        ..Agent::default()
    });
}

/// A stage of its own whose runner answers all runs.
async fn stage_of(engine: Engine) -> Option<OwnStage> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, two_agents).await
}

/// Creates a webhook for the receiver, with further members of its specification.
async fn create(admin: &Client, receiver: &Receiver, more: &Value) -> Value {
    let mut spec = json!({"name": "hook", "url": receiver.url, "events": ["run.completed"]});
    let more = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(more);
    admin.create(WEBHOOKS, &spec).await.expect(201).body
}

fn path_of(webhook: &Value) -> String {
    format!("{WEBHOOKS}/{}", webhook["id"].as_str().unwrap())
}

async fn deliveries(admin: &Client, webhook: &Value) -> Vec<Value> {
    let path = format!("{}/deliveries?limit=100", path_of(webhook));
    let page = admin.get(&path).await.expect(200).body;
    page["items"].as_array().unwrap().clone()
}

/// Statuses of the deliveries, oldest first.
async fn statuses(admin: &Client, webhook: &Value) -> Vec<String> {
    let found = deliveries(admin, webhook).await;
    let statuses = found.iter().rev();
    statuses
        .map(|one| one["status"].as_str().unwrap().to_owned())
        .collect()
}

/// Makes all waits of deliveries that are not being tried end now. Callers repeat it.
async fn end_waits(database: &str) {
    let now = Utc::now().timestamp_millis();
    // A try in progress has a lease of a minute.
    let due = format!(
        "UPDATE webhook_deliveries SET due_at = 0 WHERE status = 'pending' AND last_error IS NOT NULL \
         AND due_at NOT BETWEEN {} AND {}",
        now + 40_000,
        now + 61_000
    );
    change_rows(database, &due).await;
    change_rows(database, "UPDATE webhooks SET open_until = 0").await;
}

/// Posts an event for the agent `main`, and returns its ended run.
async fn run_of(stage: &Stage, event_id: &str) -> String {
    let run_id = stage.client.post(&message(event_id)).await.run_id();
    stage.client.finished(&run_id).await;
    run_id
}

/// True if the secret signed the request.
fn is_signed_by(received: &ReceivedMessage, secret: &str) -> bool {
    let secret: SigningSecret = secret.parse().unwrap();
    let headers = &received.headers;
    let (id, at) = (&headers["webhook-id"], &headers["webhook-timestamp"]);
    let expected = secret.sign(id, at.parse().unwrap(), received.text.as_bytes());
    let signatures = headers["webhook-signature"].split(' ');
    signatures.into_iter().any(|one| one == expected)
}

#[rstest]
#[tokio::test]
async fn delivers_selected_messages_in_both_forms(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let (thin, full) = (Receiver::start().await, Receiver::start().await);
    let (failed, other) = (Receiver::start().await, Receiver::start().await);
    let hook = create(&stage.admin, &thin, &json!({})).await;
    let more =
        json!({"name": "full", "payload": "full", "events": ["run.completed", "run.failed"]});
    create(&stage.admin, &full, &more).await;
    let more = json!({"name": "failed", "events": ["run.failed", "run.cancelled"]});
    create(&stage.admin, &failed, &more).await;
    let more = json!({"name": "other", "agents": ["other"]});
    create(&stage.admin, &other, &more).await;

    let run_id = run_of(&stage, "m-1").await;
    let message = &thin.wait_for(1).await[0];
    let run = stage.client.run(&run_id).await;
    let id = message.headers["webhook-id"].clone();
    let created_at = message.body["created_at"].as_i64().unwrap();
    assert!((created_at - Utc::now().timestamp()).abs() < 60);
    assert_eq!(
        message.body,
        json!({
            "id": id, "type": "run.completed", "created_at": created_at, "workspace_id": "default",
            "run_id": run_id, "agent_id": run["agent_id"],
        })
    );
    assert!(is_signed_by(message, hook["secret"].as_str().unwrap()));
    let complete = &full.wait_for(1).await[0];
    assert_eq!(complete.headers["webhook-id"], id);
    assert_eq!(complete.body["run"]["run_id"], run["run_id"]);
    assert_eq!(complete.body["run"]["output"], run["output"]);
    assert_eq!(complete.body["run"]["agent_name"], "main");

    stage.runner.answer("m-2", |run| sse(run.failed(1)));
    run_of(&stage, "m-2").await;
    assert_eq!(failed.wait_for(1).await[0].kind(), "run.failed");
    let mut event = crate::support::client::message("m-3");
    event["event_type"] = json!(OTHER);
    let third = stage.client.post(&event).await.run_id();
    assert_eq!(other.wait_for(1).await[0].body["run_id"], third.as_str());
    thin.wait_for(2).await;
    until("all deliveries", async || {
        statuses(&stage.admin, &hook).await == ["delivered", "delivered"]
    })
    .await;
    assert_eq!(thin.kinds(), ["run.completed", "run.completed"]);
    assert_eq!(failed.kinds(), ["run.failed"]);
    assert_eq!(full.wait_for(3).await.len(), 3);
    assert_eq!(other.received().len(), 1);
}

#[rstest]
#[tokio::test]
async fn questions_of_a_run_precede_its_end(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(crate::interactions::stage(engine).await);
    let receiver = Receiver::start().await;
    let more = json!({"events": ["run.waiting", "interaction.requested", "run.completed"]});
    create(&stage.admin, &receiver, &more).await;
    // The first message fails, and the others of the run wait for it.
    receiver.react([crate::support::receiver::Reaction::Status(500)]);
    let question = question("q", &json!({"await": true}));
    let run_id = ask(&stage, &asking_event("m-1"), &[question]).await;
    stage.client.finished(&run_id).await;
    let open = stage.client.get("/v1/interactions").await.body;
    let received = receiver.wait_for(4).await;
    let kinds: Vec<_> = received.iter().map(ReceivedMessage::kind).collect();
    let first = "interaction.requested";
    assert_eq!(kinds, [first, first, "run.waiting", "run.completed"]);
    for message in &received[..3] {
        assert_eq!(message.body["interaction_id"], open["items"][0]["id"]);
    }
    assert_eq!(
        received[0].headers["webhook-id"],
        received[1].headers["webhook-id"]
    );
    assert!(
        received
            .iter()
            .all(|one| one.body["run_id"] == run_id.as_str())
    );
}

#[rstest]
#[tokio::test]
async fn both_secrets_sign_for_a_day_after_rotation(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    let path = path_of(&hook);
    let rotate = format!("{path}/rotate-secret");
    let rotated = stage
        .admin
        .create(&rotate, &json!({}))
        .await
        .expect(200)
        .body;
    let (old, new) = (&hook["secret"], &rotated["secret"]);
    assert!(old != new && new.is_string());
    let until = rotated["previous_secret_until"].as_i64().unwrap();
    assert!((until - Utc::now().timestamp() - 24 * 3600).abs() < 60);
    run_of(&stage, "m-1").await;
    let received = receiver.wait_for(1).await[0].clone();
    for secret in [old, new] {
        assert!(is_signed_by(&received, secret.as_str().unwrap()));
    }
    let database = stage.gateway.database_url();
    rows(&database, "UPDATE webhooks SET previous_until = 1").await;
    run_of(&stage, "m-2").await;
    let received = receiver.wait_for(2).await[1].clone();
    assert!(is_signed_by(&received, new.as_str().unwrap()));
    assert!(!is_signed_by(&received, old.as_str().unwrap()));
    let read = stage.admin.get(&path).await.expect(200).body;
    assert_eq!(
        (&read["secret"], &read["previous_secret_until"]),
        (&Value::Null, &Value::Null)
    );

    let stored = rows(&database, "SELECT secret || previous_secret FROM webhooks").await;
    for secret in [old, new] {
        let secret = secret.as_str().unwrap();
        assert_lacks!(stage.gateway.log(), secret);
        assert_lacks!(stored.concat(), secret);
    }
}

#[rstest]
#[tokio::test]
async fn lost_endpoint_is_one_message(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let more = json!({"events": ["endpoint.unhealthy"]});
    create(&stage.admin, &receiver, &more).await;
    let endpoint = json!({
        "name": "gone", "base_url": format!("http://{}", crate::support::gateway::unused_loopback_address()),
        "secret": crate::support::runner::SECRET,
    });
    let made = stage.admin.create("/v1/runner-endpoints", &endpoint).await;
    let made = made.expect(201).body;
    let received = receiver.wait_for(1).await;
    assert_eq!(received[0].kind(), "endpoint.unhealthy");
    assert_eq!(received[0].body["endpoint_id"], made["id"]);
    // It is unhealthy already.
    let refresh = format!(
        "/v1/runner-endpoints/{}/refresh",
        made["id"].as_str().unwrap()
    );
    stage.admin.create(&refresh, &json!({})).await.expect(200);
    let count = "SELECT CAST(COUNT(*) AS TEXT) FROM webhook_messages";
    assert_eq!(rows(&stage.gateway.database_url(), count).await, ["1"]);
}

#[rstest]
#[tokio::test]
async fn no_row_is_written_without_a_matching_webhook(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({"agents": ["other"]})).await;
    run_of(&stage, "m-1").await;
    let path = path_of(&hook);
    let disabled =
        json!({"name": "hook", "url": receiver.url, "events": ["run.completed"], "enabled": false});
    stage
        .admin
        .call(Method::PUT, &path, &disabled)
        .await
        .expect(200);
    run_of(&stage, "m-2").await;
    stage.admin.delete(&path).await.expect(204);
    run_of(&stage, "m-3").await;
    let database = stage.gateway.database_url();
    let count = "SELECT CAST(COUNT(*) AS TEXT) FROM webhook_messages";
    assert_eq!(rows(&database, count).await, ["0"]);
    assert!(receiver.received().is_empty());
}

/// The messages of each run.
fn by_run(received: &[ReceivedMessage]) -> BTreeMap<String, usize> {
    let mut runs = BTreeMap::new();
    for message in received {
        let run = message.body["run_id"].as_str().unwrap().to_owned();
        *runs.entry(run).or_default() += 1;
    }
    runs
}
