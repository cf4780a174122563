//! MCP servers: connection, tool lists and calls; also while unavailable, changed or hostile.

use std::path::Path;

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{ApiResponse, Client, message};
use crate::support::gateway::{STUB_API_KEY, unused_loopback_address};
use crate::support::held::HeldRun;
use crate::support::node::NodeProject;
use crate::support::programs::runnel;
use crate::support::tool_server::{ToolServer, listed};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, TempDirectory, run, until};
use crate::tools::stage_with;

async fn call(run: &HeldRun, name: &str, parameters: &Value) -> ApiResponse {
    let body = json!({ "parameters": parameters });
    run.call(&format!("/tools/{name}/call"), &body).await
}

fn server_at(url: &str, more: &str) -> String {
    format!(
        "[[mcp_servers]]\nname = \"stub\"\nurl = \"{url}/mcp\"\ntimeout_seconds = 2.0\n\
         headers = {{ authorization = \"env:{}\" }}\n{more}\n",
        STUB_API_KEY.0
    )
}

async fn servers(admin: &Client) -> Value {
    admin.get("/v1/mcp-servers").await.body["items"].clone()
}

/// Waits until the first server satisfies the condition.
async fn server_is(admin: &Client, what: &str, is: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    until(what, async || {
        last = servers(admin).await[0].clone();
        is(&last)
    })
    .await;
    last
}

/// A gateway with this catalog, and a client of its administrator.
async fn staged(catalog: String) -> (OwnStage, Client) {
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let admin = stage.admin.clone();
    (stage, admin)
}

/// Lets the server list tools with these names, and waits until the gateway has them.
async fn offer(server: &ToolServer, admin: &Client, names: &[&str]) -> Value {
    let tools: Vec<_> = names.iter().map(|name| listed(name, &json!({}))).collect();
    server.list(json!(tools)).await;
    server_is(admin, "the list", |server| server["tools"] == json!(names)).await
}

pub async fn ready(admin: &Client) -> Value {
    server_is(admin, "an MCP server to be ready", |server| {
        server["state"] == "ready"
    })
    .await
}

#[rstest]
#[tokio::test]
async fn changed_tool_is_rejected_until_next_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let catalog = server_at(
        &server.url,
        "prefix = \"s_\"\neffects = { echo = \"write\" }",
    );
    let stage = or_skip!(stage_with(engine, catalog).await);
    let admin = stage.admin.clone();
    assert_eq!(ready(&admin).await["tools"], json!(["s_echo"]));
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let tool = run.run_request["context"]["resources"]["tools"][0].clone();
    assert_members!(tool, {"source": "mcp:stub", "effect": "write"});
    let answer = call(&run, "s_echo", &json!({"text": "hi"})).await;
    assert_eq!(answer.body, json!({"result": "{\"text\":\"hi\"}"}));
    let refused = call(&run, "s_echo", &json!({"text": 1})).await;
    assert_eq!(
        refused.detail("pointer"),
        "/parameters/text",
        "{}",
        refused.body
    );
    let seen = server
        .wait_for_match("a call", |seen| seen.body["method"] == "tools/call")
        .await;
    assert_eq!(seen.header("authorization"), Some(STUB_API_KEY.1));

    server
        .list(json!([
            listed("echo", &json!({"text": {"type": "integer"}})),
            listed("more", &json!({}))
        ]))
        .await;
    server_is(&admin, "the new list", |server| {
        server["tools"] == json!(["s_echo", "s_more"])
    })
    .await;
    for path in ["/tools/s_echo/call", "/tools/s_echo"] {
        let method = if path.ends_with("call") {
            Method::POST
        } else {
            Method::GET
        };
        let request = run
            .request(method, path)
            .json(&json!({"parameters": {"text": "hi"}}));
        let refused = crate::support::client::send(request).await.unwrap();
        assert_eq!(
            (refused.status, refused.error("code")),
            (403, &json!("unauthorized")),
            "{path}"
        );
        assert_eq!(refused.detail("reason"), "schema_changed", "{path}");
    }
    assert_eq!(
        call(&run, "s_more", &json!({})).await.status,
        403,
        "it was not granted"
    );
    let next = HeldRun::start(&stage, &message("m-2")).await;
    assert_eq!(call(&next, "s_echo", &json!({"text": 1})).await.status, 200);

    server.list(json!([])).await;
    server_is(&admin, "the empty list", |server| {
        server["tools"] == json!([])
    })
    .await;
    let refused = call(&next, "s_echo", &json!({"text": 1})).await;
    assert_eq!(refused.detail("reason"), "tool_gone", "{}", refused.body);
    run.end(&stage).await;
    next.end(&stage).await;
}

