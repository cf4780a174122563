//! Wakes: a run wakes its own agent later, in its conversation.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, message};
use crate::support::database::rows;
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const UNREQUESTED: &str = "plugin:runnel/unrequested/default";
const WAKES: &str = r#"history = ["page"], schedules = ["wake"]"#;

/// A stage with a runner that requests wakes, and agents that each lack one layer.
async fn stage(engine: Engine) -> Option<OwnStage> {
    let mut manifests = [manifest(RUNNER_ID), manifest(UNREQUESTED)];
    manifests[0]["permissions"]["schedules"] = json!(["wake"]);
    let runner = StubRunner::start_listing(json!(manifests)).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config| {
        config.agents[0].resources = WAKES;
        for (name, event_types, runner_id, resources) in [
            ("unrequested", "test.unrequested", UNREQUESTED, WAKES),
            (
                "unallowed",
                "test.unallowed",
                RUNNER_ID,
                r#"history = ["page"]"#,
            ),
        ] {
            config.agents.push(Agent {
                name,
                event_types,
                runner_id,
                resources,
                ..Agent::default()
            });
        }
    })
    .await
}

async fn wake(run: &HeldRun, body: &Value) -> ApiResponse {
    run.call("/schedules", body).await
}

/// Events of type `agent.wake`, as envelopes.
async fn wake_events(stage: &OwnStage) -> Vec<Value> {
    let sql = "SELECT envelope FROM events WHERE event_type = 'agent.wake' ORDER BY received_at";
    let found = rows(&stage.gateway.database_url(), sql).await;
    found
        .iter()
        .map(|envelope| serde_json::from_str(envelope).unwrap())
        .collect()
}

#[rstest]
#[tokio::test]
async fn wakes_its_agent_in_the_same_conversation(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let request = json!({"key": "plan", "after_seconds": 1, "data": {"step": 2}});
    let first = wake(&run, &request).await.expect(200).body;
    assert_members!(first, {"key": "plan", "status": "pending"});
    run.end(&stage).await;
    until("the wake", async || wake_events(&stage).await.len() == 1).await;
    let event = &wake_events(&stage).await[0];
    let posted = message("m-1");
    assert_eq!(event["conversation"], posted["conversation"], "{event}");
    assert_members!(event["data"]["wake"], {
        "key": "plan", "run_id": run.run_id, "data": json!({"step": 2}), "at": first["at"],
    });
    assert_eq!(event["input"], Value::Null, "{event}");
    let woken = format!(
        "SELECT id FROM runs WHERE event_id = '{}'",
        first["event_id"].as_str().unwrap()
    );
    let mut ids = Vec::new();
    until("the run", async || {
        ids = rows(&stage.gateway.database_url(), &woken).await;
        !ids.is_empty()
    })
    .await;
    assert_eq!(ids.len(), 1);
    let second = stage.client.finished(&ids[0]).await;
    let first = stage.client.run(&run.run_id).await;
    assert_eq!(second["agent_id"], first["agent_id"]);
}

#[rstest]
#[tokio::test]
async fn key_stands_for_one_wake_of_a_conversation(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let request = json!({"key": "k", "after_seconds": 3600});
    let first = wake(&run, &request).await.expect(200).body;
    assert_eq!(wake(&run, &request).await.expect(200).body, first);
    let other = json!({"key": "k", "after_seconds": 60});
    wake(&run, &other)
        .await
        .assert_detail(409, "reason", "key_mismatch");
    let cancelled = run.delete("/schedules/k").await.expect(200).body;
    assert_members!(cancelled, {"status": "cancelled", "event_id": first["event_id"]});
    run.delete("/schedules/k").await.expect(200);
    run.delete("/schedules/absent").await.expect(404);
    // The key of a cancelled wake is free.
    let again = wake(&run, &other).await.expect(200).body;
    assert_ne!(again["event_id"], first["event_id"]);
    let due = "UPDATE schedule_occurrences SET free_at = 0 WHERE status = 'pending'";
    rows(&stage.gateway.database_url(), due).await;
    until("the wake", async || wake_events(&stage).await.len() == 1).await;
    until("its end", async || {
        let late = run.delete("/schedules/k").await;
        late.assert_detail(409, "reason", "wake_due");
        let again = wake(&run, &other).await.expect(200).body;
        again["status"] == "triggered"
    })
    .await;
    run.end(&stage).await;
    // Another run of the conversation finds the wake by its key.
    let run = HeldRun::start(&stage, &message("m-2")).await;
    let found = wake(&run, &other).await.expect(200).body;
    assert_eq!(found["event_id"], again["event_id"]);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn each_layer_denies_wakes(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let request = json!({"key": "k", "after_seconds": 3600});
    for event_type in ["test.unrequested", "test.unallowed"] {
        let mut event = message(event_type);
        event["event_type"] = json!(event_type);
        let run = HeldRun::start(&stage, &event).await;
        for refused in [wake(&run, &request).await, run.delete("/schedules/k").await] {
            refused.assert_error(403, "code", "unauthorized");
        }
        run.end(&stage).await;
    }
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for bad in [
        json!({"key": "k"}),
        json!({"key": "", "at": 1}),
        json!({"key": "k", "after_seconds": -1}),
    ] {
        wake(&run, &bad).await.expect(400);
    }
    run.end(&stage).await;
    assert_eq!(wake_events(&stage).await, [] as [Value; 0]);
}

#[rstest]
#[tokio::test]
async fn agent_has_a_bounded_number_of_wakes(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let agent = stage.client.run(&run.run_id).await["agent_id"].clone();
    let values: Vec<_> = (0..1000)
        .map(|n| {
            format!(
                "('full-{n}', 9000000000000, 'wake', {agent}, 1, 'pending', 9000000000000, 0, 0)"
            )
        })
        .collect();
    let sql = format!(
        "INSERT INTO schedule_occurrences (owner_id, due_at, kind, agent_id, number, status, free_at, tries, lease_epoch) \
         VALUES {}",
        values.join(", ").replace('"', "'")
    );
    rows(&stage.gateway.database_url(), &sql).await;
    let request = json!({"key": "k", "after_seconds": 3600});
    wake(&run, &request)
        .await
        .assert_detail(409, "reason", "too_many_wakes");
    run.end(&stage).await;
}
