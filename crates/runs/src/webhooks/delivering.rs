//! Publishes committed messages, and delivers them to their webhooks.
//!
//! Every replica does both. A delivery belongs to the replica that claimed it until its lease ends, so a message is
//! delivered at least once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::authorization::FrozenConversation;
use domain::run::Run;
use domain::webhook::{CIRCUIT_FAILURES, next_try};
use protocol::id::WebhookId;
use protocol::run::AgentRun;
use protocol::webhook::{WebhookMessage, WebhookPayload};
use store::{
    ClaimDeliveries, ClaimedDelivery, DeliveryResult, MessageRecord, PublishMessages,
    RecordDelivery, StoreError, WebhookRecord,
};
use tokio::task::{Id, JoinSet};
use uuid::Uuid;

use super::Webhooks;
use super::message::thin;
use super::request::{ReceiverAnswer, Unsendable};
use telemetry::metrics;

/// Concurrent deliveries of one webhook. A receiver that hangs delays its own deliveries only.
const PER_WEBHOOK: usize = 8;
/// Concurrent deliveries of the process.
const DELIVERIES: usize = 256;
/// Longer than a try with its timeouts. Another replica repeats the try afterwards.
const LEASE: Duration = Duration::from_mins(1);
/// Time between two looks for messages of other replicas and for retries.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Pause in which commits that follow each other gather.
const GATHER: Duration = Duration::from_millis(20);
/// Webhooks of one look.
const WEBHOOKS: u64 = 256;

/// Shows a run as the client API does.
pub type RunView = fn(Run, Option<&FrozenConversation>) -> AgentRun;

/// Deliveries in progress.
#[derive(Default)]
struct InProgress {
    tasks: JoinSet<()>,
    webhooks: HashMap<Id, WebhookId>,
}

impl InProgress {
    fn of(&self, webhook: WebhookId) -> usize {
        self.webhooks.values().filter(|id| **id == webhook).count()
    }

    /// Deliveries that may begin now.
    fn free(&self, record: &WebhookRecord) -> usize {
        let own = self.of(record.id);
        let limit = if record.failures >= CIRCUIT_FAILURES {
            // One try shows whether the receiver works again.
            1
        } else {
            PER_WEBHOOK
        };
        let left = DELIVERIES.saturating_sub(self.webhooks.len());
        limit.saturating_sub(own).min(left)
    }

    /// Waits for the end of one delivery, and removes all that have ended.
    async fn ended(&mut self) {
        let mut next = self.tasks.join_next_with_id().await;
        while let Some(ended) = next {
            // A panic ends one try: its lease expires, and it is repeated.
            let id = ended.map_or_else(|error| error.id(), |(id, ())| id);
            self.webhooks.remove(&id);
            next = self.tasks.try_join_next_with_id();
        }
    }
}

impl Webhooks {
    /// Publishes and delivers messages until the process stops.
    pub async fn keep_delivering(self: &Arc<Self>, view: RunView) {
        self.deps.until_closing(self.deliver(view)).await;
    }

