//! `/v1/webhooks` and `[[webhooks]]`: checks, versions, and what a program may not reach.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{WEBHOOKS, create, path_of, run_of, stage_of};
use crate::support::database::rows;
use crate::support::receiver::{Reaction, Receiver};
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until};

const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
const NEXT_SECRET: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";

fn fault_of(answer: &crate::support::client::ApiResponse) -> String {
    let pointer = answer.detail("pointer").as_str();
    let first = answer.detail("faults")[0]["pointer"].as_str();
    pointer.or(first).unwrap_or_default().to_owned()
}

#[rstest]
#[tokio::test]
async fn refuses_invalid_webhooks_by_pointer(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let good = json!({"name": "n", "events": ["run.completed"]});
    for (member, value, pointer) in [
        ("name", json!(""), "/name"),
        ("events", json!([]), "/events"),
        ("events", json!(["run.ended"]), "/events/0"),
        ("events", json!(["run.failed", "run.failed"]), "/events/1"),
        ("events", json!(["webhook.test"]), "/events/0"),
        ("agents", json!([]), "/agents"),
        ("agents", json!(["main", "absent"]), "/agents/1"),
        ("agents", json!(["main", "main"]), "/agents/1"),
        ("payload", json!("fat"), "/payload"),
        ("secret", json!("whsec_x"), "/secret"),
        ("url", json!("not a url"), "/url"),
        ("url", json!("https://u:p@e.example/"), "/url"),
        ("retries", json!(1), "/retries"),
    ] {
        let mut spec = good.clone();
        spec[member] = value;
        let refused = stage.admin.create(WEBHOOKS, &spec).await;
        assert_eq!(refused.status, 400, "{spec}: {}", refused.body);
        assert_eq!(fault_of(&refused), pointer, "{spec}: {}", refused.body);
    }
    let listed = stage.admin.get(WEBHOOKS).await.expect(200).body;
    assert_eq!(listed, json!({"items": []}));
}

#[rstest]
#[tokio::test]
async fn changes_need_the_current_version(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({"secret": SECRET})).await;
    assert_eq!(hook["secret"], SECRET);
    let path = path_of(&hook);
    let spec = json!({"name": "renamed", "url": receiver.url, "events": ["run.failed"], "agents": ["main"]});
    let put = |version: i64| {
        let request = stage.admin.request(Method::PUT, &path);
        let request = request.header("if-match", version.to_string()).json(&spec);
        crate::support::client::send(request)
    };
    let changed = put(1).await.unwrap().expect(200).body;
    assert_members!(changed, { "version": 2, "name": "renamed", "secret": Value::Null });
    let stale = put(1).await.unwrap();
    stale.assert_detail(409, "reason", "version_mismatch");
    let again = json!({"name": "renamed", "events": ["run.failed"]});
    let taken = stage.admin.create(WEBHOOKS, &again).await;
    taken.assert_detail(409, "reason", "name_taken");
    let mut with_secret = spec.clone();
    with_secret["secret"] = json!(NEXT_SECRET);
    let refused = stage.admin.call(Method::PUT, &path, &with_secret).await;
    assert_eq!(
        (refused.status, fault_of(&refused)),
        (400, "/secret".to_owned())
    );
    stage.admin.delete(&path).await.expect(204);
    stage.admin.get(&path).await.expect(404);
    // The name is free again.
    stage.admin.create(WEBHOOKS, &again).await.expect(201);
}

#[rstest]
#[tokio::test]
async fn test_call_reports_the_answer(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    let test = format!("{}/test", path_of(&hook));
    let good = stage.admin.create(&test, &json!({})).await.expect(200).body;
    assert_members!(good, { "delivered": true, "status": 204 });
    receiver.react([Reaction::Status(500)]);
    let bad = stage.admin.create(&test, &json!({})).await.expect(200).body;
    assert_members!(bad, { "delivered": false, "status": 500, "error": "the receiver answered 500" });
    assert_eq!(receiver.kinds(), ["webhook.test", "webhook.test"]);
    let listed = super::deliveries(&stage.admin, &hook).await;
    assert_eq!(listed, Vec::<Value>::new());
}

