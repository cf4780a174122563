//! Files of events: large bodies, uploads of clients, and access of runs.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use rstest::rstest;
use serde_json::{Value, json};

use crate::pipeline_adapter::query;
use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until, within};

const OTHER_EVENT: &str = "other.happened";
const QUERIES: &str = "/v1/adapters/pipeline/queries";

/// Two agents of a runner without artifact permissions.
async fn stage(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let runner = StubRunner::start_as(manifest(RUNNER_ID)).await;
    OwnStage::of(engine, runner, |config| {
        config.agents.push(Agent {
            name: "other",
            event_types: OTHER_EVENT,
            ..Agent::default()
        });
        configure(config);
    })
    .await
}

fn picture(bytes: usize) -> Vec<u8> {
    let body =
        (0..u32::try_from(bytes).unwrap()).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]);
    b"\x89PNG\r\n\x1a\n".iter().copied().chain(body).collect()
}

fn data_url(bytes: &[u8]) -> String {
    format!("data:image/png;base64,{}", BASE64_STANDARD.encode(bytes))
}

fn with_picture(event_id: &str, bytes: &[u8]) -> Value {
    let mut event = message(event_id);
    event["input"]["contents"] = json!([{"type": "image_base64", "image_base64": data_url(bytes)}]);
    event
}

fn to_other(mut event: Value) -> Value {
    event["event_type"] = json!(OTHER_EVENT);
    event
}

fn elsewhere(mut event: Value) -> Value {
    event["conversation"]["conversation_id"] = json!("c-8");
    event
}

fn attachment_of(run: &HeldRun) -> Value {
    let attachments = run.run_request["context"]["input"]["attachments"]
        .as_array()
        .unwrap();
    assert_eq!(attachments.len(), 1, "{attachments:?}");
    attachments[0].clone()
}

fn id_of(attachment: &Value) -> String {
    attachment["id"].as_str().unwrap().to_owned()
}

async fn content(run: &HeldRun, id: &str) -> (u16, Vec<u8>) {
    let request = run.request(Method::GET, &format!("/artifacts/{id}/content"));
    let response = within("a content", request.send()).await.unwrap();
    let status = response.status().as_u16();
    (status, response.bytes().await.unwrap().to_vec())
}

async fn statuses(run: &HeldRun, id: &str) -> [u16; 2] {
    let metadata = run.get(&format!("/artifacts/{id}")).await.status;
    [metadata, content(run, id).await.0]
}

async fn ready(stage: &OwnStage) -> usize {
    let sql = "SELECT id FROM artifacts WHERE status = 'ready'";
    rows(&stage.gateway.database_url(), sql).await.len()
}

#[rstest]
#[tokio::test]
async fn runs_read_files_of_their_events_without_grants(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let bytes = picture(100_000);
    let run = HeldRun::start(&stage, &with_picture("m-1", &bytes)).await;
    let apis = &run.run_request["context"]["context"]["available_apis"];
    assert_members!(apis, {"artifact_metadata": true, "artifact_read": true});
    let id = id_of(&attachment_of(&run));
    assert_eq!(content(&run, &id).await, (200, bytes));
    let metadata = run.get(&format!("/artifacts/{id}")).await;
    metadata.assert_body(200, "mime_type", "image/png");
    let upload = run.request(Method::POST, "/artifacts").body("mine");
    assert_eq!(send(upload).await.unwrap().status, 403);
    assert_eq!(statuses(&run, "x").await, [403, 403]);

    let path = format!("/v1/runs/{}/authorization", run.run_id);
    let explained = stage.client.get(&path).await.body;
    let decisions = explained["decisions"].as_array().unwrap();
    let found = decisions.iter().find(|one| one["kind"] == "event_artifact");
    let rule = found.unwrap()["rule"].as_str().unwrap();
    assert!(rule.contains("came with an event"), "{rule}");
    let path = format!("/v1/runs/{}/audit", run.run_id);
    until("the reading to be on record", async || {
        let audit = stage.client.get(&path).await.body;
        audit["items"].as_array().unwrap().iter().any(|row| {
            row["action"] == "artifact_read"
                && row["decision"] == "allow"
                && row["rule"].as_str().unwrap().contains("came with an event")
                && row["bytes"] == 100_008
        })
    })
    .await;
    run.end(&stage).await;

    let later = HeldRun::start(&stage, &message("m-2")).await;
    assert_eq!(statuses(&later, &id).await, [200, 200]);
    later.end(&stage).await;
    for event in [
        to_other(message("m-3")),
        elsewhere(message("m-4")),
        to_other(elsewhere(message("m-5"))),
    ] {
        let run = HeldRun::start(&stage, &event).await;
        assert_eq!(statuses(&run, &id).await, [403, 403], "{event}");
        run.end(&stage).await;
    }
    let mut alone = with_picture("m-6", &picture(70_000));
    alone.as_object_mut().unwrap().remove("conversation");
    let alone = HeldRun::start(&stage, &alone).await;
    assert_eq!(
        statuses(&alone, &id_of(&attachment_of(&alone))).await,
        [200, 200]
    );
    assert_eq!(statuses(&alone, &id).await, [403, 403]);
    alone.end(&stage).await;
}

