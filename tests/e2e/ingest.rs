//! Event ingest: accepted events become runs, duplicates return the first answer, rejected events leave no rows.

use reqwest::Method;
use reqwest::header::AUTHORIZATION;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::client::{ApiResponse, message, send};
use crate::support::gateway::{Agent, Config};
use crate::support::script::{Gate, Run, ScriptStep, sse, sse_head};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, slow, within};

fn quick(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(1).concat())
}

async fn quick_stage(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let stage = OwnStage::on(engine, configure).await?;
    stage.runner.answer_all(quick);
    Some(stage)
}

/// `message` with the member at `pointer` set, or removed if `value` is null.
fn with_member(event_id: &str, pointer: &str, value: Value) -> Value {
    let mut event = message(event_id);
    let (parent, member) = pointer.rsplit_once('/').unwrap();
    let members = event.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    members.insert(member.to_owned(), value);
    members.retain(|_, value| !value.is_null());
    event
}

#[rstest]
#[tokio::test]
async fn rejects_invalid_events_by_pointer_without_stored_rows(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(quick_stage(engine, |_| {}).await);
    for (n, (pointer, value)) in [
        ("/event_type", Value::Null),
        ("/event_type", json!(7)),
        ("/event_type", json!("")),
        ("/input", Value::Null),
        ("/nope", json!(1)),
        ("/conversation/nope", json!(1)),
        ("/actor/nope", json!("x")),
        ("/input/nope", json!(true)),
        ("/conversation/conversation_id", json!(7)),
        ("/conversation/conversation_id", json!("c".repeat(256))),
        ("/bot_id", json!("b".repeat(256))),
        ("/actor/actor_id", json!("")),
        ("/event_time", json!("yesterday")),
        ("/data", json!([1])),
        ("/data", json!({"text": "x".repeat(65 * 1024)})),
    ]
    .into_iter()
    .enumerate()
    {
        let event_id = format!("m-{n}");
        let refused = stage
            .client
            .post(&with_member(&event_id, pointer, value))
            .await;
        assert_refused(&refused, 400, "invalid_argument");
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);

        let retried = stage.client.post(&message(&event_id)).await;
        assert!(!retried.is_replay(), "{pointer}: {retried:?}");
        retried.run_id();
    }
}

#[tokio::test]
async fn limits_event_ids_to_512_printable_ascii_bytes() {
    let stage = quick_stage(Sqlite, |_| {}).await.unwrap();
    for event_id in ["", "a\nb", "é", "x".repeat(513).as_str()] {
        let refused = stage.client.post(&message(event_id)).await;
        assert_refused(&refused, 400, "invalid_argument");
        assert_eq!(refused.detail("pointer"), "/event_id", "{event_id:?}");
    }
    for event_id in ["x", "a b#~", "x".repeat(512).as_str()] {
        stage.client.post(&message(event_id)).await.run_id();
    }
}

#[tokio::test]
async fn rejects_bodies_that_are_no_event() {
    let stage = quick_stage(Sqlite, |_| {}).await.unwrap();
    for body in ["", "{", "[]", "null", "\"event\"", "{}{}"] {
        let request = stage.client.request(Method::POST, "/v1/events");
        let request = request
            .header("content-type", "application/json")
            .body(body);
        assert_refused(&send(request).await.unwrap(), 400, "invalid_argument");
    }
}

#[tokio::test]
async fn rejects_bodies_over_one_mebibyte() {
    let stage = quick_stage(Sqlite, |_| {}).await.unwrap();
    let big = with_member("m-1", "/input/text", json!("x".repeat(1024 * 1024)));
    assert_refused(&stage.client.post(&big).await, 413, "payload_too_large");

    let fits = with_member("m-1", "/input/text", json!("x".repeat(1000 * 1024)));
    assert!(!stage.client.post(&fits).await.is_replay());
}

