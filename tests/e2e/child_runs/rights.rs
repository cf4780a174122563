//! Grants of child runs: at most the intersection of the parent's grant and the request.

use rstest::rstest;
use serde_json::{Value, json};

use super::{PausedRun, completed, hold_children, stage_with};
use crate::support::{Engine, Postgres, Sqlite, Stage};

const TOOLS: &str = "[[tools]]\ntool_name = \"look\"\nurl = \"http://127.0.0.1:9/look\"\n\
    [[tools]]\ntool_name = \"write\"\nurl = \"http://127.0.0.1:9/write\"\n\
    [[tools]]\ntool_name = \"launch\"\nurl = \"http://127.0.0.1:9/launch\"\n";

async fn stage(engine: Engine) -> Option<Stage> {
    let staged = stage_with(engine, |config| {
        config.agents[0].resources = r#"agents = ["helper"], tools = ["look", "write"]"#;
        config.agents[1].resources =
            r#"agents = ["helper"], tools = "*", history = ["page"], storage = ["binding"]"#;
        TOOLS.clone_into(&mut config.rest);
    });
    staged.await
}

fn tools_of(held: &PausedRun) -> Vec<&str> {
    let tools = held.run_request["context"]["resources"]["tools"].as_array();
    let tools = tools.unwrap().iter();
    tools
        .map(|tool| tool["tool_name"].as_str().unwrap())
        .collect()
}

async fn decision(stage: &Stage, run_id: &str, kind: &str, id: &str) -> Value {
    let path = format!("/v1/runs/{run_id}/authorization");
    let explained = stage.client.get(&path).await.body;
    let decisions = explained["decisions"].as_array().unwrap();
    let found = decisions
        .iter()
        .find(|one| one["kind"] == kind && one["id"] == id);
    found.unwrap_or_else(|| panic!("{id}: {explained}")).clone()
}

#[rstest]
#[tokio::test]
async fn child_grant_never_exceeds_parent_grant(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let child = parent.child(&stage, "k", &gate).await;
    assert_eq!(tools_of(&child), ["look", "write"]);
    let called = child.host.create("/tools/launch/call", &json!({})).await;
    assert_eq!(called.status, 403, "{}", called.body);
    let decided = decision(&stage, &child.run_id, "tool", "launch").await;
    assert_eq!(decided["layer"], "parent", "{decided}");
    assert_eq!(decided["rule"], "the parent run was not granted it");
    let storage = decision(&stage, &child.run_id, "storage", "binding").await;
    assert_eq!(storage["granted"], false, "{storage}");
    let history = child.host.get("/history").await;
    let items = history.body["items"].as_array().map(Vec::len);
    assert!(
        history.status == 403 || items == Some(0),
        "{}",
        history.body
    );
    gate.cancel();
    parent.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn request_narrows_child_grant(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let gate = hold_children(&stage, &completed());
    let parent = PausedRun::parent(&stage).await;
    let grants = json!({"grants": {"tools": ["look", "launch"], "agents": []}});
    let id = parent.spawn("k", &grants).await.run_id();
    let child = PausedRun::of(&stage, &id, gate.clone()).await;
    assert_eq!(tools_of(&child), ["look"]);
    let decided = decision(&stage, &id, "tool", "write").await;
    assert_eq!(decided["layer"], "parent");
    assert_eq!(decided["rule"], "the request's grants.tools lacks it");
    child.spawn("k", &json!({})).await.expect(403);
    let unknown = parent.spawn("u", &json!({"agent_id": "other"})).await;
    assert_eq!(unknown.status, 403, "{}", unknown.body);
    gate.cancel();
    parent.end(&stage).await;
}
