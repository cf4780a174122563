//! Blob storage: areas of a run, size limits, and complete reads.

use std::convert::Infallible;

use futures_util::{StreamExt, stream};
use reqwest::{Body, Method};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::client::{ApiResponse, message, send};
use crate::support::database::rows;
use crate::support::gateway::{Agent, Config};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, within};

/// Three runners with an agent each: two of one plugin, one of another.
async fn stage(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let listed = [
        RUNNER_ID,
        "plugin:test/stub/second",
        "plugin:test/other/default",
    ];
    let manifests: Vec<_> = listed
        .map(|id| {
            let mut manifest = manifest(id);
            manifest["name"] = json!(id.rsplit('/').next().unwrap());
            manifest["permissions"]["storage"] = json!(["plugin", "workspace", "binding"]);
            manifest
        })
        .into();
    let runner = StubRunner::start_listing(json!(manifests)).await;
    OwnStage::of(engine, runner, |config| {
        let agent = |name, event_types, runner_id| Agent {
            name,
            event_types,
            runner_id,
            resources: r#"storage = ["plugin", "workspace", "binding"]"#,
            ..Agent::default()
        };
        config.agents = vec![
            agent("main", "message.received", listed[0]),
            agent("second", "test.second", listed[1]),
            agent("other", "test.other", listed[2]),
        ];
        configure(config);
    })
    .await
}

fn of_type(event_type: &str, event_id: &str) -> Value {
    let mut event = message(event_id);
    event["event_type"] = json!(event_type);
    event
}

async fn put(run: &HeldRun, path: &str, content_type: &str, bytes: Vec<u8>) -> ApiResponse {
    let request = run.request(Method::PUT, path).body(bytes);
    send(request.header("content-type", content_type))
        .await
        .unwrap()
}

/// Status, content type and bytes.
async fn get(run: &HeldRun, path: &str) -> (u16, String, Vec<u8>) {
    let response = within("a blob", run.request(Method::GET, path).send())
        .await
        .unwrap();
    let status = response.status().as_u16();
    let content_type = response.headers()["content-type"]
        .to_str()
        .unwrap()
        .to_owned();
    let bytes = within("its bytes", response.bytes()).await.unwrap();
    (status, content_type, bytes.to_vec())
}

/// Bytes that vary by position.
fn bytes(count: usize) -> Vec<u8> {
    let byte = |n: usize| u8::try_from((n / 256 + n) % 256).unwrap();
    (0..count).map(byte).collect()
}

#[rstest]
#[tokio::test]
async fn reads_blobs_as_written(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let chunk = 256 * 1024;
    for count in [
        0,
        1,
        chunk - 1,
        chunk,
        chunk + 1,
        3 * chunk,
        10 * 1024 * 1024,
    ] {
        let path = "/storage/plugin/dir/blob:1";
        let written = put(&run, path, "image/png", bytes(count)).await;
        assert_eq!(written.status, 204, "{count}: {}", written.body);
        let (status, content_type, read) = get(&run, path).await;
        assert_eq!(
            (status, content_type.as_str()),
            (200, "image/png"),
            "{count}"
        );
        assert!(
            read == bytes(count),
            "{count} bytes came back as {}",
            read.len()
        );
    }
    put(
        &run,
        "/storage/plugin/large",
        "a/b",
        bytes(10 * 1024 * 1024 + 1),
    )
    .await
    .expect(413);
    assert_eq!(run.get("/storage/plugin/large").await.status, 404);

    assert_eq!(run.delete("/storage/plugin/dir/blob:1").await.status, 204);
    assert_eq!(run.delete("/storage/plugin/dir/blob:1").await.status, 404);
    assert_eq!(run.get("/storage/plugin/dir/blob:1").await.status, 404);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn isolates_areas_by_owner(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |_| {}).await);
    let first = HeldRun::start(&stage, &message("m-1")).await;
    for area in ["plugin", "workspace", "binding"] {
        let path = format!("/storage/{area}/key");
        let written = put(&first, &path, "text/plain", area.as_bytes().to_vec()).await;
        assert_eq!(written.status, 204, "{}", written.body);
    }
    first.end(&stage).await;
    for (event_type, opens) in [
        ("message.received", vec!["plugin", "workspace", "binding"]),
        ("test.second", vec!["plugin", "workspace"]),
        ("test.other", vec!["workspace"]),
    ] {
        let run =
            HeldRun::start(&stage, &of_type(event_type, &format!("again-{event_type}"))).await;
        for area in ["plugin", "workspace", "binding"] {
            let path = format!("/storage/{area}/key");
            let expected = if opens.contains(&area) { 200 } else { 404 };
            let (status, _, read) = get(&run, &path).await;
            assert_eq!(status, expected, "{event_type} {area}");
            if expected == 200 {
                assert_eq!(read, area.as_bytes(), "{event_type}");
            }
            let keys = run.get(&format!("/storage/{area}")).await.body;
            let listed = keys["keys"].as_array().unwrap().len();
            assert_eq!(listed, usize::from(expected == 200), "{event_type} {area}");
        }
        run.end(&stage).await;
    }
}

