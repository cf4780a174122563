//! Batches of CloudEvents, and raw payloads of platforms.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, message, send};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

const BATCH: &str = "application/cloudevents-batch+json";

async fn stage(engine: Engine) -> Option<OwnStage> {
    let mut reader = manifest(RUNNER_ID);
    reader["permissions"] = json!({"events": ["get", "page"]});
    let runner = StubRunner::start_as(reader).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config| {
        config.agents[0].resources = r#"events = ["get", "page"]"#;
        config.agents[0].concurrency = "reject";
    })
    .await
}

fn cloud_event(id: &str, conversation: &str) -> Value {
    json!({
        "specversion": "1.0", "id": id, "source": "/chat", "type": "message.received",
        "data": {
            "conversation": {"conversation_id": conversation}, "input": {"text": "hello"},
        },
    })
}

async fn post(stage: &Stage, content_type: &str, body: String) -> ApiResponse {
    let request = stage.client.request(Method::POST, "/v1/events").body(body);
    send(request.header("content-type", content_type))
        .await
        .unwrap()
}

async fn count(stage: &Stage) -> usize {
    let events = stage.client.get("/v1/events?limit=100").await.body;
    events["items"].as_array().unwrap().len()
}

#[rstest]
#[tokio::test]
async fn each_batch_event_has_its_own_status(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let batch = json!([cloud_event("1", "a"), cloud_event("2", "b")]);
    let answer = post(&stage, BATCH, batch.to_string()).await.expect(202);
    for (index, event_id) in ["/chat#1", "/chat#2"].iter().enumerate() {
        let item = &answer.body["items"][index];
        assert_members!(item, {"event_id": event_id, "status": 202});
        let run_id = item["accepted"]["run_id"].as_str().unwrap();
        assert_eq!(stage.client.finished(run_id).await["event_id"], *event_id);
    }
    // Different pairs of source and id never produce the same event id.
    let mut twins = [
        cloud_event("2#1", "t-1"),
        cloud_event("1", "t-2"),
        cloud_event("1", "t-3"),
    ];
    for (twin, source) in twins.iter_mut().zip(["/twin", "/twin#2", "/twin%232"]) {
        twin["source"] = json!(source);
    }
    let answer = post(&stage, BATCH, json!(twins).to_string()).await;
    let ids: Vec<_> = answer.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| {
            assert_eq!(item["status"], 202, "{item}");
            item["event_id"].as_str().unwrap()
        })
        .collect();
    assert_eq!(ids, ["/twin#2#1", "/twin%232#1", "/twin%25232#1"]);
    // A retry replays known events and accepts new ones.
    let held = HeldRun::start(&stage, &message("busy")).await;
    let again = json!([
        cloud_event("1", "a"),
        cloud_event("3", "c-7"),
        cloud_event("2", "other"),
        cloud_event("4", "d"),
    ]);
    let answer = post(&stage, BATCH, again.to_string()).await.expect(207);
    let items = answer.body["items"].as_array().unwrap();
    let statuses: Vec<_> = items.iter().map(|item| &item["status"]).collect();
    assert_eq!(
        statuses,
        [&json!(202), &json!(409), &json!(409), &json!(202)]
    );
    assert_eq!(items[0]["replayed"], true);
    assert_eq!(items[1]["error"]["details"]["reason"], "run_active");
    assert_members!(items[2]["error"]["details"], {"reason": "idempotency_mismatch"});
    held.end(&stage).await;
    assert_eq!(count(&stage).await, 7, "refused events are not kept");
}

#[tokio::test]
async fn one_invalid_event_rejects_the_batch() {
    let stage = stage(Sqlite).await.unwrap();
    let mut bad = [
        cloud_event("1", "a"),
        cloud_event("2", ""),
        cloud_event("3", "c"),
    ];
    let many: Vec<_> = (0..101).map(|n| cloud_event(&n.to_string(), "a")).collect();
    let semantic = json!(bad).to_string();
    bad[2]["data"]["nope"] = json!(1);
    let unknown = json!(bad).to_string();
    let mut late = bad.clone();
    late[1] = json!(7);
    for (body, pointer) in [
        (semantic, "/1/data/conversation/conversation_id"),
        (unknown, "/2/data/nope"),
        (json!(late).to_string(), "/1"),
        (cloud_event("1", "a").to_string(), ""),
        (json!(many).to_string(), ""),
        ("[".to_owned(), ""),
    ] {
        let answer = post(&stage, BATCH, body).await.expect(400);
        assert_eq!(answer.detail("pointer"), pointer, "{}", answer.body);
    }
    let request = stage.client.request(Method::POST, "/v1/events");
    let request = request
        .header("content-type", BATCH)
        .header("idempotency-key", "k");
    let keyed = send(request.body(json!([cloud_event("1", "a")]).to_string()))
        .await
        .unwrap();
    assert_eq!(keyed.status, 400, "{}", keyed.body);
    assert_eq!(count(&stage).await, 0);
    let empty = post(&stage, BATCH, "[]".to_owned()).await;
    assert_eq!((empty.status, empty.body), (202, json!({"items": []})));
}