#[tokio::test]
async fn unavailable_server_connects_later() {
    let address = unused_loopback_address().replace(":0", ":4100");
    let catalog = server_at(&format!("http://{address}"), "");
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let admin = stage.admin.clone();
    let away = server_is(&admin, "the server to be away", |server| {
        server["state"] == "away"
    })
    .await;
    let error = away["last_error"].as_str().unwrap();
    assert!(error.contains("could not connect"), "{away}");
    assert_eq!(
        (away["tools"].clone(), &away["transport"]),
        (json!([]), &json!("streamable_http"))
    );

    let server = ToolServer::start_at(&address).await;
    ready(&admin).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(call(&run, "echo", &json!({"text": "a"})).await.status, 200);
    // Unavailable again: its tools stay granted, and a call reports the error.
    drop(server);
    let refused = call(&run, "echo", &json!({"text": "a"})).await;
    assert_eq!(refused.status, 502, "{}", refused.body);
    assert_eq!(refused.error("retryable"), true, "{}", refused.body);
    server_is(&admin, "the server to be away again", |server| {
        server["state"] == "away"
    })
    .await;
    let refused = call(&run, "echo", &json!({"text": "a"})).await;
    assert_eq!(
        refused.detail("reason"),
        "upstream_unreachable",
        "{}",
        refused.body
    );
    let _server = ToolServer::start_at(&address).await;
    ready(&admin).await;
    assert_eq!(call(&run, "echo", &json!({"text": "a"})).await.status, 200);
    run.end(&stage).await;
}

#[tokio::test]
async fn speaks_without_session_where_required() {
    let server = ToolServer::start().await;
    let catalog = server_at(&server.url, "").replace("/mcp", "/stateless");
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    ready(&stage.admin).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let answer = call(&run, "echo", &json!({"text": "hi"})).await;
    assert_eq!(answer.body, json!({"result": "{\"text\":\"hi\"}"}));
    run.end(&stage).await;
    let seen = server.seen("/stateless");
    let of = |method: &str| {
        seen.iter()
            .filter(|seen| seen.body["method"] == method)
            .count()
    };
    assert_eq!((of("initialize"), of("tools/call")), (1, 1));
    assert!(
        seen.iter()
            .all(|seen| seen.header("mcp-session-id").is_none())
    );
}

#[tokio::test]
async fn names_revisions_without_a_common_one() {
    let server = ToolServer::start().await;
    let catalog = server_at(&server.url, "").replace("/mcp", "/later");
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let view = server_is(&stage.admin, "the refusal", |server| {
        server["state"] == "away"
    })
    .await;
    let error = view["last_error"].as_str().unwrap();
    let versions = "it speaks 2027-03-01, and the gateway speaks 2025-11-25 and 2026-07-28";
    assert!(error.contains(versions), "{error}");
}

#[tokio::test]
async fn first_source_wins_name_and_omissions_are_reported() {
    let (first, second) = (ToolServer::start().await, ToolServer::start().await);
    let catalog = format!(
        "[[tools]]\ntool_name = \"fixed\"\nurl = \"{}/fixed\"\n{}{}",
        first.url,
        server_at(&first.url, ""),
        server_at(&second.url, "").replace("\"stub\"", "\"other\""),
    );
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let admin = stage.admin.clone();
    for (index, server) in [&first, &second].into_iter().enumerate() {
        let tools: Vec<_> = ["echo", "fixed", "history_page", "bad name"].into();
        let mut tools: Vec<_> = tools
            .into_iter()
            .map(|name| listed(name, &json!({})))
            .collect();
        let broken = json!({"name": "broken", "inputSchema": {"type": "object", "$ref": "http://127.0.0.1:9/x"}});
        tools.push(broken);
        tools.push(listed(&format!("own{index}"), &json!({})));
        server.list(json!(tools)).await;
    }
    let serve_tools = async |index: usize, tools: Value| {
        let mut last = Value::Null;
        until("both lists", async || {
            last = servers(&admin).await[index].clone();
            last["tools"] == tools
        })
        .await;
        last["left_out"].to_string()
    };
    let left_out = serve_tools(0, json!(["echo", "own0"])).await;
    for name in [
        "fixed: another",
        "history_page: another",
        "bad name: a name",
        "broken: its schema",
    ] {
        assert!(left_out.contains(name), "{name} is not in {left_out}");
    }
    let left_out = serve_tools(1, json!(["own1"])).await;
    assert!(left_out.contains("echo: another"), "{left_out}");
    let all = admin.get("/v1/tools").await.body["items"].clone();
    let names: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| &tool["tool_name"])
        .collect();
    assert_eq!(names, ["fixed", "echo", "own0", "own1"]);
    assert!(stage.gateway.log().contains("another source has this name"));
}