#[tokio::test]
async fn uploads_of_runs_stay_closed_without_grants() {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"]["artifacts"] = json!(["create", "read", "metadata"]);
    let runner = StubRunner::start_as(manifest).await;
    let stage = Stage::of(Sqlite, runner, |config| {
        config.agents[0].resources = r#"artifacts = ["create"]"#;
    });
    let stage = stage.await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let upload = run.request(Method::POST, "/artifacts").body("mine");
    let made = send(upload).await.unwrap();
    assert_eq!(made.status, 201, "{}", made.body);
    let id = made.body["artifact_id"].as_str().unwrap();
    assert_eq!(statuses(&run, id).await, [403, 403]);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn accepts_pictures_in_large_bodies(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let warm = HeldRun::start(&stage, &with_picture("m-0", &picture(100_000))).await;
    warm.end(&stage).await;
    let before = stage.gateway.peak_memory();
    let large = picture(11 << 20);
    let run = HeldRun::start(&stage, &with_picture("m-1", &large)).await;
    assert!(content(&run, &id_of(&attachment_of(&run))).await == (200, large));
    run.end(&stage).await;

    // As LangBot dumps it: the same picture in the message chain, the platform event and the message.
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let bytes = picture(3 << 20);
    let mut dumped = query("q-1");
    let base64 = BASE64_STANDARD.encode(&bytes);
    dumped["message_chain"][2] =
        json!({"type": "Image", "image_id": "i-1", "base64": data_url(&bytes)});
    dumped["message_event"]["message_chain"] = dumped["message_chain"].clone();
    dumped["user_message"] = json!({"role": "user", "content": [
        {"type": "text", "text": "what is this?"}, {"type": "image_base64", "image_base64": base64},
    ]});
    dumped["message_chain"][2]["url"] = json!("");
    let posted = post(&stage.client, QUERIES, &dumped).await.expect(202);
    let context = stage.runner.context_of(&posted.run_id()).await;
    let attachments = context["input"]["attachments"].as_array().unwrap();
    assert_eq!(attachments.len(), 1, "{attachments:?}");
    let id = id_of(&attachments[0]);
    let contents = context["input"]["contents"].as_array().unwrap();
    assert_eq!(contents[1]["image_url"]["url"], format!("artifact:{id}"));
    assert!(!context.to_string().contains("runnel-file"), "{context}");
    let read = stage
        .client
        .request(Method::GET, &format!("/v1/artifacts/{id}/content"));
    let read = within("a content", read.send()).await.unwrap();
    assert!(read.bytes().await.unwrap() == bytes);
    assert_eq!(ready(&stage).await, 3);
    if let (Some(before), Some(after)) = (before, stage.gateway.peak_memory()) {
        // One copy of the body in a buffer that grows by doubling.
        assert!(after - before < 64 * 1024, "{before} to {after} KiB");
    }
    let again = post(&stage.client, QUERIES, &dumped).await;
    assert!(again.is_replay() && again.run_id() == posted.run_id());
    assert_eq!(ready(&stage).await, 3);
}

#[tokio::test]
async fn limits_body_size_and_text_size() {
    let stage = stage(Sqlite, |config| {
        "event_body_bytes = 2000000".clone_into(&mut config.limits);
    });
    let stage = stage.await.unwrap();
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    stage
        .client
        .post(&with_picture("m-1", &picture(1_400_000)))
        .await
        .expect(202);
    stage
        .client
        .post(&with_picture("m-2", &picture(1_600_000)))
        .await
        .expect(413);
    let mut text = message("m-3");
    text["input"]["text"] = json!("a b".repeat(400_000));
    stage.client.post(&text).await.expect(413);
    let mut dumped = query("q-1");
    dumped["message_chain"][1]["text"] = json!("a b".repeat(400_000));
    assert_eq!(post(&stage.client, QUERIES, &dumped).await.status, 413);
    dumped["message_chain"][1]["text"] = json!("a b".repeat(800_000));
    assert_eq!(post(&stage.client, QUERIES, &dumped).await.status, 413);
}

#[rstest]
#[tokio::test]
async fn deduplicates_files_with_same_bytes(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    for (number, size, artifacts) in [(1, 20_000, 1), (2, 150_000, 2)] {
        let bytes = picture(size);
        let mut dumped = query(format!("q-{number}"));
        dumped["message_chain"][2] =
            json!({"type": "Image", "image_id": "i-1", "base64": BASE64_STANDARD.encode(&bytes)});
        dumped["user_message"] = json!({"role": "user", "content": [
            {"type": "image_base64", "image_base64": data_url(&bytes)},
        ]});
        let posted = post(&stage.client, QUERIES, &dumped).await;
        let context = stage.runner.context_of(&posted.run_id()).await;
        let attachments = context["input"]["attachments"].as_array().unwrap();
        assert_eq!(attachments.len(), 1, "{size}: {attachments:?}");
        assert_eq!(attachments[0]["type"], "image");
        assert_eq!(ready(&stage).await, artifacts, "{size}");
    }
    // Two names for the same bytes are two attachments of one artifact.
    let text = BASE64_STANDARD.encode(picture(70_000));
    let mut event = message("m-1");
    event["input"]["contents"] = json!([
        {"type": "file_base64", "file_base64": text},
        {"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{text}")}},
    ]);
    event["input"]["attachments"] =
        json!([{"name": "a.png", "content": text}, {"name": "b.png", "content": text}]);
    let run = HeldRun::start(&stage, &event).await;
    let input = &run.run_request["context"]["input"];
    let attachments = input["attachments"].as_array().unwrap();
    let names: Vec<_> = attachments.iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["a.png", "b.png"]);
    let id = id_of(&attachments[0]);
    assert_eq!(attachments[1]["id"], id);
    assert_eq!(input["contents"][0]["file_url"], format!("artifact:{id}"));
    assert_eq!(
        input["contents"][1]["image_url"]["url"],
        format!("artifact:{id}")
    );
    assert_eq!(ready(&stage).await, 3);
    run.end(&stage).await;
}

