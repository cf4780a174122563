//! Agents in the admin API.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::runner::{RUNNER_ID, RecordedRequest, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

const AGENTS: &str = "/v1/agents";

async fn stage() -> (OwnStage, Client) {
    let stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    (stage, admin)
}

fn small(name: &str) -> Value {
    json!({"name": name, "event_types": ["test.event"], "runner_id": RUNNER_ID})
}

async fn created(admin: &Client, spec: &Value) -> Value {
    admin.create(AGENTS, spec).await.expect(201).body
}

fn path_of(agent: &Value) -> String {
    format!("{AGENTS}/{}", agent["id"].as_str().unwrap())
}

async fn put(admin: &Client, agent: &Value, version: Option<i64>, spec: &Value) -> ApiResponse {
    let request = admin.request(Method::PUT, &path_of(agent)).json(spec);
    let request = match version {
        Some(version) => request.header("if-match", version),
        None => request,
    };
    send(request).await.unwrap()
}

fn pointers(answer: &ApiResponse) -> Vec<&str> {
    answer.assert_error(400, "code", "invalid_argument");
    let faults = answer.detail("faults").as_array().unwrap();
    faults
        .iter()
        .map(|fault| fault["pointer"].as_str().unwrap())
        .collect()
}

async fn event(client: &Client, event_id: &str, source: &str) -> ApiResponse {
    let mut event = message(event_id);
    event["event_type"] = json!("test.event");
    event["source"] = json!(source);
    client.post(&event).await
}

#[rstest]
#[tokio::test]
async fn created_agent_receives_events(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let admin = stage.admin.clone();
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let spec = json!({
        "name": "hello", "enabled": true, "priority": 0, "event_types": ["test.event"],
        "scope": {"kind": "global"},
        "filters": {"source": ["webui", "api"]},
        "runner_id": RUNNER_ID, "config": {"timeout": 300},
        "resource_policy": {
            "models": [], "tools": [], "knowledge_bases": [], "skills": [],
            "storage": ["plugin"], "history": ["page", "search"], "events": ["get", "page"],
            "artifacts": ["read"], "files": [],
        },
        "state_policy": {"enabled": true, "scopes": ["conversation", "actor"]},
        "delivery_policy": {"interactions": false},
        "concurrency": "concurrent", "retry": {"max": 2},
    });
    let agent = created(&admin, &spec).await;
    let mut expected = spec.clone();
    for (member, value) in [
        ("id", agent["id"].clone()),
        ("origin", json!("api")),
        ("version", json!(1)),
        ("created_at", agent["created_at"].clone()),
        ("updated_at", agent["updated_at"].clone()),
        ("updated_by", agent["updated_by"].clone()),
    ] {
        assert!(!value.is_null(), "{member}: {agent}");
        expected[member] = value;
    }
    assert_eq!(agent, expected);
    assert_eq!(admin.get(&path_of(&agent)).await.body, expected);
    let list = admin.get(AGENTS).await.body;
    let names: Vec<_> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["name"])
        .collect();
    assert_eq!(names, ["hello", "main"]);

    let run_id = event(&stage.client, "m-1", "webui").await.run_id();
    let run = stage.client.finished(&run_id).await;
    assert_members!(run, {"status": "completed", "agent_id": agent["id"]});
    let filtered = event(&stage.client, "m-2", "elsewhere").await;
    filtered.assert_body(202, "reason", "no_agent");
}

#[tokio::test]
async fn reports_each_agent_fault_with_pointer() {
    let (_stage, admin) = stage().await;
    for (member, value, pointer) in [
        ("nme", json!("x"), "/nme"),
        ("name", json!(""), "/name"),
        ("name", json!(7), "/name"),
        ("event_types", json!([]), "/event_types"),
        ("event_types", json!(["ok", "a*b"]), "/event_types/1"),
        ("scope", json!({"kind": "galaxy"}), "/scope/kind"),
        ("scope", json!({"kind": "global", "x": 1}), "/scope/x"),
        ("scope", json!({"kind": "bot"}), "/scope/bot_id"),
        ("filters", json!({"colour": ["red"]}), "/filters/colour"),
        ("runner_id", json!("no id"), "/runner_id"),
        ("runner_id", json!("plugin:not/there/default"), "/runner_id"),
        ("config", json!({"colour": "red"}), "/config/colour"),
        ("config", json!({"timeout": -1}), "/config/timeout"),
        (
            "resource_policy",
            json!({"modelz": []}),
            "/resource_policy/modelz",
        ),
        (
            "state_policy",
            json!({"scopes": ["moon"]}),
            "/state_policy/scopes/0",
        ),
        ("concurrency", json!("later"), "/concurrency"),
        ("retry", json!({"max": 100}), "/retry/max"),
    ] {
        let mut spec = small("faulty");
        spec[member] = value;
        let answer = admin.create(AGENTS, &spec).await;
        assert_eq!(pointers(&answer), [pointer], "{spec}: {}", answer.body);
        assert_eq!(answer.detail("pointer"), pointer);
    }
    for member in ["name", "event_types", "runner_id"] {
        let mut spec = small("faulty");
        spec.as_object_mut().unwrap().remove(member);
        let answer = admin.create(AGENTS, &spec).await;
        assert_eq!(pointers(&answer), [format!("/{member}")]);
    }
    let mut spec = small("");
    spec["event_types"] = json!([]);
    spec["runner_id"] = json!("plugin:not/there/default");
    let answer = admin.create(AGENTS, &spec).await;
    assert_eq!(pointers(&answer), ["/name", "/event_types", "/runner_id"]);
}

