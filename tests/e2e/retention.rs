//! What is deleted for its age, and what stays.

use rstest::rstest;
use serde_json::json;

use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::script::sse;
use crate::support::{Engine, Postgres, Sqlite, Stage, within};

#[rstest]
#[tokio::test]
async fn old_events_go_and_the_run_stays(#[values(Sqlite, Postgres)] engine: Engine) {
    let impatient = |config: &mut Config| {
        // The sweep looks every third of a lease; a run is old at once.
        "lease_seconds = 1.5".clone_into(&mut config.runs);
        "retention_days = 0.000001".clone_into(&mut config.ledger);
    };
    let Some(stage) = Stage::on(engine, impatient).await else {
        return;
    };
    let live = HeldRun::start(&stage, &message("m-live")).await;
    stage.runner.answer_all(|run| sse(run.talk(2).concat()));
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let events = format!("/v1/runs/{run_id}/events");
    let gone = within("the events to go", async {
        loop {
            let page = stage.client.get(&events).await;
            if page.status != 200 {
                return page;
            }
            tokio::task::yield_now().await;
        }
    });
    let gone = gone.await;
    assert_eq!(
        (gone.status, gone.error("code")),
        (410, &json!("cursor_expired"))
    );
    assert_eq!(
        gone.detail("snapshot_url"),
        &json!(format!("/v1/runs/{run_id}"))
    );
    assert_eq!(
        (gone.detail("last_sequence"), gone.detail("oldest_sequence")),
        (&json!(3), &json!(4))
    );

    let stream = stage.client.follow(&run_id, 1).await;
    assert_eq!(stream.response.status(), 410);
    let stream = stage.client.follow(&run_id, 3).await;
    assert_eq!(stream.response.status(), 204, "nothing was missed");
    let run = stage.client.run(&run_id).await;
    assert_eq!(
        (&run["status"], &run["last_sequence"]),
        (&json!("completed"), &json!(3))
    );
    assert_eq!(run["output"]["content"], "1 2 ");
    let path = format!("/v1/runs/{run_id}/authorization");
    assert_eq!(stage.client.get(&path).await.status, 200);
    let history = stage.client.get("/v1/conversations/c-7/history").await.body;
    assert_eq!(history["items"][0]["content"], "1 2 ");

    // From inside it is gone, too; a run that lives loses nothing.
    let inside = live.get(&format!("/runs/{run_id}/events")).await;
    assert_eq!(
        (inside.status, inside.error("code")),
        (410, &json!("cursor_expired"))
    );
    assert_eq!(live.get("/context").await.status, 200);
    assert_eq!(live.get("/run/events").await.status, 200);
}
