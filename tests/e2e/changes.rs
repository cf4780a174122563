//! Administrative changes: who changed what, over the API, by the configuration file and by commands.

use std::collections::BTreeSet;

use reqwest::Method;
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{ApiResponse, Client, send};
use crate::support::gateway::Config;
use crate::support::programs::runnel;
use crate::support::routes::{Face, operations};
use crate::support::runner::{RUNNER_ID, StubRunner};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, run};

const SECRET: &str = "hidden-4f1c";
const WEBHOOK_SECRET: &str = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";

/// Writing operations of admins and owners whose changes have a row.
const RECORDED: [&str; 31] = [
    "register_runner_endpoint",
    "delete_runner_endpoint",
    "create_agent",
    "update_agent",
    "delete_agent",
    "restore_agent",
    "delete_agent_skill",
    "create_api_key",
    "revoke_api_key",
    "put_document",
    "delete_document",
    "put_budget",
    "delete_budget",
    "create_approval",
    "revoke_approval",
    "create_source",
    "delete_source",
    "rotate_source_secret",
    "create_webhook",
    "update_webhook",
    "delete_webhook",
    "rotate_webhook_secret",
    "create_schedule",
    "update_schedule",
    "delete_schedule",
    "pause_schedule",
    "resume_schedule",
    "pause_agent",
    "resume_agent",
    "pause_workspace",
    "resume_workspace",
];
/// The same, tested by other functions of this file.
const RECORDED_BY_OWNERS: [&str; 3] = ["create_workspace", "pause_all", "resume_all"];
/// Operations that change no setting.
const UNRECORDED: [&str; 12] = [
    // Data of runs, which the ledger and the schedule show.
    "delete_artifact",
    "run_schedule",
    "dry_run_event",
    "dry_run_agent",
    "check_policy",
    "refresh_runner_endpoint",
    "reindex_knowledge_base",
    "search_knowledge_base",
    "try_source",
    "test_webhook",
    "redeliver_webhook",
    "redeliver_webhook_message",
];

fn spec(name: &str, prompt: &str) -> Value {
    json!({
        "name": name, "event_types": ["test.changes"], "runner_id": RUNNER_ID, "enabled": false,
        "config": {"api_key": SECRET, "prompt": prompt},
    })
}

fn with_bases(config: &mut Config) {
    "[[knowledge_bases]]\nkb_id = \"handbook\"".clone_into(&mut config.rest);
}

async fn stage(engine: Engine) -> Option<OwnStage> {
    OwnStage::of(engine, StubRunner::start().await, with_bases).await
}

/// Changes that match the query, newest first.
async fn changes(client: &Client, query: &str) -> Vec<Value> {
    let path = format!("/v1/changes?limit=100&{query}");
    let page = client.get(&path).await.expect(200).body;
    assert_eq!(page["has_more"], false, "{page}");
    page["items"].as_array().unwrap().clone()
}

/// The newest change of an object.
async fn newest(client: &Client, kind: &str, object_id: &str) -> Value {
    let query = format!("kind={kind}&object_id={object_id}");
    changes(client, &query).await[0].clone()
}

async fn call(client: &Client, method: Method, path: &str, body: &Value) -> ApiResponse {
    let request = client.request(method, path).json(body);
    let answer = send(request.header("x-request-id", "req-7")).await.unwrap();
    assert!(answer.status < 300, "{path}: {}", answer.body);
    answer
}

fn id_of(answer: &ApiResponse) -> String {
    answer.body["id"].as_str().unwrap().to_owned()
}