#[tokio::test]
async fn validates_agent_config_against_runner_form() {
    let mut manifest = manifest(RUNNER_ID);
    manifest["config_schema"] = json!([
        {"type": "select-llm-model", "name": "model", "required": true, "label": {"en_US": "Model"}},
        {"type": "integer", "name": "top/k", "default": 3},
        {"type": "select", "name": "mode", "options": [{"name": "a"}, {"name": "b"}]},
    ]);
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    // The configured agent sets no model.
    let stage = Stage::of(Sqlite, runner, |config| config.agents.clear())
        .await
        .unwrap();
    let admin = stage.admin.clone();
    let mut spec = small("formed");
    spec["config"] = json!({"top/k": "three", "mode": "c", "color": 1});
    let answer = admin.create(AGENTS, &spec).await;
    let mut found = pointers(&answer);
    found.sort_unstable();
    let expected = [
        "/config/color",
        "/config/mode",
        "/config/model",
        "/config/top~1k",
    ];
    assert_eq!(found, expected, "{}", answer.body);

    spec["config"] = json!({"model": "m-1", "mode": "b"});
    created(&admin, &spec).await;
    let run_id = event(&stage.client, "m-1", "api").await.run_id();
    stage.client.finished(&run_id).await;
    let request = stage
        .runner
        .wait_for_request("the run", RecordedRequest::is_run)
        .await
        .json();
    let config = &request["context"]["config"];
    assert_eq!(
        (&config["model"], &config["top/k"]),
        (&json!("m-1"), &json!(3)),
        "{config}"
    );
}

#[tokio::test]
async fn changed_runner_form_blocks_neither_start_nor_disabling() {
    let mut stage = OwnStage::new().await;
    let admin = stage.admin.clone();
    let agent = created(&admin, &small("bound")).await;
    let mut formed = manifest(RUNNER_ID);
    formed["config_schema"] = json!([{"type": "string", "name": "tone", "required": true}]);
    stage.runner.list(json!([formed]));
    stage.gateway.kill().await;
    // The gateway runs discovery before it serves.
    stage.gateway.restart().await;
    let log = stage.gateway.log();
    assert!(log.contains("no longer fits its runner"), "{log}");

    let mut spec = small("bound");
    let refused = put(&admin, &agent, None, &spec).await;
    assert_eq!(pointers(&refused), ["/config/tone"], "{}", refused.body);
    spec["enabled"] = json!(false);
    put(&admin, &agent, None, &spec).await.expect(200);
}

#[rstest]
#[tokio::test]
async fn updates_agent_with_matching_version_only(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let admin = stage.admin.clone();
    let agent = created(&admin, &small("changing")).await;
    let mut spec = small("changed");
    spec["enabled"] = json!(false);

    let changed = put(&admin, &agent, Some(1), &spec).await.expect(200);
    assert_members!(changed.body, {"version": 2, "name": "changed"});
    assert_eq!(changed.body["id"], agent["id"]);
    let late = put(&admin, &agent, Some(1), &spec).await;
    assert_eq!(
        (late.status, late.detail("version")),
        (409, &json!(2)),
        "{}",
        late.body
    );
    assert_eq!(admin.get(&path_of(&agent)).await.body, changed.body);
    let unknown = admin
        .call(Method::PUT, &format!("{AGENTS}/nobody"), &spec)
        .await;
    assert_eq!(unknown.status, 404);

    let asleep = event(&stage.client, "m-1", "api").await;
    assert_eq!(asleep.body["reason"], "no_agent", "{}", asleep.body);
    spec["enabled"] = json!(true);
    assert_eq!(put(&admin, &agent, Some(2), &spec).await.status, 200);
    stage.runner.answer_all(|run| sse(run.talk(1).concat()));
    let run_id = event(&stage.client, "m-2", "api").await.run_id();
    assert_members!(stage.client.finished(&run_id).await, {"agent_id": agent["id"]});

    // Reject unknown query parameters: an ignored `dry_run` would look like a dry run.
    let dry = format!("{}?dry_run=true", path_of(&agent));
    assert_eq!(admin.delete(&dry).await.status, 400);
    let deeper = "/v1/knowledge-bases/none/documents/a/b?dry_run=true";
    assert_eq!(admin.delete(deeper).await.status, 400);
    assert_eq!(admin.delete(&path_of(&agent)).await.status, 204);
    assert_eq!(admin.get(&path_of(&agent)).await.status, 404);
    assert_eq!(admin.delete(&path_of(&agent)).await.status, 404);
    let gone = event(&stage.client, "m-3", "api").await;
    assert_eq!(gone.body["reason"], "no_agent", "{}", gone.body);
    // Its past runs remain.
    assert_eq!(stage.client.run(&run_id).await["agent_id"], agent["id"]);
}

