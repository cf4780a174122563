//! The MCP server for runners, tested with official clients and raw requests.

use std::sync::Once;

use futures_util::StreamExt as _;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{message, send};
use crate::support::gateway::{Agent, STUB_API_KEY};
use crate::support::held::HeldRun;
use crate::support::peer::environment;
use crate::support::repository::repository_file;
use crate::support::tool_server::{ToolServer, listed};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, run, skipped, until};
use crate::tool_servers::PEERS;
use crate::tools::{stage_of, stage_with};

/// The official client.
pub const PYTHON: &str = "mcp==2.3.0";

/// Two HTTP tools, one tool of an MCP server, and one tool without a grant.
async fn stage(engine: Engine, server: &ToolServer) -> Option<OwnStage> {
    let catalog = format!(
        r#"[[tools]]
tool_name = "find"
url = "{url}/find"
effect = "read"
description = "Finds."
headers = {{ authorization = "env:{key}" }}
parameters = {{ required = ["q"], properties = {{ q = {{ type = "string" }} }} }}
[[tools]]
tool_name = "hidden"
url = "{url}/hidden"
[[tools]]
tool_name = "fail"
url = "{url}/fail"
[[mcp_servers]]
name = "stub"
url = "{url}/mcp"
"#,
        url = server.url,
        key = STUB_API_KEY.0
    );
    let stage = stage_of(engine, catalog, |config| {
        config.agents[0].resources =
            r#"tools = ["find", "fail", "echo", "wrong"], history = ["page"], events = ["get"]"#;
    })
    .await?;
    server
        .list(json!([
            listed("echo", &json!({})),
            listed("wrong", &json!({}))
        ]))
        .await;
    let admin = stage.admin.clone();
    until("the list", async || {
        let servers = admin.get("/v1/mcp-servers").await.body;
        servers["items"][0]["tools"] == json!(["echo", "wrong"])
    })
    .await;
    Some(stage)
}

fn calls() -> Value {
    json!([
        ["find", {"q": "x"}],
        ["find", {}],
        ["echo", {"a": 1}],
        ["wrong", {}],
        ["fail", {}],
        ["hidden", {}],
        ["list_assets", {"asset_types": ["tools"]}],
        ["get_current_event", {}],
        ["history_page", {"limit": 1}],
    ])
}

const TOOLS: [&str; 7] = [
    "find",
    "fail",
    "echo",
    "wrong",
    "list_assets",
    "get_current_event",
    "history_page",
];

/// The expected results of every client.
fn check_client(output: &Value) {
    let tools = output["tools"].as_array().unwrap();
    let names: Vec<_> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, TOOLS);
    assert_eq!(tools[0]["description"], "Finds.");
    assert_eq!(tools[0]["inputSchema"]["type"], "object");
    assert_eq!(tools[0]["inputSchema"]["required"], json!(["q"]));
    assert_eq!(tools[0]["annotations"]["readOnlyHint"], true);
    let result = |index: usize| &output["results"][index];
    let text = |index: usize| {
        result(index)["content"][0]["text"]
            .as_str()
            .unwrap_or_default()
    };

    assert_eq!(result(0)["structuredContent"]["body"], json!({"q": "x"}));
    assert_members!(result(0)["structuredContent"], {"authorization": "[redacted]"});
    assert!(text(0).contains("\"q\":\"x\""), "{output}");
    assert_eq!(result(1)["isError"], true);
    assert!(text(1).starts_with("/parameters"), "{output}");
    assert_eq!(text(2), r#"{"a":1}"#);
    assert_eq!((&result(3)["isError"], text(3)), (&json!(true), "no"));
    assert_eq!(result(4)["isError"], true);
    assert!(text(4).contains("HTTP 500"), "{output}");
    assert_eq!(result(5)["code"], -32602, "{output}");
    let assets = &result(6)["structuredContent"];
    assert_eq!(assets["tools"].as_array().unwrap().len(), 4);
    assert_eq!(assets["models"], Value::Null);
    assert_eq!(result(7)["structuredContent"]["event_id"], "m-1");
    let items = &result(8)["structuredContent"]["items"];
    assert_eq!(items[0]["content"], "hello big world");
}

fn client_input(run: &HeldRun, mode: &str) -> String {
    let url = format!("{}/mcp", run.host.url);
    json!({"url": url, "token": run.token, "calls": calls(), "mode": mode}).to_string()
}