/// Creates, changes and deletes an object of each kind. Returns kinds, ids and the expected actions, oldest first.
async fn change_everything(admin: &Client) -> Vec<(&'static str, String, Vec<&'static str>)> {
    let (post, put, delete) = (Method::POST, Method::PUT, Method::DELETE);
    let none = json!({});
    let mut changed = Vec::new();

    let agent = id_of(&call(admin, post.clone(), "/v1/agents", &spec("a", "one")).await);
    let path = format!("/v1/agents/{agent}");
    call(admin, put.clone(), &path, &spec("a", "two")).await;
    let first = changes(admin, &format!("object_id={agent}&order=oldest")).await;
    let restore = json!({"change_id": first[0]["id"]});
    call(admin, post.clone(), &format!("{path}/restore"), &restore).await;
    let hold = json!({"mode": "hold", "reason": "incident"});
    call(admin, post.clone(), &format!("{path}/pause"), &hold).await;
    call(admin, post.clone(), &format!("{path}/resume"), &none).await;
    let pause = format!("agent:{agent}");
    changed.push(("pause", pause, vec!["created", "changed"]));
    call(admin, delete.clone(), &path, &none).await;
    let actions = vec!["created", "changed", "changed", "deleted"];
    changed.push(("agent", agent, actions));

    let workspace = "/v1/workspaces/default";
    call(admin, post.clone(), &format!("{workspace}/pause"), &hold).await;
    call(admin, post.clone(), &format!("{workspace}/resume"), &none).await;
    let pause = "workspace:default".to_owned();
    changed.push(("pause", pause, vec!["created", "changed"]));

    let endpoint = json!({
        "name": "extra", "base_url": "http://127.0.0.1:9", "secret": WEBHOOK_SECRET, "headers": {"x-extra": SECRET},
    });
    let endpoint = id_of(&call(admin, post.clone(), "/v1/runner-endpoints", &endpoint).await);
    call(
        admin,
        delete.clone(),
        &format!("/v1/runner-endpoints/{endpoint}"),
        &none,
    )
    .await;
    changed.push(("runner_endpoint", endpoint, vec!["created", "deleted"]));

    let key = json!({"name": "extra", "role": "client"});
    let key = id_of(&call(admin, post.clone(), "/v1/api-keys", &key).await);
    call(admin, delete.clone(), &format!("/v1/api-keys/{key}"), &none).await;
    changed.push(("api_key", key, vec!["created", "changed"]));

    let budget = json!({"scope": "workspace", "window": "day", "calls": 5});
    call(admin, put.clone(), "/v1/budgets/daily", &budget).await;
    call(admin, delete.clone(), "/v1/budgets/daily", &none).await;
    changed.push(("budget", "daily".to_owned(), vec!["created", "deleted"]));

    let mut webhook = json!({"name": "crm", "events": ["run.failed"]});
    let id = id_of(&call(admin, post.clone(), "/v1/webhooks", &webhook).await);
    let path = format!("/v1/webhooks/{id}");
    webhook["events"] = json!(["run.failed", "run.completed"]);
    call(admin, put.clone(), &path, &webhook).await;
    let secret = json!({"secret": WEBHOOK_SECRET});
    call(
        admin,
        post.clone(),
        &format!("{path}/rotate-secret"),
        &secret,
    )
    .await;
    call(admin, delete.clone(), &path, &none).await;
    let actions = vec!["created", "changed", "changed", "deleted"];
    changed.push(("webhook", id, actions));

    let approval = json!({"agent": "main", "tool": "search", "arguments": {}, "count": 1});
    let id = id_of(&call(admin, post.clone(), "/v1/approvals", &approval).await);
    let path = format!("/v1/approvals/{id}/revoke");
    call(admin, post.clone(), &path, &none).await;
    changed.push(("approval", id, vec!["created", "changed"]));

    let source = json!({
        "name": "shop", "scheme": "github", "secret": "0123456789abcdef", "filter": "{event_type: \"x\"}",
        "agents": ["main"],
    });
    let id = id_of(&call(admin, post.clone(), "/v1/sources", &source).await);
    let path = format!("/v1/sources/{id}");
    call(admin, post.clone(), &format!("{path}/rotate-secret"), &none).await;
    call(admin, delete.clone(), &path, &none).await;
    changed.push(("source", id, vec!["created", "changed", "deleted"]));

    let mut schedule = json!({"name": "nightly", "every": "1d", "event": {}});
    let id = id_of(&call(admin, post.clone(), "/v1/schedules", &schedule).await);
    let path = format!("/v1/schedules/{id}");
    schedule["every"] = json!("2d");
    call(admin, put, &path, &schedule).await;
    call(admin, post.clone(), &format!("{path}/pause"), &none).await;
    call(admin, post, &format!("{path}/resume"), &none).await;
    call(admin, delete.clone(), &path, &none).await;
    let actions = vec!["created", "changed", "changed", "changed", "deleted"];
    changed.push(("schedule", id, actions));

    let path = "/v1/knowledge-bases/handbook/documents/a/b.txt";
    for text in ["one", "two"] {
        let put = admin
            .request(Method::PUT, path)
            .body(format!("{text} {SECRET}"));
        let put = put
            .header(CONTENT_TYPE, "text/plain")
            .header("x-request-id", "req-7");
        assert!(send(put).await.unwrap().status < 300);
    }
    call(admin, delete, path, &none).await;
    let id = "handbook/a/b.txt".to_owned();
    changed.push(("document", id, vec!["created", "changed", "deleted"]));
    changed
}

