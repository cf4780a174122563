//! Webhooks: positions of messages, claims of deliveries, and their records.
use std::time::Duration;

use crate::support::{StoreFixture, on_both};
use domain::api_key::AgentReach;
use protocol::id::WebhookId;
use protocol::principal::PrincipalKind;
use protocol::webhook::{WebhookEventType, WebhookPayload};
use store::{
    ClaimDeliveries, ClaimedDelivery, DeliveryResult, PublishMessages, RecordDelivery, SaveWebhook,
    WebhookRecord,
};
use uuid::Uuid;

on_both!(
    publishes_messages_in_commit_order,
    claims_deliveries_once_and_in_order_of_their_run,
    stale_claim_changes_nothing,
);

fn hook(bench: &StoreFixture) -> WebhookRecord {
    WebhookRecord {
        id: WebhookId(Uuid::now_v7()),
        workspace: bench.workspace.clone(),
        name: "hook".to_owned(),
        origin: "api".to_owned(),
        enabled: true,
        disabled_reason: None,
        url: Some("https://h.example/".to_owned()),
        events: vec![WebhookEventType::RunFailed],
        agents: None,
        payload: WebhookPayload::Thin,
        secret: "sealed".to_owned(),
        previous_secret: None,
        failures: 0,
        open_until: 0,
        version: 1,
        created_at: 1,
        updated_at: 1,
        updated_by: PrincipalKind::Gateway.into(),
    }
}

async fn create(bench: &StoreFixture) -> WebhookId {
    let record = hook(bench);
    let create = SaveWebhook::Create(Box::new(record.clone()));
    bench.write(create).await.unwrap();
    record.id
}

/// Inserts a message of each run, named by a digit, as a commit does.
async fn note(bench: &StoreFixture, runs: &str) {
    for run in runs.chars() {
        let sql = format!(
            "INSERT INTO webhook_messages (id, workspace_id, event_type, run_id, created_at) \
             VALUES ('{}', '{}', 'run.failed', '00000000-0000-0000-0000-00000000000{run}', 1)",
            Uuid::now_v7(),
            bench.workspace
        );
        bench.tamper(&sql).await;
    }
}

async fn claim(bench: &StoreFixture, webhook: WebhookId) -> Vec<ClaimedDelivery> {
    let claim = ClaimDeliveries {
        webhook,
        limit: 10,
        lease: Duration::from_mins(1),
    };
    let mut claimed = bench.write(claim).await.unwrap();
    claimed.sort_by_key(|one| one.message.position);
    claimed
}

fn positions(claimed: &[ClaimedDelivery]) -> Vec<u64> {
    claimed.iter().map(|one| one.message.position).collect()
}

fn record(webhook: WebhookId, claimed: &ClaimedDelivery, result: DeliveryResult) -> RecordDelivery {
    RecordDelivery {
        webhook,
        position: claimed.message.position,
        epoch: claimed.epoch,
        status: Some(200),
        result,
        at: 2,
    }
}

async fn publishes_messages_in_commit_order(bench: StoreFixture) {
    create(&bench).await;
    note(&bench, "12").await;
    assert_eq!(bench.write(PublishMessages).await.unwrap(), 2);
    assert_eq!(bench.write(PublishMessages).await.unwrap(), 0);
    note(&bench, "31").await;
    assert!(
        bench
            .notifications()
            .has_unpublished_messages()
            .await
            .unwrap()
    );
    assert_eq!(bench.write(PublishMessages).await.unwrap(), 2);
    let all = bench.notifications();
    let found = all.messages_after(&bench.workspace, &AgentReach::All, 1, 2);
    let found = found.await.unwrap();
    let order: Vec<_> = found.items.iter().map(|one| one.position).collect();
    assert_eq!(
        (order, found.through, found.has_more),
        (vec![2, 3], 3, true)
    );
    // A message without an agent needs the reach of all.
    let reach = AgentReach::of(Some(Vec::new()));
    let found = all.messages_after(&bench.workspace, &reach, 0, 2).await;
    let found = found.unwrap();
    assert!(found.items.is_empty() && !found.has_more && found.through == 4);
}

async fn claims_deliveries_once_and_in_order_of_their_run(bench: StoreFixture) {
    let webhook = create(&bench).await;
    note(&bench, "1121").await;
    bench.write(PublishMessages).await.unwrap();
    let first = claim(&bench, webhook).await;
    assert_eq!(positions(&first), [1, 3]);
    assert!(claim(&bench, webhook).await.is_empty(), "both are leased");
    let done = record(webhook, &first[0], DeliveryResult::Delivered);
    assert!(bench.write(done).await.unwrap());
    assert_eq!(positions(&claim(&bench, webhook).await), [2]);
    // A leased or waiting delivery delays the later ones of its run, and so the webhook is not due.
    let due = bench.notifications().due_webhooks(10).await.unwrap();
    assert!(due.is_empty());
}

async fn stale_claim_changes_nothing(bench: StoreFixture) {
    let webhook = create(&bench).await;
    note(&bench, "1").await;
    bench.write(PublishMessages).await.unwrap();
    let stale = claim(&bench, webhook).await.remove(0);
    bench
        .tamper("UPDATE webhook_deliveries SET due_at = 0")
        .await;
    let current = claim(&bench, webhook).await.remove(0);
    assert_eq!((stale.tries, current.tries), (1, 2));
    let late = record(webhook, &stale, DeliveryResult::Delivered);
    assert!(!bench.write(late).await.unwrap());
    let failed = DeliveryResult::Failed {
        error: "x".to_owned(),
        wait: Some(Duration::ZERO),
        pause: None,
    };
    let failed = record(webhook, &current, failed);
    assert!(bench.write(failed).await.unwrap());
    let record = bench
        .notifications()
        .find_webhook(&bench.workspace, webhook);
    assert_eq!(record.await.unwrap().unwrap().failures, 1);
    let gone = claim(&bench, webhook).await.remove(0);
    let gone = self::record(webhook, &gone, DeliveryResult::Gone);
    assert!(bench.write(gone).await.unwrap());
    let record = bench
        .notifications()
        .find_webhook(&bench.workspace, webhook);
    assert!(!record.await.unwrap().unwrap().enabled);
}
