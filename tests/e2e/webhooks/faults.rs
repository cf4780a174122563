//! Receivers that fail, hang, demand a wait, or are gone.

use chrono::Utc;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use super::{create, deliveries, end_waits, path_of, run_of, stage_of, statuses};
use crate::support::receiver::{Reaction, Receiver};
use crate::support::{Engine, Postgres, Sqlite, until};

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faulty_receivers_delay_only_their_own_messages(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(stage_of(engine).await);
    let faults = [
        ("error", Reaction::Status(500), "answered 500"),
        (
            "moved",
            Reaction::Headed(302, "location: http://127.0.0.1:1/".to_owned()),
            "redirects are not followed",
        ),
        ("closing", Reaction::Close, "the exchange failed"),
        ("resetting", Reaction::Reset, "the exchange failed"),
        ("hanging", Reaction::Hang, "no response in time"),
        ("slow head", Reaction::DripHead, "the exchange failed"),
    ];
    let mut hooks = Vec::new();
    for (name, fault, error) in faults {
        let receiver = Receiver::start().await;
        receiver.always(Some(fault));
        let hook = create(&stage.admin, &receiver, &json!({"name": name})).await;
        hooks.push((receiver, hook, error));
    }
    let (good, slow) = (Receiver::start().await, Receiver::start().await);
    slow.always(Some(Reaction::Drip));
    let good_hook = create(&stage.admin, &good, &json!({"name": "good"})).await;
    let slow_hook = create(&stage.admin, &slow, &json!({"name": "slow body"})).await;
    for number in 0..20 {
        run_of(&stage, &format!("m-{number}")).await;
    }
    // The hanging receiver blocks its own queue only.
    good.wait_for(20).await;
    until("all deliveries to the good receiver", async || {
        statuses(&stage.admin, &good_hook).await == ["delivered"; 20]
    })
    .await;
    // The circuit of the hanging receiver opens after its first tries.
    let hanging = hooks
        .iter()
        .find(|(.., error)| *error == "no response in time");
    assert!(hanging.unwrap().0.received().len() < 20);
    until("all deliveries to the slow receiver", async || {
        statuses(&stage.admin, &slow_hook).await == ["delivered"; 20]
    })
    .await;
    for (_, hook, error) in &hooks {
        let error = error.to_string();
        until("a failed try", async || {
            let found = deliveries(&stage.admin, hook).await;
            let texts = found.iter().filter_map(|one| one["last_error"].as_str());
            texts
                .into_iter()
                .any(|text| text.contains(&error) || error == "the exchange failed")
        })
        .await;
    }
    let database = stage.gateway.database_url();
    for (receiver, hook, _) in &hooks {
        receiver.always(None);
        until("the end of the queue", async || {
            end_waits(&database).await;
            let found = statuses(&stage.admin, hook).await;
            found == ["delivered"; 20]
        })
        .await;
    }
}

#[rstest]
#[tokio::test]
async fn answer_410_disables_the_webhook(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    receiver.react([Reaction::Status(410)]);
    run_of(&stage, "m-1").await;
    let path = path_of(&hook);
    let mut read = Value::Null;
    until("the end of the webhook", async || {
        read = stage.admin.get(&path).await.expect(200).body;
        read["enabled"] == false
    })
    .await;
    assert_eq!(read["disabled_reason"], "gone");
    let dead = deliveries(&stage.admin, &hook).await;
    assert_members!(dead[0], { "status": "dead", "last_status": 410, "tries": 1 });
    run_of(&stage, "m-2").await;
    let spec = json!({"name": "hook", "url": receiver.url, "events": ["run.completed"]});
    let enabled = stage
        .admin
        .call(Method::PUT, &path, &spec)
        .await
        .expect(200)
        .body;
    assert_members!(enabled, { "enabled": true, "disabled_reason": Value::Null });
    run_of(&stage, "m-3").await;
    // The event between has no message.
    assert_eq!(receiver.wait_for(2).await.len(), 2);
    let again = format!(
        "{path}/deliveries/{}/redeliver",
        dead[0]["message_id"].as_str().unwrap()
    );
    stage.admin.create(&again, &json!({})).await.expect(202);
    let received = receiver.wait_for(3).await;
    assert_eq!(
        received[2].headers["webhook-id"],
        received[0].headers["webhook-id"]
    );
    until("two deliveries", async || {
        statuses(&stage.admin, &hook).await == ["delivered"; 2]
    })
    .await;
}

#[rstest]
#[tokio::test]
async fn circuit_opens_after_five_failures(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    receiver.always(Some(Reaction::Status(503)));
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    for number in 0..6 {
        run_of(&stage, &format!("m-{number}")).await;
    }
    let path = path_of(&hook);
    until("the open circuit", async || {
        let circuit = stage.admin.get(&path).await.body["circuit"].clone();
        circuit["failures"].as_u64() >= Some(5) && circuit["retry_at"].is_i64()
    })
    .await;
    let tried = receiver.received().len();
    run_of(&stage, "m-7").await;
    assert!(
        statuses(&stage.admin, &hook)
            .await
            .iter()
            .all(|one| one == "pending")
    );
    assert!(receiver.received().len() <= tried + 2, "tries stop");
    receiver.always(None);
    let database = stage.gateway.database_url();
    until("all deliveries", async || {
        end_waits(&database).await;
        statuses(&stage.admin, &hook).await == ["delivered"; 7]
    })
    .await;
    let circuit = stage.admin.get(&path).await.body["circuit"].clone();
    assert_eq!(circuit, json!({"failures": 0}));
}

#[rstest]
#[tokio::test]
async fn obeys_retry_after(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    receiver.react([Reaction::Headed(429, "retry-after: 600".to_owned())]);
    run_of(&stage, "m-1").await;
    let mut found = Value::Null;
    until("the failure", async || {
        found = json!(deliveries(&stage.admin, &hook).await)[0].clone();
        found["last_status"] == 429
    })
    .await;
    let wait = found["next_try_at"].as_i64().unwrap() - Utc::now().timestamp();
    assert!((500..=601).contains(&wait), "{found}");
    let circuit = stage.admin.get(&path_of(&hook)).await.body["circuit"].clone();
    let wait = circuit["retry_at"].as_i64().unwrap() - Utc::now().timestamp();
    assert!((500..=601).contains(&wait), "{circuit}");
    // Other messages of the webhook wait, too.
    run_of(&stage, "m-2").await;
    assert_eq!(receiver.received().len(), 1);
}

#[rstest]
#[tokio::test]
async fn twelfth_failure_is_the_last(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(stage_of(engine).await);
    let receiver = Receiver::start().await;
    receiver.always(Some(Reaction::Status(500)));
    let hook = create(&stage.admin, &receiver, &json!({})).await;
    run_of(&stage, "m-1").await;
    let database = stage.gateway.database_url();
    until("the last try", async || {
        end_waits(&database).await;
        statuses(&stage.admin, &hook).await == ["dead"]
    })
    .await;
    let dead = deliveries(&stage.admin, &hook).await[0].clone();
    assert!(dead["tries"].as_u64() >= Some(12), "{dead}");
    assert_members!(dead, { "last_status": 500, "last_error": "the receiver answered 500" });
    receiver.always(None);
    let again = json!({"since": 0, "status": "dead"});
    let path = format!("{}/redeliver", path_of(&hook));
    let redelivered = stage.admin.create(&path, &again).await.expect(202).body;
    assert_eq!(redelivered, json!({"count": 1, "has_more": false}));
    until("the delivery", async || {
        end_waits(&database).await;
        statuses(&stage.admin, &hook).await == ["delivered"]
    })
    .await;
}
