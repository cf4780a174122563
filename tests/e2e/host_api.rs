//! Host API calls that a live run's token permits, and calls that it does not.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::script::sse;
use crate::support::{Engine, Postgres, Sqlite, Stage};

/// A message in its own conversation.
fn message_in(conversation: &str, event_id: &str) -> Value {
    let mut event = message(event_id);
    event["conversation"]["conversation_id"] = json!(conversation);
    event
}

#[rstest]
#[tokio::test]
async fn run_reads_its_context_and_record(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(run.host.url, format!("{}/host/v1", stage.client.url));

    let context = run.get("/context").await;
    assert_eq!(context.status, 200);
    assert_eq!(context.body, run.run_request["context"]);

    let record = run.get("/run").await;
    assert_eq!(record.status, 200);
    let mut seen_by_client = stage.client.run(&run.run_id).await;
    // Only the client API shows these.
    for member in ["agent_name", "input_preview", "posted_by", "cancelled_by"] {
        seen_by_client.as_object_mut().unwrap().remove(member);
    }
    assert_eq!(record.body, seen_by_client);
    for (member, value) in [
        ("run_id", json!(run.run_id)),
        ("event_id", json!("m-1")),
        ("status", json!("running")),
        ("conversation_id", json!("c-7")),
        ("last_sequence", json!(0)),
        ("cancel_requested_at", Value::Null),
        ("output", Value::Null),
    ] {
        assert_eq!(record.body[member], value, "{member}");
    }
    assert!(record.body["deadline_at"].is_i64(), "{}", record.body);
    run.end(&stage)
        .await
        .assert("completed", &["message.delta", "run.completed"]);
}

#[rstest]
#[tokio::test]
async fn state_writes_check_the_version(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let key = "/state/conversation/memory.summary";
    assert_eq!(run.get(key).await.status, 404);
    assert_eq!(run.get(key).await.error("code"), "not_found");
    assert_eq!(run.delete(key).await.status, 404);

    let value = json!({"words": ["größer", null, 1.5], "deep": {"er": true}});
    let written = run.put(key, &value).await;
    assert_eq!((written.status, written.body), (200, json!({"version": 1})));
    let read = run.get(key).await.body;
    assert_eq!(read, json!({"value": value, "version": 1}));

    let written = run.put_at_version(1, key, &json!("second")).await;
    assert_eq!((written.status, written.body), (200, json!({"version": 2})));
    let refused = run.put_at_version(1, key, &json!("late")).await;
    refused.assert_error(409, "code", "conflict");
    assert_eq!(refused.detail("version"), 2, "{}", refused.body);
    assert_eq!(run.get(key).await.body["value"], "second");

    let null = run.put("/state/conversation/nothing", &Value::Null).await;
    assert_eq!(null.status, 200, "{}", null.body);
    let read = run.get("/state/conversation/nothing").await;
    assert_eq!((read.status, &read.body["value"]), (200, &Value::Null));

    run.put("/state/conversation/a%2Fb:c", &json!(1)).await;
    let read = run.get("/state/conversation/a%2Fb:c").await.body;
    assert_eq!(read["value"], 1);
    let keys = run.get("/state/conversation").await.body;
    let expected = json!({"keys": ["a/b:c", "memory.summary", "nothing"], "has_more": false});
    assert_eq!(keys, expected);
    let keys = run.get("/state/conversation?prefix=m&limit=1").await.body;
    assert_eq!(keys, json!({"keys": ["memory.summary"], "has_more": false}));
    let keys = run.get("/state/conversation?limit=2").await.body;
    assert_eq!(
        keys,
        json!({"keys": ["a/b:c", "memory.summary"], "has_more": true})
    );
    let rest = run.get("/state/conversation?after=memory.summary").await;
    assert_eq!(rest.body, json!({"keys": ["nothing"], "has_more": false}));

    assert_eq!(run.delete(key).await.status, 204);
    assert_eq!(run.get(key).await.status, 404);
    run.end(&stage).await;
}

