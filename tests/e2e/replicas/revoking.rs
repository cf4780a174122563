//! Revocation of rights from live and queued runs (J18).

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{TestBus, stage_on};
use crate::support::client::{Client, message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::RUNNER_ID;
use crate::support::until;

#[derive(Clone, Copy, Debug)]
enum Withdrawal {
    Disable,
    Delete,
}

fn event(event_id: &str) -> Value {
    let mut event = message(event_id);
    event["event_type"] = json!("test.event");
    event
}

#[rstest]
#[tokio::test]
async fn revocation_takes_effect_on_every_replica(
    #[values(TestBus::Postgres, TestBus::Silent)] bus: TestBus,
    #[values(Withdrawal::Disable, Withdrawal::Delete)] withdrawal: Withdrawal,
) {
    let configure = |config: &mut Config| {
        // Tokens are bound to this name, so all replicas share it.
        "public_url = \"http://runnel.invalid\"".clone_into(&mut config.server);
        config.runs = "cancel_grace_seconds = 50".into();
    };
    let stage = or_skip!(stage_on(bus, configure).await);
    let second = stage.gateway.start_replica().await;
    let admin = stage.admin.clone();
    let mut agent = json!({"name": "of-the-test", "event_types": ["test.event"], "runner_id": RUNNER_ID,
        "concurrency": "enqueue"});
    let created = admin.create("/v1/agents", &agent).await.expect(201);
    let path = format!("/v1/agents/{}", created.body["id"].as_str().unwrap());
    let run = HeldRun::start(&stage, &event("m-1")).await;
    let waiting = stage.client.post(&event("m-2")).await.run_id();
    let opened = async |path: &str| {
        let base = run.host.url.trim_start_matches("http://runnel.invalid");
        let mut statuses = Vec::new();
        for replica in [&stage.client, &second.client] {
            let host = Client::new(&format!("{}{base}", replica.url), &run.token);
            statuses.push(host.get(path).await.status);
        }
        statuses
    };

    // No new run starts. A live run keeps its grants, or is cancelled where it must not continue.
    match withdrawal {
        Withdrawal::Disable => {
            agent["enabled"] = json!(false);
            admin.call(Method::PUT, &path, &agent).await.expect(200);
        }
        Withdrawal::Delete => assert_eq!(admin.delete(&path).await.status, 204),
    }
    let refused = send(second.client.posting(&event("m-3"))).await.unwrap();
    assert_eq!(refused.body["reason"], "no_agent", "{}", refused.body);
    assert_eq!(opened("/context").await, [200, 200]);

    assert_eq!(second.client.cancel(&run.run_id).await.status, 202);
    until("both replicas to know", async || {
        opened("/context").await == [409, 409]
    })
    .await;
    run.end(&stage).await;
    let ended = second.client.finished(&waiting).await;
    assert_eq!(ended["status"], "cancelled", "{ended}");
    assert_eq!(stage.runner.posts(&waiting), 0);
}
