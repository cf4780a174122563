//! Concurrency policies: events of a busy conversation, from the client's and the runner's view.

use std::time::Duration;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, message, stream};
use crate::support::database::rows;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, Run, ScriptStep, send, sse, sse_head};
use crate::support::stream::{Frame, Stream};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

fn one_word(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(1).concat())
}

/// A gateway whose agent has this policy, with a runner that pulls follow-ups.
async fn stage(engine: Engine, policy: &'static str) -> Option<OwnStage> {
    let mut steerable = manifest(RUNNER_ID);
    steerable["capabilities"]["steering"] = json!(true);
    let runner = StubRunner::start_as(steerable).await;
    let configure = |config: &mut Config| {
        config.agents[0].concurrency = policy;
        config.runs = "cancel_grace_seconds = 0.2".into();
    };
    OwnStage::of(engine, runner, configure).await
}

async fn post(stage: &Stage, event_id: &str) -> ApiResponse {
    stage.runner.answer(event_id, one_word);
    stage.client.post(&message(event_id)).await
}

/// The endpoint's runner list lacks the runner for a moment, as after a deployment or an invalid response.
#[tokio::test]
async fn runs_accepted_follow_up_while_runner_is_unlisted() {
    let stage = stage(Sqlite, "steer").await.unwrap();
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let absorbed = post(&stage, "m-2").await;
    assert_eq!(absorbed.body["steered"], true, "{}", absorbed.body);
    stage.runner.list(json!([]));
    let admin = stage.admin.clone();
    let endpoints = admin.get("/v1/runner-endpoints").await.body;
    let id = endpoints["items"][0]["id"].as_str().unwrap();
    let path = format!("/v1/runner-endpoints/{id}/refresh");
    until("the runner to be absent", async || {
        admin.call(Method::POST, &path, &json!({})).await;
        let runners = admin.get("/v1/runners").await.body;
        runners["items"][0]["status"] == "absent"
    })
    .await;
    assert_eq!(post(&stage, "m-3").await.status, 503, "a new one is not");
    first.end(&stage).await;

    until("a run of its own", async || {
        let runs = stage.client.get("/v1/runs").await.body;
        let mut runs = runs["items"].as_array().unwrap().iter();
        runs.any(|run| run["event_id"] == "m-2" && run["status"] == "completed")
    })
    .await;
}

/// The outcome of a steered event in the event log.
async fn steering(stage: &Stage, event_id: &str) -> String {
    let event = stage
        .client
        .get(&format!("/v1/events/{event_id}"))
        .await
        .body;
    let status = &event["metadata"]["steering"]["status"];
    status
        .as_str()
        .unwrap_or_else(|| panic!("{event}"))
        .to_owned()
}

async fn pull(run: &HeldRun, body: &Value) -> Vec<String> {
    let answer = run.call("/steering/pull", body).await.expect(200);
    let items = answer.body["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["event"]["event_id"].as_str().unwrap().to_owned())
        .collect()
}

#[rstest]
#[tokio::test]
async fn enqueued_events_run_sequentially_in_order(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, "enqueue").await);
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let mut waiting = Vec::new();
    for event_id in ["m-2", "m-3"] {
        let answer = post(&stage, event_id).await;
        answer.assert_body(202, "status", "queued");
        waiting.push(answer.run_id());
    }
    for run_id in &waiting {
        assert_eq!(stage.client.run(run_id).await["status"], "queued");
        assert_eq!(stage.runner.posts(run_id), 0, "it waits");
    }
    first
        .end(&stage)
        .await
        .assert("completed", &["message.delta", "run.completed"]);
    for run_id in &waiting {
        let outcome = stage.outcome(run_id).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);
    }
    // The order of the requests: times of runs have a resolution of seconds.
    let requests = stage.runner.requests().into_iter();
    let posted = requests.filter_map(|request| Some(request.header("runnel-run-id")?.to_owned()));
    let posted: Vec<_> = posted.collect();
    assert_eq!(posted[1..], waiting);
}

