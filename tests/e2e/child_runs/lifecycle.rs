//! End of a parent, and later runs that follow child runs of earlier ones.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{PausedRun, after_end, cancelled, completed, hold_children, shows, stage};
use crate::support::client::message;
use crate::support::{Engine, Postgres, Sqlite};

#[rstest]
#[tokio::test]
async fn cancel_reaches_children_and_grandchildren(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let child = parent.child(&stage, "k", &gate).await;
    let grandchild = child.child(&stage, "k", &gate).await;
    assert_eq!(stage.client.cancel(&parent.run_id).await.status, 202);
    assert_eq!(cancelled(&stage, &child.run_id).await, "parent_cancelled");
    let by = &stage.client.run(&child.run_id).await["cancelled_by"];
    assert_eq!(*by, json!({"kind": "run", "id": parent.run_id}));
    let reason = cancelled(&stage, &grandchild.run_id).await;
    assert!(
        reason == "parent_cancelled" || reason == "parent_ended",
        "{reason}"
    );
    cancelled(&stage, &parent.run_id).await;
}

#[rstest]
#[tokio::test]
async fn end_of_parent_cancels_its_children(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let child = parent.child(&stage, "k", &gate).await;
    assert_eq!(parent.end(&stage).await["status"], "completed");
    assert_eq!(cancelled(&stage, &child.run_id).await, "parent_ended");
    let late = after_end(&parent, Method::POST, "/child-runs").await;
    assert_eq!(late.status, 401, "{}", late.body);
    let path = format!("/child-runs/{}", child.run_id);
    assert_eq!(after_end(&parent, Method::GET, &path).await.status, 401);
}

#[rstest]
#[tokio::test]
async fn later_run_follows_children_left_running(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::start(&stage, &message("m-1"), "waiting_child").await;
    let first = parent.child(&stage, "a", &gate).await;
    let second = parent.child(&stage, "b", &gate).await;
    assert_eq!(parent.end(&stage).await["status"], "completed");

    let later = PausedRun::start(&stage, &message("m-2"), "stop").await;
    shows(&later, &first.run_id, "running").await;
    let path = format!("/child-runs/{}/cancel", second.run_id);
    let taken = later.host.create(&path, &json!({"reason": "enough"})).await;
    assert_eq!(taken.status, 200, "{}", taken.body);
    assert_eq!(cancelled(&stage, &second.run_id).await, "enough");
    let (ended, ()) = tokio::join!(later.follow(&first.run_id, 30), async { first.release() });
    assert_eq!(ended.body["status"], "completed", "{}", ended.body);
    assert_eq!(ended.body["parent_run_id"], parent.run_id.as_str());
    later.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn unrelated_runs_see_no_child(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let child = parent.child(&stage, "k", &gate).await;
    let in_other_conversation = {
        let mut event = message("m-2");
        event["conversation"] = json!({"conversation_id": "c-8"});
        event
    };
    let of_other_agent = {
        let mut event = message("m-3");
        event["event_type"] = json!("test.other");
        event
    };
    let without_conversation = {
        let mut event = message("m-4");
        event["conversation"] = Value::Null;
        event
    };
    for event in [in_other_conversation, of_other_agent, without_conversation] {
        let foreign = PausedRun::start(&stage, &event, "stop").await;
        let path = format!("/child-runs/{}", child.run_id);
        let seen = foreign.host.get(&path).await;
        assert_eq!(seen.status, 404, "{event}: {}", seen.body);
        let events = foreign.host.get(&format!("{path}/events")).await;
        assert_eq!(events.status, 404, "{event}");
        let cancel = format!("{path}/cancel");
        let cancel = foreign.host.create(&cancel, &json!({})).await;
        assert_eq!(cancel.status, 404, "{event}");
        // A run without a parent is no child run.
        let path = format!("/child-runs/{}", foreign.run_id);
        assert_eq!(foreign.host.get(&path).await.status, 404);
        foreign.end(&stage).await;
    }
    assert_eq!(child.host.get("/run").await.body["status"], "running");
    child.end(&stage).await;
    parent.end(&stage).await;
}
