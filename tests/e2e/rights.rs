//! Authorization of each host API operation:
//!
//! - with all grants
//! - with one of the four layers denying it
//! - for ids of another run or another workspace
//! - with an expired token
//! - after the run was cancelled or has ended
//!
//! An operation without a row here fails the test.

use std::collections::BTreeSet;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::isolation::{ResourceIds, Tenant, request};
use crate::pipeline_adapter::query;
use crate::support::client::{Client, send};
use crate::support::forger::Forger;
use crate::support::gateway::Config;
use crate::support::routes::{Face, Operation, operations};
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{head, sse};
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, within};

/// A status, and the code of its error.
type ExpectedResponse = (u16, &'static str);

const OK: ExpectedResponse = (200, "");
const CREATED: ExpectedResponse = (201, "");
const NO_CONTENT: ExpectedResponse = (204, "");
const DENIED: ExpectedResponse = (403, "unauthorized");
/// Responses are not stored.
const NOT_STORED: ExpectedResponse = (400, "invalid_argument");
const NOT_FOUND: ExpectedResponse = (404, "not_found");
const CANCELLED: ExpectedResponse = (409, "cancelled");
const UNAUTHENTICATED: ExpectedResponse = (401, "unauthenticated");

struct OperationRow {
    id: &'static str,
    granted: ExpectedResponse,
    /// Denied by the manifest, by the agent's policy, by the selectors of its config, by the event's scope.
    trimmed: [ExpectedResponse; 4],
    /// For ids of another run or workspace; `None` if the operation takes no id.
    others: Option<ExpectedResponse>,
    cancelled: ExpectedResponse,
}

const fn row(
    id: &'static str,
    granted: ExpectedResponse,
    trimmed: [ExpectedResponse; 4],
    others: Option<ExpectedResponse>,
) -> OperationRow {
    OperationRow {
        id,
        granted,
        trimmed,
        others,
        cancelled: CANCELLED,
    }
}

/// A row of a resource that each layer names.
const fn named_resource(id: &'static str) -> OperationRow {
    row(id, OK, [DENIED, DENIED, DENIED, OK], Some(DENIED))
}

/// A row that manifest and policy decide, whatever the event's scope.
const fn by_policy(
    id: &'static str,
    granted: ExpectedResponse,
    others: Option<ExpectedResponse>,
) -> OperationRow {
    row(id, granted, [DENIED, DENIED, granted, granted], others)
}

/// A row that no layer decides.
const fn same(
    id: &'static str,
    granted: ExpectedResponse,
    others: Option<ExpectedResponse>,
) -> OperationRow {
    row(id, granted, [granted; 4], others)
}

/// A row that stays open during the grace period of a cancel.
const fn row_open_after_cancel(
    id: &'static str,
    granted: ExpectedResponse,
    trimmed: [ExpectedResponse; 4],
    others: Option<ExpectedResponse>,
) -> OperationRow {
    OperationRow {
        cancelled: granted,
        ..row(id, granted, trimmed, others)
    }
}

/// In request order: later operations read what earlier ones create.
const ROWS: &[OperationRow] = &[
    same("get_own_context", OK, None),
    row("get_prompt", OK, [OK, OK, OK, NOT_FOUND], None),
    row_open_after_cancel("get_own_run", OK, [OK; 4], None),
    same("page_own_run_events", OK, None),
    row("list_scope_runs", OK, [OK, OK, OK, DENIED], Some(DENIED)),
    same("get_scope_run", OK, Some(NOT_FOUND)),
    same("page_scope_run_events", OK, Some(NOT_FOUND)),
    // No agent is granted here; `child_runs` covers these.
    same("start_child_run", DENIED, None),
    row_open_after_cancel("get_child_run", NOT_FOUND, [NOT_FOUND; 4], Some(NOT_FOUND)),
    same("page_child_run_events", NOT_FOUND, Some(NOT_FOUND)),
    same("cancel_child_run", NOT_FOUND, Some(NOT_FOUND)),
    same("renew_token", OK, None),
    row("put_checkpoint", OK, [DENIED, DENIED, OK, DENIED], None),
    row("get_checkpoint", OK, [DENIED, DENIED, OK, DENIED], None),
    row_open_after_cancel("put_state", OK, [DENIED, DENIED, OK, DENIED], None),
    row("list_state", OK, [DENIED, DENIED, OK, DENIED], None),
    row(
        "get_state",
        OK,
        [DENIED, DENIED, OK, DENIED],
        Some(NOT_FOUND),
    ),
    row(
        "get_state_body",
        OK,
        [DENIED, DENIED, OK, DENIED],
        Some(NOT_FOUND),
    ),
    row_open_after_cancel(
        "delete_state",
        NO_CONTENT,
        [DENIED, DENIED, NO_CONTENT, DENIED],
        Some(NOT_FOUND),
    ),
    by_policy("page_history", OK, Some(DENIED)),
    by_policy("search_history", OK, None),
    row(
        "page_own_events",
        OK,
        [DENIED, DENIED, OK, DENIED],
        Some(DENIED),
    ),
    by_policy("get_own_event", OK, Some(NOT_FOUND)),
    by_policy("put_blob", NO_CONTENT, None),
    by_policy("list_blobs", OK, None),
    by_policy("get_blob", OK, Some(NOT_FOUND)),
    by_policy("delete_blob", NO_CONTENT, Some(NOT_FOUND)),
    row("pull_steering", OK, [DENIED, DENIED, OK, DENIED], None),
    // Interactions are not granted here; `awaits` covers this.
    row_open_after_cancel("await_interaction", DENIED, [DENIED; 4], Some(DENIED)),
    // Platform actions are not granted here; `platform_actions` covers these.
    same("request_platform_action", DENIED, None),
    // Wakes are not granted here; `schedules` covers these.
    same("request_wake", DENIED, None),
    same("cancel_wake", DENIED, None),
    row_open_after_cancel(
        "await_platform_action",
        NOT_FOUND,
        [NOT_FOUND; 4],
        Some(NOT_FOUND),
    ),
    same("list_granted_models", OK, None),
    named_resource("invoke_model"),
    named_resource("stream_model"),
    named_resource("count_model_tokens"),
    named_resource("rerank_documents"),
    named_resource("embed_texts"),
    named_resource("create_chat_completion"),
    named_resource("create_embeddings"),
    same("list_openai_models", OK, None),
    named_resource("create_response"),
    named_resource("count_response_tokens"),
    same("get_response", NOT_STORED, Some(NOT_STORED)),
    row(
        "get_openai_model",
        OK,
        [NOT_FOUND, NOT_FOUND, NOT_FOUND, OK],
        Some(NOT_FOUND),
    ),
    named_resource("create_message"),
    named_resource("count_message_tokens"),
    same("list_anthropic_models", OK, None),
    row(
        "get_anthropic_model",
        OK,
        [NOT_FOUND, NOT_FOUND, NOT_FOUND, OK],
        Some(NOT_FOUND),
    ),
    named_resource("call_gemini_model"),
    same("list_gemini_models", OK, None),
    row(
        "get_gemini_model",
        OK,
        [NOT_FOUND, NOT_FOUND, NOT_FOUND, OK],
        Some(NOT_FOUND),
    ),
    same("list_granted_tools", OK, None),
    named_resource("get_tool"),
    named_resource("call_tool"),
    same("speak_mcp", OK, None),
    row(
        "list_granted_knowledge_bases",
        OK,
        [DENIED, DENIED, DENIED, OK],
        None,
    ),
    named_resource("retrieve_knowledge"),
    by_policy("create_artifact", CREATED, None),
    by_policy("get_artifact_metadata", OK, Some(NOT_FOUND)),
    by_policy("read_artifact", OK, Some(NOT_FOUND)),
    row_open_after_cancel("append_results", OK, [OK; 4], None),
    row_open_after_cancel("run_heartbeat", OK, [OK; 4], None),
    same("cancel_scope_run", OK, Some(NOT_FOUND)),
    row_open_after_cancel("cancel_own_run", OK, [OK; 4], None),
];

/// Reads of absent resources: answered as absent and audited as denied.
const AUDITED_AS_DENIED: [&str; 4] = [
    "get_prompt",
    "get_child_run",
    "page_child_run_events",
    "cancel_child_run",
];

/// Lists, and a granted item of each.
const LISTS: [(&str, &str); 6] = [
    ("list_granted_models", r#""m""#),
    ("list_openai_models", r#""m""#),
    ("list_anthropic_models", r#""m""#),
    ("list_gemini_models", r#""models/m""#),
    ("list_granted_tools", r#""search""#),
    ("speak_mcp", r#""search""#),
];

const LAYERS: [&str; 4] = ["manifest", "agent_policy", "config_selector", "event_scope"];
const BARE: &str = "plugin:test/bare/default";

/// A runner with a configuration form and either all permissions or none.
fn runner(id: &str, may: bool) -> Value {
    let mut manifest = manifest(id);
    manifest["config_schema"] = json!([
        {"type": "select-llm-model", "name": "model"},
        {"type": "rerank-model-selector", "name": "ranker"},
        {"type": "select-knowledge-bases", "name": "bases"},
        {"type": "boolean", "name": "enable-all-tools"},
        {"type": "array", "name": "tools"},
    ]);
    manifest["permissions"] = json!({});
    if may {
        manifest["capabilities"]["steering"] = json!(true);
        manifest["permissions"] = json!({
            "models": ["invoke", "stream", "rerank", "count_tokens"], "tools": ["detail", "call"],
            "knowledge_bases": ["list", "retrieve"], "history": ["page", "search"],
            "events": ["get", "page"], "storage": ["plugin", "workspace", "binding"],
            "state": ["conversation", "actor"], "artifacts": ["metadata", "read", "create"],
        });
    }
    manifest
}

/// An agent for the events of the bot with its name. It has this model, tool and base, and all other grants.
fn agent(name: &str, resources: [&str; 3]) -> Value {
    let [model, tool, base] = resources;
    json!({
        "name": name, "event_types": ["message.received"], "scope": {"kind": "bot", "bot_id": name},
        "runner_id": RUNNER_ID,
        "config": {"model": model, "ranker": model, "bases": [base], "enable-all-tools": false, "tools": [tool]},
        "resource_policy": {
            "models": [model], "tools": [tool], "knowledge_bases": [base],
            "history": ["page", "search"], "events": ["get", "page"],
            "storage": ["plugin", "workspace", "binding"], "artifacts": ["metadata", "read", "create"],
        },
        "state_policy": {"enabled": true, "scopes": ["conversation", "actor"]},
        "concurrency": "steer",
    })
}

/// The agent with everything removed that this layer can remove.
fn trimmed(layer: &str) -> Value {
    let mut agent = agent(layer, ["m", "search", "handbook"]);
    match layer {
        "manifest" => agent["runner_id"] = json!(BARE),
        "agent_policy" => {
            agent["resource_policy"] = json!({});
            agent["state_policy"] = json!({"enabled": false});
            agent["concurrency"] = json!("concurrent");
        }
        "config_selector" => {
            agent["config"] = json!({"enable-all-tools": false, "tools": [], "bases": []});
        }
        // This layer changes the event: see `event`.
        _ => {}
    }
    agent
}

/// The event of a column: with prompt and conversation, or without actor and conversation.
fn event(name: &str) -> (&'static str, Value) {
    if name == "event_scope" {
        let event = json!({"event_type": "message.received", "event_id": name, "bot_id": name,
            "input": {"text": "hi"}});
        return ("/v1/events", event);
    }
    let mut query = query(name);
    query["bot_uuid"] = json!(name);
    ("/v1/adapters/pipeline/queries", query)
}

/// A deferred run, and ids for its requests.
struct DeferredCaller {
    run_id: String,
    host: Client,
    ids: ResourceIds,
}

impl DeferredCaller {
    async fn start(stage: &Stage, client: &Client, name: &str) -> Self {
        let (path, event) = event(name);
        let run_id = client.create(path, &event).await.run_id();
        let host = stage.host_of(&run_id).await;
        // The gateway accepts appended results once it has read the runner's 202.
        crate::support::until("the run to be deferred", async || {
            let beat = host.request(Method::POST, "/run/heartbeat");
            send(beat).await.unwrap().status == 200
        })
        .await;
        let ids = [
            ("run_id", run_id.clone()),
            ("event_id", name.to_owned()),
            ("artifact_id", "none".to_owned()),
        ];
        Self {
            ids: ids.into(),
            run_id,
            host,
        }
    }

    /// Writes entries that only this run, its agent or (with this area) its workspace may read.
    async fn write_marker(&mut self, area: &str) {
        let path = format!("/storage/{area}/theirs");
        let put = self.host.request(Method::PUT, &path).body("mark");
        assert_eq!(send(put).await.unwrap().status, 204, "{path}");
        let put = self.host.request(Method::PUT, "/state/conversation/theirs");
        assert_eq!(
            send(put.json(&json!({"value": "mark"})))
                .await
                .unwrap()
                .status,
            200
        );
        let upload = self.host.request(Method::POST, "/artifacts").body("mark");
        let made = send(upload).await.unwrap();
        let id = made.body["artifact_id"].as_str().unwrap();
        self.ids.insert("artifact_id", id.to_owned());
    }

    async fn append(&self, kind: &str, data: &Value) -> u16 {
        let result = json!({"run_id": self.run_id, "type": kind, "data": data, "sequence": 1});
        let request = self.host.request(Method::POST, "/run/results");
        let request = request.json(&json!({"results": [result]}));
        send(request).await.unwrap().status
    }
}

/// A request of this run to an operation, with these ids.
fn request_for(
    host: &Client,
    operation: &Operation,
    run: &DeferredCaller,
    ids: &ResourceIds,
) -> reqwest::RequestBuilder {
    let root = Client::new(host.url.trim_end_matches("/host/v1"), &host.key);
    let path = operation.path_with(|_| String::new());
    match operation.id.as_str() {
        "cancel_own_run" => root.request(Method::POST, &path).json(&json!({})),
        "append_results" => {
            let data = json!({"chunk": {"role": "assistant", "content": "a"}});
            let result =
                json!({"run_id": run.run_id, "type": "message.delta", "data": data, "sequence": 1});
            let request = root.request(Method::POST, &path);
            request.json(&json!({"results": [result]}))
        }
        "list_scope_runs" | "page_history" | "page_own_events" => {
            let request = request(&root, operation, ids);
            let named = ids.get("conversation_id").map(|id| ("conversation_id", id));
            request.query(&Vec::from_iter(named))
        }
        _ => request(&root, operation, ids),
    }
}

async fn outcome(request: reqwest::RequestBuilder) -> ((u16, String), String) {
    let response = within("an answer", request.send()).await.unwrap();
    let status = response.status().as_u16();
    let body = within("a body", response.text()).await.unwrap();
    let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
    let error = &parsed["error"];
    // Google's form has the code of the gateway in its details.
    let of_google = &error["details"][0]["metadata"]["code"];
    let code = of_google.as_str().or_else(|| error["code"].as_str());
    let code = code.unwrap_or_default();
    ((status, code.to_owned()), body)
}

/// Calls every operation as this run and compares the results.
async fn check(
    host: &[Operation],
    column: &str,
    run: &mut DeferredCaller,
    expected: impl Fn(&OperationRow) -> ExpectedResponse,
) {
    for row in ROWS {
        let operation = host.iter().find(|one| one.id == row.id).unwrap();
        let (outcome, body) = outcome(request_for(&run.host, operation, run, &run.ids)).await;
        let (status, code) = expected(row);
        assert_eq!(
            outcome,
            (status, code.to_owned()),
            "{column} {}: {body}",
            row.id
        );
        if row.id == "create_artifact" && status == 201 {
            let made: Value = serde_json::from_str(&body).unwrap();
            let id = made["artifact_id"].as_str().unwrap();
            run.ids.insert("artifact_id", id.to_owned());
        }
        if let Some((_, name)) = LISTS.iter().find(|(id, _)| *id == row.id)
            && status == 200
        {
            let is_there = matches!(column, "granted" | "event_scope");
            assert_eq!(body.contains(name), is_there, "{column} {}: {body}", row.id);
        }
    }
}

/// A catalog of granted resources, and of resources granted only to others.
const CATALOG: &str = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "m"
provider = "script"
operations = ["invoke", "stream", "rerank", "count_tokens"]
[[models]]
model_id = "theirs"
provider = "script"
operations = ["invoke", "stream", "rerank", "count_tokens"]
[[tools]]
tool_name = "search"
url = "{TOOLS}/search"
[[tools]]
tool_name = "theirs"
url = "{TOOLS}/theirs"
[[knowledge_bases]]
kb_id = "handbook"
[[knowledge_bases]]
kb_id = "attic"
"#;

async fn stage(engine: Engine, tools: &ToolServer) -> Option<OwnStage> {
    let listed = json!([runner(RUNNER_ID, true), runner(BARE, false)]);
    let runner = StubRunner::start_listing(listed).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config: &mut Config| {
        "cancel_grace_seconds = 50".clone_into(&mut config.runs);
        config.rest = CATALOG.replace("{TOOLS}", &tools.url);
    })
    .await
}

/// The reason for each denied operation in the run's authorization report.
async fn explained(stage: &Stage, run: &DeferredCaller) -> BTreeSet<(String, String)> {
    let path = format!("/v1/runs/{}/authorization", run.run_id);
    let explained = stage.client.get(&path).await.body;
    let decisions = explained["decisions"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let closed = decisions
        .iter()
        .filter(|one| one["granted"] == false && one["id"] != "theirs" && one["id"] != "attic");
    closed
        .map(|one| {
            (
                format!(
                    "{} {} {}",
                    text(&one["kind"]),
                    text(&one["id"]),
                    text(&one["operation"])
                ),
                text(&one["layer"]),
            )
        })
        .collect()
}

/// The run's denied calls in the audit log, without the heartbeats of `DeferredCaller::start`.
async fn denied(stage: &Stage, run: &DeferredCaller) -> Vec<Value> {
    let page = stage
        .client
        .get(&format!("/v1/runs/{}/audit?limit=100", run.run_id))
        .await
        .body;
    assert_eq!(page["has_more"], false, "{page}");
    let items = page["items"].as_array().unwrap().iter();
    items
        .filter(|item| item["decision"] == "deny" && item["operation"] != "heartbeat")
        .cloned()
        .collect()
}

#[rstest]
#[tokio::test]
async fn every_operation_requires_its_grants(#[values(Sqlite, Postgres)] engine: Engine) {
    let tools = ToolServer::start().await;
    let stage = or_skip!(stage(engine, &tools).await);
    let mut host = operations(&stage.client).await;
    host.retain(|operation| operation.face == Face::Host);
    let served: BTreeSet<_> = host.iter().map(|operation| operation.id.as_str()).collect();
    let rows: BTreeSet<_> = ROWS.iter().map(|row| row.id).collect();
    assert_eq!((served, ROWS.len()), (rows.clone(), rows.len()));

    let admin = stage.admin.clone();
    let tenant = Tenant::new(&stage, "other").await;
    stage
        .runner
        .answer_all(|_| vec![head("202 Accepted", "content-length: 0\r\n")]);
    let mine = ["m", "search", "handbook"];
    let mut agents = vec![
        agent("granted", mine),
        agent("again", mine),
        agent("near", ["theirs", "theirs", "attic"]),
    ];
    agents.extend(LAYERS.map(trimmed));
    for agent in &agents {
        admin.create("/v1/agents", agent).await.expect(201);
    }
    tenant
        .admin
        .create("/v1/agents", &agent("near", ["theirs", "theirs", "attic"]))
        .await
        .expect(201);

    let mut near = DeferredCaller::start(&stage, &stage.client, "near").await;
    near.write_marker("binding").await;
    let mut far = DeferredCaller::start(&stage, &tenant.admin, "near").await;
    far.write_marker("workspace").await;
    let mut granted = DeferredCaller::start(&stage, &stage.client, "granted").await;
    for (other, area) in [(&near, "binding"), (&far, "workspace")] {
        let theirs = |name| (name, "theirs".to_owned());
        let mut ids = other.ids.clone();
        ids.extend([
            theirs("key"),
            theirs("model_id"),
            theirs("name"),
            ("kb_id", "attic".to_owned()),
        ]);
        ids.extend([
            ("area", area.to_owned()),
            ("conversation_id", "c-7".to_owned()),
        ]);
        for row in ROWS {
            let operation = host.iter().find(|one| one.id == row.id).unwrap();
            let Some((status, code)) = row.others else {
                continue;
            };
            if area == "workspace" && row.id == "get_own_event" {
                // Both workspaces have an event with this id; here it is the other run's.
                ids.insert("event_id", "m-1".to_owned());
            }
            let (outcome, body) =
                outcome(request_for(&granted.host, operation, &granted, &ids)).await;
            assert_eq!(
                outcome,
                (status, code.to_owned()),
                "{area} {}: {body}",
                row.id
            );
        }
    }

    check(&host, "granted", &mut granted, |row| row.granted).await;
    let before = explained(&stage, &granted).await;
    for (index, layer) in LAYERS.iter().enumerate() {
        let mut run = DeferredCaller::start(&stage, &stage.client, layer).await;
        check(&host, layer, &mut run, |row| row.trimmed[index]).await;
        let closed = explained(&stage, &run).await;
        let more: Vec<_> = closed.difference(&before).collect();
        assert!(
            !more.is_empty() && more.iter().all(|(_, by)| by == layer),
            "{layer}: {more:?}"
        );
        // An absent prompt is audited like a denied one.
        let shut = ROWS.iter().filter(|row| {
            let is_on_record = AUDITED_AS_DENIED.contains(&row.id);
            row.trimmed[index] == DENIED || is_on_record && row.trimmed[index] == NOT_FOUND
        });
        let denied = denied(&stage, &run).await;
        assert_eq!(denied.len(), shut.count(), "{layer}: {denied:#?}");
    }

    let mut again = DeferredCaller::start(&stage, &stage.client, "again").await;
    let forger = Forger::of(&stage, &again.host.key).await;
    let now = forger.claims["iat"].as_i64().unwrap();
    let live = again.host.clone();
    let past = json!({"iat": now - 310, "nbf": now - 310, "exp": now - 10});
    again.host = Client::new(&live.url, &forger.with_claims(&past));
    check(&host, "expired", &mut again, |_| UNAUTHENTICATED).await;
    again.host = live;
    assert_eq!(stage.client.cancel(&again.run_id).await.status, 202);
    check(&host, "cancelled", &mut again, |row| row.cancelled).await;

    assert_eq!(
        near.append("run.completed", &json!({"finish_reason": "stop"}))
            .await,
        200
    );
    stage.client.finished(&near.run_id).await;
    check(&host, "ended", &mut near, |_| UNAUTHENTICATED).await;
}