/// The JSON output of a client.
pub async fn json_output(command: &mut Command) -> Value {
    let printed = run(command).await;
    assert!(printed.status.success(), "{}", printed.stderr);
    printed.json()
}

#[tokio::test]
async fn typescript_client_lists_and_calls_granted_tools() {
    let peers = or_skip!(PEERS.built("mcp").await);
    let server = ToolServer::start().await;
    let stage = stage(Sqlite, &server).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut node = Command::new("node");
    node.arg(peers.join("face.mjs")).arg(client_input(&run, ""));
    let text = json_output(&mut node).await;
    check_client(&text);
    assert_eq!(text["server"]["name"], "runnel");
    run.end(&stage).await;
}

#[tokio::test]
async fn python_client_lists_and_calls_granted_tools() {
    static SKIPPED: Once = Once::new();
    let Some(environment) = environment(&PYTHON.replace("==", "-"), &[PYTHON]).await else {
        skipped(&SKIPPED, "mcp", "pip could not install the client");
        return;
    };
    let server = ToolServer::start().await;
    let stage = stage(Sqlite, &server).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    // With the handshake of 2025-11-25, and without a handshake.
    for mode in ["legacy", "auto", "2026-07-28"] {
        let mut python = Command::new(environment.join("bin/python"));
        python
            .arg(repository_file("tests/clients/mcp_python/face.py"))
            .arg(client_input(&run, mode));
        check_client(&json_output(&mut python).await);
    }
    run.end(&stage).await;
}

async fn speak(run: &HeldRun, body: &Value) -> (u16, Value) {
    let request = run.request(Method::POST, "/mcp").json(body);
    let answer = send(request).await.unwrap();
    (answer.status, answer.body)
}

#[rstest]
#[tokio::test]
async fn is_stateless_and_closes_with_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(
        stage_with(
            engine,
            "[[tools]]\ntool_name = \"get_current_time\"\n".to_owned(),
        )
        .await
    );
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let hello = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
    let (status, answer) = speak(&run, &hello).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(answer["result"]["serverInfo"]["name"], "runnel");
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(speak(&run, &initialized).await.0, 202);
    let (_, pong) = speak(
        &run,
        &json!({"jsonrpc": "2.0", "id": "p", "method": "ping"}),
    )
    .await;
    assert_eq!((&pong["id"], &pong["result"]), (&json!("p"), &json!({})));
    assert_eq!(run.get("/mcp").await.status, 405);
    let (status, answer) = speak(
        &run,
        &json!({"jsonrpc": "2.0", "id": 2, "method": "no/such"}),
    )
    .await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (200, &json!(-32601)),
        "{answer}"
    );
    let nonsense = run.request(Method::POST, "/mcp").json(&json!({"hello": 1}));
    let status = nonsense.send().await.unwrap().status();
    assert!(status.is_client_error(), "{status}");

    let call = json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call",
        "params": {"name": "get_current_time", "arguments": {}}});
    let (_, answer) = speak(&run, &call).await;
    assert!(
        answer["result"]["structuredContent"]["utc"].is_string(),
        "{answer}"
    );
    let path = format!("/v1/runs/{}/audit", run.run_id);
    let called = |row: &Value| row["action"] == "call_tool" && row["decision"] == "allow";
    until("the audit", async || {
        let audit = stage.client.get(&path).await.body;
        audit["items"].as_array().unwrap().iter().any(called)
    })
    .await;
    let token = run.token.clone();
    let host = run.host.clone();
    run.end(&stage).await;
    assert_eq!(host.key, token);
    let late = send(host.request(Method::POST, "/mcp").json(&call))
        .await
        .unwrap();
    late.assert_error(401, "code", "unauthenticated");
}

