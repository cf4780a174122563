//! A clock that is set back and forth under load: no event is lost, and no run ends for it.

use std::time::Duration;

use rstest::rstest;
use tokio_util::sync::CancellationToken;

use super::checks::ConversationLog;
use super::load::Load;
use super::{configure, stage_with};
use crate::support::faketime::faketime;
use crate::support::{Engine, Postgres, Sqlite, TempDirectory};

/// Seconds by which the clock is wrong, in the order of the steps. Longer than the lease of a run. Shorter than
/// deadlines, which are times of the clock, and than the leeway of run tokens.
const OFFSETS: [&str; 5] = ["+0", "+2", "-2", "+2", "+0"];
/// Time of load before and after a step.
const LOAD: Duration = Duration::from_millis(200);

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clock_steps_under_load_end_no_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let library = or_skip!(faketime());
    let directory = TempDirectory::new();
    let offset = directory.write("offset", OFFSETS[0]);
    let stage = stage_with(engine, |config| {
        configure(config, "1.5");
        // The monotonic clock stays correct, as after a change of the system time.
        config.environment.extend([
            ("LD_PRELOAD", library),
            ("FAKETIME_TIMESTAMP_FILE", offset.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]);
    });
    let stage = or_skip!(stage.await);
    let (client, runner) = (&stage.client, &stage.runner);
    let mut book = ConversationLog::default();
    for step in OFFSETS {
        let load = Load {
            client,
            runner,
            gone: CancellationToken::new(),
        };
        let stepping = async {
            // Not waits for conditions: runs of every age meet the step.
            tokio::time::sleep(LOAD).await;
            let next = directory.write("next", step);
            // The gateway reads the file at any moment.
            std::fs::rename(next, &offset).unwrap();
            tokio::time::sleep(LOAD).await;
            load.gone.cancel();
        };
        let (talks, ()) = tokio::join!(load.run(), stepping);
        book.reconcile(client, talks).await;
        book.check_ended(client, runner).await;
    }
    book.close(client, runner).await;
    eprintln!("{engine:?}: {:?}", book.figures);
    let is_failure = |ending: &&String| ending.starts_with("failed");
    let failures: Vec<_> = book.figures.endings.keys().filter(is_failure).collect();
    assert!(failures.is_empty(), "{:?}", book.figures.endings);
}
