//! The feed of one replica has the changes of all.

use rstest::rstest;

use super::{TestBus, stage_on};
use crate::feed::{change_of, feed_of};
use crate::support::client::message;
use crate::support::held::HeldRun;

#[rstest]
#[tokio::test]
async fn feed_reports_runs_of_other_replicas(
    #[values(TestBus::Postgres, TestBus::Nats)] bus: TestBus,
) {
    let stage = or_skip!(stage_on(bus, |_| {}).await);
    let second = stage.gateway.start_replica().await;
    bus.ready(&stage.gateway.database_url(), 2, || second.log())
        .await;
    let mut feed = feed_of(&second.client).await;
    // The first replica takes the event and drives the run.
    let run = HeldRun::start(&stage, &message("m-1")).await;
    change_of(&mut feed, "run", &run.run_id).await;
    // Its own request to end is a change, too.
    assert_eq!(second.client.cancel(&run.run_id).await.status, 202);
    change_of(&mut feed, "run", &run.run_id).await;
    run.release();
    second.client.finished(&run.run_id).await;
    change_of(&mut feed, "run", &run.run_id).await;
}
