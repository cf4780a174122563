//! Artifacts of runs: upload, full and range reads, access control, retention.

use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::header::{
    CONTENT_DISPOSITION, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_RANGE, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use reqwest::{Method, Response};
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::peer::environment;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, ScriptStep, head, send as step, sse_head};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, hex, skipped, until, within};

const OTHER: &str = "plugin:runnel/other/default";
const ALL: &str = r#"artifacts = ["metadata", "read", "create"], files = ["rules.txt"]"#;

/// A runner with all artifact permissions and files of kind `config`.
async fn stage(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let mut manifests = json!([manifest(RUNNER_ID), manifest(OTHER)]);
    for manifest in manifests.as_array_mut().unwrap() {
        manifest["permissions"]["artifacts"] = json!(["metadata", "read", "create"]);
        manifest["permissions"]["files"] = json!(["config"]);
    }
    let runner = StubRunner::start_listing(manifests).await;
    OwnStage::of(engine, runner, |config| {
        config.agents[0].resources = ALL;
        configure(config);
    })
    .await
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Other users of the host may list the operator's directory, but cannot read the artifacts in it.
#[tokio::test]
async fn artifact_files_are_readable_by_gateway_user_only() {
    use std::os::unix::fs::PermissionsExt;
    let stage = stage(Sqlite, |_| {}).await.unwrap();
    let directory = stage.gateway.artifact_directory();
    std::fs::create_dir_all(directory).unwrap();
    std::fs::set_permissions(directory, PermissionsExt::from_mode(0o755)).unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    uploaded(&run, vec![1; 10]).await;
    // A multipart upload.
    uploaded(&run, vec![2; 6 * 1024 * 1024]).await;
    let hidden: Vec<_> = std::fs::read_dir(directory).unwrap().collect();
    assert!(!hidden.is_empty());
    for entry in hidden {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{:?}", entry.path());
    }
    run.end(&stage).await;
}

fn in_conversation(conversation: &str, event_id: &str) -> Value {
    let mut event = message(event_id);
    event["conversation"]["conversation_id"] = json!(conversation);
    event
}

async fn upload(run: &HeldRun, query: &str, kind: &str, bytes: Vec<u8>) -> ApiResponse {
    let request = run.request(Method::POST, &format!("/artifacts{query}"));
    let request = request.header(CONTENT_TYPE, kind).body(bytes);
    send(request).await.unwrap()
}

async fn uploaded(run: &HeldRun, bytes: Vec<u8>) -> String {
    let answer = upload(run, "?name=one.bin", "application/octet-stream", bytes).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body["artifact_id"].as_str().unwrap().to_owned()
}

async fn content(
    run: &HeldRun,
    id: &str,
    headers: &[(reqwest::header::HeaderName, &str)],
) -> Response {
    let mut request = run.request(Method::GET, &format!("/artifacts/{id}/content"));
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    within("a content", request.send()).await.unwrap()
}

fn header(response: &Response, name: reqwest::header::HeaderName) -> &str {
    response.headers()[name].to_str().unwrap()
}

#[rstest]
#[tokio::test]
async fn reads_artifacts_in_full_and_by_range(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let apis = &run.run_request["context"]["context"]["available_apis"];
    assert_members!(apis, {"artifact_metadata": true, "artifact_read": true});
    let bytes: Vec<u8> = b"\x89PNG\r\n\x1a\n"
        .iter()
        .copied()
        .chain((0..70_000_u32).map(|n| u8::try_from(n % 251).unwrap()))
        .collect();
    let answer = upload(
        &run,
        "?name=gr%C3%B6%C3%9Fe%20a.png&expires_in=3600",
        "image/jpeg",
        bytes.clone(),
    )
    .await
    .expect(201);
    let made = answer.body;
    let id = made["artifact_id"].as_str().unwrap().to_owned();
    assert_eq!(made["name"], "größe a.png");
    assert_eq!(made["mime_type"], "image/png", "by content");
    assert_eq!(made["size"], bytes.len());
    assert_eq!(made["sha256"], sha256(&bytes));
    assert_members!(made, {"origin": "runner", "run_id": run.run_id, "event_id": "m-1"});
    let lifetime = made["expires_at"].as_i64().unwrap() - made["created_at"].as_i64().unwrap();
    assert!((3595..=3605).contains(&lifetime), "{made}");
    let metadata = run.get(&format!("/artifacts/{id}")).await.expect(200);
    for member in [
        "artifact_id",
        "name",
        "mime_type",
        "size",
        "sha256",
        "origin",
        "run_id",
        "expires_at",
    ] {
        assert_eq!(metadata.body[member], made[member], "{member}");
    }

    let full_content = content(&run, &id, &[]).await;
    assert_eq!(full_content.status(), 200);
    assert_eq!(header(&full_content, CONTENT_TYPE), "image/png");
    assert_eq!(header(&full_content, X_CONTENT_TYPE_OPTIONS), "nosniff");
    assert_eq!(
        header(&full_content, CONTENT_DISPOSITION),
        "attachment; filename*=UTF-8''gr%C3%B6%C3%9Fe%20a.png"
    );
    let tag = header(&full_content, ETAG).to_owned();
    assert_eq!(tag, format!("\"{}\"", sha256(&bytes)));
    assert_eq!(full_content.bytes().await.unwrap(), bytes);

    let size = bytes.len();
    for (range, slice) in [
        ("bytes=0-0".to_owned(), 0..1),
        ("bytes=100-65635".to_owned(), 100..65_636),
        (format!("bytes={}-", size - 5), size - 5..size),
        ("bytes=-7".to_owned(), size - 7..size),
        ("bytes=10-99999999999999999999".to_owned(), 10..size),
    ] {
        let part = content(&run, &id, &[(RANGE, &range)]).await;
        assert_eq!(part.status(), 206, "{range}");
        let expected = format!("bytes {}-{}/{size}", slice.start, slice.end - 1);
        assert_eq!(header(&part, CONTENT_RANGE), expected);
        assert_eq!(part.content_length(), Some(slice.len() as u64), "{range}");
        assert_eq!(part.bytes().await.unwrap(), bytes[slice], "{range}");
    }
    let beyond = content(&run, &id, &[(RANGE, &format!("bytes={size}-"))]).await;
    assert_eq!(beyond.status(), 416);
    assert_eq!(header(&beyond, CONTENT_RANGE), format!("bytes */{size}"));
    for (tag, status) in [(tag.as_str(), 206), ("\"other\"", 200)] {
        let part = content(&run, &id, &[(RANGE, "bytes=0-9"), (IF_RANGE, tag)]).await;
        assert_eq!(part.status(), status, "{tag}");
    }

    let client = stage.client.get(&format!("/v1/artifacts/{id}")).await;
    assert_eq!(client.body["sha256"], made["sha256"]);
    let request = stage
        .client
        .request(Method::GET, &format!("/v1/artifacts/{id}/content"));
    let read = within("a content", request.header(RANGE, "bytes=1-3").send())
        .await
        .unwrap();
    assert_eq!(
        (read.status().as_u16(), read.bytes().await.unwrap().as_ref()),
        (206, b"PNG".as_slice())
    );

    run.end(&stage).await;
    let audit = stage
        .client
        .get(&format!("/v1/runs/{}/audit", run.run_id))
        .await
        .body;
    let reads: Vec<_> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|entry| entry["action"] == "artifact_read")
        .collect();
    assert_eq!(reads[0]["bytes"], size, "{audit}");
    assert_eq!(reads[0]["outcome"], "ok", "{audit}");
}