/// Sends the complete oversized body before it reads, as many clients do.
#[rstest]
#[case::of_a_length(true)]
#[case::in_chunks(false)]
#[tokio::test]
async fn answers_413_after_reading_oversized_body(#[case] is_announced: bool) {
    let stage = quick_stage(Sqlite, |_| {}).await.unwrap();
    let body = vec![b'x'; 24 * 1024 * 1024];
    let framing = if is_announced {
        format!("content-length: {}", body.len())
    } else {
        "transfer-encoding: chunked".to_owned()
    };
    let head = format!(
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\nconnection: close\r\n{framing}\r\n\r\n",
        stage.client.key
    );
    let mut socket = slow::connect(&stage.client.url).await;
    socket.write_all(head.as_bytes()).await.unwrap();
    let written = async {
        if is_announced {
            return socket.write_all(&body).await;
        }
        let size = format!("{:x}\r\n", body.len());
        socket.write_all(size.as_bytes()).await?;
        socket.write_all(&body).await?;
        socket.write_all(b"\r\n0\r\n\r\n").await
    };
    within("the body to be read", written).await.unwrap();
    let mut answer = String::new();
    let read = socket.read_to_string(&mut answer);
    within("the answer", read).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert_contains!(answer, "larger than the 16777216 bytes");
}

#[tokio::test]
async fn rejects_missing_and_invalid_keys() {
    let stage = quick_stage(Sqlite, |_| {}).await.unwrap();
    let unknown = format!("Bearer rnl_aaaaaaaa_{}", "a".repeat(43));
    for credential in [
        None,
        Some("Bearer x"),
        Some("Basic cm5sOng="),
        Some(unknown.as_str()),
    ] {
        let mut request = stage
            .client
            .anonymous(Method::POST, "/v1/events")
            .json(&message("m-1"));
        if let Some(credential) = credential {
            request = request.header(AUTHORIZATION, credential);
        }
        assert_refused(&send(request).await.unwrap(), 401, "unauthenticated");
    }
    assert!(!stage.client.post(&message("m-1")).await.is_replay());
}

#[rstest]
#[tokio::test]
async fn duplicate_event_returns_first_answer(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(quick_stage(engine, |_| {}).await);
    let first = stage.client.post(&message("m-1")).await;
    assert!(!first.is_replay());
    stage.outcome(&first.run_id()).await;

    let again = stage.client.post(&message("m-1")).await;
    assert!(again.is_replay());
    assert_eq!(again.body, first.body);

    // Idempotency compares the event, not the formatting of its JSON.
    let text = message("m-1")
        .to_string()
        .replace(':', " : ")
        .replace(',', " ,\n");
    let request = stage.client.request(Method::POST, "/v1/events").body(text);
    let again = send(request.header("content-type", "application/json"))
        .await
        .unwrap();
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));

    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let again = stage.client.post(&message("m-1")).await;
    assert_eq!((again.is_replay(), &again.body), (true, &first.body));
    assert_eq!(stage.runner.posts(&first.run_id()), 1);
}

#[tokio::test]
async fn duplicate_event_can_stream_its_run() {
    let stage = quick_stage(Sqlite, |_| {}).await.unwrap();
    let first = stage.client.post_streaming(&message("m-1")).await;
    let run_id = first.run_id();
    let frames = first.rest().await;

    let again = stage.client.post_streaming(&message("m-1")).await;
    assert_eq!(again.header("idempotent-replayed"), "true");
    assert_eq!(again.run_id(), run_id);
    assert_eq!(again.rest().await, frames);
}

#[rstest]
#[tokio::test]
async fn binds_key_to_body_and_event_to_key(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(quick_stage(engine, |_| {}).await);
    let with_key = |key: &'static str, event: Value| {
        let request = stage.client.posting(&event).header("idempotency-key", key);
        async move { send(request).await.unwrap() }
    };
    let other = |event_id| with_member(event_id, "/input/text", json!("something else"));
    let nameless = |text: &str| json!({"event_type": "message.received", "input": {"text": text}});

    let first = with_key("k-1", nameless("a")).await;
    let again = with_key("k-1", nameless("a")).await;
    assert!(again.is_replay() && first.run_id() == again.run_id());
    assert_conflict(
        &with_key("k-1", nameless("b")).await,
        "idempotency_mismatch",
    );

    stage.client.post(&message("m-1")).await.run_id();
    assert_conflict(
        &stage.client.post(&other("m-1")).await,
        "idempotency_mismatch",
    );
    assert_conflict(&with_key("k-2", message("m-1")).await, "event_exists");
    with_key("k\t2", message("m-2")).await.expect(400);
    // The rejected requests consumed neither the key nor the event id.
    with_key("k-2", message("m-2")).await.run_id();
}