#[rstest]
#[tokio::test]
async fn each_change_names_actor_object_and_request(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let own = stage.admin.get("/v1/whoami").await.expect(200).body;
    let by = json!({"kind": "api_key", "id": own["id"], "name": own["name"]});
    for (kind, id, expected) in change_everything(&stage.admin).await {
        let found = changes(
            &stage.admin,
            &format!("kind={kind}&object_id={id}&order=oldest"),
        )
        .await;
        let actions: Vec<_> = found.iter().map(|change| &change["action"]).collect();
        assert_eq!(actions, expected, "{kind}");
        for change in &found {
            assert_eq!(change["changed_by"], by, "{change}");
            assert_eq!(change["request_id"], "req-7", "{change}");
            assert_ne!(change["patch"], json!([]), "{change}");
            let text = change.to_string();
            let secrets = [SECRET, WEBHOOK_SECRET, "0123456789abcdef"];
            assert!(
                !secrets.iter().any(|secret| text.contains(secret)),
                "{text}"
            );
        }
    }
}

#[tokio::test]
async fn every_writing_operation_is_recorded_or_excepted() {
    let stage = OwnStage::new().await;
    let served = operations(&stage.client).await.into_iter();
    let writing = served.filter(|operation| {
        matches!(operation.face, Face::Admin | Face::Owner) && operation.method != Method::GET
    });
    let writing: BTreeSet<_> = writing.map(|operation| operation.id).collect();
    let listed = RECORDED
        .iter()
        .chain(&RECORDED_BY_OWNERS)
        .chain(&UNRECORDED);
    let listed: BTreeSet<_> = listed.map(|&id| id.to_owned()).collect();
    let missing: Vec<_> = writing.difference(&listed).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[rstest]
#[tokio::test]
async fn patches_have_old_and_new_values(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = &stage.admin;
    let agent = id_of(
        &admin
            .create("/v1/agents", &spec("a", "one"))
            .await
            .expect(201),
    );
    let created = newest(admin, "agent", &agent).await;
    assert_eq!(
        (&created["object_name"], &created["version"]),
        (&json!("a"), &json!(1))
    );
    assert_eq!(created["patch"][0]["op"], "add");
    let mark = created
        .pointer("/patch/0/value/config/api_key")
        .unwrap()
        .clone();
    assert!(mark.as_str().unwrap().starts_with("hash:"), "{mark}");

    let path = format!("/v1/agents/{agent}");
    let mut next = spec("b", "two");
    next["config"]["api_key"] = json!("other");
    admin.call(Method::PUT, &path, &next).await.expect(200);
    let changed = newest(admin, "agent", &agent).await;
    let other = changed["patch"].as_array().unwrap();
    let other = other
        .iter()
        .find(|one| one["op"] == "replace" && one["path"] == "/config/api_key");
    let expected = json!([
        {"op": "test", "path": "/config/api_key", "value": mark},
        {"op": "replace", "path": "/config/api_key", "value": other.unwrap()["value"]},
        {"op": "test", "path": "/config/prompt", "value": "one"},
        {"op": "replace", "path": "/config/prompt", "value": "two"},
        {"op": "test", "path": "/name", "value": "a"},
        {"op": "replace", "path": "/name", "value": "b"},
    ]);
    assert_eq!(changed["patch"], expected);
    assert_ne!(other.unwrap()["value"], mark);

    // The same body again changes nothing.
    admin.call(Method::PUT, &path, &next).await.expect(200);
    assert_eq!(newest(admin, "agent", &agent).await["id"], changed["id"]);
}

#[rstest]
#[tokio::test]
async fn refused_changes_have_no_row(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = &stage.admin;
    let agent = id_of(
        &admin
            .create("/v1/agents", &spec("a", "one"))
            .await
            .expect(201),
    );
    let before = changes(admin, "").await;
    admin
        .create("/v1/agents", &spec("a", "two"))
        .await
        .expect(409);
    let path = format!("/v1/agents/{agent}");
    let stale = admin.request(Method::PUT, &path).header("if-match", "7");
    send(stale.json(&spec("a", "two")))
        .await
        .unwrap()
        .expect(409);
    stage.client.delete(&path).await.expect(403);
    let other = Client::new(
        &admin.url,
        &crate::isolation::admin_key_of(&stage, "other").await,
    );
    other.delete(&path).await.expect(404);
    assert_eq!(changes(admin, "").await, before);
    // The other workspace has its own creation and key, and nothing of this one.
    let kinds: Vec<_> = changes(&other, "order=oldest").await;
    let kinds: Vec<_> = kinds.iter().map(|change| &change["kind"]).collect();
    assert_eq!(kinds, ["workspace", "api_key"]);
}

#[rstest]
#[tokio::test]
async fn restores_agent_with_unchanged_secrets(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = &stage.admin;
    let agent = id_of(
        &admin
            .create("/v1/agents", &spec("a", "one"))
            .await
            .expect(201),
    );
    let created = newest(admin, "agent", &agent).await;
    let path = format!("/v1/agents/{agent}");
    admin
        .call(Method::PUT, &path, &spec("a", "two"))
        .await
        .expect(200);
    let restore = format!("{path}/restore");
    let body = json!({"change_id": created["id"]});
    let at = |version: &str| {
        admin
            .request(Method::POST, &restore)
            .header("if-match", version)
    };
    let stale = send(at("1").json(&body)).await.unwrap().expect(409);
    assert_eq!(
        (stale.detail("reason"), stale.detail("version")),
        (&json!("version_mismatch"), &json!(2))
    );
    let restored = send(at("2").json(&body)).await.unwrap().expect(200).body;
    assert_eq!(
        (&restored["version"], &restored["config"]),
        (&json!(3), &spec("a", "one")["config"])
    );
    let change = newest(admin, "agent", &agent).await;
    assert_eq!(
        (&change["action"], &change["version"]),
        (&json!("changed"), &json!(3))
    );

    // The history has no value of a secret that was replaced.
    let mut other = spec("a", "three");
    other["config"]["api_key"] = json!("other");
    admin.call(Method::PUT, &path, &other).await.expect(200);
    let refused = admin.create(&restore, &body).await.expect(400);
    assert_eq!(refused.detail("faults")[0]["pointer"], "/config/api_key");
    let current = admin.get(&path).await.body;
    assert_eq!(current["config"], other["config"]);
}

#[tokio::test]
async fn restores_only_changes_of_own_agents() {
    let stage = stage(Sqlite).await.unwrap();
    let admin = &stage.admin;
    let agent = id_of(
        &admin
            .create("/v1/agents", &spec("a", "one"))
            .await
            .expect(201),
    );
    let other = id_of(
        &admin
            .create("/v1/agents", &spec("b", "one"))
            .await
            .expect(201),
    );
    let change = newest(admin, "agent", &other).await["id"].clone();
    let restore = |agent: &str| format!("/v1/agents/{agent}/restore");
    let body = json!({"change_id": change});
    admin.create(&restore(&agent), &body).await.expect(404);
    let foreign = Client::new(
        &admin.url,
        &crate::isolation::admin_key_of(&stage, "other").await,
    );
    foreign.create(&restore(&other), &body).await.expect(404);
    let absent = json!({"change_id": uuid::Uuid::now_v7()});
    admin.create(&restore(&other), &absent).await.expect(404);
    let configured = admin.get("/v1/agents").await.body["items"]
        .as_array()
        .unwrap()
        .clone();
    let configured = configured.iter().find(|one| one["name"] == "main").unwrap();
    let id = configured["id"].as_str().unwrap();
    let refused = admin.create(&restore(id), &absent).await.expect(409);
    assert_eq!(refused.detail("reason"), "read_only");
}

#[rstest]
#[tokio::test]
async fn configuration_and_commands_are_actors(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start().await;
    let mut stage =
        or_skip!(OwnStage::of(engine, runner, |config| config.has_fresh_database = true).await);
    let by_config = changes(&stage.admin, "actor=config&order=oldest").await;
    let named = |change: &Value| (change["kind"].clone(), change["action"].clone());
    let kinds: Vec<_> = by_config.iter().map(named).collect();
    let created = json!("created");
    let expected = ["runner_endpoint", "agent"].map(|kind| (json!(kind), created.clone()));
    assert_eq!(kinds, expected);
    let by_command = changes(&stage.admin, "actor=cli&kind=api_key").await;
    assert!(!by_command.is_empty());
    assert_eq!(by_command[0]["changed_by"], json!({"kind": "cli"}));

    // The same file again changes nothing; other settings are one change.
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    assert_eq!(
        changes(&stage.admin, "actor=config").await.len(),
        by_config.len()
    );
    stage
        .gateway
        .reconfigure(|config| config.agents[0].timeout_seconds = 40.0);
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let newest = changes(&stage.admin, "actor=config").await[0].clone();
    let expected = json!([
        {"op": "test", "path": "/config/timeout", "value": 50.0},
        {"op": "replace", "path": "/config/timeout", "value": 40.0},
    ]);
    assert_eq!(
        (&newest["kind"], &newest["patch"]),
        (&json!("agent"), &expected)
    );
    stage
        .gateway
        .reconfigure(|config| config.agents[0].name = "renamed");
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let newest = changes(&stage.admin, "actor=config&kind=agent").await;
    let names: Vec<_> = newest[..2]
        .iter()
        .map(|change| &change["object_name"])
        .collect();
    assert_eq!(names, ["renamed", "main"]);
    let disabled = &newest[1]["patch"];
    assert!(
        disabled
            .to_string()
            .contains(r#""path":"/enabled","value":false"#),
        "{disabled}"
    );
}

#[tokio::test]
async fn owners_changes_are_in_their_workspaces() {
    let stage = OwnStage::new().await;
    let owner = stage.gateway.owner();
    let made = owner
        .create("/v1/workspaces", &json!({"id": "fresh"}))
        .await
        .expect(201);
    let admin = Client::new(&owner.url, made.body["api_key"]["key"].as_str().unwrap());
    owner
        .create("/v1/pause", &json!({"mode": "hold"}))
        .await
        .expect(200);
    owner.create("/v1/resume", &json!({})).await.expect(200);
    for client in [&admin, &stage.admin] {
        let pauses = changes(client, "kind=pause&object_id=all").await;
        let actions: Vec<_> = pauses.iter().map(|change| &change["action"]).collect();
        assert_eq!(actions, ["changed", "created"]);
    }
    let created = changes(&admin, "kind=workspace").await;
    assert_eq!(created[0]["object_id"], "fresh");
    assert!(changes(&stage.admin, "kind=workspace").await.is_empty());
    owner.get("/v1/changes").await.expect(403);
    stage.client.get("/v1/changes").await.expect(403);
}

#[rstest]
#[tokio::test]
async fn pages_and_filters_changes(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    let admin = &stage.admin;
    let agent = id_of(
        &admin
            .create("/v1/agents", &spec("a", "0"))
            .await
            .expect(201),
    );
    for prompt in ["1", "2", "3", "4"] {
        let path = format!("/v1/agents/{agent}");
        admin
            .call(Method::PUT, &path, &spec("a", prompt))
            .await
            .expect(200);
    }
    let all = changes(admin, &format!("object_id={agent}")).await;
    let versions: Vec<_> = all.iter().map(|change| &change["version"]).collect();
    assert_eq!(versions, [5, 4, 3, 2, 1]);
    for (order, expected) in [
        ("newest", all.clone()),
        ("oldest", all.iter().rev().cloned().collect()),
    ] {
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/changes?object_id={agent}&order={order}&limit=2{cursor}");
            let page = admin.get(&path).await.expect(200).body;
            found.extend(page["items"].as_array().unwrap().clone());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        assert_eq!(found, expected, "{order}");
    }
    let own = admin.get("/v1/whoami").await.body["id"].clone();
    let by_key = format!("actor={}&object_id={agent}", own.as_str().unwrap());
    assert_eq!(changes(admin, &by_key).await.len(), 5);
    let at = all[0]["at"].as_i64().unwrap();
    assert!(
        changes(admin, &format!("since={}", at + 1000))
            .await
            .is_empty()
    );
    assert_eq!(
        changes(admin, &format!("object_id={agent}&since={}", at - 1000))
            .await
            .len(),
        5
    );
    for query in [
        "kind=run",
        "actor=root",
        "since=-1",
        "order=best",
        "cursor=x",
        "unknown=1",
    ] {
        admin.get(&format!("/v1/changes?{query}")).await.expect(400);
    }
}

#[tokio::test]
async fn exports_changes_as_lines() {
    let stage = stage(Sqlite).await.unwrap();
    let admin = &stage.admin;
    for name in ["a", "b", "c"] {
        admin
            .create("/v1/agents", &spec(name, "one"))
            .await
            .expect(201);
    }
    let expected = changes(admin, "kind=agent&order=oldest").await;
    let (mut lines, mut path) = (
        Vec::new(),
        "/v1/changes?kind=agent&order=oldest&limit=2".to_owned(),
    );
    loop {
        let request = admin
            .request(Method::GET, &path)
            .header(ACCEPT, "application/x-ndjson");
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()[CONTENT_TYPE], "application/x-ndjson");
        let link = response
            .headers()
            .get("link")
            .map(|link| link.to_str().unwrap().to_owned());
        let text = response.text().await.unwrap();
        lines.extend(
            text.lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()),
        );
        let Some(link) = link else { break };
        path = link
            .strip_prefix('<')
            .and_then(|link| link.strip_suffix(">; rel=\"next\""))
            .unwrap()
            .to_owned();
    }
    assert_eq!(lines, expected);

    let mut command = Command::new(runnel());
    let address = [("RUNNEL_URL", &admin.url), ("RUNNEL_API_KEY", &admin.key)];
    command
        .args(["changes", "export", "--kind", "agent"])
        .envs(address);
    let exported = run(&mut command).await;
    let exported: Vec<Value> = exported
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(exported, expected);
}
