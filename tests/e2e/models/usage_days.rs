//! Use of a workspace by day, from calls of real runs.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{chat_request, scripted, used};
use crate::support::client::{Client, send};
use crate::support::{Engine, OwnStage, Postgres, Sqlite};

const DAY_SECONDS: u64 = 86_400;

async fn key_for(stage: &OwnStage, spec: &Value) -> Client {
    let made = stage.admin.create("/v1/api-keys", spec).await.expect(201);
    Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
}

#[rstest]
#[tokio::test]
async fn reports_usage_by_agent_and_model(#[values(Sqlite, Postgres)] engine: Engine) {
    let (stage, run) = or_skip!(scripted(engine).await);
    for _ in 0..2 {
        let request = run.request(Method::POST, "/models/talker/invoke");
        let sent = send(request.json(&chat_request("hello"))).await;
        sent.unwrap().expect(200);
    }
    let total = used(&stage, &run, 2).await;
    let report = stage.client.get("/v1/usage").await.expect(200).body;
    let (from, to) = (&report["from"], &report["to"]);
    assert_eq!(
        to.as_u64().unwrap() - from.as_u64().unwrap(),
        30 * DAY_SECONDS
    );
    let mut expected = total;
    expected["runs"] = json!(1);
    assert_eq!(report["total"], expected);
    let agent = stage.client.run(&run.run_id).await["agent_id"].clone();
    let group = &report["groups"][0];
    assert_members!(group, {"id": agent, "name": "main", "total": expected});
    let sums = |days: &Value| -> u64 {
        let days = days.as_array().unwrap().iter();
        days.map(|day| day["calls"].as_u64().unwrap()).sum()
    };
    assert_eq!(sums(&group["days"]), 2);
    assert_eq!(
        group["days"][0]["day"].as_u64().unwrap() % DAY_SECONDS,
        0,
        "{report}"
    );

    for (query, id) in [("model", Some("talker")), ("tool", None)] {
        let path = format!("/v1/usage?group_by={query}");
        let report = stage.client.get(&path).await.expect(200).body;
        assert_eq!(report["groups"][0]["id"].as_str(), id, "{report}");
        assert_eq!(report["group_by"], query);
    }
    let other = "/v1/usage?agent_id=00000000-0000-7000-8000-000000000001";
    assert_eq!(stage.client.get(other).await.body["groups"], json!([]));
    let past = format!("/v1/usage?to={}", from.as_u64().unwrap());
    assert_eq!(stage.client.get(&past).await.body["groups"], json!([]));
    reads_own_agents_only(&stage, &agent).await;
    run.release();
}

/// A key restricted to another agent reads none of the use; one restricted to this agent reads it.
async fn reads_own_agents_only(stage: &OwnStage, agent: &Value) {
    let spec = json!({
        "name": "other", "event_types": ["test.other"], "runner_id": crate::support::runner::RUNNER_ID,
    });
    let other = stage.admin.create("/v1/agents", &spec).await.expect(201);
    for (agent, calls) in [(agent, 2), (&other.body["id"], 0)] {
        let spec = json!({"name": "restricted", "role": "client", "agents": [agent]});
        let client = key_for(stage, &spec).await;
        let report = client.get("/v1/usage").await.expect(200).body;
        assert_eq!(report["total"]["calls"], calls, "{report}");
    }
}

#[tokio::test]
async fn rejects_usage_periods_that_are_not_valid() {
    let stage = OwnStage::new().await;
    for (query, pointer) in [
        ("from=86400&to=86400", "/from"),
        ("from=0&to=8000000", "/from"),
    ] {
        let answer = stage.client.get(&format!("/v1/usage?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        assert_eq!(answer.detail("pointer"), pointer, "{query}");
    }
    for query in ["group_by=runner", "from=x", "interval=hour"] {
        let answer = stage.client.get(&format!("/v1/usage?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
}
