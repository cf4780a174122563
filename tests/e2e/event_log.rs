//! Event log and audit log of a run.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

/// A gateway whose agent grants its runs access to events.
async fn stage(engine: Engine) -> Option<OwnStage> {
    let mut reader = manifest(RUNNER_ID);
    reader["permissions"] = json!({"events": ["get", "page"], "history": ["page"]});
    let runner = StubRunner::start_as(reader).await;
    let configure = |config: &mut Config| {
        config.agents[0].resources = r#"history = ["page"], events = ["get", "page"]"#;
    };
    OwnStage::of(engine, runner, configure).await
}

fn ids(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items
        .iter()
        .map(|item| item["event_id"].as_str().unwrap().to_owned())
        .collect()
}

fn elsewhere(event_id: &str) -> Value {
    let mut event = message(event_id);
    event["event_type"] = json!("group.member_joined");
    event["conversation"]["conversation_id"] = json!("c-8");
    event
}

#[rstest]
#[tokio::test]
async fn logs_every_event_regardless_of_agents(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let mut posted = Vec::new();
    for number in 0..5 {
        let event_id = format!("urn:a/b#{number}");
        let answer = stage.client.post(&elsewhere(&event_id)).await;
        assert_eq!(answer.body["reason"], "no_agent");
        let path = format!("/v1/events/urn:a%2Fb%23{number}");
        let found = stage.client.get(&path).await.body;
        assert_eq!(found.get("run_id"), Some(&Value::Null), "{found}");
        posted.insert(0, event_id);
    }
    let mut cursor = String::new();
    let mut found = Vec::new();
    loop {
        let page = stage
            .client
            .get(&format!("/v1/events?limit=2{cursor}"))
            .await
            .body;
        found.extend(ids(&page));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&before_cursor={next}"),
            None => break,
        }
    }
    // Events of the same millisecond are ordered by id.
    let mut sorted = found.clone();
    sorted.sort();
    posted.sort();
    assert_eq!(sorted, posted);
    let one = stage.client.get("/v1/events/urn:a%2Fb%230").await;
    one.assert_body(200, "input_summary", "hello big world");
    assert_eq!(one.body["conversation_id"], "c-8");
    let none = stage
        .client
        .get("/v1/events?event_types=message.received")
        .await
        .body;
    assert!(ids(&none).is_empty());
    assert_eq!(
        ids(&stage
            .client
            .get("/v1/events?conversation_id=c-8")
            .await
            .body)
        .len(),
        5
    );
    let types = |count: usize| "no.0,".repeat(count);
    for (types, status) in [
        (format!("{}no.0,message.received", types(14)), 200),
        (format!("{}message.received", types(16)), 400),
        ("no.0,,no.1".to_owned(), 400),
    ] {
        let path = format!("/v1/events?event_types={types}");
        assert_eq!(stage.client.get(&path).await.status, status, "{types}");
    }
    assert_eq!(stage.client.get("/v1/events/absent").await.status, 404);
    stage
        .client
        .get("/v1/events?before_cursor=bent")
        .await
        .expect(400);
}

#[rstest]
#[tokio::test]
async fn runs_read_only_events_of_their_conversation(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    stage.client.post(&elsewhere("far")).await;
    let mut near = elsewhere("near");
    near["conversation"] = message("x")["conversation"].clone();
    stage.client.post(&near).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_members!(run.run_request["context"]["context"]["available_apis"], {"event_page": true});
    let mut seen = ids(&run.get("/events").await.body);
    seen.sort();
    assert_eq!(seen, ["m-1", "near"]);
    for (path, status) in [
        ("/events/m-1", 200),
        ("/events/near", 200),
        ("/events/far", 404),
        ("/events/absent", 404),
        ("/events?conversation_id=c-8", 403),
        ("/events?event_types=group.member_joined", 200),
    ] {
        assert_eq!(run.get(path).await.status, status, "{path}");
    }
    let run_id = run.run_id.clone();
    run.end(&stage).await;

    let audit = stage
        .client
        .get(&format!("/v1/runs/{run_id}/audit?limit=100"))
        .await
        .expect(200);
    let rows: Vec<_> = audit.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            (
                row["action"].as_str().unwrap(),
                row["decision"].as_str().unwrap(),
            )
        })
        .collect();
    for (call, count) in [
        (("event_get", "allow"), 2),
        (("event_get", "deny"), 2),
        (("event_page", "allow"), 2),
        (("event_page", "deny"), 1),
    ] {
        assert_eq!(
            rows.iter().filter(|row| **row == call).count(),
            count,
            "{call:?}"
        );
    }
    let first = stage
        .client
        .get(&format!("/v1/runs/{run_id}/audit?limit=3"))
        .await
        .body;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = stage
        .client
        .get(&format!("/v1/runs/{run_id}/audit?cursor={cursor}"))
        .await
        .body;
    assert_eq!(rest["items"].as_array().unwrap().len(), rows.len() - 3);
}

#[tokio::test]
async fn reading_events_requires_a_grant() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for path in ["/events", "/events/m-1"] {
        let refused = run.get(path).await;
        assert_eq!(
            (refused.status, refused.error("code")),
            (403, &json!("unauthorized")),
            "{path}"
        );
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn accepts_cloud_events_in_both_modes_once() {
    let stage = Stage::new().await;
    let of_envelope = json!({
        "conversation": {"conversation_id": "c-7"}, "input": {"text": "hello big world"},
    });
    let structured = json!({
        "specversion": "1.0", "id": "7", "source": "/shop", "type": "message.received",
        "time": "2026-11-21T22:00:00Z", "data": of_envelope,
    });
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let posting = |content_type: &str, body: &Value| {
        let request = stage.client.request(Method::POST, "/v1/events");
        request
            .header("content-type", content_type)
            .body(body.to_string())
    };
    let first = send(posting("application/cloudevents+json", &structured))
        .await
        .unwrap();
    first.assert_body(202, "event_id", "/shop#7");
    let binary = posting("application/json", &of_envelope)
        .header("ce-specversion", "1.0")
        .header("ce-id", "7")
        .header("ce-source", "/shop")
        .header("ce-type", "message.received")
        .header("ce-time", "2026-11-21T22:00:00Z");
    let second = send(binary).await.unwrap();
    assert!(
        second.is_replay(),
        "the same event in the other mode: {}",
        second.body
    );
    assert_eq!(second.run_id(), first.run_id());
    stage
        .outcome(&first.run_id())
        .await
        .assert("completed", &["message.delta", "run.completed"]);
    let bad = send(posting(
        "application/cloudevents+json",
        &json!({"specversion": "1.0"}),
    ))
    .await;
    let bad = bad.unwrap();
    assert_eq!((bad.status, bad.detail("pointer")), (400, &json!("/id")));
}
