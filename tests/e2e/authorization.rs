//! Explanations of grants and denials.

use serde_json::{Value, json};

use crate::support::client::{Client, message};
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{OwnStage, Sqlite, Stage, skill};

const CATALOG: &str = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "picked"
provider = "script"
[[models]]
model_id = "not-picked"
provider = "script"
operations = ["invoke"]
[[models]]
model_id = "not-named"
provider = "script"
operations = ["invoke"]
[[tools]]
tool_name = "search"
url = "https://tools.example/search"
description = "Finds things."
parameters = { type = "object", properties = { query = { type = "string" } } }
[[tools]]
tool_name = "launch"
url = "https://tools.example/launch"
[[knowledge_bases]]
kb_id = "handbook"
kb_name = "Handbook"
[[knowledge_bases]]
kb_id = "archive"
[[skills]]
skill_name = "summary"
directory = "{SKILL}"
"#;

/// A test agent on a catalog, next to the configured agent.
async fn stage() -> (OwnStage, Client) {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({
        "models": ["invoke", "count_tokens"], "tools": ["detail", "call"],
        "knowledge_bases": ["list"], "history": ["page"], "storage": ["plugin"],
    });
    manifest["config_schema"] = json!([{"type": "select-llm-model", "name": "model"}]);
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = OwnStage::of(Sqlite, runner, |config| {
        config.rest = CATALOG.replace("{SKILL}", &skill("summary"));
    })
    .await;
    let stage = stage.expect("SQLite is always at hand");
    let admin = stage.admin.clone();
    let agent = json!({
        "name": "careful", "event_types": ["test.event"], "runner_id": RUNNER_ID,
        "config": {"model": "picked"},
        "resource_policy": {
            "models": ["picked", "not-picked"], "tools": ["search"], "knowledge_bases": "*",
            "skills": "*", "storage": ["plugin"], "history": ["page", "search"],
        },
        "state_policy": {"enabled": true, "scopes": ["conversation", "subject"]},
    });
    admin.create("/v1/agents", &agent).await.expect(201);
    (stage, admin)
}

/// Starts a run of that agent. Returns the run request and the explanation.
async fn explained(stage: &Stage, event: &Value) -> (Value, Value) {
    let mut event = event.clone();
    event["event_type"] = json!("test.event");
    let run_id = stage.client.post(&event).await.run_id();
    stage.client.finished(&run_id).await;
    let run_request = stage.runner.run_request(&run_id).await.json();
    let answer = stage
        .client
        .get(&format!("/v1/runs/{run_id}/authorization"))
        .await
        .expect(200);
    assert_eq!(answer.body["run_id"], *run_id);
    (run_request, answer.body)
}

/// Finds the decision on kind, id and operation: granted or not, and the deciding layer.
fn decision<'a>(explained: &'a Value, kind: &str, id: &str, operation: &str) -> &'a Value {
    let decisions = explained["decisions"].as_array().unwrap();
    let mut found = decisions
        .iter()
        .filter(|one| one["kind"] == kind && one["id"] == id && one["operation"] == operation);
    let one = found.next();
    assert!(
        found.next().is_none(),
        "{kind} {id} {operation} is listed twice"
    );
    one.unwrap_or_else(|| panic!("nothing about {kind} {id} {operation}: {decisions:#?}"))
}

#[track_caller]
fn assert_decided(explained: &Value, what: [&str; 3], layer: Option<&str>, rule: &str) {
    let one = decision(explained, what[0], what[1], what[2]);
    assert_eq!(one["granted"], layer.is_none(), "{one}");
    if let Some(layer) = layer {
        assert_eq!(one["layer"], layer, "{one}");
        assert!(one["rule"].as_str().unwrap().contains(rule), "{one}");
    }
}

