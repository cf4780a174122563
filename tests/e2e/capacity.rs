//! Limits of a workspace and an endpoint: 429, `Retry-After`, and no leftovers. F93, F94, D14.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, Run, ScriptStep, send as step, sse, sse_and_wait, sse_head};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, number};

/// A message in a separate conversation.
fn in_own_conversation(event_id: &str) -> Value {
    let mut event = message(event_id);
    event["conversation"]["conversation_id"] = json!(format!("of-{event_id}"));
    event
}

#[track_caller]
fn assert_refused(answer: &ApiResponse, reason: &str) {
    answer.assert_error(429, "code", "rate_limited");
    assert_eq!(answer.error("retryable"), true, "{}", answer.body);
    assert_eq!(answer.detail("reason"), reason, "{}", answer.body);
    let wait = answer.headers.get("retry-after").unwrap().to_str().unwrap();
    assert!(wait.parse::<u32>().unwrap() >= 1, "{wait}");
}

#[rstest]
#[tokio::test]
async fn rejects_runs_beyond_workspace_limit_without_leftovers(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let two = |config: &mut Config| config.limits = "workspace_runs = 2".into();
    let stage = or_skip!(Stage::on(engine, two).await);
    let first = HeldRun::start(&stage, &in_own_conversation("m-1")).await;
    let second = HeldRun::start(&stage, &in_own_conversation("m-2")).await;
    for _ in 0..2 {
        let refused = stage.client.post(&in_own_conversation("m-3")).await;
        assert_refused(&refused, "workspace_runs");
        assert_eq!(refused.detail("limit"), 2);
    }
    let replay = stage.client.get("/v1/events/m-3").await;
    assert_ne!(replay.status, 200, "{}", replay.body);

    let again = stage.client.post(&in_own_conversation("m-1")).await;
    assert!(
        again.is_replay(),
        "what was accepted stays accepted: {}",
        again.body
    );
    assert_eq!(again.run_id(), first.run_id);
    let mut malformed = in_own_conversation("m-1");
    malformed["input"]["text"] = json!("something else");
    assert_eq!(stage.client.post(&malformed).await.status, 409);

    second.end(&stage).await;
    // The refused event was not recorded, so a retry starts its run. The run is held until released.
    let third = HeldRun::start(&stage, &in_own_conversation("m-3")).await;
    assert_refused(
        &stage.client.post(&in_own_conversation("m-4")).await,
        "workspace_runs",
    );
    third.end(&stage).await;
    first.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn replicas_together_respect_workspace_run_limit(#[values(3, 7)] limit: usize) {
    let bound = |config: &mut Config| config.limits = format!("workspace_runs = {limit}");
    let stage = or_skip!(OwnStage::on(Postgres, bound).await);
    stage
        .runner
        .answer_all(|run| sse_and_wait(run.delta(1, "a")));
    let replica = stage.gateway.start_replica().await;
    let posts = (0..60).map(|n| {
        let client = if n % 2 == 0 {
            &stage.client
        } else {
            &replica.client
        };
        let event = in_own_conversation(&format!("m-{n}"));
        async move { client.post(&event).await }
    });
    let answers = futures_util::future::join_all(posts).await;
    let taken = answers.iter().filter(|answer| answer.status == 202).count();
    assert_eq!(taken, limit);
    for refused in answers.iter().filter(|answer| answer.status != 202) {
        assert_refused(refused, "workspace_runs");
    }
}

fn second_endpoint(config: &mut Config, url: &str, id: &'static str) {
    config.rest = format!(
        "[[runner_endpoints]]\nname = \"second\"\nbase_url = \"{url}\"\nsecret = \"env:STUB_SECRET\"\n"
    );
    config.agents.push(Agent {
        name: "second",
        event_types: "test.second",
        runner_id: id,
        ..Agent::default()
    });
}

const SECOND: &str = "plugin:test/second/default";

/// An event of another type for the second endpoint.
fn for_second(event_id: &str) -> Value {
    let mut event = in_own_conversation(event_id);
    event["event_type"] = json!("test.second");
    event
}

#[rstest]
#[tokio::test]
async fn full_endpoint_does_not_affect_other_endpoints(#[values(Sqlite, Postgres)] engine: Engine) {
    let second = StubRunner::start_as(manifest(SECOND)).await;
    let stage = Stage::on(engine, |config| {
        config.endpoint = "max_runs = 1".into();
        second_endpoint(config, &second.url, SECOND);
    });
    let Some(stage) = stage.await else { return };
    let held = HeldRun::start(&stage, &in_own_conversation("m-1")).await;
    let refused = stage.client.post(&in_own_conversation("m-2")).await;
    assert_refused(&refused, "endpoint_runs");
    assert_eq!(refused.detail("limit"), 1);
    second.answer_all(|run| sse(run.talk(1).concat()));
    for n in 0..3 {
        let run_id = stage
            .client
            .post(&for_second(&format!("o-{n}")))
            .await
            .run_id();
        stage.outcome(&run_id).await;
    }

    let admin = stage.admin.clone();
    let shown = admin.get("/v1/runner-endpoints").await.body;
    let bounds: Vec<_> = shown["items"].as_array().unwrap().iter().collect();
    let limit_of = |name: &str| {
        let found = bounds.iter().find(|endpoint| endpoint["name"] == name);
        found.unwrap()["max_runs"].clone()
    };
    assert_eq!(
        (limit_of("stub"), limit_of("second")),
        (json!(1), Value::Null)
    );
    held.end(&stage).await;
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    stage
        .client
        .post(&in_own_conversation("m-2"))
        .await
        .run_id();
}

#[tokio::test]
async fn full_workspace_steers_but_neither_enqueues_nor_interrupts() {
    for (policy, status) in [("steer", 202), ("enqueue", 429), ("interrupt", 429)] {
        let mut steering = manifest(RUNNER_ID);
        steering["capabilities"]["steering"] = json!(true);
        let runner = StubRunner::start_as(steering).await;
        let stage = Stage::of(Sqlite, runner, |config| {
            config.limits = "workspace_runs = 1".into();
            config.agents[0].concurrency = policy;
        });
        let stage = stage.await.unwrap();
        let held = HeldRun::start(&stage, &message("m-1")).await;
        let answer = stage.client.post(&message("m-2")).await;
        assert_eq!(answer.status, status, "{policy}: {}", answer.body);
        if status == 202 {
            assert_eq!(answer.body["steered"], true);
            // Unpulled steering messages were accepted, so they start a run despite the limit.
            stage.runner.answer("m-2", |run| sse(run.talk(1).concat()));
            held.end(&stage).await;
            let of_left = |request: &crate::support::runner::RecordedRequest| {
                request.is_run() && request.json()["context"]["event"]["event_id"] == "m-2"
            };
            stage
                .runner
                .wait_for_request("the run of what was left", of_left)
                .await;
        } else {
            assert_refused(&answer, "workspace_runs");
            let ended = held.end(&stage).await;
            assert_eq!(ended.ending(), "completed", "{policy} cancelled nothing");
        }
    }
}

#[tokio::test]
async fn dry_run_reports_limits_and_usage() {
    let stage = Stage::with(|config| {
        config.limits = "workspace_runs = 2".into();
        config.endpoint = "max_runs = 1".into();
    })
    .await;
    let admin = stage.admin.clone();
    let dry = async || {
        admin
            .create("/v1/agents/dry-run", &in_own_conversation("m-2"))
            .await
            .body
    };
    let before = dry().await;
    let admission = &before["agent"]["admission"];
    assert_eq!(before["status"], 202, "{before}");
    assert_eq!(admission["workspace"], json!({"live": 0, "most": 2}));
    assert_eq!(admission["endpoint"], json!({"live": 0, "most": 1}));

    let held = HeldRun::start(&stage, &in_own_conversation("m-1")).await;
    let full = dry().await;
    assert_members!(full, {"status": 429, "outcome": "refused"});
    assert_members!(full["error"]["details"], {"reason": "endpoint_runs"});
    let admission = &full["agent"]["admission"];
    assert_eq!(admission["workspace"], json!({"live": 1, "most": 2}));
    assert_eq!(admission["endpoint"], json!({"live": 1, "most": 1}));
    held.end(&stage).await;
}

#[tokio::test]
async fn batch_stops_at_first_event_over_limit() {
    let stage = Stage::with(|config| config.limits = "workspace_runs = 1".into()).await;
    stage
        .runner
        .answer_all(|run| sse_and_wait(run.delta(1, "a")));
    let event = |id: &str| {
        json!({"specversion": "1.0", "id": id, "source": "s", "type": "message.received",
               "data": {"input": {"text": "hello"}}})
    };
    let batch = json!([event("1"), event("2"), event("3")]);
    let request = stage.client.request(Method::POST, "/v1/events");
    let request = request
        .header("content-type", "application/cloudevents-batch+json")
        .body(batch.to_string());
    let answer = send(request).await.unwrap();
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<_> = items.iter().map(|item| &item["status"]).collect();
    assert_eq!(statuses, [202, 429, 503], "{}", answer.body);
    assert_eq!(answer.status, 207);
}

/// Admin client of another workspace with an agent on the same runner.
async fn other_workspace(stage: &OwnStage) -> Client {
    let spec = json!({"id": "neighbour"});
    let made = stage.gateway.owner().create("/v1/workspaces", &spec).await;
    let key = made.body["api_key"]["key"].as_str().unwrap();
    let admin = Client::new(&stage.client.url, key);
    let endpoint = json!({"name": "stub", "base_url": stage.runner.url,
        "secret": crate::support::runner::SECRET});
    let registered = admin.create("/v1/runner-endpoints", &endpoint).await;
    assert_eq!(registered.status, 201, "{}", registered.body);
    let agent =
        json!({"name": "main", "event_types": ["message.received"], "runner_id": RUNNER_ID});
    admin.create("/v1/agents", &agent).await.expect(201);
    admin
}

#[tokio::test]
async fn flooding_workspace_does_not_affect_other_workspaces() {
    let limits = "workspace_events_per_second = 1\nworkspace_event_burst = 20\nworkspace_runs = 15";
    let stage = OwnStage::with(|config| config.limits = limits.into()).await;
    stage
        .runner
        .answer_all(|run| sse_and_wait(run.delta(1, "a")));
    let other_workspace = other_workspace(&stage).await;
    let flood = (0..200).map(|n| {
        let client = &stage.client;
        async move { client.post(&in_own_conversation(&format!("f-{n}"))).await }
    });
    let calm = async {
        let mut answers = Vec::new();
        for n in 0..10 {
            answers.push(
                other_workspace
                    .post(&in_own_conversation(&format!("f-{n}")))
                    .await,
            );
        }
        answers
    };
    let (flooded, calm) = tokio::join!(futures_util::future::join_all(flood), calm);
    for answer in calm {
        assert_eq!(answer.status, 202, "the neighbour: {}", answer.body);
    }
    let count = |status: u16, reason: &str| {
        let is = |answer: &&ApiResponse| {
            answer.status == status && (status == 202 || answer.detail("reason") == reason)
        };
        flooded.iter().filter(is).count()
    };
    assert_eq!(count(202, ""), 15);
    assert!(count(429, "workspace_events") >= 100);
    assert_eq!(
        15 + count(429, "workspace_events") + count(429, "workspace_runs"),
        200
    );
    let refused = flooded.iter().find(|answer| answer.status == 429).unwrap();
    assert!(refused.headers.contains_key("retry-after"));
}

/// Number of events for one conversation, raised by `RUNNEL_TEST_FLOOD`.
fn flood() -> usize {
    number("RUNNEL_TEST_FLOOD", 130)
}

#[rstest]
#[tokio::test]
async fn flooded_conversation_keeps_order_and_reports_full_queue(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let enqueue = |config: &mut Config| config.agents[0].concurrency = "enqueue";
    let stage = or_skip!(Stage::on(engine, enqueue).await);
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer_all(move |run: &Run| {
        vec![
            sse_head(),
            ScriptStep::Hold(hold.clone()),
            step(run.talk(1).concat()),
        ]
    });
    let mut taken = Vec::new();
    for n in 0..flood() {
        let answer = stage.client.post(&message(&format!("m-{n:04}"))).await;
        if taken.len() > 100 {
            assert_refused(&answer, "queue_full");
        } else {
            taken.push(answer.run_id());
        }
    }
    assert_eq!(taken.len(), 101, "one that runs and a hundred that wait");
    gate.cancel();
    stage.outcome(taken.last().unwrap()).await;
    let requests = stage.runner.requests();
    let order: Vec<_> = requests
        .iter()
        .filter(|request| request.is_run())
        .map(|request| request.header("runnel-run-id").unwrap())
        .collect();
    assert_eq!(order, taken);
}

#[tokio::test]
async fn same_named_conversations_of_workspaces_are_isolated() {
    let mut steerable = manifest(RUNNER_ID);
    steerable["capabilities"]["steering"] = json!(true);
    let runner = StubRunner::start_as(steerable).await;
    let staged = OwnStage::of(Sqlite, runner, |config| {
        config.agents[0].concurrency = "steer";
    });
    let stage = staged.await.unwrap();
    let other_workspace = other_workspace(&stage).await;
    let agents = other_workspace.get("/v1/agents").await.body;
    let agent = agents["items"][0]["id"].as_str().unwrap();
    let mut spec =
        json!({"name": "main", "event_types": ["message.received"], "runner_id": RUNNER_ID});
    spec["concurrency"] = json!("steer");
    let path = format!("/v1/agents/{agent}");
    let changed = other_workspace.call(Method::PUT, &path, &spec).await;
    assert_eq!(changed.status, 200, "{}", changed.body);

    let run = HeldRun::start(&stage, &message("m-1")).await;
    let theirs = other_workspace.post(&message("m-2")).await;
    assert_ne!(theirs.run_id(), run.run_id, "{}", theirs.body);
    assert_eq!(theirs.body["steered"], Value::Null);
    let own = stage.client.post(&message("m-3")).await;
    assert_eq!(
        (own.run_id(), &own.body["steered"]),
        (run.run_id.clone(), &json!(true))
    );
    let pulled = run.call("/steering/pull", &json!({"mode": "all"})).await;
    let pulled = pulled.body["items"].as_array().unwrap().clone();
    assert_eq!(pulled.len(), 1, "{pulled:?}");
    assert_eq!(pulled[0]["event"]["event_id"], "m-3");

    let absent = uuid::Uuid::now_v7().to_string();
    let unknown = other_workspace.cancel(&absent).await;
    let refused = other_workspace.cancel(&run.run_id).await;
    assert_eq!(refused.status, 404);
    assert_eq!(
        refused.body_without(&run.run_id),
        unknown.body_without(&absent)
    );
    let outcome = run.end(&stage).await;
    assert_eq!(outcome.ending(), "completed");
}
