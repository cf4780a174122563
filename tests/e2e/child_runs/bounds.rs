//! Limits of child runs: depth, count, deadline, budgets.

use rstest::rstest;
use serde_json::json;

use super::{PausedRun, completed, hold_children, stage, stage_with};
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{Engine, Postgres, Sqlite, until};

#[rstest]
#[tokio::test]
async fn fourth_level_starts_no_child(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let first = parent.child(&stage, "k", &gate).await;
    let second = first.child(&stage, "k", &gate).await;
    let third = second.child(&stage, "k", &gate).await;
    third.spawn("k", &json!({})).await.expect(403);
    assert_eq!(
        third.run_request["context"]["resources"].get("agents"),
        None
    );
    let path = format!("/v1/runs/{}/authorization", third.run_id);
    let explained = stage.client.get(&path).await.body;
    let decisions = explained["decisions"].as_array().unwrap();
    let decided = decisions.iter().find(|one| one["kind"] == "agent").unwrap();
    assert_eq!(decided["layer"], "parent", "{decided}");
    assert!(decided["rule"].as_str().unwrap().contains("depth 3"));
    gate.cancel();
    parent.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn seventeenth_child_is_refused(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    gate.cancel();
    let parent = PausedRun::parent(&stage).await;
    for n in 0..16 {
        parent.spawn(&format!("k-{n}"), &json!({})).await.run_id();
    }
    let refused = parent.spawn("k-16", &json!({})).await;
    refused.assert_detail(409, "reason", "too_many_child_runs");
    let again = parent.spawn("k-3", &json!({})).await;
    assert_eq!(again.status, 202, "a key that was used is answered");
    parent.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn child_ends_at_parent_deadline(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let deadline = stage.client.run(&parent.run_id).await["deadline_at"].clone();
    let long = parent
        .spawn("long", &json!({"deadline_seconds": 9000}))
        .await;
    assert!(long.body["deadline_at"].as_i64() <= deadline.as_i64());
    let short = parent.spawn("short", &json!({"deadline_seconds": 1})).await;
    let ended = parent.follow(&short.run_id(), 30).await.body;
    assert_eq!(ended["status"], "timeout", "{ended}");
    assert_eq!(ended["error"]["code"], "deadline_exceeded");
    gate.cancel();
    parent.end(&stage).await;
}

#[rstest]
#[case::run("scope = \"run\"")]
#[case::agent("scope = \"agent\"\nwindow = \"month\"")]
#[tokio::test]
async fn parent_budgets_limit_child_runs(
    #[case] scope: &str,
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let upstream = Upstream::start().await;
    let staged = stage_with(engine, |config| {
        config.agents[0].resources = r#"agents = ["helper"], tools = "*""#;
        config.agents[1].resources = r#"tools = "*""#;
        config.rest = format!(
            "[[tools]]\ntool_name = \"look\"\nurl = \"{}/look\"\n\
             [[budgets]]\nname = \"few\"\n{scope}\ncalls = 2\n",
            upstream.url
        );
    });
    let Some(stage) = staged.await else { return };
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let child = parent.child(&stage, "k", &gate).await;
    for caller in [&parent, &child] {
        upstream.reply(UpstreamReply::Json(200, json!({"ok": true})));
        let called = caller.host.create("/tools/look/call", &json!({})).await;
        assert_eq!(called.status, 200, "{}", called.body);
    }
    let path = format!("/v1/runs/{}/usage", child.run_id);
    until("the usage", async || {
        stage.client.get(&path).await.body["total"]["calls"] == 1
    })
    .await;
    let refused = child.host.create("/tools/look/call", &json!({})).await;
    refused.assert_detail(429, "budget", "few");
    gate.cancel();
    parent.end(&stage).await;
}
