//! `/v1/schedules` and `[[schedules]]`: checks, versions, and what the file owns.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{SCHEDULES, act, create, path_of, stage_of, until_statuses};
use crate::support::runner::StubRunner;
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

#[rstest]
#[tokio::test]
async fn refuses_invalid_schedules_by_pointer(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let good = json!({"name": "n", "agent": "main", "cron": "0 2 * * *"});
    for (member, value, pointer) in [
        ("name", json!(""), "/name"),
        ("agent", json!("absent"), "/agent"),
        ("agent", Value::Null, "/agent"),
        ("cron", json!("0 25 * * *"), "/cron"),
        ("every", json!("1h"), "/every"),
        ("timezone", json!("Europe/Atlantis"), "/timezone"),
        ("jitter", json!("2d"), "/jitter"),
        ("misfire", json!("never"), "/misfire"),
        ("ends_at", json!(-1), "/ends_at"),
        ("event", json!({"event_type": "x"}), "/event/event_type"),
        (
            "event",
            json!({"data": {"schedule": 1}}),
            "/event/data/schedule",
        ),
        ("retries", json!(1), "/retries"),
    ] {
        let mut spec = good.clone();
        spec[member] = value;
        let refused = stage.admin.create(SCHEDULES, &spec).await;
        assert_eq!(refused.status, 400, "{spec}: {}", refused.body);
        let at = refused.detail("pointer").as_str();
        let first = refused.detail("faults")[0]["pointer"].as_str();
        assert_eq!(at.or(first), Some(pointer), "{spec}: {}", refused.body);
    }
    let listed = stage.admin.get(SCHEDULES).await.expect(200).body;
    assert_eq!(listed["items"], json!([]));
    let mut forged = crate::support::client::message("schedule/x");
    forged["event_id"] = json!("schedule/x");
    let refused = stage.client.create("/v1/events", &forged).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
}

#[rstest]
#[tokio::test]
async fn changes_need_the_current_version(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let schedule = create(&stage.admin, "n", &json!({"every": "1h"})).await;
    let path = path_of(&schedule);
    let spec = json!({"name": "renamed", "agent": "main", "cron": "0 2 * * *", "timezone": "Europe/Berlin"});
    let put = |version: i64| {
        let request = stage.admin.request(Method::PUT, &path);
        let request = request.header("if-match", version.to_string()).json(&spec);
        crate::support::client::send(request)
    };
    let changed = put(1).await.unwrap().expect(200).body;
    assert_members!(changed, { "version": 2, "name": "renamed", "every": Value::Null });
    let stale = put(1).await.unwrap();
    stale.assert_detail(409, "reason", "version_mismatch");
    let taken = stage.admin.create(SCHEDULES, &spec).await;
    taken.assert_detail(409, "reason", "name_taken");
    stage.admin.delete(&path).await.expect(204);
    stage.admin.get(&path).await.expect(404);
    create(&stage.admin, "renamed", &json!({"every": "1h"})).await;
}

#[rstest]
#[tokio::test]
async fn lists_pages_by_name(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    for name in ["b", "a", "c"] {
        create(&stage.admin, name, &json!({"every": "1h"})).await;
    }
    let mut names = Vec::new();
    let mut query = "limit=2".to_owned();
    loop {
        let path = format!("{SCHEDULES}?{query}");
        let page = stage.admin.get(&path).await.expect(200).body;
        let items = page["items"].as_array().unwrap().iter();
        names.extend(items.map(|one| one["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        query = format!("limit=2&cursor={cursor}");
    }
    assert_eq!(names, ["a", "b", "c"]);
}

#[rstest]
#[tokio::test]
async fn configured_schedules_follow_the_file(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let entry = "[[schedules]]\nname = 'file'\nagent = 'main'\nevery = '1h'\nevent.input = { text = 'hi' }\n";
    let stage = OwnStage::of(engine, runner, |config| entry.clone_into(&mut config.rest));
    let mut stage = or_skip!(stage.await);
    let schedule = only(&stage).await;
    assert_members!(schedule, { "origin": "config", "name": "file", "version": 1, "enabled": true });
    let path = path_of(&schedule);
    let spec = json!({"name": "x", "agent": "main", "every": "1h"});
    for (method, body) in [(Method::DELETE, Value::Null), (Method::PUT, spec)] {
        let refused = stage.admin.call(method, &path, &body).await;
        refused.assert_detail(409, "reason", "read_only");
    }
    act(&stage.admin, &schedule, "run").await;
    until_statuses(&stage.admin, &schedule, &["triggered"]).await;
    // A pause outlasts a restart with the same file.
    act(&stage.admin, &schedule, "pause").await;
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let same = only(&stage).await;
    assert_members!(same, { "version": 2, "next_due": json!([]) });
    act(&stage.admin, &schedule, "resume").await;

    stage.gateway.stop().await;
    stage.gateway.reconfigure(|config| {
        config.rest = entry.replace("'1h'", "'2h'");
    });
    stage.gateway.restart().await;
    assert_members!(only(&stage).await, { "version": 4, "every": "2h", "id": schedule["id"] });

    stage.gateway.stop().await;
    stage.gateway.reconfigure(|config| config.rest.clear());
    stage.gateway.restart().await;
    assert_members!(only(&stage).await, { "enabled": false, "origin": "api", "next_due": json!([]) });
    stage.admin.delete(&path).await.expect(204);
}

async fn only(stage: &Stage) -> Value {
    let listed = stage.admin.get(SCHEDULES).await.expect(200).body;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    listed["items"][0].clone()
}