#[tokio::test]
async fn rejects_duplicate_agent_names() {
    let (_stage, admin) = stage().await;
    let first = created(&admin, &small("first")).await;
    for name in ["first", "main"] {
        let taken = admin.create(AGENTS, &small(name)).await;
        taken.assert_detail(409, "reason", "name_taken");
    }
    let renamed = put(&admin, &first, None, &small("main")).await;
    renamed.assert_detail(409, "reason", "name_taken");
}

#[tokio::test]
async fn configured_agents_are_read_only() {
    let (_stage, admin) = stage().await;
    let main = admin.get(AGENTS).await.body["items"][0].clone();
    assert_members!(main, {"name": "main", "origin": "config"});
    for answer in [
        put(&admin, &main, None, &small("main")).await,
        admin.delete(&path_of(&main)).await,
    ] {
        answer.assert_detail(409, "reason", "read_only");
    }
    assert_eq!(admin.get(&path_of(&main)).await.body, main);
}

#[tokio::test]
async fn pages_agents_by_name() {
    let (_stage, admin) = stage().await;
    for name in ["b", "d", "a", "c"] {
        created(&admin, &small(name)).await;
    }
    let mut names = Vec::new();
    let mut path = format!("{AGENTS}?limit=2");
    let last = loop {
        let page = admin.get(&path).await.body;
        let items = page["items"].as_array().unwrap();
        names.extend(items.iter().map(|item| item["name"].clone()));
        let Some(cursor) = page["next_cursor"].as_str() else {
            break path;
        };
        path = format!("{AGENTS}?limit=2&cursor={cursor}");
    };
    assert_eq!(names, ["a", "b", "c", "d", "main"]);
    let foreign = last.replace(AGENTS, "/v1/runners");
    assert_eq!(admin.get(&foreign).await.status, 400);
    assert_eq!(admin.get(&format!("{AGENTS}?cursor=x")).await.status, 400);
    assert_eq!(admin.get(&format!("{AGENTS}?limit=0")).await.status, 400);
}

#[tokio::test]
async fn client_keys_open_no_admin_routes() {
    let (stage, _admin) = stage().await;
    let missing = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";
    let endpoints = "/v1/runner-endpoints";
    let endpoint = format!("{endpoints}/{missing}");
    let agent = format!("{AGENTS}/{missing}");
    for (method, path) in [
        (Method::GET, endpoints),
        (Method::POST, endpoints),
        (Method::GET, endpoint.as_str()),
        (Method::DELETE, endpoint.as_str()),
        (Method::POST, format!("{endpoint}/refresh").as_str()),
        (
            Method::POST,
            format!("{endpoint}/refresh?dry_run=true").as_str(),
        ),
        (Method::GET, format!("{endpoint}/health").as_str()),
        (Method::POST, format!("{AGENTS}/dry-run").as_str()),
        (Method::POST, format!("{agent}/dry-run").as_str()),
        (Method::GET, "/v1/runners"),
        (Method::GET, AGENTS),
        (Method::POST, AGENTS),
        (Method::GET, agent.as_str()),
        (Method::PUT, agent.as_str()),
        (Method::DELETE, agent.as_str()),
        (Method::GET, "/v1/models"),
        (Method::GET, "/v1/tools"),
        (Method::GET, "/v1/knowledge-bases"),
        (Method::GET, "/v1/skills"),
    ] {
        let request = stage.client.request(method.clone(), path).json(&json!({}));
        let answer = send(request).await.unwrap();
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.body);
        assert_eq!(answer.error("code"), "unauthorized", "{method} {path}");
        let answer = send(stage.client.anonymous(method.clone(), path))
            .await
            .unwrap();
        assert_eq!(answer.status, 401, "{method} {path}: {}", answer.body);
    }
}
