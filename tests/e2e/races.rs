//! Races: two terminal causes of one run at the same moment. F82, F83, F85, F86, F88. `RUNNEL_TEST_RACES` sets
//! the number of rounds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, ScriptStep, send, sse, sse_head};
use crate::support::stage::VerifiedOutcome;
use crate::support::{Engine, Postgres, Sqlite, Stage, number};

/// Concurrent rounds.
const CONCURRENCY: usize = 16;

/// From this number of rounds on, outcomes must differ.
const MIN_ROUNDS_FOR_SPREAD: usize = 1000;

fn races() -> usize {
    number("RUNNEL_TEST_RACES", 100)
}

/// A delay of 0 to `most` microseconds, fixed per round, so that each side starts first in some rounds.
fn start_delay(round: usize, limit: u64) -> Duration {
    let mixed = (round as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    Duration::from_micros((mixed >> 20) % limit)
}

async fn at(start_delay: Duration) {
    tokio::time::sleep(start_delay).await;
}

fn count(outcomes: Vec<String>) -> BTreeMap<String, usize> {
    let mut counted = BTreeMap::new();
    for outcome in outcomes {
        *counted.entry(outcome).or_default() += 1;
    }
    counted
}

/// Runs all rounds concurrently and prints the counts of their outcomes.
async fn repeat<F: Future<Output = String>>(
    what: &str,
    round: impl Fn(usize) -> F,
) -> BTreeMap<String, usize> {
    let outcomes = stream::iter(0..races()).map(round);
    let outcomes = outcomes.buffer_unordered(CONCURRENCY).collect::<Vec<_>>();
    let counted = count(outcomes.await);
    eprintln!("{what}: {counted:?}");
    counted
}

/// Repeats a race, and demands more than one outcome.
async fn race<F: Future<Output = String>>(what: &str, round: impl Fn(usize) -> F) {
    let counted = repeat(what, round).await;
    // A few rounds on a busy machine may all have one outcome.
    assert!(
        races() < MIN_ROUNDS_FOR_SPREAD || counted.len() > 1,
        "{what}: this was no race"
    );
}

#[track_caller]
fn assert_one_of(outcome: &VerifiedOutcome, endings: &[&str]) {
    let ending = outcome.ending();
    assert!(endings.contains(&ending.as_str()), "{ending}");
}

#[rstest]
#[tokio::test]
async fn completion_races_cancel_with_one_terminal(#[values(Sqlite, Postgres)] engine: Engine) {
    let at_once = |config: &mut Config| config.runs = "cancel_grace_seconds = 0.0".into();
    let stage = or_skip!(Stage::on(engine, at_once).await);
    let stage = &stage;
    race("cancel and completion", |round| async move {
        let gate = Gate::new();
        let hold = gate.clone();
        let run_id = stage
            .start(move |run| {
                let held = ScriptStep::Hold(hold.clone());
                vec![
                    sse_head(),
                    send(run.delta(1, "a")),
                    held,
                    send(run.completed(2)),
                ]
            })
            .await;
        stage.client.follow(&run_id, 0).await.event().await.unwrap();
        let complete = async {
            at(Duration::from_millis(1) + start_delay(round, 20_000)).await;
            gate.cancel();
        };
        let cancel = async {
            at(start_delay(round * 7 + 3, 4000)).await;
            stage.client.cancel(&run_id).await
        };
        let ((), answer) = tokio::join!(complete, cancel);
        let outcome = stage.outcome(&run_id).await;
        assert_one_of(&outcome, &["completed", "cancelled cancelled"]);
        match answer.status {
            200 => assert_eq!(answer.body, outcome.run),
            status => {
                assert_eq!(status, 202, "{}", answer.body);
                assert_eq!(outcome.ending(), "cancelled cancelled");
            }
        }
        let late = stage.client.cancel(&run_id).await;
        assert_eq!((late.status, &late.body), (200, &outcome.run));
        assert_eq!(stage.runner.posts(&run_id), 1);
        format!("{} {}", answer.status, outcome.ending())
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn completion_races_deadline_with_one_terminal(#[values(Sqlite, Postgres)] engine: Engine) {
    let soon = |config: &mut Config| config.agents[0].timeout_seconds = 0.5;
    let stage = or_skip!(Stage::on(engine, soon).await);
    let stage = &stage;
    race("deadline and completion", |round| async move {
        let wait = Duration::from_millis(460) + start_delay(round, 60_000);
        let outcome = stage
            .play(move |run| {
                let pause = ScriptStep::Pace(vec![run.delta(1, "a").into_bytes()], wait);
                vec![sse_head(), pause, send(run.completed(2))]
            })
            .await;
        assert_one_of(&outcome, &["completed", "timeout deadline_exceeded"]);
        outcome.ending()
    })
    .await;
}

#[tokio::test]
async fn cancel_deadline_and_completion_yield_one_terminal() {
    let stage = Stage::with(|config| {
        config.agents[0].timeout_seconds = 0.5;
        config.runs = "cancel_grace_seconds = 0.01".into();
    })
    .await;
    let stage = &stage;
    race("cancel, deadline and completion", |round| async move {
        let wait = Duration::from_millis(470) + start_delay(round, 50_000);
        let run_id = stage
            .start(move |run| {
                let pause = ScriptStep::Pace(vec![run.delta(1, "a").into_bytes()], wait);
                vec![sse_head(), pause, send(run.completed(2))]
            })
            .await;
        at(Duration::from_millis(470) + start_delay(round * 5 + 1, 50_000)).await;
        stage.client.cancel(&run_id).await;
        let outcome = stage.outcome(&run_id).await;
        let endings = [
            "completed",
            "timeout deadline_exceeded",
            "cancelled cancelled",
        ];
        assert_one_of(&outcome, &endings);
        outcome.ending()
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn immediate_cancel_never_posts_run_twice(#[values(Sqlite, Postgres)] engine: Engine) {
    let at_once = |config: &mut Config| config.runs = "cancel_grace_seconds = 0.0".into();
    let stage = or_skip!(Stage::on(engine, at_once).await);
    let stage = &stage;
    // An event's commit dispatches its run, so a cancel may never come first.
    repeat("cancel and dispatch", |round| async move {
        let run_id = stage
            .start(|_| vec![sse_head(), ScriptStep::AwaitClose])
            .await;
        at(start_delay(round, 30_000)).await;
        let answer = stage.client.cancel(&run_id).await;
        assert!(matches!(answer.status, 200 | 202), "{}", answer.body);
        let outcome = stage.outcome(&run_id).await;
        outcome.assert("cancelled cancelled", &["run.failed"]);
        let posts = stage.runner.posts(&run_id);
        assert!(posts <= 1);
        format!("posted {posts} times")
    })
    .await;
}

async fn steering_stage(engine: Engine, policy: &'static str) -> Option<Stage> {
    let mut steerable = manifest(RUNNER_ID);
    steerable["capabilities"]["steering"] = json!(true);
    let runner = StubRunner::start_as(steerable).await;
    Stage::of(engine, runner, |config| {
        config.agents[0].concurrency = policy;
    })
    .await
}

fn in_conversation(event_id: &str, conversation: &str) -> Value {
    let mut event = message(event_id);
    event["conversation"]["conversation_id"] = json!(conversation);
    event
}

#[tokio::test]
async fn run_cancelled_in_queue_is_never_posted() {
    let stage = steering_stage(Sqlite, "enqueue").await.unwrap();
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let second = stage.client.post(&message("m-2")).await.run_id();
    assert_eq!(stage.client.cancel(&second).await.status, 200);
    let outcome = stage.outcome(&second).await;
    outcome.assert("cancelled cancelled", &["run.failed"]);
    first.end(&stage).await;
    assert_eq!(stage.runner.posts(&second), 0);
}

/// The event's arrival, its pull and the run's end happen concurrently, in any order.
#[rstest]
#[tokio::test]
async fn late_follow_up_is_pulled_or_run_once(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(steering_stage(engine, "steer").await);
    let stage = &stage;
    race("follow-up and end", |round| async move {
        let conversation = format!("c-{round}");
        let first = in_conversation(&format!("first-{round}"), &conversation);
        let run = Arc::new(HeldRun::start(stage, &first).await);
        let event_id = format!("follow-{round}");
        stage
            .runner
            .answer(&event_id, |run| sse(run.talk(1).concat()));
        let event = in_conversation(&event_id, &conversation);
        let follow = async {
            at(start_delay(round, 6000)).await;
            stage.client.post(&event).await
        };
        let pull = async {
            at(Duration::from_millis(2) + start_delay(round * 3 + 1, 6000)).await;
            run.call("/steering/pull", &json!({"mode": "all"})).await
        };
        let end = async {
            at(Duration::from_millis(2) + start_delay(round * 5 + 2, 6000)).await;
            run.end(stage).await
        };
        let (followed, pulled, ended) = tokio::join!(follow, pull, end);
        assert_eq!(ended.ending(), "completed");
        assert_eq!(followed.status, 202, "{}", followed.body);
        let was_absorbed = followed.body["run_id"] == run.run_id.as_str();
        let was_pulled = match pulled.status {
            200 => !pulled.body["items"].as_array().unwrap().is_empty(),
            status => {
                assert_eq!(status, 401, "{}", pulled.body);
                false
            }
        };
        let path = format!("/v1/runs?conversation_id={conversation}");
        let runs = stage.client.get(&path).await.body;
        let runs = runs["items"].as_array().unwrap();
        let own: Vec<_> = runs
            .iter()
            .filter(|run| run["event_id"] == event_id.as_str())
            .collect();
        assert_eq!(own.len(), usize::from(!was_pulled), "{runs:?}");
        if let Some(own) = own.first() {
            let own = own["run_id"].as_str().unwrap();
            assert_eq!(stage.outcome(own).await.ending(), "completed");
            assert_eq!(stage.runner.posts(own), 1);
        }
        match (was_absorbed, was_pulled) {
            (true, true) => "pulled",
            (true, false) => "absorbed, dropped, and run by itself",
            (false, false) => "run by itself",
            (false, true) => panic!("it was pulled and never absorbed"),
        }
        .to_owned()
    })
    .await;
}

#[tokio::test]
async fn disconnects_cancelled_runner_after_grace_period() {
    let stage = Stage::with(|config| config.runs = "cancel_grace_seconds = 0.3".into()).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(run.get("/run").await.status, 200);
    let talker = stage
        .start(|run| {
            let words =
                ScriptStep::Repeat(run.delta(1, "a").into_bytes(), Duration::from_millis(5));
            vec![sse_head(), words]
        })
        .await;
    stage.client.follow(&talker, 0).await.event().await.unwrap();
    for run_id in [&run.run_id, &talker] {
        assert_eq!(stage.client.cancel(run_id).await.status, 202);
        let outcome = stage.outcome(run_id).await;
        assert_eq!(outcome.ending(), "cancelled cancelled");
        let [requested_at, finished] =
            ["cancel_requested_at", "finished_at"].map(|member| outcome.run[member].as_i64());
        // In seconds, with tolerance for a busy machine.
        let took = finished.unwrap() - requested_at.unwrap();
        assert!((0..=6).contains(&took), "{}", outcome.run);
    }
    assert_eq!(run.get("/run").await.status, 401);
    // A runner at its gate has not noticed the cancel; a streaming runner was disconnected.
    stage.runner.closed(1).await;
}