/// Defaults of the runner's form apply to members that the agent omits, and to its grants.
#[tokio::test]
async fn form_defaults_of_selectors_grant_resources() {
    let mut formed = manifest(RUNNER_ID);
    formed["permissions"] = json!({"models": ["invoke"], "tools": ["call"]});
    formed["config_schema"] = json!([
        {"type": "select-llm-model", "name": "model", "default": "picked"},
        {"type": "boolean", "name": "enable-all-tools", "default": false},
        {"type": "array", "name": "tools", "default": []},
    ]);
    let runner = StubRunner::start_as(formed).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let stage = Stage::of(Sqlite, runner, |config| {
        config.rest = CATALOG.replace("{SKILL}", &skill("summary"));
    })
    .await
    .unwrap();
    let admin = stage.admin.clone();
    let agent = json!({
        "name": "brief", "event_types": ["test.event"], "runner_id": RUNNER_ID,
        "resource_policy": {"models": "*", "tools": "*"},
    });
    admin.create("/v1/agents", &agent).await.expect(201);
    let (request, explained) = explained(&stage, &message("m-1")).await;
    assert_eq!(request["context"]["config"]["model"], "picked");
    let granted: Vec<_> = explained["resources"]["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["model_id"])
        .collect();
    assert_eq!(granted, ["picked"], "{explained}");
    assert_eq!(explained["resources"]["tools"], json!([]), "{explained}");
}

#[tokio::test]
async fn explains_every_resource_with_layer_and_rule() {
    let (stage, _admin) = stage().await;
    let (request, explained) = explained(&stage, &message("m-1")).await;
    let (manifest, policy) = (Some("manifest"), Some("agent_policy"));
    for (what, layer, rule) in [
        (["model", "picked", "invoke"], None, ""),
        (["model", "picked", "count_tokens"], None, ""),
        (
            ["model", "picked", "stream"],
            manifest,
            "permissions.models lacks stream",
        ),
        (
            ["model", "not-picked", "invoke"],
            Some("config_selector"),
            "selector",
        ),
        (
            ["model", "not-named", "invoke"],
            policy,
            "resource_policy.models",
        ),
        (["tool", "search", "call"], None, ""),
        (["tool", "search", "detail"], None, ""),
        (["tool", "launch", "call"], policy, "resource_policy.tools"),
        (["knowledge_base", "handbook", "list"], None, ""),
        (["knowledge_base", "archive", "list"], None, ""),
        (
            ["knowledge_base", "handbook", "retrieve"],
            manifest,
            "permissions.knowledge_bases lacks retrieve",
        ),
        (
            ["skill", "summary", "activate"],
            manifest,
            "skill_authoring",
        ),
    ] {
        assert_decided(&explained, what, layer, rule);
    }

    let resources = &explained["resources"];
    let expected = json!([{"model_id": "picked", "model_type": "llm", "provider": "script", "operations": ["invoke", "count_tokens"]}]);
    assert_eq!(without_nulls(&resources["models"]), expected);
    let parameters = json!({"type": "object", "properties": {"query": {"type": "string"}}});
    let expected = json!([{
        "tool_name": "search", "description": "Finds things.",
        "operations": ["detail", "call"], "parameters": parameters, "source": "http",
    }]);
    assert_eq!(without_nulls(&resources["tools"]), expected);
    let bases = resources["knowledge_bases"].as_array().unwrap();
    let bases: Vec<_> = bases
        .iter()
        .map(|base| (&base["kb_id"], &base["operations"]))
        .collect();
    let list = json!(["list"]);
    assert_eq!(
        bases,
        [(&json!("handbook"), &list), (&json!("archive"), &list)]
    );
    assert_eq!(resources["skills"], json!([]));

    // The explanation matches the resources that the runner got.
    assert_eq!(request["context"]["resources"], *resources);
    assert_members!(request["context"]["context"], {"available_apis": explained["available_apis"]});
    assert_eq!(explained["available_apis"]["history_page"], true);
    assert_eq!(explained["available_apis"]["history_search"], false);
    assert_eq!(explained["snapshot_sha256"].as_str().unwrap().len(), 64);
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let present = object.iter().filter(|(_, value)| !value.is_null());
            present
                .map(|(name, value)| (name.clone(), without_nulls(value)))
                .collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

#[tokio::test]
async fn event_without_conversation_grants_no_conversation_access() {
    let (stage, _admin) = stage().await;
    let mut event = message("m-1");
    event.as_object_mut().unwrap().remove("conversation");
    event["subject"] = json!({"subject_type": "order", "subject_id": "o-1"});
    let (request, explained) = explained(&stage, &event).await;
    let scope = Some("event_scope");
    let history: Vec<_> = explained["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["kind"] == "history" && one["operation"] == "page")
        .collect();
    assert_eq!(history.len(), 1, "{explained}");
    assert_eq!(
        (&history[0]["granted"], history[0]["layer"].as_str()),
        (&json!(false), scope)
    );
    let apis = &request["context"]["context"]["available_apis"];
    assert_members!(apis, {"history_page": false, "state": true});
}

#[tokio::test]
async fn run_keeps_its_explanation_after_agent_change() {
    let (stage, admin) = stage().await;
    let (_, before) = explained(&stage, &message("m-1")).await;
    let run_id = before["run_id"].as_str().unwrap();
    let agents = admin.get("/v1/agents").await.body;
    let agent = agents["items"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == "careful");
    let path = format!("/v1/agents/{}", agent.unwrap()["id"].as_str().unwrap());
    let spec = json!({"name": "careful", "event_types": ["test.event"], "runner_id": RUNNER_ID});
    let changed = admin.call(reqwest::Method::PUT, &path, &spec).await;
    assert_eq!(changed.status, 200, "{}", changed.body);

    let path = format!("/v1/runs/{run_id}/authorization");
    assert_eq!(stage.client.get(&path).await.body, before);
    let (_, after) = explained(&stage, &message("m-2")).await;
    assert_eq!(after["resources"]["models"], json!([]));
    assert_decided(
        &after,
        ["tool", "search", "call"],
        Some("agent_policy"),
        "resource_policy.tools",
    );
}

#[tokio::test]
async fn live_run_keeps_its_grant_after_agent_change() {
    let (stage, admin) = stage().await;
    let search = json!({"query": "a"});
    let opens = async |run: &HeldRun| {
        [
            run.get("/history").await.status,
            run.get("/storage/plugin").await.status,
            run.call("/history/search", &search).await.status,
        ]
    };
    let of_agent = |name: &str| {
        let mut event = message(name);
        event["event_type"] = json!("test.event");
        event
    };
    let agents = admin.get("/v1/agents").await.body;
    let mut items = agents["items"].as_array().unwrap().iter();
    let agent = items.find(|one| one["name"] == "careful").unwrap();
    let path = format!("/v1/agents/{}", agent["id"].as_str().unwrap());
    let change = async |history: Value, storage: Value| {
        let spec = json!({"name": "careful", "event_types": ["test.event"], "runner_id": RUNNER_ID,
            "resource_policy": {"history": history, "storage": storage}});
        let changed = admin.call(reqwest::Method::PUT, &path, &spec).await;
        assert_eq!(changed.status, 200, "{}", changed.body);
    };

    change(json!(["page"]), json!([])).await;
    let first = HeldRun::start(&stage, &of_agent("first")).await;
    assert_eq!(opens(&first).await, [200, 403, 403]);
    change(json!([]), json!(["plugin"])).await;
    let second = HeldRun::start(&stage, &of_agent("second")).await;
    assert_eq!(opens(&second).await, [403, 200, 403]);
    assert_eq!(opens(&first).await, [200, 403, 403]);
    for run in [first, second] {
        assert_eq!(run.end(&stage).await.ending(), "completed");
    }
}

#[tokio::test]
async fn operators_read_the_catalog() {
    let (_stage, admin) = stage().await;
    for (path, member, ids) in [
        (
            "/v1/models",
            "model_id",
            vec!["picked", "not-picked", "not-named"],
        ),
        ("/v1/tools", "tool_name", vec!["search", "launch"]),
        ("/v1/knowledge-bases", "kb_id", vec!["handbook", "archive"]),
        ("/v1/skills", "skill_name", vec!["summary"]),
    ] {
        let list = admin.get(path).await.body;
        let items = list["items"].as_array().unwrap();
        let found: Vec<_> = items.iter().map(|item| item[member].clone()).collect();
        assert_eq!(found, ids, "{path}");
    }
}

#[tokio::test]
async fn pages_runs_newest_first() {
    let (stage, admin) = stage().await;
    let mut run_ids = Vec::new();
    for number in 1..=5 {
        let mut event = message(&format!("m-{number}"));
        event["conversation"]["conversation_id"] = json!(format!("c-{}", number % 2));
        let run_id = stage.client.post(&event).await.run_id();
        stage.client.finished(&run_id).await;
        run_ids.push(run_id);
    }
    run_ids.reverse();
    assert_eq!(listed(&stage.client, "limit=2").await, run_ids);
    assert_eq!(listed(&stage.client, "limit=5").await, run_ids);
    let odd: Vec<_> = run_ids.iter().step_by(2).cloned().collect();
    let filters =
        format!("limit=1&conversation_id=c-1&statuses=completed,failed&runner_id={RUNNER_ID}");
    assert_eq!(listed(&stage.client, &filters).await, odd);
    assert!(listed(&stage.client, "statuses=failed").await.is_empty());
    assert_eq!(
        listed(&admin, "limit=3").await,
        run_ids,
        "a cursor is not bound to a key"
    );

    let first = stage.client.get("/v1/runs?limit=2").await.body;
    let cursor = first["next_cursor"].as_str().unwrap();
    let malformed = format!("{}A", &cursor[..cursor.len() - 1]);
    let malformed = if malformed == cursor {
        format!("{}B", &cursor[..cursor.len() - 1])
    } else {
        malformed
    };
    for query in [
        format!("cursor={cursor}&statuses=completed"),
        format!("cursor={cursor}&conversation_id=c-1"),
        format!("cursor={malformed}"),
        format!("cursor={}", &cursor[1..]),
        "cursor=2".to_owned(),
        "statuses=sleeping".to_owned(),
        format!("statuses=failed{}", ",failed".repeat(16)),
        "limit=0".to_owned(),
        "limit=101".to_owned(),
        "colour=red".to_owned(),
    ] {
        let answer = stage.client.get(&format!("/v1/runs?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        assert_eq!(answer.error("code"), "invalid_argument", "{query}");
    }
}

async fn listed(client: &Client, query: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut path = format!("/v1/runs?{query}");
    loop {
        let page = client.get(&path).await.expect(200);
        for run in page.body["items"].as_array().unwrap() {
            found.push(run["run_id"].as_str().unwrap().to_owned());
        }
        let cursor = page.body["next_cursor"].as_str();
        assert_eq!(page.body["has_more"], cursor.is_some(), "{}", page.body);
        let Some(cursor) = cursor else {
            return found;
        };
        path = format!("/v1/runs?{query}&cursor={cursor}");
    }
}