#[tokio::test]
async fn streams_50_mib_artifact_without_buffering() {
    let stage = stage(Sqlite, |_| {}).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    uploaded(&run, vec![1; 1000]).await;
    let before = stage.gateway.peak_memory();
    let bytes: Vec<u8> = (0..50 * 1024 * 1024_u32)
        .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let id = uploaded(&run, bytes.clone()).await;
    let read = content(&run, &id, &[]).await;
    assert_eq!(sha256(&read.bytes().await.unwrap()), sha256(&bytes));
    if let (Some(before), Some(after)) = (before, stage.gateway.peak_memory()) {
        // The gateway buffers one part of 5 MiB; the rest is socket buffers.
        assert!(after - before < 30 * 1024, "{before} to {after} KiB");
    }
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn limits_artifacts_to_their_run_and_conversation(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(
        stage(engine, |config| {
            config.agents.push(Agent {
                name: "other",
                event_types: "other.happened",
                runner_id: OTHER,
                resources: ALL,
                ..Agent::default()
            });
        })
        .await
    );
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let id = uploaded(&run, b"mine".to_vec()).await;
    let paths = [
        format!("/artifacts/{id}"),
        format!("/artifacts/{id}/content"),
    ];

    let other_run = HeldRun::start(&stage, &in_conversation("c-8", "m-2")).await;
    let nowhere = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";
    let absent = other_run.get(&format!("/artifacts/{nowhere}")).await;
    assert_eq!(absent.status, 404);
    for path in &paths {
        let answer = other_run.get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.body_without(&id), absent.body_without(nowhere));
    }
    for strange in [
        "..%2F..%2Fetc%2Fpasswd",
        "x",
        &id.to_uppercase(),
        &id.replace('-', ""),
    ] {
        let answer = other_run.get(&format!("/artifacts/{strange}")).await;
        assert_eq!(answer.status, 404, "{strange}");
        assert_eq!(answer.error("code"), "not_found", "{strange}");
    }
    other_run.end(&stage).await;
    run.end(&stage).await;

    // A later run of the same runner in the same conversation.
    let later = HeldRun::start(&stage, &message("m-3")).await;
    for path in &paths {
        let answer = within("an answer", later.request(Method::GET, path).send()).await;
        assert_eq!(answer.unwrap().status(), 200, "{path}");
    }
    later.end(&stage).await;

    // Another runner in the same conversation.
    let mut event = message("m-4");
    event["event_type"] = json!("other.happened");
    let other = HeldRun::start(&stage, &event).await;
    for path in &paths {
        assert_eq!(other.get(path).await.status, 404, "{path}");
    }
    other.end(&stage).await;
    assert_eq!(run.get(&paths[0]).await.status, 401, "the token is dead");
}