    async fn deliver(self: &Arc<Self>, view: RunView) {
        let mut in_progress = InProgress::default();
        let mut is_failing = false;
        loop {
            let looked = self.look(view, &mut in_progress).await;
            let mut has_webhooks = false;
            match &looked {
                Ok(found) => has_webhooks = *found,
                // Logged once per outage.
                Err(error) if !is_failing => {
                    let error = error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        "cannot read or write webhook deliveries, trying again"
                    );
                }
                Err(_) => {}
            }
            is_failing = looked.is_err();
            tokio::select! {
                () = tokio::time::sleep(BETWEEN_LOOKS) => {}
                () = in_progress.ended(), if !in_progress.webhooks.is_empty() && !is_failing => {}
                // Without webhooks, the ends of runs cost no look.
                () = self.deps.notifier.webhooks.notified(), if has_webhooks => {
                    tokio::time::sleep(GATHER).await;
                }
            }
        }
    }

    /// Publishes what is committed, and begins the deliveries that are due. False: there is no webhook.
    async fn look(
        self: &Arc<Self>,
        view: RunView,
        in_progress: &mut InProgress,
    ) -> Result<bool, StoreError> {
        let store = &self.deps.store;
        while store.notifications().has_unpublished_messages().await? {
            // Another replica may have been first.
            if store.write(PublishMessages).await? == 0 {
                break;
            }
        }
        if !store.notifications().has_webhooks().await? {
            return Ok(false);
        }
        for record in store.notifications().due_webhooks(WEBHOOKS).await? {
            let free = in_progress.free(&record);
            if free == 0 {
                continue;
            }
            let claim = ClaimDeliveries {
                webhook: record.id,
                limit: free as u64,
                lease: LEASE,
            };
            let record = Arc::new(record);
            for claimed in store.write(claim).await? {
                let (webhooks, record) = (Arc::clone(self), Arc::clone(&record));
                let webhook = record.id;
                let task = in_progress.tasks.spawn(async move {
                    webhooks.deliver_one(&record, claimed, view).await;
                });
                in_progress.webhooks.insert(task.id(), webhook);
            }
        }
        Ok(true)
    }

    async fn deliver_one(&self, record: &WebhookRecord, claimed: ClaimedDelivery, view: RunView) {
        let sent = match self.message(record, &claimed.message, view).await {
            Ok(message) => match self.receiver(record) {
                Ok(receiver) => receiver.send(&self.deps, &message).await,
                Err(Unsendable) => Err(Unsendable.to_string()),
            },
            Err(error) => {
                // The lease ends, and the try is repeated.
                let error = &error as &dyn std::error::Error;
                tracing::warn!(webhook.id = %record.id, error, "cannot read a message to deliver, trying again");
                return;
            }
        };
        let status = sent.as_ref().ok().map(|answered| answered.status);
        let result = result_of(sent, claimed.tries);
        report(record, &claimed, &result);
        let recording = RecordDelivery {
            webhook: record.id,
            position: claimed.message.position,
            epoch: claimed.epoch,
            status,
            result,
            at: self.deps.clock.now_ms(),
        };
        if let Err(error) = self.deps.store.write(recording).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(webhook.id = %record.id, error, "cannot record a delivery, repeating it after its lease");
        }
    }

    /// The message in the form that the webhook selects.
    async fn message(
        &self,
        record: &WebhookRecord,
        message: &MessageRecord,
        view: RunView,
    ) -> Result<WebhookMessage, StoreError> {
        let mut shown = thin(message);
        if let (WebhookPayload::Full, Some(id)) = (record.payload, message.run_id) {
            let runs = self.deps.store.runs();
            if let Some(run) = runs.find_run(&record.workspace, id).await? {
                let labels = runs
                    .find_run_labels(&record.workspace, std::slice::from_ref(&run), 0)
                    .await?;
                let key = run.conversation_key.as_ref();
                let conversation = key.and_then(|key| labels.conversations.get(key));
                let agent_name = labels.agent_names.get(&run.agent_id).cloned();
                shown.run = Some(Box::new(AgentRun {
                    agent_name,
                    ..view(run.clone(), conversation)
                }));
            }
        }
        Ok(shown)
    }
}

fn result_of(sent: Result<ReceiverAnswer, String>, tries: u64) -> DeliveryResult {
    let (error, pause) = match sent {
        Ok(answered) if answered.is_gone() => return DeliveryResult::Gone,
        Ok(answered) => match answered.fault() {
            None => return DeliveryResult::Delivered,
            Some(error) => (error, answered.retry_after),
        },
        Err(error) => (error, None),
    };
    let jitter = f64::from(Uuid::new_v4().as_bytes()[0]) / 255.0;
    DeliveryResult::Failed {
        error,
        wait: next_try(tries, jitter, pause),
        pause,
    }
}

/// Counts and logs a try.
fn report(record: &WebhookRecord, claimed: &ClaimedDelivery, result: &DeliveryResult) {
    let (id, tries) = (&claimed.message.id, claimed.tries);
    let outcome = match result {
        DeliveryResult::Delivered => "delivered",
        DeliveryResult::Gone => {
            tracing::warn!(
                webhook.id = %record.id, webhook.name = record.name, message.id = id,
                "webhook {} is disabled: its receiver answered 410", record.name
            );
            "gone"
        }
        DeliveryResult::Failed {
            error, wait: None, ..
        } => {
            tracing::warn!(
                webhook.id = %record.id, webhook.name = record.name, message.id = id, tries, error,
                "message {id} is not delivered to webhook {}, its last try failed: {error}", record.name
            );
            "dead"
        }
        DeliveryResult::Failed { error, .. } => {
            tracing::debug!(
                webhook.id = %record.id, webhook.name = record.name, message.id = id, tries, error,
                "message {id} is not delivered to webhook {} yet, trying again: {error}", record.name
            );
            "failed"
        }
    };
    metrics::webhook_tried(outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16) -> ReceiverAnswer {
        ReceiverAnswer {
            status,
            retry_after: Some(Duration::from_mins(7)),
        }
    }

    #[test]
    fn only_success_delivers_and_only_410_disables() {
        assert_eq!(result_of(Ok(answered(204)), 1), DeliveryResult::Delivered);
        assert_eq!(result_of(Ok(answered(410)), 1), DeliveryResult::Gone);
        for sent in [Ok(answered(302)), Ok(answered(404)), Err("x".to_owned())] {
            let DeliveryResult::Failed { wait, .. } = result_of(sent.clone(), 1) else {
                panic!("{sent:?} is a failure");
            };
            assert!(wait.is_some());
        }
    }

    #[test]
    fn failure_waits_as_long_as_the_receiver_demands() {
        let DeliveryResult::Failed { wait, pause, .. } = result_of(Ok(answered(503)), 1) else {
            panic!("503 is a failure");
        };
        assert_eq!(wait, Some(Duration::from_mins(7)));
        assert_eq!(pause, Some(Duration::from_mins(7)));
        let DeliveryResult::Failed { wait, .. } = result_of(Ok(answered(503)), 12) else {
            panic!("503 is a failure");
        };
        assert_eq!(wait, None);
    }
}
