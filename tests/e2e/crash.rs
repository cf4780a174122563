//! The gateway is killed again and again under load: what it has told anyone stays true.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use rstest::rstest;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::support::client::{Client, message, send, stream};
use crate::support::gateway::Config;
use crate::support::ledger::Ledger;
use crate::support::script::{Run, Step, sse_head};
use crate::support::stream::Stream;
use crate::support::{Engine, Postgres, Sqlite, Stage, within};

const KILLS: usize = 50;
const WORKERS: usize = 6;
const LONGEST: Duration = Duration::from_millis(400);

/// A run of some 60 ms, so that a kill meets runs of every age.
fn steady(run: &Run) -> Vec<Step> {
    let frames = run.talk(30).into_iter().map(String::into_bytes).collect();
    vec![sse_head(), Step::Pace(frames, Duration::from_millis(2))]
}

/// What the clients were told: by run, the event's id and the events that they saw.
type Told = Arc<Mutex<BTreeMap<String, Seen>>>;

#[derive(Clone, Debug, Default)]
struct Seen {
    event_id: String,
    events: Vec<String>,
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_is_killed_at_any_moment_takes_nothing_back(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let lease = |config: &mut Config| config.runs = "lease_seconds = 2".into();
    let Some(mut stage) = Stage::on(engine, lease).await else {
        return;
    };
    stage.runner.answer_all(steady);
    let mut moments = Moments::seeded();
    let mut all = BTreeMap::new();
    for _ in 0..KILLS {
        let told = Told::default();
        let mut load = JoinSet::new();
        for worker in 0..WORKERS {
            load.spawn(work(stage.gateway.client(), worker, Arc::clone(&told)));
        }
        // Not a wait for anything: the moment is what this test is about.
        tokio::time::sleep(moments.next()).await;
        stage.gateway.kill().await;
        within("the clients to notice", load.join_all()).await;
        stage.gateway.start_again().await;

        let told = std::mem::take(&mut *told.lock().unwrap());
        for (run_id, seen) in &told {
            assert_kept(&stage, run_id, seen).await;
        }
        all.extend(told);
    }
    assert!(
        all.len() >= KILLS,
        "only {} runs were acknowledged",
        all.len()
    );
    let stage = &stage;
    let check = |(run_id, seen): (String, Seen)| async move {
        stage.client.finished(&run_id).await;
        let ledger = assert_kept(stage, &run_id, &seen).await;
        assert!(ledger.is_ended(), "{run_id} has not ended: {ledger:?}");
    };
    futures_util::stream::iter(all)
        .for_each_concurrent(WORKERS, check)
        .await;
}

/// Posts one event after the other until the gateway is gone; every other worker asks for the stream later.
async fn work(client: Client, worker: usize, told: Told) {
    loop {
        let event_id = Uuid::new_v4().to_string();
        let event = client.posting(&message(&event_id));
        let opened = if worker.is_multiple_of(2) {
            stream(event).await.map(|stream| (stream.run_id(), stream))
        } else {
            match send(event).await {
                Ok(answer) => {
                    let run_id = answer.run_id();
                    note(&told, &run_id, &event_id, None);
                    stream(client.following(&run_id))
                        .await
                        .map(|stream| (run_id, stream))
                }
                Err(error) => Err(error),
            }
        };
        let Ok((run_id, stream)) = opened else { return };
        note(&told, &run_id, &event_id, None);
        if !read(stream, &told, &run_id, &event_id).await {
            return;
        }
    }
}

/// True when the stream came to the end of its run.
async fn read(mut stream: Stream, told: &Told, run_id: &str, event_id: &str) -> bool {
    while let Some(frame) = stream.event().await {
        note(told, run_id, event_id, Some(frame.data));
        if frame.event.starts_with("run.") {
            return true;
        }
    }
    false
}

fn note(told: &Told, run_id: &str, event_id: &str, event: Option<String>) {
    let mut told = told.lock().unwrap();
    let seen = told.entry(run_id.to_owned()).or_default();
    event_id.clone_into(&mut seen.event_id);
    seen.events.extend(event);
}

async fn assert_kept(stage: &Stage, run_id: &str, seen: &Seen) -> Ledger {
    let run = stage.client.run(run_id).await;
    assert_eq!(run["event_id"], seen.event_id.as_str(), "{run}");
    let ledger = stage.client.ledger(run_id).await;
    ledger.assert_sound(run_id);
    assert!(
        ledger.0.starts_with(&seen.events),
        "{run_id}: {seen:?} is not in {ledger:?}"
    );
    assert!(
        stage.runner.posts(run_id) <= 1,
        "the runner was asked again for {run_id}"
    );
    ledger
}

/// Moments up to `LONGEST`, the same for the same seed (`RUNNEL_TEST_SEED`).
struct Moments(u64);

impl Moments {
    fn seeded() -> Self {
        let seed =
            std::env::var("RUNNEL_TEST_SEED").map_or(20_261_121, |seed| seed.parse().unwrap());
        eprintln!("RUNNEL_TEST_SEED={seed}");
        Self(seed)
    }

    /// Splitmix64.
    fn next(&mut self) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        Duration::from_micros(mixed % u64::try_from(LONGEST.as_micros()).unwrap())
    }
}
