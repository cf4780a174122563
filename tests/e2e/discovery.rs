//! Discovery: dry runs, periodic refresh, history of health.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, RecordedRequest, SECRET, StubRunner, manifest};
use crate::support::script::{chunk, sse, sse_and_wait};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

const OTHER: &str = "plugin:test/other/default";
const THIRD: &str = "plugin:test/third/default";
const ENDPOINTS: &str = "/v1/runner-endpoints";
/// Refresh endpoints almost immediately.
const EAGER: &str = "discovery_ttl_seconds = 0.05\ndiscovery_retry_seconds = 0.05";

async fn other_runner() -> StubRunner {
    let runner = StubRunner::start_as(manifest(OTHER)).await;
    runner.answer_all(|run| sse(run.talk(2).concat()));
    runner
}

/// Registers an endpoint and returns its path.
async fn registered(admin: &Client, spec: &Value) -> String {
    let answer = admin.create(ENDPOINTS, spec).await.expect(201);
    format!("{ENDPOINTS}/{}", answer.body["id"].as_str().unwrap())
}

async fn bound(admin: &Client, name: &str, runner_id: &str, config: &Value) {
    let agent = json!({
        "name": name, "event_types": [format!("test.{name}")], "runner_id": runner_id,
        "config": config,
    });
    admin.create("/v1/agents", &agent).await.expect(201);
}

async fn dry_run(admin: &Client, endpoint: &str) -> Value {
    admin
        .create(&format!("{endpoint}/refresh?dry_run=true"), &json!({}))
        .await
        .expect(200)
        .body
}

async fn refresh(admin: &Client, endpoint: &str) -> Value {
    admin
        .create(&format!("{endpoint}/refresh"), &json!({}))
        .await
        .expect(200)
        .body
}

/// Endpoints, runners and agents: everything that a dry run might change.
async fn everything(admin: &Client) -> Vec<Value> {
    let mut all = Vec::new();
    for path in [ENDPOINTS, "/v1/runners", "/v1/agents"] {
        all.push(admin.get(path).await.body);
    }
    all
}

async fn runner(admin: &Client, id: &str) -> Value {
    let list = admin.get(&format!("/v1/runners?id={id}")).await.body;
    list["items"][0].clone()
}

async fn history(admin: &Client, endpoint: &str) -> Vec<Value> {
    let answer = admin.get(&format!("{endpoint}/health")).await.expect(200);
    answer.body["items"].as_array().unwrap().clone()
}

async fn event(client: &Client, event_id: &str, event_type: &str) -> ApiResponse {
    let mut event = message(event_id);
    event["event_type"] = json!(event_type);
    client.post(&event).await
}

fn ids(list: &Value) -> Vec<&str> {
    let items = list.as_array().unwrap().iter();
    items
        .map(|item| item.as_str().or(item["id"].as_str()).unwrap())
        .collect()
}

