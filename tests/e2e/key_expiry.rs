//! Expiry and last use of API keys, and the runs of a key.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::database::rows;
use crate::support::held::HeldRun;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const HOUR: i64 = 3_600;

/// Epoch seconds of the gateway, taken from the creation of a key.
fn created_at(key: &Value) -> i64 {
    key["created_at"].as_i64().unwrap()
}

async fn create_key(admin: &Client, expires_at: Value) -> Value {
    let spec = json!({"name": "short-lived", "role": "client", "expires_at": expires_at});
    admin.create("/v1/api-keys", &spec).await.expect(201).body
}

async fn set_column(stage: &OwnStage, id: &str, column: &str, value: &str) {
    let sql = format!("UPDATE api_keys SET {column} = {value} WHERE id = '{id}'");
    rows(&stage.gateway.database_url(), &sql).await;
}

async fn key_of(admin: &Client, id: &str) -> Value {
    admin.get(&format!("/v1/api-keys/{id}")).await.body
}

#[rstest]
#[tokio::test]
async fn expired_keys_are_refused_like_unknown_keys(#[values(Sqlite, Postgres)] engine: Engine) {
    let often = "heartbeat_seconds = 0.2";
    let staged = OwnStage::on(engine, |config| often.clone_into(&mut config.server));
    let stage = or_skip!(staged.await);
    let now = created_at(&create_key(&stage.admin, Value::Null).await);
    let made = create_key(&stage.admin, json!(now + HOUR)).await;
    assert_eq!(made["expires_at"], json!(now + HOUR));
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    let client = Client::new(&stage.client.url, key);
    assert_eq!(client.get("/v1/runs").await.status, 200);
    let run = HeldRun::start_as(&stage, &client, &message("m-1")).await;
    let stream = client.follow(&run.run_id, 0).await;
    let link = format!("/v1/runs/{}/stream-link", run.run_id);
    let link = client.call(Method::POST, &link, &json!({})).await.body;

    set_column(&stage, id, "expires_at", "1").await;
    let refused = client.get("/v1/runs").await;
    let unknown = format!("rnl_aaaaaaaa_{}", "A".repeat(43));
    let unknown = Client::new(&stage.client.url, &unknown);
    let unknown = unknown.get("/v1/runs").await;
    assert_eq!((refused.status, unknown.status), (401, 401));
    assert_eq!(refused.body, unknown.body);
    assert_eq!(client.post(&message("late")).await.status, 401);
    assert_eq!(
        stream.rest().await,
        [],
        "the stream ends, the run continues"
    );
    assert_eq!(stage.client.run(&run.run_id).await["status"], "running");
    let path = link["url"].as_str().unwrap().to_owned();
    let path = &path[path.find("/v1/").unwrap()..];
    let opened = stage.client.anonymous(Method::GET, path);
    let opened = send(opened.header("accept", "text/event-stream")).await;
    assert_eq!(opened.unwrap().status, 401);
    run.end(&stage).await;

    let log = stage.gateway.log();
    let line = format!("refused API key {id}");
    let line = log.lines().find(|logged| logged.contains(&line));
    let line = line.unwrap_or_else(|| panic!("no line about the key:\n{log}"));
    assert!(line.contains("expired") && line.contains("short-lived"));
    assert!(!log.contains(key), "a key was logged");
    assert_eq!(key_of(&stage.admin, id).await["revoked_at"], Value::Null);
}