#[tokio::test]
async fn ungranted_uploads_are_refused_and_leave_nothing() {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"]["artifacts"] = json!(["read"]);
    let runner = StubRunner::start_as(manifest).await;
    let stage = OwnStage::of(Sqlite, runner, |config| config.agents[0].resources = ALL)
        .await
        .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let refused = upload(&run, "", "text/plain", b"x".to_vec()).await;
    refused.assert_detail(403, "operation", "artifacts:create");
    assert_eq!(run.get("/artifacts/x").await.status, 403, "metadata");
    assert_eq!(run.get("/artifacts/x/content").await.status, 404, "read");
    run.end(&stage).await;
    let left = rows(&stage.gateway.database_url(), "SELECT id FROM artifacts").await;
    assert!(left.is_empty());
}

#[rstest]
#[tokio::test]
async fn rejects_oversized_or_wrong_type_uploads_without_leftovers(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let bounds = "max_bytes = 6000000\nworkspace_bytes = 7000000\nmime_types = [\"text/*\", \"application/octet-stream\"]";
    let stage = or_skip!(stage(engine, |config| bounds.clone_into(&mut config.artifacts)).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let png = b"\x89PNG\r\n\x1a\n".to_vec();
    let refused = upload(&run, "", "text/plain", png).await;
    refused.assert_detail(415, "mime_type", "image/png");
    let elf = std::fs::read(crate::support::programs::runnel()).unwrap()[..4096].to_vec();
    upload(&run, "", "application/octet-stream", elf)
        .await
        .expect(415);
    let large = upload(&run, "", "text/plain", vec![b'x'; 6_000_001]).await;
    large.assert_error(413, "code", "payload_too_large");
    // Without a content length, the gateway detects the excess after it has stored the first part.
    let chunks = (0..13).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 500_000]));
    let body = reqwest::Body::wrap_stream(futures_util::stream::iter(chunks));
    let request = run.request(Method::POST, "/artifacts").body(body);
    assert_eq!(send(request).await.unwrap().status, 413);
    for query in [
        "?name=a%2Fb",
        "?name=",
        "?name=..",
        "?expires_in=0",
        "?expires_in=7776001",
        "?x=1",
    ] {
        let answer = upload(&run, query, "text/plain", b"x".to_vec()).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
    }
    // The next sweep frees the quota of failed uploads.
    no_files(stage.gateway.artifact_directory()).await;
    let id = uploaded(&run, vec![b'x'; 6_000_000]).await;
    let full = upload(&run, "", "text/plain", vec![b'x'; 2_000_000]).await;
    full.assert_detail(413, "reason", "workspace_full");
    assert_eq!(run.get(&format!("/artifacts/{id}")).await.status, 200);
    run.end(&stage).await;
}

