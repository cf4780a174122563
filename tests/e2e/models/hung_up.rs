//! Usage of completions whose client disconnects.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::{chunk, remote, remote_of, says};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::upstream::{Reply, Upstream};
use crate::support::{Stage, until};
use crate::tools::SHORT;

const CHAT: &str = "/openai/v1/chat/completions";
const INVOKE: &str = "/models/remote/invoke";
const STREAM: &str = "/models/remote/stream";
/// Maximum output tokens of the model.
const MOST: u64 = 50;

/// Usage of a run once this many calls are counted.
async fn used(stage: &Stage, run: &HeldRun, calls: u64) -> Value {
    let path = format!("/v1/runs/{}/usage", run.run_id);
    until("the calls to be counted", async || {
        stage.client.get(&path).await.body["total"]["calls"] == calls
    })
    .await;
    stage.client.get(&path).await.body["total"].clone()
}

/// Sends a request and disconnects once the provider has it.
async fn hang_up(run: &HeldRun, upstream: &Upstream, path: &str, held: Vec<String>) {
    upstream.reply(Reply::Hold(held));
    let before = upstream.asked().len();
    let mut body = says("hello");
    if path == CHAT {
        body["model"] = json!("remote");
    }
    let asking = run.request(Method::POST, path).json(&body).send();
    tokio::select! {
        biased;
        answered = asking => assert_eq!(answered.unwrap().status(), 200),
        () = until("the provider to be asked", async || upstream.asked().len() > before) => {}
    }
}

/// The provider continues and bills the request.
#[tokio::test]
async fn an_answer_that_is_hung_up_on_costs_all_that_was_reserved() {
    let (stage, run, upstream) = remote("").await;
    for (n, path) in (1..).zip([CHAT, INVOKE, STREAM]) {
        hang_up(&run, &upstream, path, Vec::new()).await;
        let used = used(&stage, &run, n).await;
        assert_eq!(used["completion_tokens"], n * MOST, "{path}: {used}");
        assert!(used["prompt_tokens"].as_u64().unwrap() > 0, "{used}");
    }
    run.end(&stage).await;
}

#[tokio::test]
async fn an_answer_that_was_heard_in_part_costs_what_came() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(Reply::Hold(vec![chunk(&json!({"content": "hello you"}))]));
    let asking = run.request(Method::POST, STREAM).json(&says("hello"));
    let mut answer = asking.send().await.unwrap();
    assert!(answer.chunk().await.unwrap().is_some());
    drop(answer);
    assert_eq!(used(&stage, &run, 1).await["completion_tokens"], 3);
    run.end(&stage).await;
}

#[tokio::test]
async fn a_silent_provider_costs_all_that_was_reserved() {
    let (stage, run, upstream) = remote("idle_seconds = 0.3").await;
    upstream.reply(Reply::Hold(Vec::new()));
    let silent = run.call(INVOKE, &says("hello")).await;
    assert_eq!(silent.detail("reason"), "upstream_timeout");
    assert_eq!(used(&stage, &run, 1).await["completion_tokens"], MOST);
    run.end(&stage).await;
}

#[tokio::test]
async fn an_answer_that_a_cancel_cuts_off_costs_all_that_was_reserved() {
    let (stage, run, upstream) = remote("").await;
    upstream.reply(Reply::Hold(Vec::new()));
    let cancelling = async {
        until("the provider to be asked", async || {
            !upstream.asked().is_empty()
        })
        .await;
        stage.client.cancel(&run.run_id).await;
    };
    let asked = says("hello");
    let (answered, ()) = tokio::join!(run.call(INVOKE, &asked), cancelling);
    assert_eq!(answered.error("code"), "cancelled");
    assert_eq!(used(&stage, &run, 1).await["completion_tokens"], MOST);
}

#[tokio::test]
async fn an_answer_that_a_deadline_cuts_off_costs_all_that_was_reserved() {
    let short = |config: &mut Config| config.agents[0].timeout_seconds = SHORT;
    let (stage, run, upstream) = remote_of("", short).await;
    upstream.reply(Reply::Hold(Vec::new()));
    let answered = run.call(INVOKE, &says("hello")).await;
    assert_eq!(answered.error("code"), "deadline_exceeded");
    assert_eq!(used(&stage, &run, 1).await["completion_tokens"], MOST);
}

#[tokio::test]
async fn what_was_not_sent_costs_nothing() {
    let (stage, run, upstream) = remote("").await;
    let address = upstream.url.trim_start_matches("http://").to_owned();
    drop(upstream);
    until("the provider to be down", async || {
        TcpStream::connect(&address).await.is_err()
    })
    .await;
    let answered = run.call(INVOKE, &says("hello")).await;
    assert_eq!(answered.detail("reason"), "upstream_unreachable");
    let used = used(&stage, &run, 1).await;
    assert_eq!(used["completion_tokens"], 0, "{used}");
    assert_eq!(used["prompt_tokens"], 0, "{used}");
    run.end(&stage).await;
}
