//! SIGKILL at random moments while resumable runners stream: no run ends early, and each result is there once.

use std::time::Duration;

use futures_util::future::join_all;
use rstest::rstest;
use uuid::Uuid;

use super::configure;
use crate::support::client::{Client, message};
use crate::support::runner::StubRunner;
use crate::support::script::{Run, ScriptStep, sse_head};
use crate::support::stream::Stream;
use crate::support::{Engine, OwnStage, Postgres, RandomDurations, Sqlite, number, seed, until};

/// Kills on each database, unless `RUNNEL_TEST_KILL_CYCLES` sets another number.
const CYCLES: usize = 4;
const RUNS: usize = 4;
const RESULTS: u64 = 12;
/// Pause of a runner after each result.
const PAUSE: Duration = Duration::from_millis(15);
/// Maximum time before a kill.
const LONGEST: Duration = Duration::from_millis(300);

fn paced(run: &Run) -> Vec<ScriptStep> {
    let mut parts: Vec<_> = (run.after + 1..=RESULTS)
        .map(|n| run.delta(n, &format!("{n} ")).into_bytes())
        .collect();
    parts.push(run.completed(RESULTS + 1).into_bytes());
    vec![sse_head(), ScriptStep::Pace(parts, PAUSE)]
}

/// Posts an event and follows its run until the gateway is gone. Returns the events of the stream.
async fn follow(client: &Client, event_id: &str) -> Vec<String> {
    let mut seen = Vec::new();
    let Ok(posted) = client.posting(&message(event_id)).send().await else {
        return seen;
    };
    let Ok(body) = posted.json::<serde_json::Value>().await else {
        return seen;
    };
    let run_id = body["run_id"].as_str().unwrap_or_default();
    if let Ok(response) = client.following(run_id).send().await {
        let mut stream = Stream::new(response);
        while let Some(event) = stream.event().await {
            seen.push(event.data);
        }
    }
    seen
}

/// Posts an event again, as a client does: a loaded database may refuse a post, and the error is `retryable`.
async fn repost(client: &Client, event_id: &str) -> String {
    let mut accepted = None;
    until("the post to be accepted", async || {
        let posted = client.post(&message(event_id)).await;
        accepted = (posted.status != 503).then(|| posted.run_id());
        accepted.is_some()
    })
    .await;
    accepted.unwrap()
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resumable_runs_survive_kills_at_any_moment(#[values(Sqlite, Postgres)] engine: Engine) {
    let runner = StubRunner::start_resumable(30).await;
    runner.answer_all(paced);
    runner.answer_resumes(paced);
    let stage = OwnStage::of(engine, runner, |config| configure(config, "1.5"));
    let mut stage = or_skip!(stage.await);
    let text = (1..=RESULTS)
        .map(|n| format!("{n} "))
        .collect::<Vec<_>>()
        .concat();
    let cycles = number("RUNNEL_TEST_KILL_CYCLES", CYCLES);
    let mut moments = RandomDurations(seed());
    let (mut resumed, mut unposted) = (0, 0);
    for _ in 0..cycles {
        let events: Vec<_> = (0..RUNS).map(|_| Uuid::new_v4().to_string()).collect();
        let client = stage.client.clone();
        let following = join_all(events.iter().map(|event_id| follow(&client, event_id)));
        let killing = async {
            // Not a wait for a condition: the test needs a kill at this moment.
            tokio::time::sleep(moments.up_to(LONGEST)).await;
            stage.gateway.kill().await;
        };
        let (streams, ()) = tokio::join!(following, killing);
        stage.gateway.restart().await;
        for (event_id, seen) in events.iter().zip(streams) {
            let run_id = repost(&stage.client, event_id).await;
            let last = seen.len() as u64;
            let rest = stage.client.follow(&run_id, last).await.rest().await;
            let outcome = stage.outcome(&run_id).await;
            let rest = rest.into_iter().map(|frame| frame.data);
            let streamed: Vec<_> = seen.into_iter().chain(rest).collect();
            assert_eq!(streamed, outcome.ledger.0);
            if stage.runner.posts(&run_id) == 0 {
                // A runner that never received the run does not have it.
                unposted += 1;
                assert_eq!(outcome.ending(), "failed runner.lost");
                continue;
            }
            assert_eq!(outcome.ending(), "completed", "{:?}", outcome.ledger);
            assert_eq!(outcome.ledger.text(), text);
            assert_eq!(stage.runner.posts(&run_id), 1);
            resumed += usize::from(!stage.runner.resumes(&run_id).is_empty());
        }
    }
    eprintln!("{engine:?}: {cycles} kills, {resumed} runs resumed, {unposted} not posted");
    assert!(resumed > 0, "no kill met a running run");
}