/// The poll interval exceeds the timeout, so only notifications wake the stream.
#[tokio::test]
async fn notifies_stream_of_queued_run() {
    const TIMEOUT: Duration = Duration::from_secs(30);
    let stage = Stage::with(|config| {
        config.agents[0].concurrency = "enqueue";
        config.bus = "kind = \"none\"\npoll_seconds = 60.0".into();
        config.server = "heartbeat_seconds = 300.0".into();
    })
    .await;
    let first = HeldRun::start(&stage, &message("m-1")).await;
    stage.runner.answer("m-2", one_word);
    let mut waiting = stage.client.post_streaming(&message("m-2")).await;
    let mut cancelled = stage.client.post_streaming(&message("m-3")).await;
    for stream in [&mut waiting, &mut cancelled] {
        stream.frame().await.expect("the name of the run");
    }
    let rest = async |stream: Stream| {
        let rest = tokio::time::timeout(TIMEOUT, stream.rest()).await;
        let kinds = rest.expect("no notification woke it").into_iter();
        kinds.map(|event| event.event).collect::<Vec<_>>()
    };
    stage.client.cancel(&cancelled.run_id()).await;
    assert_eq!(rest(cancelled).await, ["run.failed"]);
    first.release();
    assert_eq!(rest(waiting).await, ["message.delta", "run.completed"]);
}

/// Otherwise it would be retried forever, and later runs of the queue would never start.
#[rstest]
#[tokio::test]
async fn unpreparable_queued_run_fails_at_its_turn(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, "enqueue").await);
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let waiting = post(&stage, "m-2").await.run_id();
    let bend = "UPDATE runners SET status = 'odd' RETURNING runner_id";
    assert!(!rows(&stage.gateway.database_url(), bend).await.is_empty());
    first.end(&stage).await;
    let ended = stage.client.finished(&waiting).await;
    assert_eq!(ended["error"]["code"], "host.internal", "{ended}");
    assert_eq!(stage.runner.posts(&waiting), 0);
}

#[rstest]
#[tokio::test]
async fn interrupting_event_cancels_previous_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, "interrupt").await);
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let answer = post(&stage, "m-2").await;
    answer.assert_body(202, "status", "queued");
    stage
        .outcome(&first.run_id)
        .await
        .assert("cancelled cancelled", &["run.failed"]);
    let by = &stage.client.run(&first.run_id).await["cancelled_by"];
    assert_eq!(*by, json!({"kind": "event", "id": "m-2"}));
    let second = stage.outcome(&answer.run_id()).await;
    second.assert("completed", &["message.delta", "run.completed"]);
}

#[rstest]
#[tokio::test]
async fn active_run_pulls_steered_event_once(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, "steer").await);
    let active = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(
        active.run_request["context"]["context"]["available_apis"]["steering_pull"],
        true
    );
    for event_id in ["m-2", "m-3", "m-4"] {
        let answer = post(&stage, event_id).await;
        answer.assert_body(202, "steered", true);
        assert_eq!(answer.run_id(), active.run_id);
    }
    let replay = post(&stage, "m-2").await;
    assert!(replay.is_replay());
    assert_eq!(replay.run_id(), active.run_id);
    assert_eq!(
        pull(&active, &json!({"mode": "one-at-a-time"})).await,
        ["m-2"]
    );
    for (event_id, status) in [("m-2", "injected"), ("m-3", "queued")] {
        assert_eq!(steering(&stage, event_id).await, status, "{event_id}");
    }
    assert_eq!(pull(&active, &json!({})).await, ["m-3", "m-4"]);
    assert!(pull(&active, &json!({"limit": 5})).await.is_empty());
    let history = stage
        .client
        .get("/v1/conversations/c-7/history?direction=forward")
        .await;
    let messages: Vec<_> = history.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["event_id"])
        .collect();
    assert_eq!(
        messages,
        ["m-1", "m-2", "m-3", "m-4"],
        "follow-ups are part of the conversation"
    );
    active
        .end(&stage)
        .await
        .assert("completed", &["message.delta", "run.completed"]);
    let runs = stage.client.get("/v1/runs").await;
    assert_eq!(
        runs.body["items"].as_array().unwrap().len(),
        1,
        "{}",
        runs.body
    );
}