/// The route is `{*key}`: a slash belongs to the key, percent-encoded or not.
#[tokio::test]
async fn state_keys_may_contain_slashes() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    run.put("/state/conversation/a%2Fb", &json!(1)).await;
    let read = run.get("/state/conversation/a/b").await.expect(200);
    assert_eq!(read.body["value"], 1);
    run.end(&stage).await;
}

#[tokio::test]
async fn next_context_includes_state_of_earlier_runs() {
    let stage = Stage::new().await;
    let first = HeldRun::start(&stage, &message("m-1")).await;
    first
        .put("/state/conversation/memory.a", &json!([1, 2]))
        .await;
    first.put("/state/actor/taste", &json!("sweet")).await;
    first.end(&stage).await;

    let next = HeldRun::start(&stage, &message("m-2")).await;
    let state = &next.run_request["context"]["state"];
    assert_eq!(state["conversation"], json!({"memory.a": [1, 2]}));
    assert_eq!(state["actor"], json!({"taste": "sweet"}));
    next.end(&stage).await;

    // The same actor in another conversation.
    let other = HeldRun::start(&stage, &message_in("c-8", "m-3")).await;
    let state = &other.run_request["context"]["state"];
    assert_eq!(state["conversation"], json!({}));
    assert_eq!(state["actor"], json!({"taste": "sweet"}));
    assert_eq!(other.get("/state/conversation/memory.a").await.status, 404);
    other.end(&stage).await;
}

#[tokio::test]
async fn rejects_writes_to_foreign_or_reserved_state() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let value = json!(1);
    for (path, status, code) in [
        ("/state/conversation/host.secret", 403, "unauthorized"),
        ("/state/subject/key", 403, "unauthorized"),
        ("/state/runner/key", 403, "unauthorized"),
        ("/state/conversation/b%C3%A4d", 400, "invalid_argument"),
        ("/state/conversation/a%20b", 400, "invalid_argument"),
    ] {
        let answer = run.put(path, &value).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        assert_eq!(answer.error("code"), code, "{path}");
    }
    for path in [
        "/state/subject/key",
        "/state/subject",
        "/state/conversation/host.secret",
    ] {
        assert_eq!(run.get(path).await.status, 403, "{path}");
    }
    // With its quotes, the value has exactly 256 KiB; then one byte more.
    let max_bytes = 256 * 1024 - 2;
    run.put("/state/conversation/large", &json!("x".repeat(max_bytes)))
        .await
        .expect(200);
    let answer = run
        .put(
            "/state/conversation/large",
            &json!("x".repeat(max_bytes + 1)),
        )
        .await;
    answer.assert_error(413, "code", "payload_too_large");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn run_pages_its_own_conversation(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(|run| {
        let message = r#"{"message":{"role":"assistant","content":"answer"},"file_ids":[]}"#;
        let results = [
            run.result(1, "message.completed", message),
            run.completed(2),
        ];
        sse(results.concat())
    });
    for event_id in ["m-1", "m-2", "m-3"] {
        let run_id = stage.client.post(&message(event_id)).await.run_id();
        stage.client.finished(&run_id).await;
    }
    let run = HeldRun::start(&stage, &message("m-4")).await;
    let all = run.get("/history?limit=100&direction=forward").await;
    assert_eq!(all.status, 200, "{}", all.body);
    let items = all.body["items"].as_array().unwrap();
    let values: Vec<_> = items
        .iter()
        .map(|item| json!([item["event_id"], item["role"], item["content"]]))
        .collect();
    let mut expected = Vec::new();
    for event_id in ["m-1", "m-2", "m-3"] {
        expected.push(json!([event_id, "user", "hello big world"]));
        expected.push(json!([event_id, "assistant", "answer"]));
    }
    expected.push(json!(["m-4", "user", "hello big world"]));
    assert_eq!(values, expected);

    let ascending: Vec<i64> = (1..=7).collect();
    assert_eq!(walk(&run, "forward").await, ascending);
    let descending: Vec<i64> = (1..=7).rev().collect();
    assert_eq!(walk(&run, "backward").await, descending);
    run.end(&stage).await;
}

