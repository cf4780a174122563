//! Usage of completions whose client disconnects.

use reqwest::Method;
use serde_json::json;
use tokio::net::TcpStream;

use super::{chat_request, chunk, remote, remote_of, used};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::until;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::tools::SHORT;

const CHAT: &str = "/openai/v1/chat/completions";
const INVOKE: &str = "/models/remote/invoke";
const STREAM: &str = "/models/remote/stream";
/// Maximum output tokens of the model.
const MAX_OUTPUT_TOKENS: u64 = 50;

/// Sends a request and disconnects once the provider has it.
async fn disconnect(run: &HeldRun, upstream: &Upstream, path: &str, held: Vec<String>) {
    upstream.reply(UpstreamReply::Hold(held));
    let before = upstream.requests().len();
    let mut body = chat_request("hello");
    if path == CHAT {
        body["model"] = json!("remote");
    }
    let asking = run.request(Method::POST, path).json(&body).send();
    tokio::select! {
        biased;
        answered = asking => assert_eq!(answered.unwrap().status(), 200),
        () = until("the provider request", async || upstream.requests().len() > before) => {}
    }
}

/// The provider continues and bills the request.
#[tokio::test]
async fn client_disconnect_charges_full_reservation() {
    let (stage, run, upstream) = remote("").await;
    for (n, path) in (1..).zip([CHAT, INVOKE, STREAM]) {
        disconnect(&run, &upstream, path, Vec::new()).await;
        let used = used(&stage, &run, n).await;
        assert_eq!(
            used["completion_tokens"],
            n * MAX_OUTPUT_TOKENS,
            "{path}: {used}"
        );
        assert!(used["prompt_tokens"].as_u64().unwrap() > 0, "{used}");
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn partial_answer_charges_delivered_tokens() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Hold(vec![chunk(
        &json!({"content": "hello you"}),
    )]));
    let asking = run
        .request(Method::POST, STREAM)
        .json(&chat_request("hello"));
    let mut answer = asking.send().await.unwrap();
    assert!(answer.chunk().await.unwrap().is_some());
    drop(answer);
    assert_eq!(used(&stage, &run, 1).await["completion_tokens"], 3);
    run.end(&stage).await;
}

#[tokio::test]
async fn provider_timeout_charges_full_reservation() {
    let (stage, run, upstream) = remote("idle_seconds = 0.3").await;
    upstream.reply(UpstreamReply::Hold(Vec::new()));
    let silent = run.call(INVOKE, &chat_request("hello")).await;
    assert_eq!(silent.detail("reason"), "upstream_timeout");
    assert_eq!(
        used(&stage, &run, 1).await["completion_tokens"],
        MAX_OUTPUT_TOKENS
    );
    run.end(&stage).await;
}

#[tokio::test]
async fn cancelled_call_charges_full_reservation() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(UpstreamReply::Hold(Vec::new()));
    let cancelling = async {
        until("the provider request", async || {
            !upstream.requests().is_empty()
        })
        .await;
        stage.client.cancel(&run.run_id).await;
    };
    let request = chat_request("hello");
    let (answered, ()) = tokio::join!(run.call(INVOKE, &request), cancelling);
    assert_eq!(answered.error("code"), "cancelled");
    assert_eq!(
        used(&stage, &run, 1).await["completion_tokens"],
        MAX_OUTPUT_TOKENS
    );
}

#[tokio::test]
async fn deadline_charges_full_reservation() {
    let short = |config: &mut Config| config.agents[0].timeout_seconds = SHORT;
    let (stage, run, upstream) = remote_of("", short).await;
    upstream.reply(UpstreamReply::Hold(Vec::new()));
    let answered = run.call(INVOKE, &chat_request("hello")).await;
    assert_eq!(answered.error("code"), "deadline_exceeded");
    assert_eq!(
        used(&stage, &run, 1).await["completion_tokens"],
        MAX_OUTPUT_TOKENS
    );
}

#[tokio::test]
async fn unsent_requests_charge_nothing() {
    let (stage, run, upstream) = remote("").await;
    let address = upstream.url.trim_start_matches("http://").to_owned();
    drop(upstream);
    until("the provider to be down", async || {
        TcpStream::connect(&address).await.is_err()
    })
    .await;
    let answered = run.call(INVOKE, &chat_request("hello")).await;
    assert_eq!(answered.detail("reason"), "upstream_unreachable");
    let used = used(&stage, &run, 1).await;
    assert_eq!(used["completion_tokens"], 0, "{used}");
    assert_eq!(used["prompt_tokens"], 0, "{used}");
    run.end(&stage).await;
}