#[tokio::test]
async fn tool_name_stays_with_server_until_unlisted() {
    let (first, second) = (ToolServer::start().await, ToolServer::start().await);
    let catalog = format!(
        "{}{}",
        server_at(&first.url, ""),
        server_at(&second.url, "").replace("\"stub\"", "\"other\""),
    );
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let admin = stage.admin.clone();
    let serves = async |index: usize, tools: Value| {
        let mut last = Value::Null;
        until("a list", async || {
            last = servers(&admin).await[index].clone();
            last["tools"] == tools
        })
        .await;
        last["left_out"].to_string()
    };
    let tools =
        |names: &[&str]| -> Value { names.iter().map(|name| listed(name, &json!({}))).collect() };
    serves(0, json!(["echo"])).await;
    second.list(tools(&["search"])).await;
    serves(1, json!(["search"])).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;

    // It precedes the other server in the file, but connects later.
    first.list(tools(&["search", "more"])).await;
    let left_out = serves(0, json!(["more"])).await;
    assert!(left_out.contains("search: another"), "{left_out}");
    assert_eq!(call(&run, "search", &json!({})).await.status, 200);
    let is_call =
        |seen: &crate::support::tool_server::ToolRequest| seen.body["method"] == "tools/call";
    assert!(!first.seen("/mcp").iter().any(is_call));
    assert!(second.seen("/mcp").iter().any(is_call));

    second.list(tools(&["other"])).await;
    serves(0, json!(["search", "more"])).await;
    let refused = call(&run, "search", &json!({})).await;
    assert_eq!(refused.detail("reason"), "tool_gone", "{}", refused.body);
    run.end(&stage).await;
}

#[tokio::test]
async fn disconnects_server_that_reads_no_responses() {
    let server = ToolServer::start().await;
    let (stage, admin) = staged(server_at(&server.url, "")).await;
    // The gateway has a stream open for server messages.
    server.list(json!([listed("echo", &json!({}))])).await;
    ready(&admin).await;
    server.ping_and_ignore_answers(1000);
    until("the server to be disconnected", async || {
        stage
            .gateway
            .log()
            .contains("sent more requests than it takes answers to")
    })
    .await;
    ready(&admin).await;
}

#[tokio::test]
async fn reports_server_faults_with_reason() {
    let server = ToolServer::start().await;
    let (stage, admin) = staged(server_at(&server.url, "")).await;
    let names = ["slow", "drop", "redirect", "fail", "huge", "many", "wrong"];
    offer(&server, &admin, &names).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (name, status, reason) in [
        ("slow", 504, "upstream_timeout"),
        ("huge", 502, "upstream_too_large"),
        ("many", 502, "upstream_malformed"),
        ("redirect", 502, "upstream_malformed"),
        ("fail", 502, "upstream_failing"),
        ("drop", 502, "upstream_broken"),
    ] {
        let refused = call(&run, name, &json!({})).await;
        assert_eq!(refused.status, status, "{name}: {}", refused.body);
        assert_eq!(refused.detail("reason"), reason, "{name}: {}", refused.body);
    }
    // The server received the cancellation.
    let is_cancel = |seen: &crate::support::tool_server::ToolRequest| {
        seen.body["method"] == "notifications/cancelled"
    };
    server.wait_for_match("the end of a call", is_cancel).await;
    // A broken connection is reopened.
    let mut wrong = Value::Null;
    until("the next connection", async || {
        wrong = call(&run, "wrong", &json!({})).await.body;
        wrong["error"].is_null()
    })
    .await;
    let content = json!([{"type": "text", "text": "no"}]);
    assert_eq!(
        wrong,
        json!({"result": {"content": content, "is_error": true}})
    );
    run.end(&stage).await;
}

