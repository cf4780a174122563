//! Tools that ask: a person or an approval decides about each call, bound to its exact arguments.

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message, send};
use crate::support::database::rows;
use crate::support::deferred::Deferred;
use crate::support::effect_server::EffectServer;
use crate::support::held::HeldRun;
use crate::support::runner::RUNNER_ID;
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until, within};
use crate::tools::{stage_of, tools_at};

const ASKS: &str = r#"tools = { act = "ask", find = "allow" }"#;
/// 40 tool calls of a coding agent, one of which is dangerous.
const SESSION: &str = include_str!("approvals/coding_session.json");

async fn stage(engine: Engine, server: &EffectServer) -> Option<OwnStage> {
    let asks = |config: &mut crate::support::gateway::Config| config.agents[0].resources = ASKS;
    stage_of(engine, server.tools(""), asks).await
}

/// A call that waits for this number of seconds, with a key or without one.
pub async fn call(host: &Client, key: Option<&str>, amount: u64, wait: u64) -> ApiResponse {
    let path = format!("/tools/act/call?wait_seconds={wait}");
    let request = host.request(Method::POST, &path);
    let request = match key {
        Some(key) => request.header("idempotency-key", key),
        None => request,
    };
    send(request.json(&json!({"parameters": {"amount": amount}})))
        .await
        .unwrap()
}

/// The question of a call that was not made.
#[track_caller]
pub fn held(response: &ApiResponse) -> String {
    assert_eq!(response.status, 202, "{}", response.body);
    assert_eq!(response.body["status"], "awaiting_approval");
    response.body["interaction_id"].as_str().unwrap().to_owned()
}

pub async fn question(client: &Client, id: &str) -> Value {
    let path = format!("/v1/interactions/{id}");
    client.get(&path).await.expect(200).body
}

pub async fn answer(client: &Client, id: &str, action: &str, values: Value) -> ApiResponse {
    let shown = question(client, id).await;
    let body = json!({
        "interaction_id": shown["request"]["interaction_id"], "action_id": action, "values": values,
    });
    let path = format!("/v1/interactions/{id}/submit");
    client.create(&path, &body).await
}

pub async fn open_questions(client: &Client) -> Vec<String> {
    let found = client.get("/v1/interactions?status=open").await.expect(200);
    let items = found.body["items"].as_array().unwrap().clone();
    let ids = items
        .iter()
        .map(|item| item["id"].as_str().unwrap().to_owned());
    ids.collect()
}

pub async fn approvals(admin: &Client) -> Vec<Value> {
    let found = admin.get("/v1/approvals").await.expect(200);
    found.body["items"].as_array().unwrap().clone()
}

async fn approve(admin: &Client, spec: &Value) -> String {
    let made = admin.create("/v1/approvals", spec).await.expect(201);
    made.body["id"].as_str().unwrap().to_owned()
}

/// Ended calls of the tool in the audit of a run.
async fn audited(client: &Client, run_id: &str) -> Vec<Value> {
    let path = format!("/v1/runs/{run_id}/audit?limit=100");
    let audit = client.get(&path).await.expect(200).body;
    let rows = audit["items"].as_array().unwrap().iter();
    let calls = rows.filter(|row| row["action"] == "call_tool" && row["outcome"] != Value::Null);
    calls.cloned().collect()
}

