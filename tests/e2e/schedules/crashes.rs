//! Schedules of gateways that are killed, and of replicas: each occurrence runs once.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use super::{act, create, occurrences, stage_of};
use crate::support::database::rows;
use crate::support::programs::runnel;
use crate::support::{Engine, Postgres, Sqlite, Stage, run, until};

/// SIGABRT.
const ABORTED: i32 = 6;

/// Steps of a schedule, as the binary lists them.
async fn steps() -> Vec<String> {
    let printed = run(Command::new(runnel()).arg("failpoints")).await;
    let names = printed.stdout.lines().map(str::to_owned);
    let names: Vec<_> = names.filter(|name| name.starts_with("schedule.")).collect();
    assert_eq!(names.len(), 5, "{printed:?}");
    names
}

/// Ends the schedule, and waits until no occurrence is pending.
async fn drain(stage: &Stage, database: &str, schedule: &Value) {
    act(&stage.admin, schedule, "pause").await;
    until("the end of the queue", async || {
        // Tries of killed processes occupy their leases.
        let lapse =
            "UPDATE schedule_occurrences SET free_at = 0 WHERE status = 'pending' AND free_at > 0";
        rows(database, lapse).await;
        let found = occurrences(&stage.admin, schedule).await;
        found.iter().all(|one| one["status"] == "triggered")
    })
    .await;
    until("the ends of all runs", async || {
        let live = "SELECT id FROM runs WHERE finished_at IS NULL";
        rows(database, live).await.is_empty()
    })
    .await;
}

/// Each second from the first to the last has one occurrence, one event and one run.
async fn assert_each_ran_once(stage: &Stage, database: &str, schedule: &Value) {
    let found = occurrences(&stage.admin, schedule).await;
    let first = found[0]["due_at"].as_i64().unwrap();
    for (number, one) in (0..).zip(&found) {
        assert_eq!(one["due_at"], first + number, "{found:?}");
    }
    let id = schedule["id"].as_str().unwrap();
    let runs = format!("SELECT event_id FROM runs WHERE event_id LIKE 'schedule/{id}/%'");
    let runs = rows(database, &runs).await;
    let events: BTreeSet<_> = found
        .iter()
        .map(|one| one["event_id"].as_str().unwrap())
        .collect();
    let with_runs: BTreeSet<_> = runs.iter().map(String::as_str).collect();
    assert_eq!(runs.len(), with_runs.len(), "an occurrence ran twice");
    assert_eq!(with_runs, events);
}

/// Aborts the gateway at each step once, then kills it five times at another moment.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_gateways_run_each_occurrence_once(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage_of(engine).await);
    let schedule = create(&stage.admin, "ticks", &json!({"every": "1s"})).await;
    let database = stage.gateway.database_url();
    for step in steps().await {
        stage.gateway.kill().await;
        let failpoint = format!("{step}=1*return(abort)");
        stage.gateway.start_with_failpoints(&failpoint).await;
        let status = stage.gateway.exited().await;
        assert_eq!(status.signal(), Some(ABORTED), "{step}: {status}");
        let met = format!("failpoint {step}: abort");
        assert!(stage.gateway.log().contains(&met), "{step}");
        stage.gateway.restart().await;
    }
    for kill in 0..5 {
        stage.gateway.kill().await;
        let after = Duration::from_millis(400 + 130 * kill);
        stage.gateway.start_and_kill(after).await;
        stage.gateway.restart().await;
    }
    drain(&stage, &database, &schedule).await;
    assert_each_ran_once(&stage, &database, &schedule).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_run_each_occurrence_once() {
    let stage = or_skip!(stage_of(Postgres).await);
    let mut replica = stage.gateway.start_replica().await;
    let database = stage.gateway.database_url();
    let mut schedules = Vec::new();
    for number in 0..10 {
        let more = json!({"every": "1s"});
        schedules.push(create(&stage.admin, &format!("ticks-{number}"), &more).await);
    }
    for round in 1..=3 {
        until("occurrences of the round", async || {
            let found = occurrences(&stage.admin, &schedules[0]).await;
            found.len() >= 3 * round
        })
        .await;
        replica.kill().await;
        replica.restart().await;
    }
    for schedule in &schedules {
        drain(&stage, &database, schedule).await;
        assert_each_ran_once(&stage, &database, schedule).await;
    }
}