#[tokio::test]
async fn broken_call_does_not_affect_other_calls() {
    let server = ToolServer::start().await;
    let (stage, admin) = staged(server_at(&server.url, "")).await;
    let names = ["slow", "drop"];
    let before = offer(&server, &admin, &names).await;
    let mut apart = message("m-2");
    apart["conversation"]["conversation_id"] = json!("c-2");
    let one = HeldRun::start(&stage, &message("m-1")).await;
    let other = HeldRun::start(&stage, &apart).await;
    let breaking = async {
        let is_slow =
            |seen: &crate::support::tool_server::ToolRequest| seen.body["params"]["name"] == "slow";
        server.wait_for_match("the slow call", is_slow).await;
        call(&other, "drop", &json!({})).await
    };
    let nothing = json!({});
    let (slow, broken) = tokio::join!(call(&one, "slow", &nothing), breaking);
    assert_eq!(
        broken.detail("reason"),
        "upstream_broken",
        "{}",
        broken.body
    );
    assert_eq!(slow.detail("reason"), "upstream_timeout", "{}", slow.body);
    let after = server_is(&admin, "the server", |_| true).await;
    assert_members!(after, {"state": before["state"], "since": before["since"]});
    for run in [one, other] {
        run.end(&stage).await;
    }
}

#[tokio::test]
async fn reopens_session_and_retries_rejected_calls() {
    let server = ToolServer::start().await;
    let (stage, admin) = staged(server_at(&server.url, "")).await;
    ready(&admin).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let calls = || {
        let is_call =
            |seen: &crate::support::tool_server::ToolRequest| seen.body["method"] == "tools/call";
        server
            .seen("/mcp")
            .iter()
            .filter(|seen| is_call(seen))
            .count()
    };
    let json = "application/json";
    let null = r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request"}}"#;
    let own = r#"{"jsonrpc":"2.0","id":ID,"error":{"code":-32001,"message":"Session not found"}}"#;
    let event = format!(
        "data: {}\n\n",
        null.replace("Bad Request", "No valid session")
    );
    for (status, kind, body) in [
        (400, json, null),
        (200, json, null),
        (200, json, own),
        (404, json, own),
        (400, "text/plain", "bad request"),
        (404, "text/plain", ""),
        (410, "text/plain", "gone"),
        (500, "text/plain", "oops"),
        (200, "text/event-stream", &event),
    ] {
        let before = calls();
        server.forget_session(status, kind, body);
        let answer = call(&run, "echo", &json!({"text": "hi"})).await;
        assert_eq!(
            answer.body,
            json!({"result": "{\"text\":\"hi\"}"}),
            "{status} {body}"
        );
        assert_eq!(calls() - before, 2, "{status} {body}");
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn errors_without_id_fail_their_call() {
    let server = ToolServer::start().await;
    let (stage, admin) = staged(server_at(&server.url, "").replace("= 2.0", "= 50.0")).await;
    let names = ["no_id", "no_id_event", "fail", "garbled"];
    offer(&server, &admin, &names).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for name in ["no_id", "no_id_event"] {
        let refused = call(&run, name, &json!({})).await;
        assert_eq!(
            refused.detail("reason"),
            "upstream_failing",
            "{name}: {}",
            refused.body
        );
        assert_contains!(refused.body.to_string(), "who is it");
    }
    let refused = call(&run, "fail", &json!({})).await;
    assert_eq!(
        refused.detail("reason"),
        "upstream_failing",
        "{}",
        refused.body
    );
    let is_start =
        |seen: &&crate::support::tool_server::ToolRequest| seen.body["method"] == "initialize";
    let starts = server.seen("/mcp").iter().filter(is_start).count();
    assert_eq!(starts, 1, "the session was alive");
    let garbled = call(&run, "garbled", &json!({})).await;
    assert_eq!(
        garbled.body,
        json!({"result": "a\u{fffd}b\u{fffd}c\u{fffd}d"})
    );
    run.end(&stage).await;
}

#[tokio::test]
async fn unknown_blocks_pass_beside_texts() {
    let server = ToolServer::start().await;
    let (stage, admin) = staged(server_at(&server.url, "")).await;
    offer(&server, &admin, &["card"]).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let answer = call(&run, "card", &json!({})).await;
    let content = json!([{"type": "text", "text": "3 rows"}, {"type": "ui_card", "title": "x"}]);
    assert_eq!(answer.body, json!({"result": {"content": content}}));
    run.end(&stage).await;
}

#[tokio::test]
async fn omits_only_invalid_tools() {
    let server = ToolServer::start().await;
    server.repeat_cursor("again");
    let (stage, admin) = staged(server_at(&server.url, "")).await;
    let schema = json!({"type": "object"});
    let long = "x".repeat(70);
    let tools = json!([
        listed("echo", &json!({})),
        {"name": "bare"},
        {"name": "listy", "inputSchema": []},
        {"inputSchema": schema},
        {"name": "hints", "inputSchema": schema, "description": 5, "annotations": {"readOnlyHint": "yes"}},
        {"name": "dotted.name", "inputSchema": schema},
        {"name": long, "inputSchema": schema},
    ]);
    server.list(tools).await;
    // A listing that began earlier mixes pages of both lists.
    let received = server_is(&admin, "the list", |server| {
        let tools = server["tools"].as_array();
        let is_new = server["left_out"]
            .to_string()
            .contains("tool 4: has no name");
        is_new && tools.is_some_and(|tools| tools.len() == 4)
    })
    .await;
    let left_out = received["left_out"].as_array().unwrap();
    assert_eq!(left_out.len(), 3, "{received}");
    for reason in [
        "bare: has no `inputSchema`",
        "listy: its `inputSchema` is a list",
        "tool 4: has no name",
    ] {
        assert_contains!(received["left_out"].to_string(), reason);
    }
    for note in [
        "hints: its `description`",
        "hints: its `annotations`",
        "dotted.name is offered as",
        "repeated cursor",
    ] {
        assert!(received["notes"].to_string().contains(note), "{received}");
    }
    let offered = received["tools"].as_array().unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for (offered, real) in [(&offered[2], "dotted.name"), (&offered[3], long.as_str())] {
        let offered = offered.as_str().unwrap();
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
        assert!(
            offered.len() <= 64 && offered.bytes().all(is_plain),
            "{offered}"
        );
        assert_eq!(call(&run, offered, &json!({})).await.status, 200);
        server
            .wait_for_match("the real name", |seen| seen.body["params"]["name"] == real)
            .await;
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn empty_cursor_ends_tool_list() {
    let server = ToolServer::start().await;
    server.repeat_cursor("");
    let catalog = server_at(&server.url, "");
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let readiness = ready(&stage.admin).await;
    assert_eq!(readiness["tools"], json!(["echo"]), "{readiness}");
    assert_eq!(
        readiness["left_out"].as_array().map(Vec::len),
        Some(0),
        "{readiness}"
    );
    assert!(readiness["notes"].to_string().contains("empty or repeated"));
    let lists = server.seen("/mcp").into_iter();
    let lists = lists.filter(|seen| seen.body["method"] == "tools/list");
    assert_eq!(lists.count(), 1, "one page");
}

#[tokio::test]
async fn ignores_lines_that_are_no_messages() {
    let directory = TempDirectory::new();
    let input_log = directory.file("heard");
    // A server that logs to standard output and records its input.
    let script = directory.write(
        "server.py",
        &format!(
            r#"import json, sys
def say(text):
    print(text, flush=True)
log = open({input_log:?}, "a")
for line in sys.stdin:
    log.write(line)
    log.flush()
    request = json.loads(line)
    for noise in ['{{"level":30,"msg":"x"}}', "42", "null", "[]", "plain", json.dumps({{"got": request}})]:
        say(noise)
    result = {{"initialize": {{"protocolVersion": "2025-06-18", "capabilities": {{"tools": {{}}}},
        "serverInfo": {{"name": "n", "version": "1"}}}},
        "tools/list": {{"tools": [{{"name": "echo", "inputSchema": {{"type": "object"}}}}]}},
        "tools/call": {{"content": [{{"type": "text", "text": "done"}}]}}}}.get(request.get("method"))
    if result is not None:
        say(json.dumps({{"jsonrpc": "2.0", "id": request["id"], "result": result}}))
"#,
            input_log = input_log.display().to_string()
        ),
    );
    let catalog = format!(
        "[[mcp_servers]]\nname = \"noisy\"\ncommand = [\"python3\", {:?}]\n",
        script.display().to_string()
    );
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    let admin = stage.admin.clone();
    ready(&admin).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    assert_eq!(
        call(&run, "echo", &json!({})).await.body,
        json!({"result": "done"})
    );
    let input_log = std::fs::read_to_string(&input_log).unwrap();
    assert_eq!(input_log.lines().count(), 4, "{input_log}");
    let notes = servers(&admin).await[0]["notes"].to_string();
    assert_contains!(notes, "lines on standard output were no messages");
    let log = stage.gateway.log();
    assert_eq!(log.matches("not JSON-RPC messages").count(), 1);
    run.end(&stage).await;
}

#[tokio::test]
async fn cancelled_run_notifies_server() {
    let server = ToolServer::start().await;
    let (stage, admin) = staged(server_at(&server.url, "").replace("= 2.0", "= 50.0")).await;
    offer(&server, &admin, &["slow"]).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let nothing = json!({});
    let calling = call(&run, "slow", &nothing);
    let cancelling = async {
        let called = server
            .wait_for_match("the call", |seen| seen.body["method"] == "tools/call")
            .await;
        stage.client.cancel(&run.run_id).await;
        called.body["id"].clone()
    };
    let (answer, id) = tokio::join!(calling, cancelling);
    answer.assert_error(409, "code", "cancelled");
    let states = server
        .wait_for_match("the cancel", |seen| {
            seen.body["method"] == "notifications/cancelled"
        })
        .await;
    assert_eq!(states.body["params"]["requestId"], id);
    run.release();
}

pub static PEERS: NodeProject = NodeProject::at("tests/clients/mcp");
pub const EVERYTHING: &str = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";

/// Calls tools that every version of npm's `server-everything` has.
async fn everything_answers(stage: &Stage) {
    let admin = stage.admin.clone();
    let server = ready(&admin).await;
    let tools = server["tools"].to_string();
    for name in [
        "echo",
        "get-sum",
        "get-tiny-image",
        "get-structured-content",
    ] {
        assert!(
            tools.contains(&format!("\"e_{name}\"")),
            "{name} is not in {tools}"
        );
    }
    let run = HeldRun::start(stage, &message("m-1")).await;
    let granted = run.run_request["context"]["resources"]["tools"]
        .as_array()
        .unwrap();
    assert_eq!(granted.len(), server["tools"].as_array().unwrap().len());
    let response = call(&run, "e_echo", &json!({"message": "größer"})).await;
    assert_eq!(response.body, json!({"result": "Echo: größer"}));
    let sum = call(&run, "e_get-sum", &json!({"a": 2, "b": 40})).await;
    assert_contains!(sum.body["result"].as_str().unwrap(), "42");
    let refused = call(&run, "e_get-sum", &json!({"a": "two", "b": 40})).await;
    assert_eq!(
        refused.detail("pointer"),
        "/parameters/a",
        "{}",
        refused.body
    );
    let image = call(&run, "e_get-tiny-image", &json!({})).await;
    let content = image.body["result"]["content"].as_array().unwrap();
    let kinds: Vec<_> = content
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect();
    assert!(kinds.contains(&"image"), "{kinds:?}");
    let structured = call(
        &run,
        "e_get-structured-content",
        &json!({"location": "New York"}),
    )
    .await;
    let structured = &structured.body["result"]["structured_content"];
    assert!(structured["temperature"].is_number(), "{structured}");
    run.end(stage).await;
}

#[tokio::test]
async fn calls_reference_server_over_http() {
    let peers = or_skip!(PEERS.built("mcp").await);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let everything = tokio::process::Command::new("node")
        .arg(peers.join(EVERYTHING))
        .arg("streamableHttp")
        .env("PORT", port.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let _everything = everything.unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let catalog = server_at(&url, "prefix = \"e_\"").replace("= 2.0", "= 30.0");
    let stage = stage_with(Sqlite, catalog).await.unwrap();
    everything_answers(&stage).await;
}

/// True while the process runs. A zombie counts as ended.
fn is_alive(pid: &str) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    status.is_ok_and(|status| !status.contains(") Z "))
}

#[tokio::test]
async fn restarts_child_server_with_clean_environment() {
    let peers = or_skip!(PEERS.built("mcp").await);
    let directory = TempDirectory::new();
    let pids = directory.file("pids");
    // A grandchild process, as npx starts it, must also end.
    let script = format!(
        "echo $$ >> {pids}; sleep 600 & echo $! >> {pids}; exec node {everything} stdio",
        pids = pids.display(),
        everything = peers.join(EVERYTHING).display(),
    );
    let catalog = format!(
        "[[mcp_servers]]\nname = \"everything\"\nprefix = \"e_\"\ncommand = [\"sh\", \"-c\", {script:?}]\n\
         env = {{ OUR_KEY = \"env:{}\" }}\n",
        STUB_API_KEY.0
    );
    let mut stage = stage_with(Sqlite, catalog).await.unwrap();
    everything_answers(&stage).await;
    let started = || -> Vec<String> {
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    let run = HeldRun::start(&stage, &message("m-2")).await;
    let env = call(&run, "e_get-env", &json!({})).await.body["result"].clone();
    let env: Value = serde_json::from_str(env.as_str().unwrap()).unwrap();
    assert_eq!(env["OUR_KEY"], "[redacted]", "it is set, but redacted");
    let allowed = ["PATH", "HOME", "OUR_KEY", "PWD", "OLDPWD", "SHLVL", "_"];
    let foreign = env.as_object().unwrap().keys();
    let foreign: Vec<_> = foreign
        .filter(|name| !allowed.contains(&name.as_str()))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");

    let first = started();
    let killed = std::process::Command::new("kill")
        .args(["-9", &first[0]])
        .status();
    assert!(killed.unwrap().success());
    until("the server to be started again", async || {
        started().len() == 4
    })
    .await;
    let admin = stage.admin.clone();
    until("the server to answer again", async || {
        ready(&admin).await;
        call(&run, "e_echo", &json!({"message": "a"})).await.status == 200
    })
    .await;
    until("the child of the killed child to be gone", async || {
        !is_alive(&first[1])
    })
    .await;
    assert_contains!(stage.gateway.log(), "an MCP server is not available");
    run.end(&stage).await;
    stage.gateway.stop().await;
    let all = started();
    until("every process to be gone", async || {
        !all.iter().any(|pid| is_alive(pid))
    })
    .await;
}

#[tokio::test]
async fn probes_servers_before_serving() {
    let server = ToolServer::start().await;
    let directory = TempDirectory::new();
    let half = || uuid::Uuid::new_v4().simple().to_string();
    let key = directory.write("master.key", &(half() + &half()));
    let head = format!(
        "[auth]\nmaster_key = \"file:{key}\"\n[database]\nurl = \"sqlite://{key}.db\"\n\
         [egress]\nallow = [\"127.0.0.0/8\"]\n",
        key = key.display()
    );
    let probe = async |servers: &str| {
        let file = directory.write("runnel.toml", &format!("{head}{servers}"));
        let mut command = tokio::process::Command::new(runnel());
        command.args(["check-config", "--probe", "--json", "--config"]);
        let printed = run(command.arg(file).env(STUB_API_KEY.0, STUB_API_KEY.1)).await;
        let report = printed.json();
        (printed.status.success(), report["mcp_servers"].clone())
    };
    let good = server_at(&server.url, "");
    let (is_good, report) = probe(&good).await;
    assert!(is_good, "{report}");
    assert_eq!(report[0]["tools"], json!(["echo"]));
    let away = server_at("http://127.0.0.1:1", "").replace("\"stub\"", "\"away\"");
    let child = "[[mcp_servers]]\nname = \"child\"\ncommand = [\"surely-no-such-program\"]\n";
    let (is_good, report) = probe(&(good + &away + child)).await;
    let states = [0, 1, 2].map(|index| report[index]["state"].as_str().unwrap());
    assert_eq!((is_good, states), (false, ["ready", "away", "away"]));
    let error = report[2]["last_error"].as_str().unwrap();
    assert!(error.starts_with("it cannot be started"), "{error}");
}