#[tokio::test]
async fn pages_keys_in_byte_order() {
    let stage = stage(Sqlite, |_| {}).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut names = ["b", "a/2", "a/1", "A", "a/10", "Z:9", "a-"].map(str::to_owned);
    for name in &names {
        put(&run, &format!("/storage/binding/{name}"), "a/b", bytes(3)).await;
    }
    names.sort_unstable();
    let mut seen = Vec::new();
    let mut path = "/storage/binding?limit=2".to_owned();
    loop {
        let page = run.get(&path).await.body;
        let keys = page["keys"].as_array().unwrap();
        seen.extend(keys.iter().map(|key| key.as_str().unwrap().to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else {
            assert_eq!(page["has_more"], false);
            break;
        };
        assert_eq!((keys.len(), &page["has_more"]), (2, &json!(true)));
        path = format!("/storage/binding?limit=2&after_cursor={cursor}");
    }
    assert_eq!(seen, names);
    let some = run.get("/storage/binding?prefix=a/").await.body;
    assert_eq!(some["keys"], json!(["a/1", "a/10", "a/2"]));
    // A cursor is valid only for its own list.
    let cursor = run.get("/storage/binding?limit=1").await.body["next_cursor"].clone();
    let malformed = format!("/storage/plugin?after_cursor={}", cursor.as_str().unwrap());
    assert_eq!(run.get(&malformed).await.status, 400);
    run.end(&stage).await;
}

#[tokio::test]
async fn denies_and_audits_ungranted_areas() {
    let stage = stage(Sqlite, |config| {
        config.agents[0].resources = r#"storage = ["plugin"]"#;
    });
    let stage = stage.await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let resources = &run.run_request["context"]["resources"]["storage"];
    assert_eq!(
        *resources,
        json!({"plugin_storage": true, "workspace_storage": false, "binding_storage": false})
    );
    assert_members!(run.run_request["context"]["context"]["available_apis"], {"storage": true});
    for (path, status) in [
        ("/storage/workspace/key", 403),
        ("/storage/binding/key", 403),
        ("/storage/nowhere/key", 400),
        ("/storage/plugin/host.key", 403),
        ("/storage/plugin/b%C3%A4d", 400),
        ("/storage/plugin/key", 204),
    ] {
        let answer = put(&run, path, "a/b", bytes(1)).await;
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
    }
    assert_eq!(run.get("/storage/workspace").await.status, 403);
    let (_, _, read) = get(&run, "/storage/plugin/key").await;
    assert_eq!(read, bytes(1));
    let run_id = run.run_id.clone();
    run.end(&stage).await;

    let audit = stage
        .client
        .get(&format!("/v1/runs/{run_id}/audit"))
        .await
        .body;
    let rows: Vec<_> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            json!([
                row["action"],
                row["resource"],
                row["decision"],
                row["bytes"]
            ])
        })
        .collect();
    assert_eq!(
        json!(rows),
        json!([
            ["storage_set", "workspace", "deny", 0],
            ["storage_set", "binding", "deny", 0],
            ["storage_set", "plugin", "deny", 0],
            ["storage_set", "plugin", "allow", 1],
            ["storage_list", "workspace", "deny", 0],
            ["storage_get", "plugin", "allow", 1],
        ])
    );
}