#[rstest]
#[tokio::test]
async fn dry_run_reports_refresh_changes_and_stores_nothing(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let admin = stage.admin.clone();
    let id = |name: &str| format!("plugin:test/{name}/default");
    let listed = ["formed", "same", "gone", "older"].map(|name| manifest(&id(name)));
    let other = StubRunner::start_listing(json!(listed)).await;
    let endpoint = registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    for name in ["formed", "same", "gone", "older"] {
        bound(&admin, name, &id(name), &json!({})).await;
    }
    let before = everything(&admin).await;

    let mut formed = manifest(&id("formed"));
    formed["capabilities"]["steering"] = json!(true);
    formed["config_schema"] = json!([{"type": "string", "name": "tone", "required": true}]);
    let mut newer = manifest(&id("older"));
    newer["protocol_version"] = json!("2");
    other.list(json!([
        formed,
        manifest(&id("same")),
        newer,
        manifest(&id("new")),
        manifest(RUNNER_ID),
        {"id": id("faulty"), "name": "default"},
    ]));
    let diff = dry_run(&admin, &endpoint).await;
    assert_eq!(diff["endpoint"], "other");
    assert_eq!(diff["health"], "healthy");
    assert!(diff["latency_ms"].is_i64(), "{diff}");
    assert_eq!(ids(&diff["added"]), [id("new")]);
    assert_eq!(ids(&diff["unchanged"]), [id("same")]);
    assert_eq!(ids(&diff["removed"]), [id("gone")]);
    assert_eq!(ids(&diff["incompatible"]), [id("older")]);
    assert_eq!(diff["rejected"][0]["pointer"], "/runners/5/label");
    assert_eq!(
        diff["conflicts"],
        json!([{"runner_id": RUNNER_ID, "endpoint": "stub", "replaced": false}])
    );
    assert_eq!(ids(&diff["changed"]), [id("formed")]);
    let fields = diff["changed"][0]["fields"].as_array().unwrap();
    let pointers: Vec<_> = fields
        .iter()
        .map(|one| one["pointer"].as_str().unwrap())
        .collect();
    assert_eq!(pointers, ["/capabilities/steering", "/config_schema"]);
    assert_members!(fields[0], {"old": false, "new": true});
    let agents = diff["agents"].as_array().unwrap().iter();
    let agents: Vec<_> = agents
        .map(|one| {
            (
                one["name"].as_str().unwrap(),
                one["effect"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        agents,
        [
            ("formed", "config_invalid"),
            ("gone", "runner_removed"),
            ("older", "runner_incompatible"),
        ]
    );
    assert_eq!(diff["agents"][0]["faults"][0]["pointer"], "/config/tone");
    assert_eq!(everything(&admin).await, before);
    assert_eq!(history(&admin, &endpoint).await.len(), 1);

    // The refresh makes exactly the announced changes.
    refresh(&admin, &endpoint).await;
    let after = dry_run(&admin, &endpoint).await;
    assert_eq!(
        ids(&after["unchanged"]),
        [id("formed"), id("same"), id("new")]
    );
    for list in ["added", "changed", "removed"] {
        assert_eq!(after[list], json!([]), "{list}: {after}");
    }
    let rows = history(&admin, &endpoint).await;
    let counts = [
        "accepted",
        "incompatible",
        "rejected",
        "added",
        "changed",
        "removed",
    ]
    .map(|name| rows[0][name].as_u64().unwrap());
    // The id of another endpoint counts as rejected. `older` changes in the same way as `formed`.
    assert_eq!(counts, [3, 1, 2, 1, 2, 1], "{rows:?}");
    assert_eq!(runner(&admin, &id("gone")).await["status"], "absent");

    admin
        .create(&format!("{endpoint}/refresh?dry_run=perhaps"), &json!({}))
        .await
        .expect(400);
}

#[tokio::test]
async fn registration_dry_run_reports_effect_of_replaces() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let first = other_runner().await;
    registered(&admin, &json!({"name": "first", "base_url": first.url})).await;
    bound(&admin, "moving", OTHER, &json!({})).await;
    let second = StubRunner::start_listing(json!([manifest(OTHER), manifest(THIRD)])).await;
    let before = everything(&admin).await;
    let path = format!("{ENDPOINTS}?dry_run=true");

    let mut spec = json!({"name": "second", "base_url": second.url, "secret": SECRET});
    let diff = admin.create(&path, &spec).await.expect(200);
    let conflict = json!([{"runner_id": OTHER, "endpoint": "first", "replaced": false}]);
    assert_eq!(diff.body["conflicts"], conflict);
    assert_eq!(ids(&diff.body["added"]), [THIRD]);
    assert_eq!(diff.body["agents"], json!([]));
    let run_request = second
        .wait_for_request("its runners", |request| request.path == "/runners")
        .await;
    assert!(run_request.is_signed());

    spec["replaces"] = json!("first");
    let diff = admin.create(&path, &spec).await.body;
    assert_eq!(diff["conflicts"][0]["replaced"], true);
    assert_eq!(ids(&diff["added"]), [OTHER, THIRD]);
    assert_eq!(diff["agents"][0]["effect"], "runner_replaced");
    assert!(!diff.to_string().contains(SECRET));

    for (member, value, status, pointer) in [
        ("replaces", json!("nobody"), 400, json!("/replaces")),
        (
            "base_url",
            json!("http://10.0.0.1:80"),
            400,
            json!("/base_url"),
        ),
        ("name", json!("first"), 409, Value::Null),
    ] {
        let mut spec = spec.clone();
        spec[member] = value;
        let refused = admin.create(&path, &spec).await;
        assert_eq!(refused.status, status, "{member}: {}", refused.body);
        assert_eq!(refused.detail("pointer"), &pointer, "{member}");
    }
    let mut gone = StubRunner::start().await;
    gone.stop().await;
    let diff = admin
        .create(&path, &json!({"name": "gone", "base_url": gone.url}))
        .await
        .body;
    assert_eq!(diff["health"], "unreachable");
    assert!(diff["health_reason"].is_string(), "{diff}");
    assert_eq!(everything(&admin).await, before);
}

#[rstest]
#[tokio::test]
async fn periodic_refresh_applies_valid_lists(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |config| EAGER.clone_into(&mut config.runs)).await);
    let admin = stage.admin.clone();
    let other = other_runner().await;
    let endpoint = registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    bound(&admin, "other", OTHER, &json!({})).await;
    let sha = runner(&admin, OTHER).await["manifest_sha256"].clone();
    let run_id = event(&stage.client, "m-1", "test.other").await.run_id();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");

    let mut changed = manifest(OTHER);
    changed["label"]["en_US"] = json!("Changed");
    other.list(json!([changed]));
    other.listed(3).await;
    let now = runner(&admin, OTHER).await;
    assert_eq!(now["manifest"]["label"]["en_US"], "Changed");
    assert_ne!(now["manifest_sha256"], sha);

    // An invalid list removes no runners.
    other.list(Value::Null);
    other.listed(3).await;
    let shown = admin.get(&endpoint).await.body;
    assert_eq!(shown["health"], "unhealthy", "{shown}");
    let reason = shown["health_reason"].as_str().unwrap();
    assert!(reason.contains("runners"), "{reason}");
    assert_eq!(runner(&admin, OTHER).await["status"], "accepted");
    let run_id = event(&stage.client, "m-2", "test.other").await.run_id();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");

    // An empty list does, and the next event reports it.
    other.list(json!([]));
    other.listed(3).await;
    let absent = runner(&admin, OTHER).await;
    assert_eq!(absent["status"], "absent");
    assert!(absent["reason"].is_string(), "{absent}");
    let refused = event(&stage.client, "m-3", "test.other").await;
    refused.assert_detail(503, "reason", "runner_unavailable");
    assert_eq!(refused.detail("runner_status"), "absent");
    let message = refused.error("message").as_str().unwrap();
    assert_contains!(message, OTHER, "does not list it");
    let agent = json!({"name": "late", "event_types": ["x"], "runner_id": OTHER});
    let late = admin.create("/v1/agents", &agent).await;
    assert_eq!(late.detail("pointer"), "/runner_id", "{}", late.body);

    other.list(json!([manifest(OTHER)]));
    other.listed(3).await;
    let run_id = event(&stage.client, "m-3", "test.other").await.run_id();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");

    let rows = history(&admin, &endpoint).await;
    let message: Vec<_> = rows
        .iter()
        .rev()
        .map(|row| {
            let count = |name: &str| row[name].as_u64().unwrap();
            let changes = (count("added"), count("changed"), count("removed"));
            (row["health"].as_str().unwrap(), count("accepted"), changes)
        })
        .collect();
    assert_eq!(
        message,
        [
            ("healthy", 1, (1, 0, 0)),
            ("healthy", 1, (0, 1, 0)),
            ("unhealthy", 1, (0, 0, 0)),
            ("healthy", 0, (0, 0, 1)),
            ("healthy", 1, (1, 0, 0)),
        ],
        "{rows:?}"
    );
    assert!(
        rows.iter()
            .all(|row| row["latency_ms"].is_i64() && row["at"].is_i64())
    );
}