#[rstest]
#[tokio::test]
async fn records_last_use_of_a_key_in_background(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let made = create_key(&stage.admin, Value::Null).await;
    assert_eq!(made["last_used_at"], Value::Null);
    let (id, key) = (made["id"].as_str().unwrap(), made["key"].as_str().unwrap());
    assert_eq!(key_of(&stage.admin, id).await["last_used_at"], Value::Null);
    let client = Client::new(&stage.client.url, key);
    assert_eq!(client.get("/v1/runs").await.status, 200);
    let is_recorded = async || key_of(&stage.admin, id).await["last_used_at"].is_i64();
    until("the first use", is_recorded).await;
    let first = key_of(&stage.admin, id).await["last_used_at"].as_i64();
    assert!(first >= Some(created_at(&made)), "{first:?}");

    // A use less than a minute ago is not written again.
    let recent = format!("{}", (first.unwrap() - 30) * 1000);
    set_column(&stage, id, "last_used_at", &recent).await;
    assert_eq!(client.get("/v1/runs").await.status, 200);
    // The use of another key is written after it, so this one would have been written, too.
    let other = create_key(&stage.admin, Value::Null).await;
    let other_key = Client::new(&stage.client.url, other["key"].as_str().unwrap());
    assert_eq!(other_key.get("/v1/runs").await.status, 200);
    let other = other["id"].as_str().unwrap();
    let is_recorded = async || key_of(&stage.admin, other).await["last_used_at"].is_i64();
    until("the use of the other key", is_recorded).await;
    let unchanged = key_of(&stage.admin, id).await["last_used_at"].as_i64();
    assert_eq!(unchanged, first.map(|at| at - 30));

    let old = format!("{}", (first.unwrap() - 61) * 1000);
    set_column(&stage, id, "last_used_at", &old).await;
    assert_eq!(client.get("/v1/runs").await.status, 200);
    let is_new = async || key_of(&stage.admin, id).await["last_used_at"].as_i64() >= first;
    until("a use after a minute", is_new).await;
    let listed = stage.gateway.command(&["token", "list"]).await;
    let row = listed.stdout.lines().find(|line| line.contains(id));
    let columns: Vec<_> = row.unwrap().split_whitespace().collect();
    let (agents, last_use, expiry) = (columns[3], columns[5], columns[6]);
    assert_eq!((agents, expiry), ("all", "-"), "{listed:?}");
    assert_ne!(last_use, "-", "{listed:?}");
}

#[tokio::test]
async fn token_create_sets_the_expiry() {
    let stage = OwnStage::new().await;
    let create = |life: &'static str| {
        let make = [
            "token", "create", "--role", "client", "--name", "x", "--json",
        ];
        let make: Vec<_> = make.into_iter().chain(["--expires-in", life]).collect();
        let gateway = &stage.gateway;
        async move { gateway.command(&make).await }
    };
    let printed = create("30d").await.exited(0);
    let made = printed.json();
    let shown = key_of(&stage.admin, made["id"].as_str().unwrap()).await;
    assert_eq!(made["expires_at"], shown["expires_at"]);
    let life = shown["expires_at"].as_i64().unwrap() - created_at(&shown);
    assert!(
        (30 * 24 * HOUR - 60..=30 * 24 * HOUR).contains(&life),
        "{life}"
    );
    for (life, status) in [("30", 2), ("0d", 2), ("900000w", 1)] {
        let printed = create(life).await;
        assert_eq!(printed.status.code(), Some(status), "{life} {printed:?}");
        let output = printed.stdout + &printed.stderr;
        assert!(output.contains("--expires-in"), "{output}");
    }
}

#[tokio::test]
async fn expired_admin_key_counts_as_no_admin() {
    let stage = OwnStage::new().await;
    let spec = json!({"name": "second", "role": "admin"});
    let second = stage.admin.create("/v1/api-keys", &spec).await.body;
    let id = second["id"].as_str().unwrap();
    set_column(&stage, id, "expires_at", "1").await;
    let keys = stage.admin.get("/v1/api-keys?limit=100").await.body;
    let prefix = stage.admin.key.split('_').nth(1).unwrap();
    let keys = keys["items"].as_array().unwrap();
    let own = keys.iter().find(|key| key["prefix"] == prefix).unwrap();
    let own = format!("/v1/api-keys/{}", own["id"].as_str().unwrap());
    let refused = stage.admin.delete(&own).await;
    assert_eq!(refused.detail("reason"), "last_admin_key");
    let expired = stage.admin.delete(&format!("/v1/api-keys/{id}")).await;
    assert_eq!(expired.status, 204, "{}", expired.body);
}

#[rstest]
#[tokio::test]
async fn runs_name_the_key_that_posted_their_event(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let made = create_key(&stage.admin, Value::Null).await;
    let client = Client::new(&stage.client.url, made["key"].as_str().unwrap());
    let run = HeldRun::start_as(&stage, &client, &message("m-1")).await;
    assert_eq!(stage.client.run(&run.run_id).await["posted_by"], made["id"]);
    let seen_by_runner = run.get("/run").await;
    assert_eq!(seen_by_runner.status, 200);
    assert_eq!(seen_by_runner.body["posted_by"], Value::Null);
    assert_eq!(client.cancel(&run.run_id).await.status, 202);
    run.release();
    client.finished(&run.run_id).await;
    let retry = format!("/v1/runs/{}/retry", run.run_id);
    let retried = stage.admin.create(&retry, &json!({})).await.expect(202);
    let by = &retried.body["posted_by"];
    assert!(by.is_string() && *by != made["id"], "{}", retried.body);
}
