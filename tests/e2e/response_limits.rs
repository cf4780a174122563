//! Unread responses, full-sized lists, and concurrent host calls of one run.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::support::client::{Client, message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Run, sse};
use crate::support::slow::{self, processor_ticks, resident_kib};
use crate::support::tool_server::{ToolServer, listed};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until, within};
use crate::tools::stage_of;

const MIB: usize = 1024 * 1024;
const READERS: usize = 64;
/// Share of one sender: half of the response budget.
const SENDER_SHARE_KIB: u64 = 32 * 1024;
/// Allowance for other memory: connection buffers, pages in preparation, memory kept by the allocator.
const OVERHEAD_KIB: u64 = 64 * 1024;

fn small_budget(config: &mut Config) {
    config.limits = format!("answer_bytes = {}\nline_bytes = {MIB}", 64 * MIB);
    config.agents[0].resources = r#"history = ["page", "search"], events = ["get", "page"]"#;
}

/// A run with six deltas of 680,000 bytes each.
fn large_run(run: &Run) -> String {
    let text = "x".repeat(680_000);
    let message_of = |n: u64| {
        let data = format!(r#"{{"message":{{"role":"assistant","content":"{text}"}}}}"#);
        run.result(n, "message.completed", &data)
    };
    (1..=6).map(message_of).chain([run.completed(7)]).collect()
}

/// Sends a request on bare TCP and reads nothing of the response.
async fn request_without_reading(client: &Client, path: &str) -> TcpStream {
    let (origin, base) = match client.url.split_once("/host/v1") {
        Some((origin, _)) => (origin, "/host/v1"),
        None => (client.url.as_str(), ""),
    };
    let mut socket = slow::connect(origin).await;
    let head = format!(
        "GET {base}{path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        client.key
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

async fn refusal(client: &Client, path: &str) -> Option<Value> {
    let answer = client.get(path).await;
    (answer.status == 429).then(|| answer.detail("reason").clone())
}

/// Unread pages under one credential are limited to its share of the budget; other credentials can still read.
async fn unread_pages_are_bounded(stage: &OwnStage, client: &Client, other: &Client, path: &str) {
    let page = client.get(path).await;
    assert_eq!(page.status, 200, "{path}");
    let bytes = page.body.to_string().len();
    assert!((3 * MIB..5 * MIB).contains(&bytes), "{path}: {bytes}");
    drop(page);
    let before = resident_kib(stage.gateway.pid());
    let mut readers = Vec::new();
    for _ in 0..READERS {
        readers.push(request_without_reading(client, path).await);
    }
    for reader in &readers {
        within("an answer", reader.readable()).await.unwrap();
    }
    let now = resident_kib(stage.gateway.pid());
    let grown = now.saturating_sub(before);
    assert!(
        grown < SENDER_SHARE_KIB + OVERHEAD_KIB,
        "{path}: {grown} KiB"
    );
    let refused = refusal(client, path).await.unwrap();
    assert_eq!(refused, "answer_bytes_of_sender", "{path}");
    assert_eq!(other.get("/v1/runs?limit=1").await.status, 200, "{path}");
    drop(readers);
    until("the responses to be aborted", async || {
        refusal(client, path).await.is_none()
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn unread_pages_stay_within_the_answer_budget(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut manifest = manifest(RUNNER_ID);
    manifest["permissions"] = json!({"history": ["page", "search"], "events": ["get", "page"]});
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(|run| sse(large_run(run)));
    let stage = or_skip!(OwnStage::of(engine, runner, small_budget).await);
    let mut run_id = String::new();
    for n in 0..7 {
        run_id = stage
            .client
            .post(&message(&format!("m-{n}")))
            .await
            .run_id();
        let run = stage.client.finished(&run_id).await;
        assert_eq!(run["status"], "completed", "{}", run["error"]);
    }
    let admin = stage.admin.clone();
    let events = format!("/v1/runs/{run_id}/events?limit=100");
    for path in [
        "/v1/runs?limit=100",
        "/v1/conversations/c-7/history?limit=100",
        &events,
    ] {
        unread_pages_are_bounded(&stage, &stage.client, &admin, path).await;
    }
    let held = HeldRun::start(&stage, &message("held")).await;
    let events = format!("/runs/{run_id}/events?limit=100");
    for path in ["/runs?limit=100", "/history?limit=100", &events] {
        unread_pages_are_bounded(&stage, &held.host, &admin, path).await;
    }
    held.end(&stage).await;
}

#[tokio::test]
async fn limits_a_run_to_64_concurrent_host_calls() {
    let stage = Stage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let mut apart = message("m-2");
    apart["conversation"]["conversation_id"] = json!("c-2");
    let other = HeldRun::start(&stage, &apart).await;
    let origin = run.host.url.split_once("/host/v1").unwrap().0;
    let head = format!(
        "PUT /host/v1/state/conversation/k HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
        run.token
    );
    let call = async || {
        let mut socket = slow::connect(origin).await;
        socket.write_all(head.as_bytes()).await.unwrap();
        socket
    };
    let mut calls = Vec::new();
    for _ in 0..63 {
        calls.push(call().await);
    }
    let mut refused = None;
    // A call that arrives during a probe is refused; repeat it.
    until("all permits to be held", async || {
        calls.push(call().await);
        let answer = run.get("/run").await;
        let is_refused = answer.status == 429;
        refused = Some(answer).filter(|_| is_refused);
        is_refused
    })
    .await;
    let refused = refused.unwrap();
    assert_eq!(refused.detail("reason"), &json!("host_calls"));
    assert_eq!(refused.headers["retry-after"], "1");
    assert_eq!(other.get("/run").await.status, 200);
    drop(calls);
    until("a permit to be free", async || {
        run.get("/run").await.status == 200
    })
    .await;
    run.end(&stage).await;
    other.end(&stage).await;
}

#[tokio::test]
async fn builds_repeated_asset_types_once() {
    let server = ToolServer::start().await;
    let catalog = format!(
        "[[mcp_servers]]\nname = \"stub\"\nurl = \"{}/mcp\"\n",
        server.url
    );
    let staged = stage_of(Sqlite, catalog, |config| {
        config.agents[0].resources = r#"tools = "*""#;
    });
    let stage = staged.await.unwrap();
    let large = json!({"q": {"type": "string", "description": "d".repeat(20_000)}});
    let tools: Vec<_> = (0..50).map(|n| listed(&format!("t-{n}"), &large)).collect();
    server.list(json!(tools)).await;
    let admin = stage.admin.clone();
    until("the list", async || {
        let servers = admin.get("/v1/mcp-servers").await.body;
        servers["items"][0]["tools"]
            .as_array()
            .is_some_and(|tools| tools.len() == 50)
    })
    .await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "list_assets",
        "arguments": {"asset_types": vec!["tools"; 1000], "include_schemas": true}}});
    let before = processor_ticks(stage.gateway.pid());
    let request = run.request(Method::POST, "/mcp").json(&call);
    let answer = send(request.header("accept", "application/json, text/event-stream"));
    let answer = answer.await.unwrap();
    let listed = &answer.body["result"]["structuredContent"];
    assert_eq!(listed.as_object().unwrap().len(), 1, "{}", answer.status);
    assert!(listed["tools"].as_array().unwrap().len() >= 50);
    // Building the list a thousand times takes minutes in a debug build.
    let ticks = processor_ticks(stage.gateway.pid()) - before;
    assert!(ticks < 1000, "{ticks} hundredths of a second");
    run.end(&stage).await;
}

#[tokio::test]
async fn oversized_parts_of_a_terminal_are_dropped() {
    let stage = Stage::new().await;
    let ended = stage
        .play(|run| {
            let zeros = "0,".repeat(99_900);
            let id = &run.id;
            let reason = "r".repeat(1000);
            let end = format!(
                r#"{{"run_id":"{id}","type":"run.completed","sequence":2,"data":{{"finish_reason":"{reason}"}},
                "usage":{{"x":[{zeros}0],"total_tokens":3}}}}"#
            );
            let end = format!("data: {}\n\n", end.replace('\n', " "));
            sse(format!("{}{end}", run.delta(1, "hi")))
        })
        .await;
    assert_eq!(ended.run["status"], "completed");
    assert_eq!(ended.run["usage"], json!({"total_tokens": 3}));
    assert_eq!(ended.run["status_reason"].as_str().unwrap().len(), 128);
    let last = ended.ledger.last();
    assert_members!(last["metadata"], {"shortened": json!(["finish_reason", "usage"])});
    let reasons: Vec<_> = ended
        .rejections
        .iter()
        .map(|row| row["reason"].clone())
        .collect();
    assert_eq!(reasons, ["part_too_large", "part_too_large"]);

    let failed = stage
        .play(|run| {
            let (code, message) = ("c".repeat(9000), "m".repeat(90_000));
            let data = format!(r#"{{"code":"{code}","message":"{message}"}}"#);
            sse(run.result(1, "run.failed", &data))
        })
        .await;
    let error = &failed.run["error"];
    assert_eq!(failed.run["status"], "failed");
    assert_eq!(error["code"].as_str().unwrap().len(), 128);
    assert_eq!(error["message"].as_str().unwrap().len(), 4096);
}
