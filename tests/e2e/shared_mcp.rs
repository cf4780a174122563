//! The MCP server for platforms with fixed credentials. The run token is an argument with the same rights as
//! elsewhere.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{Client, message, send};
use crate::support::forger::Forger;
use crate::support::gateway::Agent;
use crate::support::held::HeldRun;
use crate::support::tool_server::ToolServer;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};
use crate::tools::stage_of;

const TOOLS: [&str; 7] = [
    "list_assets",
    "get_current_event",
    "history_page",
    "retrieve_knowledge",
    "child_run",
    "get_tool_detail",
    "call_tool",
];

fn open(more: &str) -> String {
    format!("[host_api]\nshared_mcp = true\n{more}")
}

/// Sends a message without a credential in the head, and returns the response.
async fn post_message(url: &str, body: &Value) -> (u16, Value) {
    let anonymous = Client::new(url, "");
    let request = anonymous.anonymous(Method::POST, "/host/v1/mcp/shared");
    let answer = send(request.json(body)).await.unwrap();
    (answer.status, answer.body)
}

fn call(tool: &str, arguments: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments}})
}

/// Calls a tool with this token and returns the response.
async fn ask(url: &str, token: &str, tool: &str, mut arguments: Value) -> Value {
    arguments["run_token"] = json!(token);
    let (status, answer) = post_message(url, &call(tool, &arguments)).await;
    assert_eq!(status, 200, "{tool}: {answer}");
    answer
}

#[tokio::test]
async fn is_absent_unless_enabled() {
    let stage = stage_of(Sqlite, String::new(), |_| {}).await.unwrap();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let asking = call("list_assets", &json!({"run_token": run.token}));
    let (status, answer) = post_message(&stage.client.url, &asking).await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (404, &json!("not_found"))
    );
    run.end(&stage).await;
}

/// A stage with one HTTP tool, and with a second agent without grants.
async fn stage(engine: Engine, server: &ToolServer) -> Option<OwnStage> {
    let catalog = open(&format!(
        "[[tools]]\ntool_name = \"find\"\nurl = \"{}/find\"\ndescription = \"Finds.\"\neffect = \"read\"\n\
         parameters = {{ required = [\"q\"], properties = {{ q = {{ type = \"string\" }} }} }}\n",
        server.url
    ));
    let bare = Agent {
        name: "bare",
        event_types: "test.bare",
        resources: "",
        ..Agent::default()
    };
    stage_of(engine, catalog, |config| config.agents.push(bare)).await
}

#[rstest]
#[tokio::test]
async fn tools_answer_for_the_run_of_the_token(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let url = stage.client.url.clone();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
    let (_, listed) = post_message(&url, &list).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, TOOLS);
    for tool in tools {
        let required = tool["inputSchema"]["required"].as_array().unwrap();
        assert!(required.contains(&json!("run_token")), "{tool}");
    }

    let run = HeldRun::start(&stage, &message("m-1")).await;
    let structured = async |tool: &str, arguments: Value| {
        let answer = ask(&url, &run.token, tool, arguments).await;
        answer["result"]["structuredContent"].clone()
    };
    let assets = structured("list_assets", json!({"asset_types": ["tools"]})).await;
    assert_eq!(assets["tools"][0]["tool_name"], "find");
    let event = structured("get_current_event", json!({})).await;
    assert_eq!(event["event_id"], "m-1");
    let page = structured("history_page", json!({"limit": 1})).await;
    assert_eq!(page["items"][0]["content"], "hello big world");
    let detail = structured("get_tool_detail", json!({"tool_name": "find"})).await;
    assert_eq!(detail["tool"]["parameters"]["required"], json!(["q"]));
    let find = json!({"tool_name": "find", "parameters": {"q": "x"}});
    let found = structured("call_tool", find).await;
    assert_eq!(found["body"], json!({"q": "x"}), "{found}");
    let query = json!({"kb_id": "k", "query_text": "q"});
    let denied = ask(&url, &run.token, "retrieve_knowledge", query).await;
    assert_eq!(denied["error"]["code"], -32602, "{denied}");
    run.end(&stage).await;
}