async fn post(client: &Client, path: &str, body: &Value) -> ApiResponse {
    send(client.request(Method::POST, path).json(body))
        .await
        .unwrap()
}

async fn upload(client: &Client, query: &str, bytes: Vec<u8>) -> ApiResponse {
    let request = client.request(Method::POST, &format!("/v1/artifacts{query}"));
    send(request.header(CONTENT_TYPE, "image/png").body(bytes))
        .await
        .unwrap()
}

async fn client_key(stage: &Stage) -> (Client, String) {
    let admin = stage.admin.clone();
    let made = admin
        .create("/v1/api-keys", &json!({"name": "app", "role": "client"}))
        .await;
    assert_eq!(made.status, 201, "{}", made.body);
    let key = made.body["key"]
        .as_str()
        .or(made.body["secret"].as_str())
        .unwrap();
    let id = made.body["id"].as_str().unwrap().to_owned();
    (Client::new(&stage.client.url, key), id)
}

#[rstest]
#[tokio::test]
async fn events_reference_uploads_of_clients(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let (client, _) = client_key(&stage).await;
    let bytes = picture(200_000);
    let made = upload(&client, "?name=cat.png&expires_in=3600", bytes.clone()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    assert_members!(made.body, {"origin": "client", "name": "cat.png", "size": 200_008});
    let stored =
        made.body["expires_at"].as_i64().unwrap() - made.body["created_at"].as_i64().unwrap();
    assert!((3595..=3605).contains(&stored), "{}", made.body);
    let id = made.body["artifact_id"].as_str().unwrap().to_owned();
    let other = upload(&client, "", picture(10)).await.body["artifact_id"].clone();

    // No run can read it before an event references it.
    let early = HeldRun::start(&stage, &message("m-0")).await;
    assert_eq!(statuses(&early, &id).await, [403, 403]);
    early.end(&stage).await;
    let mut event = message("m-1");
    event["input"]["contents"] =
        json!([{"type": "image_url", "image_url": {"url": format!("artifact:{id}")}}]);
    event["input"]["attachments"] = json!([{"artifact_id": other}]);
    let run = HeldRun::start_as(&stage, &client, &event).await;
    let attachments = run.run_request["context"]["input"]["attachments"]
        .as_array()
        .unwrap();
    assert_eq!(attachments.len(), 2, "{attachments:?}");
    assert_members!(attachments[0], {"url": format!("artifact:{}", other.as_str().unwrap())});
    assert_eq!(attachments[0]["mime_type"], "image/png");
    assert_eq!(attachments[1]["id"], json!(id));
    assert_eq!(attachments[1]["name"], "cat.png");
    assert_eq!(content(&run, &id).await, (200, bytes));
    run.end(&stage).await;
    assert!(client.post(&event).await.is_replay());

    // It belongs to that event; another event needs its own upload.
    let mut second = event.clone();
    second["event_id"] = json!("m-2");
    let taken = client.post(&second).await;
    taken.assert_detail(400, "pointer", "/input/contents/0/image_url/url");
    second["input"]["contents"][0]["image_url"]["url"] =
        json!("artifact:01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61");
    let absent = client.post(&second).await;
    absent.assert_detail(400, "pointer", "/input/contents/0/image_url/url");
}

#[tokio::test]
async fn refused_events_keep_their_uploads_unclaimed() {
    let stage = stage(Sqlite, |config| config.agents[0].concurrency = "reject")
        .await
        .unwrap();
    let id = upload(&stage.client, "", picture(10)).await.body["artifact_id"].clone();
    let active = HeldRun::start(&stage, &message("m-1")).await;
    let mut event = message("m-2");
    event["input"]["attachments"] = json!([{"url": format!("artifact:{}", id.as_str().unwrap())}]);
    assert_eq!(stage.client.post(&event).await.status, 409);
    active.end(&stage).await;
    event["event_id"] = json!("m-3");
    let run = HeldRun::start(&stage, &event).await;
    assert_eq!(statuses(&run, id.as_str().unwrap()).await, [200, 200]);
    run.end(&stage).await;
}

#[tokio::test]
async fn refuses_finishing_uploads_of_revoked_keys() {
    let stage = stage(Sqlite, |_| {}).await.unwrap();
    let admin = stage.admin.clone();
    let (client, key) = client_key(&stage).await;
    let (parts, body) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let body =
        futures_util::stream::unfold(body, async |mut body| Some((body.recv().await?, body)));
    let request = client.request(Method::POST, "/v1/artifacts");
    let sending = send(request.body(reqwest::Body::wrap_stream(body)));
    let revoking = async {
        parts.send(Ok(picture(10_000))).await.unwrap();
        // The row shows that the gateway has authenticated the key and started the upload.
        until("the upload to begin", async || {
            !rows(&stage.gateway.database_url(), "SELECT id FROM artifacts")
                .await
                .is_empty()
        })
        .await;
        let revoked = admin.delete(&format!("/v1/api-keys/{key}")).await;
        assert!(revoked.status < 300, "{}", revoked.body);
        parts.send(Ok(picture(10))).await.unwrap();
        drop(parts);
    };
    let (answer, ()) = tokio::join!(sending, revoking);
    assert_eq!(answer.unwrap().status, 401);
    assert_eq!(ready(&stage).await, 0);
}

#[rstest]
#[tokio::test]
async fn operators_delete_artifacts(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"]["artifacts"] = json!(["create", "read"]);
    let runner = StubRunner::start_as(manifest).await;
    let staged = Stage::of(engine, runner, |config| {
        config.agents[0].resources = r#"artifacts = ["create", "read"]"#;
    });
    let stage = or_skip!(staged.await);
    let admin = stage.admin.clone();
    let (client, _) = client_key(&stage).await;
    let run = HeldRun::start(&stage, &with_picture("m-1", &picture(100_000))).await;
    let of_event = id_of(&attachment_of(&run));
    let upload = run.request(Method::POST, "/artifacts").body("mine");
    let of_run = send(upload).await.unwrap().body["artifact_id"].clone();
    let of_run = of_run.as_str().unwrap().to_owned();
    for id in [&of_event, &of_run] {
        let path = format!("/v1/artifacts/{id}");
        assert_eq!(client.delete(&path).await.status, 403);
        assert_eq!(content(&run, id).await.0, 200);
        assert_eq!(admin.delete(&path).await.status, 204);
        assert_eq!(admin.delete(&path).await.status, 404);
        assert_eq!(client.get(&path).await.status, 404);
        assert_eq!(content(&run, id).await.0, 404);
    }
    run.end(&stage).await;
    let audit = stage
        .client
        .get(&format!("/v1/runs/{}/audit?limit=100", run.run_id))
        .await
        .body;
    let deleted = audit["items"].as_array().unwrap().iter();
    let deleted: Vec<_> = deleted
        .filter(|row| row["action"] == "artifact_delete")
        .collect();
    assert_eq!(deleted.len(), 1, "{audit}");
    assert_eq!(deleted[0]["resource"], json!(of_run));
}

/// Uploads artifacts until one is refused. Returns their number and the reason.
async fn fill(run: &HeldRun, bytes: usize) -> (usize, Value) {
    for count in 0..100 {
        let request = run
            .request(Method::POST, "/artifacts")
            .body(vec![b'x'; bytes]);
        let answer = send(request).await.unwrap();
        if answer.status != 201 {
            assert_eq!(answer.status, 413, "{}", answer.body);
            return (count, answer.detail("reason").clone());
        }
    }
    panic!("it is never full");
}

#[rstest]
#[tokio::test]
async fn artifact_shares_of_runs_reserve_space_for_events(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"]["artifacts"] = json!(["create"]);
    let runner = StubRunner::start_as(manifest).await;
    let create = r#"artifacts = ["create"]"#;
    let staged = Stage::of(engine, runner, |config| {
        config.agents[0].resources = create;
        config.agents.push(Agent {
            name: "other",
            event_types: OTHER_EVENT,
            resources: create,
            ..Agent::default()
        });
        "max_bytes = 400000\nworkspace_bytes = 2000000".clone_into(&mut config.artifacts);
    });
    let stage = or_skip!(staged.await);
    let first = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(fill(&first, 100_000).await, (5, json!("run_share")));
    let second = HeldRun::start(&stage, &elsewhere(message("m-2"))).await;
    assert_eq!(fill(&second, 100_000).await, (5, json!("run_share")));
    let third = HeldRun::start(&stage, &message("m-3")).await;
    assert_eq!(fill(&third, 100_000).await, (0, json!("agent_share")));
    let other = HeldRun::start(&stage, &to_other(message("m-4"))).await;
    assert_eq!(fill(&other, 100_000).await, (5, json!("run_share")));
    let last = HeldRun::start(&stage, &to_other(message("m-5"))).await;
    assert_eq!(fill(&last, 100_000).await, (0, json!("runs_share")));
    for run in [first, second, third, other, last] {
        run.end(&stage).await;
    }
    let event = HeldRun::start(&stage, &with_picture("m-6", &picture(100_000))).await;
    event.end(&stage).await;
}

#[tokio::test]
async fn unreferenced_uploads_reserve_space_for_events() {
    let stage = stage(Sqlite, |config| {
        "max_bytes = 400000\nworkspace_bytes = 1000000".clone_into(&mut config.artifacts);
    });
    let stage = stage.await.unwrap();
    for _ in 0..5 {
        let made = upload(&stage.client, "", vec![b'x'; 100_000]).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let full = upload(&stage.client, "", vec![b'x'; 100_000]).await;
    full.assert_detail(413, "reason", "uploads_share");
    let event = HeldRun::start(&stage, &with_picture("m-1", &picture(100_000))).await;
    event.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn limits_share_of_a_run_in_workspace_storage(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"]["storage"] = json!(["workspace"]);
    let runner = StubRunner::start_as(manifest).await;
    let storage = r#"storage = ["workspace"]"#;
    let staged = Stage::of(engine, runner, |config| {
        config.agents[0].resources = storage;
        config.agents.push(Agent {
            name: "other",
            event_types: OTHER_EVENT,
            resources: storage,
            ..Agent::default()
        });
        config.limits = "storage_blob_bytes = 400000\nstorage_area_bytes = 2000000".to_owned();
    });
    let stage = or_skip!(staged.await);
    let put = async |run: &HeldRun, key: &str, bytes: usize| {
        let request = run.request(Method::PUT, &format!("/storage/workspace/{key}"));
        let answer = send(request.body(vec![7; bytes])).await.unwrap();
        let is_full = answer.status == 413;
        assert!(is_full || answer.status == 204, "{}", answer.body);
        is_full.then(|| answer.detail("reason").clone())
    };
    let share = || Some(json!("area_share"));
    let first = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(put(&first, "a", 400_000).await, None);
    assert_eq!(put(&first, "b", 200_000).await, share());
    assert_eq!(put(&first, "b", 100_000).await, None);
    let second = HeldRun::start(&stage, &message("m-2")).await;
    assert_eq!(put(&second, "c", 400_000).await, None);
    let third = HeldRun::start(&stage, &message("m-3")).await;
    assert_eq!(put(&third, "d", 300_000).await, share(), "of the agent");
    let other = HeldRun::start(&stage, &to_other(message("m-4"))).await;
    assert_eq!(put(&other, "e", 400_000).await, None);
    for run in [first, second, third, other] {
        run.end(&stage).await;
    }
}
