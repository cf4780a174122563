//! SIGKILL at random moments, cycle after cycle on one database.

use std::time::{Duration, Instant};

use rstest::rstest;
use tokio_util::sync::CancellationToken;

use super::checks::ConversationLog;
use super::load::Load;
use super::stage;
use crate::support::{Engine, OwnStage, Postgres, RandomDurations, Sqlite, number, seed};

/// Kills on each database, unless `RUNNEL_TEST_KILL_CYCLES` sets another number.
const CYCLES: usize = 4;
/// Maximum time of load before a kill.
const LONGEST: Duration = Duration::from_millis(400);
/// One in this many starts is killed during startup.
const BOOTS: u64 = 5;
/// Maximum time before such a kill. It may come before or after the gateway listens.
const LONGEST_BOOT: Duration = Duration::from_millis(300);

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_killed_at_any_moment_keeps_acknowledgements(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    // A short lease, so that runs of a killed gateway get a new owner soon.
    let mut stage = or_skip!(stage(engine, "1.5").await);
    let cycles = number("RUNNEL_TEST_KILL_CYCLES", CYCLES);
    let mut moments = RandomDurations(seed());
    let (mut book, mut tally) = (ConversationLog::default(), KillStatistics::default());
    for cycle in 1..=cycles {
        let moment = moments.up_to(LONGEST);
        tally.moments.push(moment);
        let OwnStage { stage, gateway } = &mut stage;
        let (client, runner) = (&stage.client, &stage.runner);
        let load = Load {
            client,
            runner,
            gone: CancellationToken::new(),
        };
        let killing = async {
            // Not a wait for a condition: the test needs a kill at this moment.
            tokio::time::sleep(moment).await;
            gateway.kill().await;
            load.gone.cancel();
        };
        let (talks, ()) = tokio::join!(load.run(), killing);
        if moments.next().is_multiple_of(BOOTS) {
            tally.boots += 1;
            gateway.start_and_kill(moments.up_to(LONGEST_BOOT)).await;
        }
        gateway.restart().await;
        book.reconcile(client, talks).await;
        book.check_ended(client, runner).await;
        if cycle % 50 == 0 {
            eprintln!("{engine:?} {cycle} of {cycles}: {}", tally.report(&book));
        }
    }
    book.close(&stage.client, &stage.runner).await;
    eprintln!("{engine:?}: {cycles} cycles, {}", tally.report(&book));
    assert!(book.figures.runs >= cycles, "hardly a run was started");
}

/// Statistics of the kills.
struct KillStatistics {
    begin: Instant,
    moments: Vec<Duration>,
    boots: usize,
}

impl Default for KillStatistics {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            moments: Vec::new(),
            boots: 0,
        }
    }
}

impl KillStatistics {
    fn report(&self, book: &ConversationLog) -> String {
        let mut tenths = [0; 10];
        for moment in &self.moments {
            let tenth = moment.as_micros() * 10 / LONGEST.as_micros();
            tenths[usize::try_from(tenth).unwrap().min(9)] += 1;
        }
        format!(
            "{:?}; killed by 40 ms of load: {tenths:?}, and {} times at the start; {:?}",
            self.begin.elapsed(),
            self.boots,
            book.figures
        )
    }
}