#[rstest]
#[tokio::test]
async fn concurrent_duplicates_start_one_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(quick_stage(engine, |_| {}).await);
    let event = message("m-1");
    let senders = (0..20).map(|_| stage.client.post(&event));
    let answers = futures_util::future::join_all(senders).await;

    let run_id = answers[0].run_id();
    assert!(
        answers.iter().all(|answer| answer.run_id() == run_id),
        "{answers:?}"
    );
    assert_eq!(
        answers.iter().filter(|answer| !answer.is_replay()).count(),
        1
    );
    stage.outcome(&run_id).await;
    assert_eq!(stage.runner.posts(&run_id), 1);
}

#[tokio::test]
async fn stores_unmatched_events_without_run() {
    let stage = quick_stage(Sqlite, |_| {}).await.unwrap();
    let event = json!({"event_type": "message.recieved", "event_id": "f-1"});
    let mut answer = stage.client.post(&event).await;
    let hint = answer.body["hint"].take();
    assert_contains!(hint.as_str().unwrap(), "message.received");
    let expected = json!({"event_id": "f-1", "run_id": null, "run_url": null, "reason": "no_agent", "hint": null});
    assert_eq!((answer.status, &answer.body), (202, &expected));
    assert!(stage.client.post(&event).await.is_replay());
}

#[tokio::test]
async fn reports_both_agents_of_binding_conflict() {
    let stage = quick_stage(Sqlite, |config| {
        config.agents.push(Agent {
            name: "other",
            ..Agent::default()
        });
    });
    let stage = stage.await.unwrap();
    let answer = stage.client.post(&message("m-1")).await;
    assert_conflict(&answer, "binding_conflict");
    assert_eq!(
        answer.detail("agents").as_array().map(Vec::len),
        Some(2),
        "{}",
        answer.body
    );
}

#[rstest]
#[tokio::test]
async fn reject_policy_allows_one_run_per_conversation(#[values(Sqlite, Postgres)] engine: Engine) {
    let reject = |config: &mut Config| config.agents[0].concurrency = "reject";
    let stage = or_skip!(quick_stage(engine, reject).await);
    let gate = Gate::new();
    let held = gate.clone();
    let first = stage
        .start(move |run| {
            let mut steps = vec![sse_head(), ScriptStep::Hold(held.clone())];
            steps.push(ScriptStep::Send(run.talk(1).concat().into_bytes()));
            steps
        })
        .await;

    let refused = stage.client.post(&message("m-2")).await;
    assert_conflict(&refused, "run_active");
    assert_eq!(refused.detail("run_id"), first.as_str());
    let elsewhere = with_member("m-3", "/conversation/conversation_id", json!("c-8"));
    let elsewhere = stage.client.post(&elsewhere).await.run_id();
    assert_ne!(elsewhere, first);

    gate.cancel();
    stage.outcome(&first).await;
    let retried = stage.client.post(&message("m-2")).await;
    assert!(!retried.is_replay());
    assert_ne!(retried.run_id(), first);
}

#[track_caller]
fn assert_refused(answer: &ApiResponse, status: u16, code: &str) {
    assert_eq!(
        (answer.status, answer.error("code")),
        (status, &json!(code)),
        "{}",
        answer.body
    );
    assert!(answer.error("message").is_string(), "{}", answer.body);
    assert_eq!(answer.error("retryable"), false);
}

#[track_caller]
fn assert_conflict(answer: &ApiResponse, reason: &str) {
    assert_refused(answer, 409, "conflict");
    assert_eq!(answer.detail("reason"), reason, "{}", answer.body);
}