fn sequences(events: &[Frame]) -> Vec<u64> {
    events.iter().filter_map(|event| event.id).collect()
}

/// Also if the first stream was lost before its first event, and the client posts the event again.
#[rstest]
#[tokio::test]
async fn steered_stream_starts_at_current_run_position(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, "steer").await);
    let gates = [Gate::new(), Gate::new()];
    let held = gates.clone();
    stage.runner.answer("m-1", move |run| {
        vec![
            sse_head(),
            send(run.delta(1, "a") + &run.delta(2, "b")),
            ScriptStep::Hold(held[0].clone()),
            send(run.delta(3, "c")),
            ScriptStep::Hold(held[1].clone()),
            send(run.completed(4)),
        ]
    });
    stage.runner.answer("m-2", one_word);
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.client.follow(&run_id, 0).await.events(2).await;
    let repeat = |event_id: &str, seen: &str| {
        let request = stage.client.posting(&message(event_id));
        stream(request.header("last-event-id", seen))
    };

    // A first response has no last event id.
    let mut first = repeat("m-2", "9").await.unwrap();
    assert_eq!(
        (first.response.status().as_u16(), first.run_id()),
        (200, run_id.clone())
    );
    let mut opening = first.frame().await.unwrap().raw;
    opening += &first.frame().await.unwrap().raw;
    assert_eq!(opening, format!(": run {run_id}\n\nid: 2\n\n"));
    drop(first);
    gates[0].cancel();
    stage.client.follow(&run_id, 2).await.events(1).await;

    let response = stage.client.post(&message("m-2")).await;
    let found = stage.client.get("/v1/events/m-2").await.body;
    assert_eq!(found["run_id"], run_id, "{found}");
    assert!(
        response.is_replay() && response.body["last_sequence"] == 2,
        "{}",
        response.body
    );
    let mut again = stage.client.post_streaming(&message("m-2")).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(sequences(&again.events(1).await), [3]);
    drop(again);
    let behind = repeat("m-2", "3").await.unwrap();
    gates[1].cancel();
    assert_eq!(sequences(&behind.rest().await), [4]);

    for (event_id, seen, left) in [
        ("m-2", "1", vec![3, 4]),
        ("m-1", "0", vec![1, 2, 3, 4]),
        ("m-1", "2", vec![3, 4]),
    ] {
        let left_of = repeat(event_id, seen).await.unwrap().rest().await;
        assert_eq!(sequences(&left_of), left, "{event_id} after {seen}");
    }
    for (seen, status) in [("4", 204), ("9", 400), ("two", 400)] {
        for event_id in ["m-1", "m-2"] {
            let answer = repeat(event_id, seen).await.unwrap();
            assert_eq!(answer.response.status(), status, "{event_id} after {seen}");
        }
    }
}