/// Waits until no files and rows of artifacts remain.
async fn no_files(directory: &Path) {
    until("the bytes to be deleted", async || {
        files_in(directory).is_empty()
    })
    .await;
}

fn files_in(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files_in(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[rstest]
#[tokio::test]
async fn deletes_expired_artifacts(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(
        stage(engine, |config| {
            "lease_seconds = 3".clone_into(&mut config.runs);
        })
        .await
    );
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let answer = upload(&run, "?expires_in=2", "text/plain", b"short".to_vec()).await;
    let id = answer.body["artifact_id"].as_str().unwrap();
    assert_eq!(files_in(stage.gateway.artifact_directory()).len(), 1);
    let path = format!("/artifacts/{id}");
    until("the artifact to expire", async || {
        run.get(&path).await.status == 404
    })
    .await;
    assert_eq!(run.get(&format!("{path}/content")).await.status, 404);
    assert_eq!(stage.client.get(&format!("/v1{path}")).await.status, 404);
    no_files(stage.gateway.artifact_directory()).await;
    let url = stage.gateway.database_url();
    until("the row to be deleted", async || {
        rows(&url, "SELECT id FROM artifacts").await.is_empty()
    })
    .await;
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn sweeps_partial_uploads_after_gateway_kill(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(
        stage(engine, |config| {
            "lease_seconds = 3".clone_into(&mut config.runs);
        })
        .await
    );
    let run = HeldRun::start(&stage, &message("m-1")).await;
    // One part is stored; then the body stalls.
    let (sender, receiver) = tokio::sync::mpsc::channel::<Result<Vec<u8>, std::io::Error>>(1);
    let stream = futures_util::stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|chunk| (chunk, receiver))
    });
    let request = run
        .request(Method::POST, "/artifacts")
        .body(reqwest::Body::wrap_stream(stream));
    let sending = tokio::spawn(request.send());
    for _ in 0..6 {
        sender.send(Ok(vec![7; 1024 * 1024])).await.unwrap();
    }
    let directory = stage.gateway.artifact_directory().to_owned();
    until("a part to be stored", async || {
        !files_in(&directory).is_empty()
    })
    .await;
    stage.gateway.kill().await;
    drop(sender);
    assert!(sending.await.unwrap().is_err());
    let url = stage.gateway.database_url();
    // Simulate an expired upload.
    rows(&url, "UPDATE artifacts SET expires_at = 1").await;
    stage.gateway.restart().await;
    no_files(&directory).await;
    until("the row to be deleted", async || {
        rows(&url, "SELECT id FROM artifacts").await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn reads_granted_files_as_of_run_start() {
    let directory = std::env::temp_dir().join(format!("runnel-files-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir_all(&directory).unwrap();
    let (rules, book) = (directory.join("rules"), directory.join("book"));
    std::fs::write(&rules, "be kind").unwrap();
    std::fs::write(&book, "once upon a time").unwrap();
    let stage = stage(Sqlite, |config| {
        config.rest = format!(
            "[[files]]\nname = \"rules.txt\"\npath = \"{}\"\nkind = \"config\"\n\
             [[files]]\nname = \"book.txt\"\npath = \"{}\"\nkind = \"knowledge\"\n",
            rules.display(),
            book.display()
        );
    })
    .await
    .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let files = run.run_request["context"]["resources"]["files"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(
        files.len(),
        1,
        "the book is of a kind that the manifest does not ask for"
    );
    assert_eq!(files[0]["name"], "rules.txt");
    assert_members!(files[0], {"mime_type": "text/plain", "size": 7});
    assert_eq!(files[0]["sha256"], sha256(b"be kind"));
    std::fs::write(&rules, "be mean").unwrap();
    let id = files[0]["id"].as_str().unwrap();
    let read = content(&run, id, &[(RANGE, "bytes=3-")]).await;
    assert_eq!(
        (read.status().as_u16(), read.text().await.unwrap().as_str()),
        (206, "kind")
    );
    let metadata = run.get(&format!("/artifacts/{id}")).await.body;
    assert_members!(metadata, {"origin": "file", "artifact_id": id});
    // Workspace clients have no grant for the operator's files.
    stage
        .client
        .get(&format!("/v1/artifacts/{id}"))
        .await
        .expect(404);
    run.end(&stage).await;
    std::fs::remove_dir_all(&directory).unwrap();
}

#[rstest]
#[tokio::test]
async fn large_event_files_become_artifacts(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let (image, table) = (
        [&b"\x89PNG\r\n\x1a\n"[..], &vec![7; 100_000]].concat(),
        "a;b\n".repeat(20_000).into_bytes(),
    );
    let mut event = message("m-1");
    event["input"]["contents"] = json!([
        {"type": "text", "text": "look"},
        {"type": "image_base64", "image_base64": format!("data:image/png;base64,{}", BASE64_STANDARD.encode(&image))},
        {"type": "image_base64", "image_base64": BASE64_STANDARD.encode(b"small")},
    ]);
    event["input"]["attachments"] = json!([
        {"name": "table.csv", "mime_type": "text/csv", "content": BASE64_STANDARD.encode(&table)},
        {"name": "note.txt", "content": "aGVsbG8="},
    ]);
    let run = HeldRun::start(&stage, &event).await;
    let input = &run.run_request["context"]["input"];
    let contents = input["contents"].as_array().unwrap();
    assert_eq!(contents[0], json!({"type": "text", "text": "look"}));
    assert_eq!(contents[1]["type"], "image_url");
    assert_eq!(
        contents[2]["image_base64"],
        BASE64_STANDARD.encode(b"small")
    );
    let attachments = input["attachments"].as_array().unwrap();
    assert_eq!(attachments.len(), 3, "{attachments:?}");
    assert_eq!(attachments[1]["content"], "aGVsbG8=");
    let of_name = |name: &str| {
        let found = attachments.iter().find(|one| one["name"] == name);
        found.unwrap()["id"].as_str().unwrap().to_owned()
    };
    for (id, kind, bytes) in [
        (of_name("table.csv"), "text/csv", &table),
        (of_name("attachment"), "image/png", &image),
    ] {
        let read = content(&run, &id, &[]).await;
        assert_eq!(header(&read, CONTENT_TYPE), kind);
        assert_eq!(read.bytes().await.unwrap(), *bytes, "{kind}");
    }
    let id = of_name("attachment");
    assert_eq!(contents[1]["image_url"]["url"], format!("artifact:{id}"));

    // A run of another conversation cannot read it; a later run of the same conversation can.
    let other_run = HeldRun::start(&stage, &in_conversation("c-8", "m-2")).await;
    assert_eq!(other_run.get(&format!("/artifacts/{id}")).await.status, 404);
    other_run.end(&stage).await;
    let later = HeldRun::start(&stage, &message("m-3")).await;
    let metadata = later.get(&format!("/artifacts/{id}")).await;
    metadata.assert_body(200, "origin", "event");
    later.end(&stage).await;

    // A repeated event is a replay and stores nothing again.
    let replay = stage.client.post(&event).await;
    assert!(replay.is_replay() && replay.run_id() == run.run_id);
    let mut other = event.clone();
    other["input"]["text"] = json!("another");
    assert_eq!(stage.client.post(&other).await.status, 409);
    let sql = "SELECT id FROM artifacts WHERE status = 'ready'";
    assert_eq!(rows(&stage.gateway.database_url(), sql).await.len(), 2);
    run.end(&stage).await;
}

/// A client that retries after a lost response needs the replay, not an error about the quota.
#[rstest]
#[tokio::test]
async fn replays_stored_event_despite_full_workspace(#[values(Sqlite, Postgres)] engine: Engine) {
    let bounds = "max_bytes = 150000\nworkspace_bytes = 150000";
    let stage = or_skip!(stage(engine, |config| bounds.clone_into(&mut config.artifacts)).await);
    let with_file = |event_id: &str| {
        let mut event = message(event_id);
        let bytes = BASE64_STANDARD.encode(vec![7; 100_000]);
        event["input"]["contents"] = json!([{"type": "file_base64", "file_base64": bytes}]);
        event
    };
    let event = with_file("m-1");
    let first = stage.client.post(&event).await.expect(202);
    let full = stage.client.post(&with_file("m-2")).await;
    full.assert_detail(413, "reason", "workspace_full");

    let replay = stage.client.post(&event).await;
    assert!(replay.is_replay(), "{} {}", replay.status, replay.body);
    assert_eq!(replay.body, first.body);
    let mut other = event.clone();
    other["input"]["text"] = json!("another");
    let mismatch = stage.client.post(&other).await;
    mismatch.assert_detail(409, "reason", "idempotency_mismatch");
    let under_a_key = stage.client.request(Method::POST, "/v1/events");
    let under_a_key = under_a_key.header("idempotency-key", "k-1").json(&event);
    let exists = send(under_a_key).await.unwrap();
    exists.assert_detail(409, "reason", "event_exists");
}

#[rstest]
#[tokio::test]
async fn runs_announce_only_their_own_uploads(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let before = HeldRun::start(&stage, &message("m-0")).await;
    let foreign = uploaded(&before, b"of another run".to_vec()).await;
    before.end(&stage).await;
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer("m-1", move |run| {
        let announce = |sequence: u64, id: &str| {
            run.result(
                sequence,
                "artifact.created",
                &format!(r#"{{"artifact_id":"{id}","name":"a"}}"#),
            )
        };
        vec![
            sse_head(),
            step(announce(1, &foreign)),
            step(announce(2, "no id")),
            step(run.delta(3, "here")),
            ScriptStep::Hold(hold.clone()),
            step(run.completed(4)),
        ]
    });
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    until("the delta", async || {
        stage.client.run(&run_id).await["last_sequence"] == 1
    })
    .await;
    let rejections = stage.client.rejections(&run_id).await;
    let reasons: Vec<_> = rejections.iter().map(|one| &one["reason"]).collect();
    assert_eq!(reasons, ["unknown_artifact", "unknown_artifact"]);
    let why = "artifact.created names no artifact that this run has uploaded";
    assert_eq!(rejections[0]["message"], why);
    gate.cancel();
    stage.client.finished(&run_id).await;
}

/// An announced artifact has its ledger sequence and belongs to its message in the transcript. The time of the
/// announcement does not matter.
#[rstest]
#[tokio::test]
async fn binds_announced_artifacts_to_event_and_message(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values(true, false)] at_once: bool,
) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    stage.runner.answer("m-1", |_| {
        vec![head("202 Accepted", "content-length: 0\r\n")]
    });
    let event = in_conversation("c-7", "m-1");
    let run_id = stage.client.post(&event).await.run_id();
    let host = stage.host_of(&run_id).await;
    let made = send(host.request(Method::POST, "/artifacts").body("made"))
        .await
        .unwrap()
        .body;
    let id = made["artifact_id"].as_str().unwrap();
    let result = |sequence: u64, kind: &str, data: Value| json!({"run_id": run_id, "type": kind, "data": data, "sequence": sequence});
    let chunk = json!({"chunk": {"role": "assistant", "content": "made it"}});
    let mut results = vec![
        result(1, "message.delta", chunk),
        result(
            2,
            "artifact.created",
            json!({"artifact_id": id, "name": "a", "mime_type": "text/plain"}),
        ),
        result(3, "run.completed", json!({"finish_reason": "stop"})),
    ];
    let end = results.split_off(if at_once { 3 } else { 2 });
    append(&host, &results).await;
    if !at_once {
        until("the announcement", async || {
            stage.client.run(&run_id).await["last_sequence"] == 2
        })
        .await;
        append(&host, &end).await;
    }
    let outcome = stage.outcome(&run_id).await;
    outcome.assert(
        "completed",
        &["message.delta", "artifact.created", "run.completed"],
    );
    let metadata = stage.client.get(&format!("/v1/artifacts/{id}")).await.body;
    assert_members!(metadata, {"sequence": 2, "run_id": run_id});
    let history = "/v1/conversations/c-7/history?include_attachments=true";
    let message = stage.client.get(history).await.body["items"][0].clone();
    assert_eq!(message["role"], "assistant");
    let named = json!([{"type": "file", "mime_type": "text/plain", "size": 4, "name": "artifact",
        "url": format!("artifact:{id}"), "id": id}]);
    assert_eq!(message["attachment_refs"], named);
}

/// Appends numbered results to the run of this token.
async fn append(host: &Client, results: &[Value]) {
    let last = &results.last().unwrap()["sequence"];
    let body = json!({"results": results});
    let appended = send(host.request(Method::POST, "/run/results").json(&body));
    let appended = appended.await.unwrap();
    assert_eq!(appended.body, json!({"accepted_through": last}));
}

/// A moto server with the S3 API. It is killed on drop.
struct Bucket {
    process: tokio::process::Child,
    address: String,
}

impl Bucket {
    /// Returns `None` if moto cannot be installed.
    async fn start() -> Option<Self> {
        static SKIPPED: std::sync::Once = std::sync::Once::new();
        const MOTO: &str = "moto[s3,server]==5.2.5";
        let Some(environment) = environment("moto-5.2.5", &[MOTO]).await else {
            skipped(&SKIPPED, "s3", "moto could not be installed");
            return None;
        };
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let process = tokio::process::Command::new(environment.join("bin/python"))
            .args([
                "-m",
                "moto.server",
                "-H",
                "127.0.0.1",
                "-p",
                &port.to_string(),
            ])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let address = format!("http://127.0.0.1:{port}");
        let made = async || {
            let made = reqwest::Client::new()
                .put(format!("{address}/files"))
                .send()
                .await;
            made.is_ok_and(|made| made.status().is_success())
        };
        until("a bucket", made).await;
        Some(Self { process, address })
    }

    async fn keys(&self) -> usize {
        let list = reqwest::get(format!("{}/files", self.address))
            .await
            .unwrap();
        list.text().await.unwrap().matches("<Key>").count()
    }
}

#[tokio::test]
async fn stores_artifacts_in_s3_bucket() {
    let mut bucket = or_skip!(Bucket::start().await);
    let stage = stage(Sqlite, |config| {
        config.artifacts = format!(
            "url = \"s3://files/of/runs\"\nendpoint = \"{}\"\n\
             access_key_id = \"env:S3_ID\"\nsecret_access_key = \"env:S3_SECRET\"",
            bucket.address
        );
        config.environment = vec![
            ("S3_ID", "an-id".to_owned()),
            ("S3_SECRET", "a-secret".to_owned()),
        ];
        "lease_seconds = 3".clone_into(&mut config.runs);
    })
    .await
    .unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let bytes: Vec<u8> = (0..12 * 1024 * 1024_u32)
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect();
    let large = uploaded(&run, bytes.clone()).await;
    let small = uploaded(&run, b"small".to_vec()).await;
    assert_eq!(bucket.keys().await, 2);
    let full_content = content(&run, &large, &[]).await;
    assert_eq!(sha256(&full_content.bytes().await.unwrap()), sha256(&bytes));
    let part = content(&run, &large, &[(RANGE, "bytes=5242870-5242890")]).await;
    assert_eq!(part.status(), 206);
    assert_eq!(part.bytes().await.unwrap(), bytes[5_242_870..=5_242_890]);
    assert_eq!(
        content(&run, &small, &[]).await.text().await.unwrap(),
        "small"
    );
    let short = upload(&run, "?expires_in=1", "text/plain", b"short".to_vec()).await;
    assert_eq!(short.status, 201, "{}", short.body);
    until("the short one to go", async || bucket.keys().await == 2).await;
    assert!(!stage.gateway.log().contains("a-secret"));

    bucket.process.kill().await.unwrap();
    let failed = upload(&run, "", "text/plain", b"nowhere".to_vec()).await;
    assert_eq!(
        (failed.status, failed.error("retryable")),
        (503, &json!(true)),
        "{}",
        failed.body
    );
    run.end(&stage).await;
}