/// `seq` of every item, read in pages of two.
async fn walk(run: &HeldRun, direction: &str) -> Vec<i64> {
    let parameter = if direction == "forward" {
        "after_cursor"
    } else {
        "before_cursor"
    };
    let mut seen = Vec::new();
    let mut path = format!("/history?limit=2&direction={direction}");
    loop {
        let page = run.get(&path).await.body;
        let items = page["items"].as_array().unwrap();
        assert!(items.len() <= 2, "{page}");
        seen.extend(items.iter().map(|item| item["seq"].as_i64().unwrap()));
        if page["has_more"] == false {
            return seen;
        }
        let cursor = page["next_cursor"].as_str();
        let cursor = cursor.unwrap_or_else(|| panic!("no cursor: {page}"));
        path = format!("/history?limit=2&direction={direction}&{parameter}={cursor}");
    }
}

#[tokio::test]
async fn history_of_other_conversations_stays_closed() {
    let stage = Stage::new().await;
    let other = HeldRun::start(&stage, &message_in("c-8", "m-0")).await;
    let foreign = other.get("/history").await.body["items"][0]["cursor"].clone();
    other.end(&stage).await;

    let run = HeldRun::start(&stage, &message("m-1")).await;
    let own = run.get("/history").await.body;
    assert_eq!(own["items"].as_array().unwrap().len(), 1, "{own}");
    let cursor = own["items"][0]["cursor"].as_str().unwrap().to_owned();
    let mut malformed = cursor.clone().into_bytes();
    let at = malformed.len() / 2;
    malformed[at] = if malformed[at] == b'A' { b'B' } else { b'A' };
    let malformed = String::from_utf8(malformed).unwrap();
    for (query, status) in [
        ("conversation_id=c-7".to_owned(), 200),
        ("conversation_id=c-8".to_owned(), 403),
        (format!("before_cursor={cursor}"), 200),
        (format!("before_cursor={malformed}"), 400),
        (format!("after_cursor={}", foreign.as_str().unwrap()), 400),
        ("before_cursor=1".to_owned(), 400),
        ("limit=0".to_owned(), 400),
        ("limit=101".to_owned(), 400),
        ("direction=sideways".to_owned(), 400),
        (format!("before={cursor}"), 400),
    ] {
        let answer = run.get(&format!("/history?{query}")).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.body);
    }
    run.end(&stage).await;

    let mut alone = message("m-2");
    alone.as_object_mut().unwrap().remove("conversation");
    let run = HeldRun::start(&stage, &alone).await;
    let nothing = run.get("/history").await;
    assert_eq!((nothing.status, &nothing.body["items"]), (200, &json!([])));
    assert_eq!(run.get("/state/conversation").await.status, 403);
    run.end(&stage).await;
}

#[tokio::test]
async fn cancel_grace_allows_state_writes() {
    let grace = |config: &mut Config| "cancel_grace_seconds = 50".clone_into(&mut config.runs);
    let stage = Stage::with(grace).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);

    let record = run.get("/run").await.expect(200);
    assert!(
        record.body["cancel_requested_at"].is_i64(),
        "{}",
        record.body
    );
    let written = run.put("/state/conversation/rest", &json!(1)).await;
    assert_eq!(written.status, 200, "{}", written.body);
    for (method, path) in [
        (Method::GET, "/context"),
        (Method::GET, "/history"),
        (Method::GET, "/state/conversation/rest"),
        (Method::POST, "/token"),
    ] {
        let answer = send(run.request(method, path)).await.unwrap();
        assert_eq!(answer.status, 409, "{path}: {}", answer.body);
        assert_eq!(answer.error("code"), "cancelled", "{path}");
    }
    run.end(&stage).await;
    assert_eq!(run.get("/run").await.status, 401);
}