#[tokio::test]
async fn webhooks_reach_no_forbidden_address() {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let allowed = runner.url.trim_start_matches("http://").to_owned();
    let receiver = Receiver::start().await;
    let stage = OwnStage::of(Sqlite, runner, |config| {
        config.egress = format!("allow = [{allowed:?}, \"localhost.example:443\"]");
    })
    .await
    .unwrap();
    let corpus = include_str!("../../fixtures/ssrf.txt").lines();
    let corpus = corpus.filter(|line| !line.starts_with('#'));
    for url in corpus.map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        let spec = json!({"name": "n", "url": url, "events": ["run.completed"]});
        let refused = stage.admin.create(WEBHOOKS, &spec).await;
        assert_eq!(
            (refused.status, fault_of(&refused)),
            (400, "/url".to_owned()),
            "{url}"
        );
    }
    let spec = json!({"name": "n", "url": receiver.url, "events": ["run.completed"]});
    let refused = stage.admin.create(WEBHOOKS, &spec).await;
    assert_eq!(fault_of(&refused), "/url", "{}", refused.body);
    // A name that passes the check may resolve to a private address later: the dial checks again.
    let spec = json!({"name": "n", "url": "https://localhost/", "events": ["run.completed"]});
    let made = stage.admin.create(WEBHOOKS, &spec).await;
    if made.status == 201 {
        let test = format!("{}/test", path_of(&made.body));
        let tested = stage.admin.create(&test, &json!({})).await.expect(200).body;
        assert_members!(tested, { "delivered": false, "status": Value::Null });
        assert_contains!(tested["error"].as_str().unwrap(), "not allowed");
    }
    assert!(receiver.received().is_empty());
}

#[rstest]
#[tokio::test]
async fn configured_webhooks_follow_the_file(#[values(Sqlite, Postgres)] engine: Engine) {
    let receiver = Receiver::start().await;
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let entry = format!(
        "[[webhooks]]\nname = 'file'\nurl = '{}'\nsecret = 'env:HOOK_SECRET'\nevents = ['run.completed']\n\
         agents = ['main']\n",
        receiver.url
    );
    let stage = OwnStage::of(engine, runner, |config| {
        config.rest.clone_from(&entry);
        config.environment.push(("HOOK_SECRET", SECRET.to_owned()));
    });
    let mut stage = or_skip!(stage.await);
    let hook = only(&stage).await;
    assert_members!(hook, { "origin": "config", "name": "file", "version": 1, "enabled": true });
    let path = path_of(&hook);
    for (method, path, body) in [
        (Method::DELETE, path.clone(), Value::Null),
        (
            Method::PUT,
            path.clone(),
            json!({"name": "x", "events": ["run.failed"]}),
        ),
        (Method::POST, format!("{path}/rotate-secret"), json!({})),
    ] {
        let refused = stage.admin.call(method, &path, &body).await;
        refused.assert_detail(409, "reason", "read_only");
    }
    run_of(&stage, "m-1").await;
    assert!(super::is_signed_by(&receiver.wait_for(1).await[0], SECRET));

    stage.gateway.stop().await;
    stage.gateway.restart().await;
    assert_eq!(only(&stage).await["version"], 1, "nothing changed");

    stage.gateway.stop().await;
    stage.gateway.reconfigure(|config| {
        config
            .environment
            .retain(|(name, _)| *name != "HOOK_SECRET");
        config
            .environment
            .push(("HOOK_SECRET", NEXT_SECRET.to_owned()));
    });
    stage.gateway.restart().await;
    run_of(&stage, "m-2").await;
    let rotated = receiver.wait_for(2).await[1].clone();
    for secret in [SECRET, NEXT_SECRET] {
        assert!(super::is_signed_by(&rotated, secret));
    }

    stage.gateway.stop().await;
    stage.gateway.reconfigure(|config| config.rest.clear());
    stage.gateway.restart().await;
    let gone = only(&stage).await;
    assert_members!(gone, { "enabled": false, "disabled_reason": "configuration", "origin": "api" });
    stage.admin.delete(&path).await.expect(204);
}

async fn only(stage: &Stage) -> Value {
    let listed = stage.admin.get(WEBHOOKS).await.expect(200).body;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    listed["items"][0].clone()
}

#[rstest]
#[tokio::test]
async fn sweep_deletes_a_prefix_of_old_messages(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = OwnStage::of(engine, runner, |config| {
        "lease_seconds = 1.0".clone_into(&mut config.runs);
    });
    let stage = or_skip!(stage.await);
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    for number in 0..3 {
        run_of(&stage, &format!("m-{number}")).await;
    }
    until("all deliveries", async || {
        super::statuses(&stage.admin, &hook).await == ["delivered"; 3]
    })
    .await;
    let database = stage.gateway.database_url();
    rows(
        &database,
        "UPDATE webhook_messages SET created_at = 1 WHERE position <= 2",
    )
    .await;
    until("the sweep", async || {
        let count = "SELECT CAST(COUNT(*) AS TEXT) FROM webhook_deliveries";
        rows(&database, count).await == ["1"]
    })
    .await;
    let left = "SELECT CAST(position AS TEXT) FROM webhook_messages";
    assert_eq!(rows(&database, left).await, ["3"]);
    stage
        .client
        .get("/v1/feed?after=1")
        .await
        .assert_error(410, "code", "cursor_expired");
    stage.client.get("/v1/feed?after=2").await.expect(200);
    stage.admin.delete(&path_of(&hook)).await.expect(204);
    until("the deletion", async || {
        let count = "SELECT id FROM webhooks UNION ALL SELECT webhook_id FROM webhook_deliveries";
        rows(&database, count).await.is_empty()
    })
    .await;
}