#[rstest]
#[tokio::test]
async fn stores_large_payloads_by_reference(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let raw = json!({"marker": "the-platform-said-so", "blob": "x".repeat(2 * 1024 * 1024), "n": [1, null]});
    let mut event = message("m/1#");
    event["raw"] = raw.clone();
    let run = HeldRun::start(&stage, &event).await;
    let sent = &run.run_request["context"]["event"];
    assert_eq!(sent["raw_ref"], json!({"ref_id": "m/1#"}));
    assert!(!run.run_request.to_string().contains("the-platform-said-so"));
    let seen = run.get("/events/m%2F1%23").await.body;
    assert_eq!(seen["raw_ref"], "m/1#", "{seen}");
    assert!(!seen.to_string().contains("the-platform-said-so"));
    assert_eq!(
        run.get("/raw-payloads/m%2F1%23").await.status,
        404,
        "no route of a runner"
    );
    run.end(&stage).await;

    let path = "/v1/raw-payloads/m%2F1%23";
    assert_eq!(stage.client.get(path).await.status, 403, "only for admins");
    let admin = stage.admin.clone();
    let stored = admin.get(path).await;
    assert!(
        stored.status == 200 && stored.body == raw,
        "{}",
        stored.status
    );
    assert_eq!(admin.get("/v1/raw-payloads/none").await.status, 404);

    // It belongs to the event: the same payload is a replay, another payload is a mismatch.
    assert!(stage.client.post(&event).await.is_replay());
    event["raw"]["n"] = json!([2]);
    let other = stage.client.post(&event).await;
    other.assert_detail(409, "reason", "idempotency_mismatch");
}

#[tokio::test]
async fn payload_and_envelope_have_separate_limits() {
    let stage = stage(Sqlite).await.unwrap();
    let refused = |change: fn(&mut Value)| {
        let mut event = message("m-1");
        change(&mut event);
        let stage = &stage;
        async move { stage.client.post(&event).await }
    };
    let big = refused(|event| event["raw"] = json!("x".repeat(4 * 1024 * 1024)));
    let big = big.await;
    assert_eq!((big.status, big.detail("pointer")), (400, &json!("/raw")));
    let both = refused(|event| {
        event["raw"] = json!(1);
        event["raw_ref"] = json!({"ref_id": "x"});
    });
    let both = both.await;
    both.assert_detail(400, "pointer", "/raw_ref");
    let empty = refused(|event| event["raw_ref"] = json!({})).await;
    empty.assert_detail(400, "pointer", "/raw_ref");
    let text = refused(|event| {
        event["raw"] = json!("x".repeat(1024));
        event["input"]["text"] = json!("x".repeat(1024 * 1024));
    });
    assert_eq!(text.await.status, 413);
    // A reference to a payload in the client's own storage is passed on.
    let mut event = message("m-2");
    event["raw_ref"] = json!({"storage_key": "s3://bucket/key"});
    let run = HeldRun::start(&stage, &event).await;
    assert_members!(run.run_request["context"]["event"], {"raw_ref": event["raw_ref"]});
    run.end(&stage).await;
    assert_eq!(count(&stage).await, 1);
}

#[tokio::test]
async fn rejects_duplicate_attributes() {
    let stage = stage(Sqlite).await.unwrap();
    let request = stage.client.request(Method::POST, "/v1/events");
    let mut request = request.header("ce-specversion", "1.0");
    for (name, value) in [
        ("ce-id", "1"),
        ("ce-id", "2"),
        ("ce-source", "/chat"),
        ("ce-type", "test.twice"),
    ] {
        request = request.header(name, value);
    }
    let answer = send(request).await.unwrap();
    answer.assert_detail(400, "pointer", "/id");
    assert_eq!(count(&stage).await, 0);
}

#[tokio::test]
async fn skips_byte_order_mark_before_json() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let cloud = json!({"specversion": "1.0", "id": "1", "source": "/s", "type": "test.cloud"});
    let posting = || stage.client.request(Method::POST, "/v1/events");
    let mcp = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let json = "application/json";
    for (request, media_type, body, status) in [
        (posting(), json, message("m-2"), 202),
        (
            posting(),
            "application/cloudevents+json",
            cloud.clone(),
            202,
        ),
        (
            posting(),
            "application/cloudevents-batch+json",
            json!([cloud]),
            202,
        ),
        (
            run.request(Method::PUT, "/state/conversation/k"),
            json,
            json!({"value": 1}),
            200,
        ),
        (run.request(Method::POST, "/mcp"), json, mcp, 200),
    ] {
        let request = request.header("content-type", media_type);
        let marked = [b"\xEF\xBB\xBF", body.to_string().as_bytes()].concat();
        let wide: Vec<u8> = body
            .to_string()
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        let refused = send(request.try_clone().unwrap().body(wide)).await.unwrap();
        assert_eq!(refused.status, 400, "{}", refused.body);
        let message = refused.error("message").as_str().unwrap();
        assert!(message.contains("UTF-16"), "{message}");
        let taken = send(request.body(marked)).await.unwrap();
        assert_eq!(taken.status, status, "{media_type} {}", taken.body);
    }
    run.end(&stage).await;
}
