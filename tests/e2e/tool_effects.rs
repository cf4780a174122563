//! Effects of tools, and idempotency keys that a conversation's runs share.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, message, send};
use crate::support::held::HeldRun;
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, Postgres, Sqlite, until};
use crate::tools::{stage_with, tools_at};

async fn facts(run: &HeldRun, name: &str) -> Value {
    let answer = run.get(&format!("/tools/{name}")).await.expect(200);
    let tool = &answer.body["tool"];
    json!([tool["effect"], tool["idempotent"], tool["effect_source"]])
}

#[tokio::test]
async fn tool_effects_name_their_source() {
    let server = ToolServer::start().await;
    let catalog = tools_at(&server, "effect = \"write\"\nidempotent = true", &["echo"])
        + &tools_at(&server, "", &["fail"])
        + &format!(
            "[[mcp_servers]]\nname = \"stub\"\nurl = \"{}/mcp\"\nprefix = \"m_\"\n\
             idempotent = {{ ours = false }}\n",
            server.url
        );
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let hints = json!({"readOnlyHint": false, "destructiveHint": true, "idempotentHint": true});
    let tool =
        |name: &str| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": hints});
    server.list(json!([tool("ours"), tool("theirs")])).await;
    let admin = stage.admin.clone();
    until("the list", async || {
        let listed = admin.get("/v1/mcp-servers").await.body;
        listed["items"][0]["tools"] == json!(["m_ours", "m_theirs"])
    })
    .await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (name, expected) in [
        ("echo", json!(["write", true, "operator"])),
        ("fail", json!([null, null, null])),
        ("m_ours", json!([null, false, "operator"])),
        ("m_theirs", json!(["irreversible", true, "server"])),
    ] {
        assert_eq!(facts(&run, name).await, expected, "{name}");
        let resources = run.run_request["context"]["resources"]["tools"].as_array();
        let tools = resources.unwrap().iter();
        let mut tools = tools.filter(|tool| tool["tool_name"] == name);
        let tool = tools.next().unwrap();
        let effects = json!([tool["effect"], tool["idempotent"], tool["effect_source"]]);
        assert_eq!(effects, expected, "{name}");
    }
    run.end(&stage).await;
}

async fn call_shared(run: &HeldRun, name: &str, scope: &str, parameters: &Value) -> ApiResponse {
    let request = run.request(Method::POST, &format!("/tools/{name}/call"));
    let request = request
        .header("idempotency-key", "k")
        .header("idempotency-key-scope", scope);
    send(request.json(&json!({"parameters": parameters})))
        .await
        .unwrap()
}

#[rstest]
#[tokio::test]
async fn later_run_finds_the_stored_result(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let catalog = tools_at(&server, "effect = \"write\"", &["echo", "fail"]);
    let stage = or_skip!(stage_with(engine, catalog).await);
    let count = |path: &str| server.seen(path).len();
    let parameters = json!({"a": 1});
    let first = HeldRun::start(&stage, &message("m-1")).await;
    let called = call_shared(&first, "echo", "conversation", &parameters).await;
    assert_eq!(called.status, 200, "{}", called.body);
    first.end(&stage).await;

    let later = HeldRun::start(&stage, &message("m-2")).await;
    let again = call_shared(&later, "echo", "conversation", &parameters).await;
    assert_eq!((again.status, &again.body), (200, &called.body));
    assert_eq!(count("/echo"), 1);
    let other = call_shared(&later, "echo", "conversation", &json!({"a": 2})).await;
    assert_eq!(other.detail("reason"), "idempotency_mismatch");
    // The same key for another tool, or in the run's scope, is a separate key.
    call_shared(&later, "fail", "conversation", &parameters).await;
    assert_eq!(count("/fail"), 1);
    let own = call_shared(&later, "echo", "run", &json!({"a": 2})).await;
    assert_eq!((own.status, count("/echo")), (200, 2));
    later.end(&stage).await;

    let mut elsewhere = message("m-3");
    elsewhere["conversation"] = json!({"conversation_id": "c-8"});
    let elsewhere = HeldRun::start(&stage, &elsewhere).await;
    let called = call_shared(&elsewhere, "echo", "conversation", &parameters).await;
    assert_eq!((called.status, count("/echo")), (200, 3));
    elsewhere.end(&stage).await;
}

#[tokio::test]
async fn conversation_scope_needs_a_conversation() {
    let server = ToolServer::start().await;
    let stage = stage_with(Sqlite, tools_at(&server, "", &["echo"])).await;
    let stage = stage.unwrap();
    let mut event = message("m-1");
    event["conversation"] = Value::Null;
    let run = HeldRun::start(&stage, &event).await;
    let refused = call_shared(&run, "echo", "conversation", &json!({})).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    let refused = call_shared(&run, "echo", "world", &json!({})).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    let request = run.request(Method::POST, "/tools/echo/call");
    let request = request.header("idempotency-key-scope", "run");
    let refused = send(request.json(&json!({}))).await.unwrap();
    assert_eq!(refused.status, 400, "{}", refused.body);
    assert_eq!(server.seen("/echo").len(), 0);
    run.end(&stage).await;
}
