//! `GET /v1/feed?after=`: the messages for a program without an address.

use std::time::{Duration, Instant};

use rstest::rstest;
use serde_json::{Value, json};

use super::{OTHER, WEBHOOKS, run_of, stage_of};
use crate::support::client::{Client, message};
use crate::support::database::rows;
use crate::support::{Engine, Postgres, Sqlite, until};

async fn page(client: &Client, after: u64, more: &str) -> Value {
    let path = format!("/v1/feed?after={after}{more}");
    client.get(&path).await.expect(200).body
}

/// Run ids of all messages after a position, and the next one. Reads pages of two.
async fn rest(client: &Client, mut after: u64) -> (Vec<String>, u64) {
    let mut runs = Vec::new();
    loop {
        let page = page(client, after, "&limit=2").await;
        let items = page["items"].as_array().unwrap();
        runs.extend(
            items
                .iter()
                .map(|one| one["run_id"].as_str().unwrap().to_owned()),
        );
        after = page["next_after"].as_u64().unwrap();
        if page["has_more"] == false {
            return (runs, after);
        }
    }
}

#[rstest]
#[tokio::test]
async fn stopped_reader_continues_without_a_hole(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage_of(engine).await);
    let spec = json!({"name": "feed", "events": ["run.completed"]});
    let hook = stage.admin.create(WEBHOOKS, &spec).await.expect(201).body;
    assert_eq!(hook["url"], Value::Null);
    let mut runs = Vec::new();
    for number in 0..5 {
        runs.push(run_of(&stage, &format!("m-{number}")).await);
    }
    let mut read = (Vec::new(), 0);
    until("five messages", async || {
        read = rest(&stage.client, 0).await;
        read.0.len() == 5
    })
    .await;
    assert_eq!(read.0, runs);
    let after = read.1;
    // The reader is away, and the gateway restarts.
    for number in 5..8 {
        runs.push(run_of(&stage, &format!("m-{number}")).await);
    }
    stage.gateway.restart().await;
    for number in 8..10 {
        runs.push(run_of(&stage, &format!("m-{number}")).await);
    }
    until("ten messages", async || {
        read = rest(&stage.client, after).await;
        read.0.len() == 5
    })
    .await;
    assert_eq!(read.0, runs[5..]);
    // No delivery is queued without an address.
    let count = "SELECT CAST(COUNT(*) AS TEXT) FROM webhook_deliveries";
    assert_eq!(rows(&stage.gateway.database_url(), count).await, ["0"]);

    let before = Instant::now();
    let empty = page(&stage.client, read.1, "&wait_seconds=1").await;
    assert_eq!(
        empty,
        json!({"items": [], "next_after": read.1, "has_more": false})
    );
    assert!(before.elapsed() >= Duration::from_secs(1));
    let waiting = page(&stage.client, read.1, "&wait_seconds=30");
    let event = message("m-10");
    let posted = stage.client.post(&event);
    let (found, posted) = tokio::join!(waiting, posted);
    assert_eq!(found["items"][0]["run_id"], posted.run_id());
}

#[rstest]
#[tokio::test]
async fn restricted_reader_gets_messages_of_its_agents(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let spec = json!({"name": "feed", "events": ["run.completed"]});
    stage.admin.create(WEBHOOKS, &spec).await.expect(201);
    let key = json!({"name": "one", "role": "client", "agents": ["other"]});
    let key = stage.admin.create("/v1/api-keys", &key).await.body;
    let restricted = Client::new(&stage.client.url, key["key"].as_str().unwrap());
    run_of(&stage, "m-1").await;
    let mut event = message("m-2");
    event["event_type"] = json!(OTHER);
    let own = stage.client.post(&event).await.run_id();
    stage.client.finished(&own).await;
    until("both messages", async || {
        rest(&stage.client, 0).await.0.len() == 2
    })
    .await;
    assert_eq!(rest(&restricted, 0).await.0, [own]);
}

#[rstest]
#[tokio::test]
async fn refuses_positions_outside_of_the_feed(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    for query in [
        "after=1",
        "after=x",
        "limit=5",
        "after=0&limit=0",
        "after=0&wait_seconds=61",
    ] {
        let answer = stage.client.get(&format!("/v1/feed?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
    let database = stage.gateway.database_url();
    rows(
        &database,
        "UPDATE webhook_feed SET position = 9, deleted_through = 7",
    )
    .await;
    let expired = stage.client.get("/v1/feed?after=3").await;
    expired.assert_error(410, "code", "cursor_expired");
    assert_eq!(expired.detail("after"), 7);
    for after in [0, 7, 9] {
        let found = page(&stage.client, after, "").await;
        let path = format!("/v1/feed/messages?after={after}");
        assert_eq!(stage.client.get(&path).await.expect(200).body, found);
    }
}
