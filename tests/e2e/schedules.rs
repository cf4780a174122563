//! Schedules: due times, manual runs, misfires, overlaps, and what changes them.

#[path = "schedules/api.rs"]
mod api;
#[path = "schedules/crashes.rs"]
mod crashes;
#[path = "schedules/wakes.rs"]
mod wakes;

use chrono::Utc;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::database::rows;
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const SCHEDULES: &str = "/v1/schedules";

/// A stage of its own whose runner answers all runs.
async fn stage_of(engine: Engine) -> Option<OwnStage> {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |_| {}).await
}

/// Creates a schedule of the agent `main`, with further members of its specification.
async fn create(admin: &Client, name: &str, more: &Value) -> Value {
    let mut spec = json!({"name": name, "agent": "main"});
    let more = more.as_object().unwrap().clone();
    spec.as_object_mut().unwrap().extend(more);
    admin.create(SCHEDULES, &spec).await.expect(201).body
}

fn path_of(schedule: &Value) -> String {
    format!("{SCHEDULES}/{}", schedule["id"].as_str().unwrap())
}

/// The occurrences of a schedule, oldest first.
async fn occurrences(admin: &Client, schedule: &Value) -> Vec<Value> {
    let path = format!("{}/occurrences", path_of(schedule));
    let listed = admin.get(&path).await.expect(200).body;
    let mut items = listed["items"].as_array().unwrap().clone();
    items.reverse();
    items
}

async fn act(admin: &Client, schedule: &Value, action: &str) -> Value {
    let path = format!("{}/{action}", path_of(schedule));
    let done = admin.create(&path, &json!({})).await;
    assert!(done.status < 300, "{action}: {}", done.body);
    done.body
}

/// Waits until the schedule has an occurrence of each of these statuses, oldest first, and no other.
async fn until_statuses(admin: &Client, schedule: &Value, expected: &[&str]) -> Vec<Value> {
    let mut found = Vec::new();
    until("the occurrences", async || {
        found = occurrences(admin, schedule).await;
        let statuses: Vec<_> = found.iter().map(|one| one["status"].as_str()).collect();
        let expected: Vec<_> = expected.iter().copied().map(Some).collect();
        statuses == expected
    })
    .await;
    found
}

#[rstest]
#[tokio::test]
async fn each_due_time_starts_a_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let more = json!({"every": "1s", "event": {"input": {"text": "tick"}, "data": {"x": 1}}});
    let schedule = create(&stage.admin, "ticks", &more).await;
    assert_eq!(schedule["next_due"].as_array().unwrap().len(), 5);
    until("three runs", async || {
        let found = occurrences(&stage.admin, &schedule).await;
        let ended = found.iter().filter(|one| one["run_status"] == "completed");
        ended.count() >= 3
    })
    .await;
    let found = occurrences(&stage.admin, &schedule).await;
    let first = found[0]["due_at"].as_i64().unwrap();
    assert_eq!(schedule["next_due"][0], first);
    for (number, one) in (0..).zip(&found) {
        assert_eq!(one["due_at"], first + number, "{found:?}");
        assert_eq!(one["manual"], false);
    }
    let event_id = found[0]["event_id"].as_str().unwrap();
    let prefix = format!("schedule/{}/", schedule["id"].as_str().unwrap());
    assert!(event_id.starts_with(&prefix), "{event_id}");
    let run_id = found[0]["run_id"].as_str().unwrap();
    let request = stage.runner.run_request(run_id).await.json();
    let event = &request["context"]["event"];
    assert_eq!(event["event_type"], "schedule.triggered", "{request}");
    assert_eq!(event["data"]["x"], 1, "{event}");
    assert_members!(event["data"]["schedule"], {"name": "ticks", "due_at": first});
    assert_eq!(request["context"]["input"]["text"], "tick", "{request}");
}

#[rstest]
#[tokio::test]
async fn manual_run_needs_no_due_time(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let schedule = create(
        &stage.admin,
        "yearly",
        &json!({"cron": "0 0 1 1 *", "enabled": false}),
    )
    .await;
    assert_eq!(schedule["next_due"], json!([]));
    let queued = act(&stage.admin, &schedule, "run").await;
    assert_members!(queued, {"status": "pending", "manual": true});
    let found = until_statuses(&stage.admin, &schedule, &["triggered"]).await;
    assert_eq!(found[0]["event_id"], queued["event_id"]);
    let run = found[0]["run_id"].as_str().unwrap();
    assert_eq!(stage.client.finished(run).await["status"], "completed");
}