#[rstest]
#[tokio::test]
async fn authorizes_and_audits_calls_like_other_apis(#[values(Sqlite, Postgres)] engine: Engine) {
    let server = ToolServer::start().await;
    let stage = or_skip!(stage(engine, &server).await);
    let url = stage.client.url.clone();
    let may = HeldRun::start(&stage, &message("m-1")).await;
    let mut event = message("m-2");
    event["event_type"] = json!("test.bare");
    event["conversation"]["conversation_id"] = json!("c-2");
    let may_not = HeldRun::start(&stage, &event).await;
    for (run, decision) in [(&may, "allow"), (&may_not, "deny")] {
        let find = json!({"tool_name": "find", "parameters": {"q": "x"}});
        for (tool, arguments) in [
            ("list_assets", json!({})),
            ("get_current_event", json!({})),
            ("history_page", json!({})),
            ("get_tool_detail", json!({"tool_name": "find"})),
            ("call_tool", find),
        ] {
            ask(&url, &run.token, tool, arguments).await;
        }
        let path = format!("/v1/runs/{}/audit?limit=100", run.run_id);
        let expected = [
            ("list_assets", "allow"),
            ("event_get", decision),
            ("history_page", decision),
            ("get_tool_detail", decision),
            ("call_tool", decision),
        ];
        until("the audit", async || {
            let audit = stage.client.get(&path).await.body;
            assert!(!audit.to_string().contains(&run.token), "{audit}");
            let rows = audit["items"].as_array().unwrap();
            let has = |(action, decision): &(&str, &str)| {
                let mut rows = rows.iter();
                rows.any(|row| row["action"] == *action && row["decision"] == *decision)
            };
            expected.iter().all(has)
        })
        .await;
    }
    assert!(!stage.gateway.log().contains(&may.token));
    may.end(&stage).await;
    may_not.end(&stage).await;
}

#[tokio::test]
async fn invalid_tokens_get_identical_errors() {
    let server = ToolServer::start().await;
    let stage = stage(Sqlite, &server).await.unwrap();
    let url = stage.client.url.clone();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut elsewhere = message("m-2");
    elsewhere["conversation"]["conversation_id"] = json!("c-2");
    let ended = HeldRun::start(&stage, &elsewhere).await;
    let ended_token = ended.token.clone();
    ended.end(&stage).await;
    let forger = Forger::of(&stage, &run.token).await;
    let changes = [
        json!({"ws": "other"}),
        json!({"attempt": 2}),
        json!({"aud": ""}),
    ];
    let forged = changes.iter().map(|change| forger.with_claims(change));
    let mut wrong: Vec<_> = forged.map(|token| json!(token)).collect();
    wrong.extend([
        json!(ended_token),
        json!(""),
        json!("no token"),
        json!(7),
        json!(null),
        json!(["x"]),
        json!(stage.client.key),
        json!(format!("Bearer {}", run.token)),
        json!("x".repeat(10_000)),
    ]);
    let (_, expected) = post_message(&url, &call("list_assets", &json!({}))).await;
    assert_eq!(expected["result"]["isError"], true, "{expected}");
    for token in wrong {
        for tool in ["list_assets", "call_tool", "no_such_tool"] {
            let (_, answer) = post_message(&url, &call(tool, &json!({"run_token": token}))).await;
            assert_eq!(answer, expected, "{token}");
        }
    }
    // A token in the header has no effect.
    let header = run.host.request(Method::POST, "/mcp/shared");
    let answer = send(header.json(&call("list_assets", &json!({}))));
    assert_eq!(answer.await.unwrap().body, expected);
    run.end(&stage).await;
}

#[tokio::test]
async fn rejects_run_token_outside_its_argument() {
    let server = ToolServer::start().await;
    let stage = stage(Sqlite, &server).await.unwrap();
    let url = stage.client.url.clone();
    let run = HeldRun::start(&stage, &message("m-1")).await;
    for arguments in [
        json!({"tool_name": "find", "parameters": {"q": run.token}}),
        json!({"tool_name": run.token}),
        json!({"tool_name": "find", "parameters": {"q": format!("token {}", run.token)}}),
    ] {
        let mut sent = arguments;
        sent["run_token"] = json!(run.token);
        let (status, answer) = post_message(&url, &call("call_tool", &sent)).await;
        assert_eq!(status, 400, "{answer}");
        assert!(!answer.to_string().contains(&run.token), "{answer}");
    }
    assert!(server.seen("/find").is_empty());
    // A malformed message is not quoted in the error.
    let nonsense = json!({"jsonrpc": run.token, "id": 1, "method": 7});
    let (status, answer) = post_message(&url, &nonsense).await;
    assert_eq!(status, 400, "{answer}");
    assert!(!answer.to_string().contains(&run.token), "{answer}");
    run.end(&stage).await;
}

#[tokio::test]
async fn rate_limits_token_guessing() {
    let stage = OwnStage::with(|config| {
        config.rest = open("");
        "refused_credentials = 20".clone_into(&mut config.limits);
    })
    .await;
    let url = stage.client.url.clone();
    let large = call("list_assets", &json!({"run_token": "x".repeat(300_000)}));
    assert_eq!(post_message(&url, &large).await.0, 413);
    let guess = call("list_assets", &json!({"run_token": "guess"}));
    let mut admitted = 0;
    loop {
        let status = post_message(&url, &guess).await.0;
        if status != 200 {
            assert_eq!(status, 429);
            break;
        }
        admitted += 1;
        // A new window of ten seconds may begin once in between.
        assert!(admitted < 40, "no guess was refused");
    }
    assert!(admitted >= 20, "{admitted}");
}