#[rstest]
#[tokio::test]
async fn unpulled_events_start_their_own_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, "steer").await);
    let active = HeldRun::start(&stage, &message("m-1")).await;
    for event_id in ["m-2", "m-3"] {
        assert_eq!(post(&stage, event_id).await.run_id(), active.run_id);
    }
    active.end(&stage).await;
    let taken_up = |request: &crate::support::runner::RecordedRequest| {
        request.is_run() && request.json()["context"]["event"]["event_id"] == "m-3"
    };
    stage
        .runner
        .wait_for_request("the last one", taken_up)
        .await;
    let runs = stage.client.get("/v1/runs").await;
    let mut events = Vec::new();
    for run in runs.body["items"].as_array().unwrap() {
        events.push(run["event_id"].as_str().unwrap().to_owned());
        let outcome = stage.outcome(run["run_id"].as_str().unwrap()).await;
        outcome.assert("completed", &["message.delta", "run.completed"]);
    }
    events.sort();
    assert_eq!(events, ["m-1", "m-2", "m-3"], "each event has one run");
    assert_eq!(steering(&stage, "m-3").await, "dropped");
    for event_id in ["m-2", "m-3"] {
        let path = format!("/v1/events/{event_id}");
        let event = stage.client.get(&path).await.body;
        let own = stage.client.run(event["run_id"].as_str().unwrap()).await;
        assert_eq!(own["event_id"], event_id, "its answer can be found");
        assert_eq!(event["metadata"]["steering"]["run_id"], event["run_id"]);
        assert_eq!(event["metadata"]["steered_into"], active.run_id);
    }
}

/// Unpulled follow-ups of a cancelled run come before messages posted after the cancel.
#[tokio::test]
async fn new_messages_queue_behind_waiting_ones() {
    let stage = stage(Sqlite, "steer").await.unwrap();
    let active = HeldRun::start(&stage, &message("m-1")).await;
    let absorbed = post(&stage, "m-2").await;
    assert_eq!(absorbed.body["steered"], true, "{}", absorbed.body);
    active.call("/run/cancel", &json!({})).await.expect(200);
    for event_id in ["m-3", "m-4"] {
        let later = post(&stage, event_id).await;
        assert_eq!(later.body["status"], "queued", "{}", later.body);
    }
    until("all of them", async || {
        let runs = stage.client.get("/v1/runs").await.body;
        let runs = runs["items"].as_array().unwrap();
        runs.len() == 4 && runs.iter().all(|run| run["finished_at"].is_i64())
    })
    .await;
    let requests = stage.runner.requests();
    let runs = requests.iter().filter(|request| request.is_run());
    let order: Vec<_> = runs
        .map(|run| run.json()["context"]["event"]["event_id"].clone())
        .collect();
    assert_eq!(order, ["m-1", "m-2", "m-3", "m-4"]);
}

#[tokio::test]
async fn runner_without_steering_gets_run_per_event() {
    let stage = Stage::with(|config| config.agents[0].concurrency = "steer").await;
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let second = post(&stage, "m-2").await;
    assert_ne!(second.run_id(), first.run_id);
    assert_eq!(second.body["steered"], Value::Null);
    let refused = first.call("/steering/pull", &json!({})).await;
    refused.assert_error(403, "code", "unauthorized");
    stage.outcome(&second.run_id()).await;
    first.end(&stage).await;
}

#[tokio::test]
async fn cancelled_queued_run_is_never_posted() {
    let stage = stage(Sqlite, "enqueue").await.unwrap();
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let (second, third) = (
        post(&stage, "m-2").await.run_id(),
        post(&stage, "m-3").await.run_id(),
    );
    let cancelled = stage.client.cancel(&second).await;
    cancelled.assert_body(200, "status", "cancelled");
    stage
        .outcome(&second)
        .await
        .assert("cancelled cancelled", &["run.failed"]);
    first.end(&stage).await;
    stage
        .outcome(&third)
        .await
        .assert("completed", &["message.delta", "run.completed"]);
    assert_eq!(stage.runner.posts(&second), 0);
}

#[tokio::test]
async fn limits_queue_to_100_runs() {
    let stage = stage(Sqlite, "enqueue").await.unwrap();
    let _first = HeldRun::start(&stage, &message("m-0")).await;
    for number in 1..=100 {
        assert_members!(post(&stage, &format!("m-{number}")).await.body, {"status": "queued"});
    }
    let refused = post(&stage, "m-101").await;
    refused.assert_detail(429, "reason", "queue_full");
    assert_eq!(
        (refused.error("code"), refused.error("retryable")),
        (&json!("rate_limited"), &json!(true))
    );
    assert!(refused.headers.contains_key("retry-after"));
}