#[rstest]
#[tokio::test]
async fn paused_schedule_has_no_due_times(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let schedule = create(&stage.admin, "hourly", &json!({"every": "1h"})).await;
    let paused = act(&stage.admin, &schedule, "pause").await;
    assert_eq!(
        (&paused["next_due"], &paused["version"]),
        (&json!([]), &json!(2))
    );
    assert!(paused["paused_at"].is_i64());
    // A due time of the pause is no misfire.
    let shift = "UPDATE schedules SET created_at = created_at - 5400000";
    rows(&stage.gateway.database_url(), shift).await;
    let resumed = act(&stage.admin, &schedule, "resume").await;
    assert_eq!(resumed["paused_at"], Value::Null);
    let next = resumed["next_due"][0].as_i64().unwrap();
    let wait = next - Utc::now().timestamp();
    assert!((1_700..=1_800).contains(&wait), "{resumed}");
    assert_eq!(occurrences(&stage.admin, &schedule).await, [] as [Value; 0]);
}

#[rstest]
#[tokio::test]
async fn misfires_follow_their_policy(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage_of(engine).await);
    let mut schedules = Vec::new();
    for misfire in ["skip", "once", "all"] {
        let more = json!({"every": "1h", "misfire": misfire});
        schedules.push(create(&stage.admin, misfire, &more).await);
    }
    stage.gateway.stop().await;
    // Ten due times passed while no gateway ran, the last one half an hour ago.
    let shift = "UPDATE schedules SET created_at = created_at - 37800000, next_due_at = next_due_at - 37800000";
    rows(&stage.gateway.database_url(), shift).await;
    stage.gateway.restart().await;
    let skipped = until_statuses(&stage.admin, &schedules[0], &["skipped"]).await;
    assert_eq!(skipped[0]["run_id"], Value::Null);
    let once = until_statuses(&stage.admin, &schedules[1], &["triggered"]).await;
    let all = until_statuses(&stage.admin, &schedules[2], &["triggered"; 10]).await;
    // The schedules were created one after the other, and due times count from then.
    let due_at = |occurrence: &Value| occurrence["due_at"].as_i64().unwrap();
    for newest in [&once[0], &all[9]] {
        assert!((due_at(newest) - due_at(&skipped[0])).abs() < 600);
    }
}

#[rstest]
#[tokio::test]
async fn overlap_follows_the_concurrency_of_the_agent(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = OwnStage::of(engine, runner, |config| {
        config.agents[0].concurrency = "reject";
    });
    let stage = or_skip!(stage.await);
    let held = HeldRun::start(&stage, &crate::support::client::message("m-1")).await;
    let conversation = crate::support::client::message("m-1")["conversation"].clone();
    let more = json!({"every": "1h", "event": {"conversation": conversation}});
    let schedule = create(&stage.admin, "hourly", &more).await;
    act(&stage.admin, &schedule, "run").await;
    let failed = until_statuses(&stage.admin, &schedule, &["failed"]).await;
    assert_contains!(failed[0]["reason"].as_str().unwrap(), "is active");
    held.end(&stage).await;
    act(&stage.admin, &schedule, "run").await;
    until_statuses(&stage.admin, &schedule, &["failed", "triggered"]).await;
}

#[rstest]
#[tokio::test]
async fn refusal_by_a_limit_is_tried_again(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = OwnStage::of(engine, runner, |config| {
        config.limits = "workspace_runs = 1".to_owned();
    });
    let stage = or_skip!(stage.await);
    let held = HeldRun::start(&stage, &crate::support::client::message("m-1")).await;
    let schedule = create(&stage.admin, "hourly", &json!({"every": "1h"})).await;
    act(&stage.admin, &schedule, "run").await;
    until("a refused try", async || {
        let found = occurrences(&stage.admin, &schedule).await;
        found[0]["status"] == "pending" && found[0]["reason"].is_string()
    })
    .await;
    held.end(&stage).await;
    until_statuses(&stage.admin, &schedule, &["triggered"]).await;
}

#[rstest]
#[tokio::test]
async fn lists_the_newest_hundred_occurrences(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let schedule = create(&stage.admin, "hourly", &json!({"every": "1h"})).await;
    for _ in 0..105 {
        let path = format!("{}/run", path_of(&schedule));
        until("a free place", async || {
            let queued = stage.admin.create(&path, &json!({})).await;
            assert!([202, 409].contains(&queued.status), "{}", queued.body);
            queued.status == 202
        })
        .await;
    }
    until("the runs", async || {
        let found = occurrences(&stage.admin, &schedule).await;
        found.len() == 100 && found.iter().all(|one| one["status"] == "triggered")
    })
    .await;
    let count = "SELECT CAST(COUNT(*) AS TEXT) FROM events WHERE event_id LIKE 'schedule/%'";
    assert_eq!(rows(&stage.gateway.database_url(), count).await, ["105"]);
    stage.admin.delete(&path_of(&schedule)).await.expect(204);
    let left = "SELECT owner_id FROM schedule_occurrences";
    assert!(rows(&stage.gateway.database_url(), left).await.is_empty());
}