#[rstest]
#[tokio::test]
async fn allowed_call_is_made_once(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let question_id = held(&call(&run.host, Some("k"), 7, 0).await);
    assert_eq!(held(&call(&run.host, Some("k"), 7, 0).await), question_id);
    let shown = question(&stage.client, &question_id).await;
    let description = shown["request"]["description"].as_str().unwrap();
    assert!(description.contains(r#"{"amount":7}"#), "{description}");
    assert_eq!(server.effects(), Vec::<String>::new());

    answer(&stage.client, &question_id, "allow_once", json!({}))
        .await
        .expect(200);
    for _ in 0..2 {
        let called = call(&run.host, Some("k"), 7, 0).await.expect(200);
        assert_eq!(called.body["result"], json!({"effect": 1}));
    }
    assert_eq!(server.effects().len(), 1);
    let approval = &approvals(&stage.admin).await[0];
    assert_members!(approval, {"status": "used", "scope": "run", "used": 1, "count": 1, "interaction_id": question_id});
    until("the audit", async || {
        let calls = audited(&stage.client, &run.run_id).await;
        calls
            .iter()
            .filter(|row| row["approval_id"] == approval["id"])
            .count()
            == 1
    })
    .await;
    // The decision was about one call.
    assert_ne!(
        held(&call(&run.host, Some("other"), 7, 0).await),
        question_id
    );
    assert_eq!(server.effects().len(), 1);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn waiting_call_continues_after_its_answer(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let body = json!({"parameters": {"amount": 7}});
    let calling = run.call("/tools/act/call", &body);
    let answering = async {
        until("a question", async || {
            open_questions(&stage.client).await.len() == 1
        })
        .await;
        let question_id = open_questions(&stage.client).await.remove(0);
        answer(&stage.client, &question_id, "allow_once", json!({}))
            .await
            .expect(200);
    };
    let (called, ()) = tokio::join!(calling, answering);
    assert_eq!(called.expect(200).body["result"], json!({"effect": 1}));
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn denial_reaches_the_model_and_lasts(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let question_id = held(&call(&run.host, None, 7, 0).await);
    let reason = json!({"reason": "use the sandbox account"});
    answer(&stage.client, &question_id, "deny", reason)
        .await
        .expect(200);
    for _ in 0..2 {
        let denied = call(&run.host, None, 7, 0).await;
        denied.assert_detail(409, "reason", "call_denied");
        assert!(denied.body.to_string().contains("use the sandbox account"));
    }
    let params = json!({"name": "act", "arguments": {"amount": 7}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let over_mcp = run.call("/mcp", &message).await.expect(200);
    assert_eq!(
        over_mcp.body["result"]["isError"], true,
        "{}",
        over_mcp.body
    );
    assert!(
        over_mcp.body["result"]["content"]
            .to_string()
            .contains("use the sandbox account")
    );
    assert_eq!(open_questions(&stage.client).await, Vec::<String>::new());
    assert_eq!(server.effects(), Vec::<String>::new());
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn rules_of_a_conversation_cover_its_calls_until_revoked(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let question_id = held(&call(&run.host, None, 7, 0).await);
    let wrong = json!({"arguments": r#"{"/amount": {"range": {"max": 6}}}"#});
    let refused = answer(&stage.client, &question_id, "allow_conversation", wrong).await;
    assert_eq!(refused.expect(400).detail("pointer"), "/values/arguments");
    let rules = json!({"arguments": r#"{"/amount": {"range": {"min": 5, "max": 10}}}"#});
    answer(&stage.client, &question_id, "allow_conversation", rules)
        .await
        .expect(200);
    for amount in [5, 7, 10] {
        call(&run.host, None, amount, 0).await.expect(200);
    }
    held(&call(&run.host, None, 11, 0).await);
    run.end(&stage).await;
    // A later run of the conversation, and one of another conversation.
    let later = HeldRun::start(&stage, &message("m-2")).await;
    call(&later.host, None, 6, 0).await.expect(200);
    let mut elsewhere = message("m-3");
    elsewhere["conversation"]["conversation_id"] = json!("c-8");
    let other = HeldRun::start(&stage, &elsewhere).await;
    held(&call(&other.host, None, 6, 0).await);

    let approval = approvals(&stage.admin).await.remove(0);
    assert_members!(approval, {"status": "active", "scope": "conversation", "used": 4});
    let path = format!("/v1/approvals/{}/revoke", approval["id"].as_str().unwrap());
    let revoked = stage.admin.create(&path, &json!({})).await.expect(200).body;
    assert_members!(revoked, {"status": "revoked", "used": 4});
    held(&call(&later.host, None, 6, 0).await);
    assert_eq!(server.effects().len(), 4);
    later.end(&stage).await;
    other.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn concurrent_calls_never_exceed_the_count(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let spec = json!({"tool": "ac*", "arguments": {"/amount": {"any": true}}, "count": 5, "run_id": run.run_id});
    let id = approve(&stage.admin, &spec).await;
    let calls = (0..15).map(async |amount| {
        // A run has a limited number of calls at a time: further ones are repeated.
        loop {
            let called = call(&run.host, None, amount, 0).await;
            if called.status != 429 {
                return called.status;
            }
        }
    });
    let statuses = join_all(calls).await;
    let of = |status: u16| statuses.iter().filter(|one| **one == status).count();
    assert_eq!((of(200), of(202)), (5, 10), "{statuses:?}");
    assert_eq!(server.effects().len(), 5);
    let path = format!("/v1/approvals/{id}");
    let used = stage.admin.get(&path).await.expect(200).body;
    assert_members!(used, {"status": "used", "used": 5});
    run.end(&stage).await;
}

/// The moment at which the gateway dies after an answer.
const DEATHS: [Option<&str>; 4] = [
    None,
    Some("tool_call.before_ticket"),
    Some("tool_call.after_ticket"),
    Some("tool_call.before_outcome"),
];

#[rstest]
#[tokio::test]
async fn killed_gateway_calls_at_most_once_after_answer(
    #[values(Sqlite, Postgres)] engine: Engine,
    #[values(0, 1, 2, 3)] death: usize,
) {
    let death = DEATHS[death];
    let server = EffectServer::start().await;
    let mut stage = or_skip!(stage(engine, &server).await);
    stage.gateway.kill().await;
    // The call that asks passes the first failpoint, too.
    let failpoints = match death {
        Some(name) if name == "tool_call.before_ticket" => format!("{name}=1*off->1*return(abort)"),
        Some(name) => format!("{name}=1*return(abort)"),
        None => String::new(),
    };
    assert!(stage.gateway.start_with_failpoints(&failpoints).await);
    let deferred = Deferred::start(&stage, &message("m-1")).await;
    deferred.accepted(&[deferred.delta(1, "one")], 1).await;
    let question_id = held(&call(&deferred.host, Some("k"), 7, 0).await);
    answer(&stage.client, &question_id, "allow_once", json!({}))
        .await
        .expect(200);
    if death.is_some() {
        let request = deferred
            .host
            .request(Method::POST, "/tools/act/call?wait_seconds=0");
        let request = request.header("idempotency-key", "k");
        let called = send(request.json(&json!({"parameters": {"amount": 7}}))).await;
        assert!(called.is_err(), "{called:?}");
        stage.gateway.exited().await;
    } else {
        stage.gateway.kill().await;
    }
    stage.gateway.restart().await;
    let again = call(&deferred.host, Some("k"), 7, 0).await;
    let effects = server.effects().len();
    match death {
        // The approval was not used, so the repeated call uses it.
        None | Some("tool_call.before_ticket") => {
            again.expect(200);
            assert_eq!(effects, 1);
        }
        _ => {
            again.assert_detail(409, "reason", "outcome_unknown");
            assert!(effects <= 1, "{effects}");
        }
    }
    deferred.accepted(&[deferred.completed(2)], 2).await;
    stage.outcome(&deferred.run_id).await;
}

#[rstest]
#[tokio::test]
async fn refuses_answers_without_the_right(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let question_id = held(&call(&run.host, Some("k"), 7, 0).await);
    let key_of = async |body: Value| {
        let made = stage.admin.create("/v1/api-keys", &body).await.expect(201);
        Client::new(&stage.client.url, made.body["key"].as_str().unwrap())
    };
    let viewer = key_of(json!({"name": "viewer", "role": "viewer"})).await;
    let foreign = json!({
        "name": "foreign", "event_types": ["test.none"], "runner_id": RUNNER_ID,
    });
    stage.admin.create("/v1/agents", &foreign).await.expect(201);
    let restricted =
        key_of(json!({"name": "other", "role": "client", "agents": ["foreign"]})).await;
    let shown = question(&stage.client, &question_id).await;
    let body =
        json!({"interaction_id": shown["request"]["interaction_id"], "action_id": "allow_once"});
    let path = format!("/v1/interactions/{question_id}/submit");
    for (client, status) in [(&viewer, 403), (&restricted, 404), (&run.host, 404)] {
        let refused = client.create(&path, &body).await;
        assert_eq!(refused.status, status, "{}", refused.body);
    }
    let unknown =
        json!({"interaction_id": shown["request"]["interaction_id"], "action_id": "allow_all"});
    stage.client.create(&path, &unknown).await.expect(400);
    let mut elsewhere = body.clone();
    elsewhere["interaction_id"] = json!("tool_ask.other");
    stage.client.create(&path, &elsewhere).await.expect(400);
    held(&call(&run.host, Some("k"), 7, 0).await);

    // Replayed: the same answer changes nothing, and another one is refused.
    stage.client.create(&path, &body).await.expect(200);
    assert!(stage.client.create(&path, &body).await.is_replay());
    answer(&stage.client, &question_id, "deny", json!({}))
        .await
        .expect(409);
    assert_eq!(approvals(&stage.admin).await.len(), 1);
    // Other arguments between question and call.
    let swapped = held(&call(&run.host, Some("k"), 8, 0).await);
    assert_ne!(swapped, question_id);
    assert_eq!(server.effects(), Vec::<String>::new());
    let sql = format!("UPDATE interactions SET expires_at = 1 WHERE id = '{swapped}'");
    rows(&stage.gateway.database_url(), &sql).await;
    answer(&stage.client, &swapped, "allow_once", json!({}))
        .await
        .expect(410);
    call(&run.host, Some("k"), 7, 0).await.expect(200);
    assert_eq!(server.effects().len(), 1);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn explains_the_rule_of_each_tool(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let tools = run.run_request["context"]["resources"]["tools"]
        .as_array()
        .unwrap()
        .clone();
    let approval = |name: &str| {
        let tool = tools.iter().find(|tool| tool["tool_name"] == name).unwrap();
        tool["approval"].clone()
    };
    assert_eq!(
        (approval("act"), approval("find")),
        (json!("ask"), Value::Null)
    );
    let path = format!("/v1/runs/{}/authorization", run.run_id);
    let explained = stage.client.get(&path).await.expect(200).body;
    let decision = json!({
        "kind": "tool", "id": "act", "operation": "ask", "granted": true, "layer": "agent_policy",
        "rule": "resource_policy.tools asks before each call",
    });
    let decisions = explained["decisions"].as_array().unwrap();
    assert!(decisions.contains(&decision), "{explained}");
    run.end(&stage).await;
}

#[tokio::test]
async fn waiting_mcp_call_shows_progress() {
    let server = EffectServer::start().await;
    let stage = stage(Sqlite, &server).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let params =
        json!({"name": "act", "arguments": {"amount": 7}, "_meta": {"progressToken": "t"}});
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = run.request(Method::POST, "/mcp").json(&message);
    let request = request.header("accept", "application/json, text/event-stream");
    // The head of the response comes with the first progress.
    let response = within("the progress", request.send()).await.unwrap();
    let kind = response.headers()["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/event-stream"), "{kind}");
    let question_id = open_questions(&stage.client).await.remove(0);
    answer(&stage.client, &question_id, "allow_once", json!({}))
        .await
        .expect(200);
    let mut chunks = response.bytes_stream();
    let mut text = String::new();
    while let Some(chunk) = within("the response", chunks.next()).await {
        text.push_str(&String::from_utf8_lossy(&chunk.unwrap()));
    }
    assert!(text.contains("notifications/progress"), "{text}");
    assert!(
        text.contains(r#""effect":1"#) || text.contains(r#"effect\":1"#),
        "{text}"
    );
    run.end(&stage).await;
}

/// Answers each question of the session as a careful person does, until all calls have ended. Returns their number.
async fn answer_session(client: &Client) -> usize {
    let mut count = 0;
    loop {
        until("a question", async || {
            !open_questions(client).await.is_empty()
        })
        .await;
        for question_id in open_questions(client).await {
            count += 1;
            let shown = question(client, &question_id).await;
            let description = shown["request"]["description"].as_str().unwrap();
            let (action, values) = if description.contains(r#""command":"cargo test"#) {
                let rules = r#"{"/command": {"prefix": "cargo test"}}"#;
                ("allow_conversation", json!({"arguments": rules}))
            } else {
                (
                    "deny",
                    json!({"reason": "delete nothing outside of the build folder"}),
                )
            };
            answer(client, &question_id, action, values)
                .await
                .expect(200);
            if action == "deny" {
                return count;
            }
        }
    }
}

#[rstest]
#[tokio::test]
async fn session_of_forty_prompts_needs_three_questions(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let server = ToolServer::start().await;
    let catalog = tools_at(&server, "", &["fs_read", "fs_edit", "shell_run"]);
    let stage = stage_of(engine, catalog, |config| {
        config.agents[0].resources = r#"tools = { "*" = "ask" }"#;
    });
    let stage = or_skip!(stage.await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let any = json!({"any": true});
    let rules = json!({
        "/path": {"prefix": "/srv/shop/"}, "/old": any, "/new": any, "/offset": any, "/limit": any,
    });
    let spec = json!({"tool": "fs_*", "arguments": rules, "count": 100, "agent": "main"});
    approve(&stage.admin, &spec).await;
    let calls: Vec<Value> = serde_json::from_str(SESSION).unwrap();
    assert_eq!(calls.len(), 40);
    let calling = replay(&run, &calls);
    let (denied, questions) = tokio::join!(calling, answer_session(&stage.client));
    assert!(questions <= 3, "{questions} questions");
    let dangerous = |call: &&Value| call["arguments"].to_string().contains("rm -rf");
    let dangerous: Vec<_> = calls.iter().filter(dangerous).cloned().collect();
    assert_eq!(denied, dangerous);
    let made: Vec<_> = server
        .seen("/")
        .into_iter()
        .map(|request| request.body)
        .collect();
    let allowed = calls.iter().filter(|call| !dangerous.contains(call));
    let allowed: Vec<_> = allowed.map(|call| call["arguments"].clone()).collect();
    assert_eq!(made, allowed);
    run.end(&stage).await;
}

/// Makes the calls over MCP, as a harness does. Returns those that were denied.
async fn replay(run: &HeldRun, calls: &[Value]) -> Vec<Value> {
    let mut denied = Vec::new();
    for (id, call) in calls.iter().enumerate() {
        let params = json!({"name": call["tool"], "arguments": call["arguments"]});
        let message = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params});
        let called = run.call("/mcp", &message).await.expect(200);
        if called.body["result"]["isError"] == true {
            let text = called.body["result"]["content"].to_string();
            assert!(text.contains("delete nothing outside"), "{text}");
            denied.push(call.clone());
        }
    }
    denied
}

#[rstest]
#[tokio::test]
async fn refuses_invalid_approvals_by_pointer(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = EffectServer::start().await;
    let stage: OwnStage = or_skip!(stage(engine, &server).await);
    for (spec, pointer) in [
        (json!({"tool": "a*b*", "agent": "main"}), "/tool"),
        (json!({"tool": "act", "agent": "none"}), "/agent"),
        (json!({"tool": "act"}), "/agent"),
        (
            json!({"tool": "act", "run_id": uuid::Uuid::now_v7()}),
            "/run_id",
        ),
        (
            json!({"tool": "act", "agent": "main", "arguments": {"/a": {"any": false}}}),
            "/arguments/~1a",
        ),
        (
            json!({"tool": "act", "agent": "main", "count": 0}),
            "/count",
        ),
        (
            json!({"tool": "act", "agent": "main", "expires_at": 1}),
            "/expires_at",
        ),
    ] {
        let refused = stage.admin.create("/v1/approvals", &spec).await.expect(400);
        assert_eq!(refused.detail("pointer"), pointer, "{}", refused.body);
    }
    assert_eq!(approvals(&stage.admin).await, Vec::<Value>::new());
}