#[rstest]
#[tokio::test]
async fn rejects_writes_to_full_area(#[values(Sqlite, Postgres)] engine: Engine) {
    let small = |config: &mut Config| {
        config.limits = "storage_blob_bytes = 600000\nstorage_area_bytes = 1000000".to_owned();
    };
    let stage = or_skip!(stage(engine, small).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    put(&run, "/storage/plugin/one", "a/b", bytes(600_000))
        .await
        .expect(204);
    let full = put(&run, "/storage/plugin/two", "a/b", bytes(500_000)).await;
    full.assert_detail(413, "reason", "area_full");
    assert_eq!(run.get("/storage/plugin/two").await.status, 404);
    // Another area has its own quota, and a small blob still fits here.
    put(&run, "/storage/binding/two", "a/b", bytes(500_000))
        .await
        .expect(204);
    put(&run, "/storage/plugin/two", "a/b", bytes(100_000))
        .await
        .expect(204);
    let (_, _, read) = get(&run, "/storage/plugin/one").await;
    assert!(read == bytes(600_000));
    run.end(&stage).await;
}

#[tokio::test]
async fn limits_run_to_four_concurrent_uploads() {
    let stage = stage(Sqlite, |_| {}).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut going = JoinSet::new();
    for n in 0..5 {
        let slow = stream::iter([Ok::<_, Infallible>("begun")]).chain(stream::pending());
        let request = run.request(Method::PUT, &format!("/storage/plugin/slow-{n}"));
        going.spawn(request.body(Body::wrap_stream(slow)).send());
    }
    let fifth = within("one to be refused", going.join_next()).await;
    let fifth = fifth.unwrap().unwrap().unwrap();
    assert_eq!(fifth.status(), 429);
    assert!(fifth.headers().contains_key("retry-after"));
    let another = put(&run, "/storage/plugin/another", "a/b", bytes(1)).await;
    assert_eq!(another.error("code"), "rate_limited", "{}", another.body);
    // Aborted uploads release their share.
    going.shutdown().await;
    within("the quota to be released", async {
        while put(&run, "/storage/plugin/sixth", "a/b", bytes(1))
            .await
            .status
            != 204
        {}
    })
    .await;
    run.end(&stage).await;
}

/// The area of a deleted agent can be granted to no other agent.
#[rstest]
#[tokio::test]
async fn deletes_storage_with_its_agent(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine, |config| config.agents.truncate(2)).await);
    let admin = stage.admin.clone();
    let spec = json!({"name": "passing", "event_types": ["test.passing"], "runner_id": "plugin:test/other/default",
        "resource_policy": {"storage": ["binding", "plugin"]}});
    let agent = admin.create("/v1/agents", &spec).await.body;
    let run = HeldRun::start(&stage, &of_type("test.passing", "m-1")).await;
    for (path, size) in [
        ("/storage/binding/small", 10),
        ("/storage/binding/large", 600_000),
        ("/storage/plugin/shared", 10),
    ] {
        let written = put(&run, path, "text/plain", bytes(size)).await;
        assert_eq!(written.status, 204, "{path}: {}", written.body);
    }
    run.end(&stage).await;
    admin
        .delete(&format!("/v1/agents/{}", agent["id"].as_str().unwrap()))
        .await
        .expect(204);
    let url = stage.gateway.database_url();
    let left = rows(&url, "SELECT key FROM storage_blobs").await;
    assert_eq!(left, ["shared"], "another agent of the plugin may read it");
    let waiting = rows(&url, "SELECT content_id FROM storage_garbage").await;
    assert_eq!(waiting.len(), 2, "they are swept once no reader remains");
}
