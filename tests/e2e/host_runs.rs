//! Runs in the host API: a run's view of itself and of other runs in its scope.

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::message;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

const OTHER: &str = "plugin:test/other/default";

async fn stage(engine: Engine) -> Option<OwnStage> {
    let runner = StubRunner::start_listing(json!([manifest(RUNNER_ID), manifest(OTHER)])).await;
    runner.answer_all(|run| sse(run.talk(4).concat()));
    OwnStage::of(engine, runner, |config: &mut Config| {
        config.agents.push(Agent {
            name: "other",
            event_types: "test.other",
            runner_id: OTHER,
            ..Agent::default()
        });
    })
    .await
}

async fn finished(stage: &Stage, event: &Value) -> String {
    let run_id = stage.client.post(event).await.run_id();
    stage.client.finished(&run_id).await;
    run_id
}

fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    items
        .iter()
        .map(|run| run["run_id"].as_str().unwrap().to_owned())
        .collect()
}

/// Runs in the scope of a run, oldest first, and runs outside of it.
async fn neighbours(stage: &Stage) -> (Vec<String>, Vec<String>) {
    let mut near = Vec::new();
    for n in 0..4 {
        near.push(finished(stage, &message(&format!("near-{n}"))).await);
    }
    let mut far = Vec::new();
    for (event_id, member, value) in [
        ("far-1", "/conversation/conversation_id", json!("c-8")),
        ("far-2", "/conversation/thread_id", json!("t-1")),
        ("far-3", "/bot_id", json!("b-1")),
        ("far-4", "/event_type", json!("test.other")),
    ] {
        let mut event = message(event_id);
        event["conversation"]["thread_id"] = Value::Null;
        event["bot_id"] = Value::Null;
        *event.pointer_mut(member).unwrap() = value;
        far.push(finished(stage, &event).await);
    }
    (near, far)
}

#[rstest]
#[tokio::test]
async fn run_sees_only_runs_of_its_scope(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let (mut near, far) = neighbours(&stage).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    near.push(run.run_id.clone());

    let all = run.get("/runs?direction=forward").await.expect(200);
    assert_eq!(ids(&all.body), near);
    assert_eq!(all.body["total_count"], near.len());
    let done = run.get("/runs?statuses=completed&limit=1").await.body;
    assert_eq!(ids(&done), [near[3].clone()]);
    assert_eq!(done["total_count"], 4);

    for id in &near {
        let found = run.get(&format!("/runs/{id}")).await;
        assert_eq!((found.status, &found.body["run_id"]), (200, &json!(id)));
    }
    for id in far
        .iter()
        .map(String::as_str)
        .chain(["01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61"])
    {
        for path in [format!("/runs/{id}"), format!("/runs/{id}/events")] {
            let hidden = run.get(&path).await;
            assert_eq!(hidden.status, 404, "{path}: {}", hidden.body);
        }
        let hidden = run.call(&format!("/runs/{id}/cancel"), &json!({})).await;
        assert_eq!(hidden.status, 404, "{}", hidden.body);
    }
    assert_eq!(run.get("/runs?conversation_id=c-8").await.status, 403);
    assert_eq!(run.get("/runs?conversation_id=c-7").await.status, 200);
    run.end(&stage).await;
}

#[tokio::test]
async fn pages_runs_in_both_directions() {
    let stage = stage(Sqlite).await.unwrap();
    let (mut expected, _) = neighbours(&stage).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    expected.push(run.run_id.clone());
    for (direction, parameter) in [("forward", "after_cursor"), ("backward", "before_cursor")] {
        let mut seen = Vec::new();
        let mut path = format!("/runs?limit=2&direction={direction}");
        loop {
            let page = run.get(&path).await.body;
            seen.extend(ids(&page));
            let Some(cursor) = page["next_cursor"].as_str() else {
                break;
            };
            path = format!("/runs?limit=2&direction={direction}&{parameter}={cursor}");
        }
        assert_eq!(seen, expected, "{direction}");
        expected.reverse();
    }
    // Between two bounds, and with an invalid cursor.
    let all = run.get("/runs?limit=1&direction=forward").await.body;
    let first = all["next_cursor"].as_str().unwrap();
    let newest = run.get("/runs?limit=1").await.body;
    let last = newest["next_cursor"].as_str().unwrap();
    let between = run
        .get(&format!("/runs?after_cursor={first}&before_cursor={last}"))
        .await
        .body;
    let mut inner = expected[1..expected.len() - 1].to_vec();
    inner.reverse();
    assert_eq!(ids(&between), inner);
    assert_eq!(run.get("/runs?before_cursor=nonsense").await.status, 400);
    run.end(&stage).await;
}

fn sequences(page: &Value) -> Vec<u64> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    items
        .iter()
        .map(|item| item["sequence"].as_u64().unwrap())
        .collect()
}

