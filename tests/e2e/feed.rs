//! The feed of a workspace: ids of what changed, for its own keys.

use rstest::rstest;
use serde_json::{Value, json};

use crate::interactions::{ask, asking_event, question, stage};
use crate::support::client::{Client, message, stream};
use crate::support::database::listening;
use crate::support::held::HeldRun;
use crate::support::stream::{Frame, Stream};
use crate::support::{Engine, Postgres, Sqlite, Stage, until, within};

/// Opens the feed, and reads the `reset` at its begin.
pub async fn feed_of(client: &Client) -> Stream {
    let mut feed = stream(client.request(reqwest::Method::GET, "/v1/feed"))
        .await
        .unwrap();
    assert_eq!(feed.response.status(), 200);
    let first = feed.frame().await.unwrap();
    assert_eq!(data(&first), json!({"type": "reset"}));
    feed
}

fn data(frame: &Frame) -> Value {
    serde_json::from_str(&frame.data).unwrap()
}

/// Reads up to a change of this kind about this run.
pub async fn change_of(feed: &mut Stream, kind: &str, run_id: &str) -> Value {
    let reading = async {
        loop {
            let frame = feed.frame().await.expect("the feed is open");
            if frame.event != kind {
                continue;
            }
            assert_eq!(frame.id, None, "the feed has no replay");
            let event = data(&frame);
            assert_eq!(event["type"], kind);
            if event["run_id"] == run_id {
                return event;
            }
        }
    };
    within("a change in the feed", reading).await
}

async fn made(stage: &Stage, spec: Value) -> (String, Client) {
    let key = stage.admin.create("/v1/api-keys", &spec).await.body;
    let client = Client::new(&stage.client.url, key["key"].as_str().unwrap());
    (key["id"].as_str().unwrap().to_owned(), client)
}

#[rstest]
#[tokio::test]
async fn feed_reports_runs_and_questions_by_id(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage(engine).await);
    if matches!(engine, Postgres) {
        listening(&stage.gateway.database_url(), 1).await;
    }
    let mut feed = feed_of(&stage.client).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let event = change_of(&mut feed, "run", &run.run_id).await;
    let agent = stage.client.run(&run.run_id).await["agent_id"].clone();
    assert_eq!(
        event,
        json!({"type": "run", "run_id": run.run_id, "agent_id": agent})
    );
    assert_eq!(stage.client.cancel(&run.run_id).await.status, 202);
    change_of(&mut feed, "run", &run.run_id).await;
    run.release();
    stage.client.finished(&run.run_id).await;
    change_of(&mut feed, "run", &run.run_id).await;

    let asking = ask(&stage, &asking_event("m-2"), &[question("q", &json!({}))]).await;
    change_of(&mut feed, "interaction", &asking).await;
    let open = "/v1/interactions?status=open&order=expiry";
    let open = stage.client.get(open).await.body;
    let path = format!(
        "/v1/interactions/{}/submit",
        open["items"][0]["id"].as_str().unwrap()
    );
    let answer = json!({"interaction_id": "q", "action_id": "book", "values": {"room": "a"}});
    assert_eq!(stage.client.create(&path, &answer).await.status, 202);
    change_of(&mut feed, "interaction", &asking).await;
}

#[rstest]
#[tokio::test]
async fn feed_is_limited_to_the_agents_and_life_of_its_key(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage(engine).await);
    if matches!(engine, Postgres) {
        listening(&stage.gateway.database_url(), 1).await;
    }
    let spec = json!({"name": "one", "role": "client", "agents": ["unallowed"]});
    let (id, restricted) = made(&stage, spec).await;
    let mut feed = feed_of(&restricted).await;
    let mut full = feed_of(&stage.client).await;
    let foreign = stage.client.post(&message("m-1")).await.run_id();
    stage.client.finished(&foreign).await;
    change_of(&mut full, "run", &foreign).await;
    let mut event = message("m-2");
    event["event_type"] = json!("test.unallowed");
    let own = stage.client.post(&event).await.run_id();
    // The first change that it sees is that of its own agent.
    let changes = async {
        loop {
            let frame = feed.frame().await.expect("the feed is open");
            // Sent at any time: the gateway has only begun to listen.
            if frame.event != "reset" {
                return frame;
            }
        }
    };
    let first = within("a change", changes).await;
    assert_eq!(data(&first)["run_id"], own.as_str());

    let revoked = stage.admin.delete(&format!("/v1/api-keys/{id}")).await;
    assert_eq!(revoked.status, 204);
    until("the end of the revoked key's feed", async || {
        feed.frame().await.is_none()
    })
    .await;
    let later = stage.client.post(&message("m-3")).await.run_id();
    change_of(&mut full, "run", &later).await;
}