#[tokio::test]
async fn counts_empty_cursors_of_history_as_absent() {
    let catalog = "[[tools]]\ntool_name = \"get_current_time\"\n".to_owned();
    let stage = stage_of(Sqlite, catalog, |_| {}).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let empty = json!({"conversation_id": "", "before_cursor": "", "after_cursor": ""});
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "history_page", "arguments": empty}});
    let (_, answer) = speak(&run, &call).await;
    let items = &answer["result"]["structuredContent"]["items"];
    assert_eq!(items.as_array().map(Vec::len), Some(1), "{answer}");
    let paged = run
        .get("/history?before_cursor=&after_cursor=&limit=")
        .await
        .expect(200);
    assert_eq!(&paged.body["items"], items);
    run.get("/history?beforecursor=").await.expect(400);
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn audits_every_mcp_read(#[values(Sqlite, Postgres)] engine: Engine) {
    let catalog = "[[tools]]\ntool_name = \"get_current_time\"\n".to_owned();
    let agent = Agent {
        name: "bare",
        event_types: "test.bare",
        resources: "",
        ..Agent::default()
    };
    let staged = stage_of(engine, catalog, |config| config.agents.push(agent));
    let Some(stage) = staged.await else { return };
    let may = HeldRun::start(&stage, &message("m-1")).await;
    let mut event = message("m-2");
    event["event_type"] = json!("test.bare");
    event["conversation"]["conversation_id"] = json!("c-2");
    let may_not = HeldRun::start(&stage, &event).await;

    for (run, decision) in [(&may, "allow"), (&may_not, "deny")] {
        let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        speak(run, &list).await;
        for (name, arguments) in [
            ("list_assets", json!({})),
            ("get_current_event", json!({})),
            ("history_page", json!({})),
            (
                "retrieve_knowledge",
                json!({"kb_id": "none", "query_text": "q"}),
            ),
            ("get_current_time", json!({})),
        ] {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                "params": {"name": name, "arguments": arguments}});
            speak(run, &call).await;
        }
        let path = format!("/v1/runs/{}/audit?limit=100", run.run_id);
        let rows = async || {
            let audit = stage.client.get(&path).await.body;
            let rows = audit["items"].as_array().unwrap().clone();
            let text_of = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
            let rows = rows
                .iter()
                .map(|row| (text_of(row, "action"), text_of(row, "decision")));
            rows.collect::<Vec<_>>()
        };
        let expected = [
            ("list_tools", "allow"),
            ("list_assets", "allow"),
            ("event_get", decision),
            ("history_page", decision),
            ("retrieve_knowledge_base", "deny"),
            ("call_tool", decision),
        ];
        let expected = expected.map(|(action, decision)| (action.to_owned(), decision.to_owned()));
        until("one row for each call, in their order", async || {
            rows().await == expected
        })
        .await;
    }
    may.end(&stage).await;
    may_not.end(&stage).await;
}

#[tokio::test]
async fn concurrent_calls_with_equal_ids_stay_separate() {
    let server = ToolServer::start().await;
    let stage = stage(Sqlite, &server).await.unwrap();
    let mut runs = Vec::new();
    for number in 0..4 {
        let mut event = message(&format!("m-{number}"));
        event["conversation"]["conversation_id"] = json!(format!("c-{number}"));
        runs.push(HeldRun::start(&stage, &event).await);
    }
    // JSON-RPC ids and idempotency keys repeat across runs.
    let calls = (0..200).map(async |number: usize| {
        let run = &runs[number % runs.len()];
        let own = format!("m-{}", number % runs.len());
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": "get_current_event", "arguments": {}}});
        let (_, answer) = speak(run, &call).await;
        assert_members!(answer["result"]["structuredContent"], {"event_id": own});
        let called = run
            .request(Method::POST, "/tools/find/call")
            .header("idempotency-key", format!("k-{}", number / runs.len()))
            .json(&json!({"parameters": {"q": own}}));
        let called = send(called).await.unwrap();
        assert_members!(called.body["result"], {"body": json!({"q": own})});
    });
    futures_util::stream::iter(calls)
        .buffer_unordered(32)
        .collect::<Vec<()>>()
        .await;
    for run in runs {
        run.end(&stage).await;
    }
}

/// Texts that only one database could store; no database gets them.
#[rstest]
#[tokio::test]
async fn rejects_unstorable_messages_before_audit(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let nul = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x\u0000y","arguments":{}}}"#;
    let deep = format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"ping","params":{}1{}}}"#,
        "[".repeat(100),
        "]".repeat(100)
    );
    for (body, why) in [(nul, "U+0000"), (&*deep, "64 levels")] {
        let asking = run
            .request(Method::POST, "/mcp")
            .header("content-type", "application/json")
            .body(body.to_owned());
        let refused = send(asking).await.unwrap();
        assert_eq!(refused.status, 400, "{}", refused.body);
        let message = refused.error("message").as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    let outcome = run.end(&stage).await;
    assert_eq!(outcome.ending(), "completed");
    let log = stage.gateway.log();
    assert!(!log.contains("batch failed"), "{log}");
}