#[tokio::test]
async fn pages_health_history_newest_first() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let mut other = other_runner().await;
    let endpoint = registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    let second = registered(
        &admin,
        &json!({"name": "second", "base_url": stage.runner.url, "manifests": []}),
    )
    .await;
    other.list(json!([]));
    refresh(&admin, &endpoint).await;
    other.stop().await;
    refresh(&admin, &endpoint).await;
    refresh(&admin, &endpoint).await;
    let rows = history(&admin, &endpoint).await;
    let healths: Vec<_> = rows
        .iter()
        .map(|row| row["health"].as_str().unwrap())
        .collect();
    assert_eq!(healths, ["unreachable", "healthy", "healthy"]);
    let reason = "the endpoint cannot be reached; the gateway's log has the cause";
    assert_eq!(rows[0]["reason"], reason);

    let mut paged = Vec::new();
    let mut path = format!("{endpoint}/health?limit=2");
    let last = loop {
        let page = admin.get(&path).await.body;
        paged.extend(page["items"].as_array().unwrap().clone());
        let Some(cursor) = page["next_cursor"].as_str() else {
            break path;
        };
        path = format!("{endpoint}/health?limit=2&cursor={cursor}");
    };
    assert_eq!(paged, rows);
    let foreign = last.replace(&endpoint, &second);
    assert_eq!(admin.get(&foreign).await.status, 400);
    let missing = format!("{ENDPOINTS}/01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61/health");
    assert_eq!(admin.get(&missing).await.status, 404);
    let shown = admin.get(&second).await.body;
    assert_eq!(
        shown["next_check_at"],
        Value::Null,
        "its manifests are registered: {shown}"
    );
    assert!(admin.get(&endpoint).await.body["next_check_at"].is_i64());
}