#[rstest]
#[tokio::test]
async fn reads_ledger_in_both_directions(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let before = finished(&stage, &message("near")).await;
    let ledger = stage.client.ledger(&before).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (query, expected, more) in [
        ("", vec![1, 2, 3, 4, 5], false),
        ("?limit=2", vec![1, 2], true),
        ("?after_cursor=2&limit=2", vec![3, 4], true),
        ("?after_cursor=3", vec![4, 5], false),
        ("?before_cursor=3", vec![1, 2], false),
        ("?direction=backward", vec![5, 4, 3, 2, 1], false),
        ("?direction=backward&limit=2", vec![5, 4], true),
        (
            "?direction=backward&before_cursor=4&limit=2",
            vec![3, 2],
            true,
        ),
        (
            "?direction=backward&before_cursor=4&after_cursor=1",
            vec![3, 2],
            false,
        ),
        ("?after_cursor=1&before_cursor=4&limit=1", vec![2], true),
        ("?after_cursor=5", vec![], false),
    ] {
        let page = run.get(&format!("/runs/{before}/events{query}")).await;
        assert_eq!(page.status, 200, "{query}: {}", page.body);
        assert_eq!(sequences(&page.body), expected, "{query}");
        assert_eq!(page.body["has_more"], more, "{query}");
    }
    for past in ["6", "18446744073709551615"] {
        for direction in ["forward", "backward"] {
            let query = format!("after_cursor={past}&direction={direction}");
            let page = run.get(&format!("/runs/{before}/events?{query}")).await;
            assert_eq!(
                (page.status, page.detail("last_sequence")),
                (400, &json!(5))
            );
        }
    }
    let beyond = format!("/runs/{before}/events?before_cursor=9223372036854775808");
    assert_eq!(
        run.get(&beyond).await.status,
        400,
        "no sequence is so large"
    );
    let page = run.get(&format!("/runs/{before}/events")).await.body;
    let streamed: Vec<Value> = ledger
        .0
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(page["items"], json!(streamed));
    assert_eq!(sequences(&run.get("/run/events").await.body), [0_u64; 0]);
    assert_eq!(run.get("/run/events?limit=0").await.status, 400);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn run_cancels_itself_and_runs_in_scope(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let neighbour = HeldRun::start(&stage, &message("m-0")).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let other = format!("/runs/{}/cancel", neighbour.run_id);
    let response = run
        .call(&other, &json!({"reason": "the newer one answers"}))
        .await;
    assert_eq!(response.status, 200, "{}", response.body);
    assert!(response.body["cancel_requested_at"].is_i64());
    let live = neighbour.get("/run").await.body;
    assert_eq!(live["status_reason"], "the newer one answers", "{live}");
    let ended = stage.client.finished(&neighbour.run_id).await;
    assert_eq!(
        (ended["status"].as_str(), ended["status_reason"].as_str()),
        (Some("cancelled"), Some("the newer one answers"))
    );
    // A second cancel is no error, and the first reason remains.
    let again = run.call(&other, &json!({"reason": "late"})).await;
    again.assert_body(200, "status_reason", "the newer one answers");

    for (body, status) in [
        (json!({"reason": ""}), 400),
        (json!({"reason": "x".repeat(501)}), 400),
        (json!({"why": "x"}), 400),
        (json!({}), 200),
        (json!({}), 200),
    ] {
        let answer = run.call("/run/cancel", &body).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
    }
    let ended = stage.client.finished(&run.run_id).await;
    assert_eq!(
        (ended["status"].as_str(), ended["status_reason"].as_str()),
        (Some("cancelled"), Some("cancelled"))
    );
}

#[tokio::test]
async fn ignores_reserved_cancel_reasons() {
    let stage = stage(Sqlite).await.unwrap();
    for (n, reason) in ["host.orphaned", "timeout"].iter().enumerate() {
        let run = HeldRun::start(&stage, &message(&format!("m-{n}"))).await;
        let cancellation = run.call("/run/cancel", &json!({"reason": reason})).await;
        assert_eq!(cancellation.status, 200, "{}", cancellation.body);
        let ended = stage.client.finished(&run.run_id).await;
        assert_eq!(
            (ended["status"].as_str(), ended["status_reason"].as_str()),
            (Some("cancelled"), Some("cancelled"))
        );
    }
}

#[tokio::test]
async fn run_without_conversation_sees_only_itself() {
    let stage = stage(Sqlite).await.unwrap();
    let mut alone = message("m-1");
    alone.as_object_mut().unwrap().remove("conversation");
    let neighbour = finished(&stage, &alone).await;
    alone["event_id"] = json!("m-2");
    let run = HeldRun::start(&stage, &alone).await;
    let apis = &run.run_request["context"]["context"]["available_apis"];
    for (name, open) in [
        ("run_list", false),
        ("run_get", true),
        ("run_events_page", true),
        ("run_cancel", true),
    ] {
        assert_eq!(apis[name], open, "{name}");
    }
    assert_eq!(run.get("/runs").await.status, 403);
    assert_eq!(run.get(&format!("/runs/{neighbour}")).await.status, 404);
    assert_eq!(run.get(&format!("/runs/{}", run.run_id)).await.status, 200);
    run.end(&stage).await;
}
