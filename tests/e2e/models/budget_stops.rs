//! Expected reservations of streams, and their stop at the end of a budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{END, all_models, chat_request, chunk, grant, remote, text_of};
use crate::support::client::{Client, message};
use crate::support::held::HeldRun;
use crate::support::runner::StubRunner;
use crate::support::upstream::{Upstream, UpstreamReply};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, until};

const CHAT: &str = "/openai/v1/chat/completions";
/// Bytes of an event, of which three count as a token.
const PIECE: usize = 300;
/// Parallel calls: a run may have 48, so two runs share them.
const PARALLEL: usize = 32;

/// A stream of this many tokens without a count of the provider.
fn answer(tokens: usize) -> UpstreamReply {
    let text = "x".repeat(PIECE);
    let pieces = std::iter::repeat_with(|| chunk(&json!({"content": text})));
    let events = pieces.take((tokens * 3).div_ceil(PIECE));
    UpstreamReply::Events(events.chain([END.to_owned()]).collect())
}

fn streamed(model: &str) -> Value {
    let mut body = chat_request("hello");
    body["model"] = json!(model);
    body["stream"] = json!(true);
    body
}

/// Tokens that are used and reserved.
async fn row(admin: &Client) -> u64 {
    let budgets = admin.get("/v1/budgets").await.body;
    budgets["items"][0]["used"][0]["tokens"]
        .as_u64()
        .unwrap_or_default()
}

#[tokio::test]
async fn stream_stops_when_its_budget_has_nothing_left() {
    let more = "[[models]]\nmodel_id = \"free\"\nprovider = \"openai\"\n\
        [[budgets]]\nname = \"run-tokens\"\nscope = \"run\"\ntokens = 12000\n";
    let (stage, run, upstream) = remote(more).await;
    // The first call reserves 8,192 tokens, and teaches that answers are short.
    upstream.reply(answer(200));
    let first = run.request(Method::POST, CHAT).json(&streamed("free"));
    assert_eq!(text_of(first).await.0, 200);
    until("the first call to be settled", async || {
        (200..500).contains(&row(&stage.admin).await)
    })
    .await;
    let other = HeldRun::start(&stage, &of_conversation(2)).await;
    for (run, path, body, expected) in [
        (&run, CHAT, streamed("free"), "insufficient_quota"),
        (
            &other,
            "/models/free/stream",
            chat_request("hello"),
            "budget_exceeded",
        ),
    ] {
        upstream.reply(answer(20_000));
        let request = run.request(Method::POST, path).json(&body);
        let (status, text) = text_of(request).await;
        assert_eq!(status, 200, "{text}");
        let end = &text[text.len() - 600..];
        assert!(
            end.contains(expected) && end.contains("run-tokens"),
            "{path}: {end}"
        );
        assert!(!end.contains("[DONE]"), "{end}");
        let usage = format!("/v1/runs/{}/usage", run.run_id);
        until("the stopped call to be settled", async || {
            let total = &stage.client.get(&usage).await.body["total"];
            let tokens = ["prompt_tokens", "completion_tokens"].map(|key| total[key].as_u64());
            (11_700..=12_100).contains(&tokens.into_iter().flatten().sum::<u64>())
        })
        .await;
    }
    other.end(&stage).await;
    run.end(&stage).await;
}

/// Length of the n-th answer: mostly short, sometimes long.
fn length(n: usize) -> usize {
    match n * 7919 % 100 {
        short @ 0..60 => 100 + 10 * short,
        middle @ 60..88 => 700 + 20 * middle,
        long @ 88..98 => 20 * long + 1_000,
        longest => 60 * longest,
    }
}

/// Streams until a call is refused. Returns the number of answers.
async fn stream_until_refused(run: &HeldRun, is_refused: &AtomicBool) -> usize {
    let mut answers = 0;
    while !is_refused.load(Ordering::Relaxed) {
        let request = run.request(Method::POST, CHAT).json(&streamed("free"));
        let (status, text) = text_of(request).await;
        match status {
            200 => answers += 1,
            429 => {
                assert!(
                    text.contains("the budget shared has no tokens left"),
                    "{text}"
                );
                is_refused.store(true, Ordering::Relaxed);
            }
            status => panic!("{status}: {text}"),
        }
    }
    answers
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parallel_streams_share_a_budget(#[values(Sqlite, Postgres)] engine: Engine) {
    const LIMIT: u64 = 800_000;
    let upstream = Upstream::start().await;
    let runner = StubRunner::start_as(all_models()).await;
    let staged = OwnStage::of(engine, runner, |config| {
        grant(config);
        config.rest = format!(
            "[[model_providers]]\nname = \"openai\"\nkind = \"openai\"\nbase_url = \"{}/v1\"\n\
             [[models]]\nmodel_id = \"free\"\nprovider = \"openai\"\n\
             [[budgets]]\nname = \"shared\"\nscope = \"workspace\"\nwindow = \"month\"\ntokens = {LIMIT}\n",
            upstream.url
        );
    });
    let stage = or_skip!(staged.await);
    let mut runs = Vec::new();
    for n in 0..2 {
        runs.push(HeldRun::start(&stage, &of_conversation(n)).await);
    }
    // Enough for the whole budget: an answer has 800 tokens on average.
    for n in 0..4_000 {
        upstream.reply(answer(length(n)));
    }
    let warm = runs[0].request(Method::POST, CHAT).json(&streamed("free"));
    assert_eq!(text_of(warm).await.0, 200);
    let is_refused = Arc::new(AtomicBool::new(false));
    let calls = runs
        .iter()
        .flat_map(|run| std::iter::repeat_n(run, PARALLEL));
    let answers = join_all(calls.map(|run| stream_until_refused(run, &is_refused))).await;
    assert!(answers.iter().sum::<usize>() > 500, "{answers:?}");
    until("all calls to be settled", async || {
        let before = row(&stage.admin).await;
        let path = |run: &HeldRun| format!("/v1/runs/{}/usage", run.run_id);
        let mut settled = 0;
        for run in &runs {
            let usage = stage.client.get(&path(run)).await.body;
            settled += usage["total"]["prompt_tokens"].as_u64().unwrap();
            settled += usage["total"]["completion_tokens"].as_u64().unwrap();
        }
        settled == before
    })
    .await;
    let used = row(&stage.admin).await;
    assert!(used * 100 >= LIMIT * 90, "used {used} of {LIMIT}");
    assert!(used * 100 <= LIMIT * 101, "used {used} of {LIMIT}");
    for run in runs {
        run.end(&stage).await;
    }
}

/// An event of a conversation of its own.
fn of_conversation(n: usize) -> Value {
    let mut event = message(&format!("m-{n}"));
    event["conversation"]["conversation_id"] = json!(format!("c-{n}"));
    event
}