#[tokio::test]
async fn moving_runner_id_leaves_active_runs_running() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let held = HeldRun::start(&stage, &message("m-1")).await;
    let second = StubRunner::start().await;
    second.answer_all(|run| sse(run.talk(2).concat()));
    let spec = json!({"name": "second", "base_url": second.url, "replaces": "stub"});
    registered(&admin, &spec).await;
    assert_eq!(runner(&admin, RUNNER_ID).await["endpoint"], "second");

    let run_id = stage.client.post(&message("m-2")).await.run_id();
    assert_eq!(stage.client.finished(&run_id).await["status"], "completed");
    assert_eq!((second.posts(&run_id), stage.runner.posts(&run_id)), (1, 0));
    // The earlier run was dispatched to the old endpoint, can still call back, and ends there.
    assert_eq!(held.get("/run").await.status, 200);
    let outcome = held.end(&stage).await;
    outcome.assert("completed", &["message.delta", "run.completed"]);

    // The old endpoint still lists the id, but a refresh does not return it.
    let list = admin.get(ENDPOINTS).await.body;
    let stub = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "stub");
    let path = format!("{ENDPOINTS}/{}", stub.unwrap()["id"].as_str().unwrap());
    let diff = dry_run(&admin, &path).await;
    assert_eq!(diff["conflicts"][0]["endpoint"], "second");
    let refreshed = refresh(&admin, &path).await;
    assert_eq!(refreshed["accepted"], json!([]));
    assert_eq!(refreshed["rejected"][0]["pointer"], "/runners/0/id");
    assert_eq!(runner(&admin, RUNNER_ID).await["endpoint"], "second");
}

#[tokio::test]
async fn converts_snapshots_to_deltas_with_full_text() {
    let stage = Stage::new().await;
    let admin = stage.admin.clone();
    let other = StubRunner::start_as(manifest(OTHER)).await;
    other.answer_all(|run| {
        let delta = |n, text| run.result(n, "message.delta", &chunk(text));
        let body = [delta(1, "one"), delta(2, "one two"), run.completed(3)];
        sse(body.concat())
    });
    let spec = json!({"name": "other", "base_url": other.url, "delta_mode": "snapshot"});
    registered(&admin, &spec).await;
    bound(&admin, "other", OTHER, &json!({})).await;
    let run_id = event(&stage.client, "m-1", "test.other").await.run_id();
    let run = stage.client.finished(&run_id).await;
    assert_eq!(run["output"]["content"], "one two", "{run}");
    let ledger = stage.client.ledger(&run_id).await;
    let chunks: Vec<_> = ledger.0[..2]
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["data"]["chunk"].clone())
        .collect();
    let message_of = |content: &str, all_content: &str| json!({"role": "assistant", "content": content, "all_content": all_content});
    assert_eq!(
        chunks,
        [message_of("one", "one"), message_of(" two", "one two")]
    );
    assert!(other.requests().iter().any(RecordedRequest::is_run));
}

#[tokio::test]
async fn single_url_runner_receives_cancel_there() {
    let stage = Stage::with(|config| config.runs = "cancel_grace_seconds = 0.2".into()).await;
    let admin = stage.admin.clone();
    let mut interruptible = manifest(OTHER);
    interruptible["capabilities"]["interrupt"] = json!(true);
    let other = StubRunner::start_as(interruptible).await;
    other.answer_all(|run| sse_and_wait(run.delta(1, "a")));
    let spec = json!({
        "name": "other", "base_url": format!("{}/function", other.url), "mode": "single_url",
        "secret": SECRET,
    });
    registered(&admin, &spec).await;
    bound(&admin, "other", OTHER, &json!({})).await;
    let run_id = event(&stage.client, "m-1", "test.other").await.run_id();
    let action = |request: &RecordedRequest, action: &str| {
        request.path == "/function" && request.json()["action"] == action
    };
    other
        .wait_for_request("the run", |one| action(one, "run"))
        .await;
    assert_eq!(stage.client.cancel(&run_id).await.status, 202);
    let cancellation = other
        .wait_for_request("to stop", |one| action(one, "cancel"))
        .await;
    assert_eq!(cancellation.json()["run_id"], *run_id);
    assert!(cancellation.is_signed());
    assert_starts_with!(cancellation.header("webhook-id").unwrap(), "cancel_");
    assert_eq!(stage.client.finished(&run_id).await["status"], "cancelled");
}

/// Two replicas of one database with one endpoint due for a refresh.
#[tokio::test]
async fn replicas_take_turns_in_discovery() {
    const TTL: Duration = Duration::from_millis(400);
    let eager = |config: &mut Config| config.runs = "discovery_ttl_seconds = 0.4".into();
    let stage = or_skip!(OwnStage::on(Postgres, eager).await);
    let _second = stage.gateway.start_replica().await;
    let admin = stage.admin.clone();
    let other = other_runner().await;
    registered(&admin, &json!({"name": "other", "base_url": other.url})).await;
    other.listed(6).await;
    let requests: Vec<_> = other
        .requests()
        .iter()
        .filter_map(|request| request.at)
        .collect();
    for two in requests.windows(2) {
        // The interval starts when the response is stored, and jitter may shorten it by a tenth.
        let between = two[1].duration_since(two[0]);
        assert!(between >= TTL.mul_f64(0.85), "{between:?}");
    }
}
