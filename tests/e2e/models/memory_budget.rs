//! The memory budget for concurrent large model requests.

use reqwest::Method;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::{chat_request, scripted_in};
use crate::support::client::{message, send};
use crate::support::held::HeldRun;
use crate::support::{Sqlite, TempDirectory, until};

const MIB: usize = 1024 * 1024;

/// Announces a body and sends nothing of it.
async fn announce(run: &HeldRun, path: &str, bytes: usize) -> TcpStream {
    let (pointer, prefix) = run
        .host
        .url
        .trim_start_matches("http://")
        .split_once('/')
        .unwrap();
    let mut socket = TcpStream::connect(pointer).await.unwrap();
    let head = format!(
        "POST /{prefix}{path} HTTP/1.1\r\nhost: {pointer}\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        run.token, bytes
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

#[tokio::test]
async fn memory_budget_rejects_only_large_model_requests() {
    let directory = TempDirectory::new();
    let staged = scripted_in(&directory, Sqlite, |config| {
        config.limits = format!("model_bytes = {}", 64 * MIB);
    });
    let (stage, run) = staged.await.unwrap();
    let hog = HeldRun::start(&stage, &message("m-2")).await;
    // Invalid as a model request, so the gateway answers right after reading.
    let large = json!({"messages": "a".repeat(5 * MIB)});
    let invoke = "/models/talker/invoke";
    let paths = [
        invoke,
        "/models/talker/stream",
        "/openai/v1/chat/completions",
    ];
    assert_eq!(run.call(invoke, &large).await.status, 400);

    // A run may hold two of them at once. Each probe also takes memory, so an announcement during a probe is
    // rejected; repeat it.
    let mut held = Vec::new();
    until("a run's share to be taken", async || {
        let response = hog.call(invoke, &large).await;
        if response.status != 429 {
            held.push(announce(&hog, paths[held.len() % 2], 20 * MIB).await);
            return false;
        }
        response.error("details")["reason"] == "model_bytes_of_run"
    })
    .await;
    // Both runs use one endpoint, whose runs leave a quarter of the budget to others.
    until("the share of an endpoint to be taken", async || {
        let response = run.call(invoke, &large).await;
        if response.status != 429 {
            held.push(announce(&run, paths[2], 5 * MIB).await);
            return false;
        }
        response.error("details")["reason"] == "model_bytes_of_endpoint"
    })
    .await;
    for path in paths
        .into_iter()
        .chain(["/models/talker/embed", "/models/talker/count-tokens"])
    {
        let refused = run.call(path, &large).await;
        assert_eq!(
            (refused.status, refused.error("code")),
            (429, &json!("rate_limited")),
            "{path}"
        );
        assert_members!(refused.error("details"), {"reason": "model_bytes_of_endpoint"});
        assert_eq!(refused.error("retryable"), true);
        assert_eq!(refused.headers["retry-after"], "1");
    }
    run.call(invoke, &chat_request("hello")).await.expect(200);
    // A body without a length reserves the maximum size.
    let chunked =
        futures_util::stream::iter([Ok::<_, std::io::Error>(chat_request("hello").to_string())]);
    let chunked = run
        .request(Method::POST, invoke)
        .header("content-type", "application/json")
        .body(reqwest::Body::wrap_stream(chunked));
    assert_eq!(send(chunked).await.unwrap().status, 429);

    drop(held);
    until("the memory to be released", async || {
        run.call(invoke, &large).await.status == 400
    })
    .await;
    run.end(&stage).await;
    hog.end(&stage).await;
}

/// A few short texts have vectors of many bytes.
#[tokio::test]
async fn vectors_count_against_memory_budget() {
    let directory = TempDirectory::new();
    let staged = scripted_in(&directory, Sqlite, |config| {
        config.limits = format!("model_bytes = {}", 64 * MIB);
    });
    let (stage, run) = staged.await.unwrap();
    let texts: Vec<_> = (0..1000).map(|n| n.to_string()).collect();
    let body = json!({"model": "talker", "input": texts});
    let path = "/openai/v1/embeddings";
    // An announcement that arrives during a probe is rejected; repeat it.
    let mut held = Vec::new();
    until("the share of the run to be taken", async || {
        held.push(announce(&run, "/models/talker/invoke", 20 * MIB).await);
        run.call(path, &body).await.status == 429
    })
    .await;
    let refused = run.call(path, &body).await;
    assert_eq!(refused.detail("reason"), &json!("model_bytes_of_run"));
    drop(held);
    let mut all = None;
    until("the memory to be released", async || {
        let answer = run.call(path, &body).await;
        all = (answer.status == 200).then_some(answer.body);
        all.is_some()
    })
    .await;
    let all = &all.unwrap()["data"];
    let native = json!({"texts": ["0", "1", "999"]});
    let native = run.call("/models/talker/embed", &native).await.body;
    for (n, one) in [(0, 0), (1, 1), (999, 2)] {
        assert_eq!(all[n]["index"], n);
        assert_eq!(all[n]["embedding"], native["vectors"][one]);
    }
    run.end(&stage).await;
}
