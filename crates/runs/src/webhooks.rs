//! Webhooks: their settings and secrets, test calls, and the messages of the feed.
//!
//! Messages are rows of the transactions that they report ([`store`]). [`delivering`] publishes and delivers them.

mod delivering;
mod message;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::api_key::AgentReach;
use domain::webhook::check_webhook;
use protocol::admin::Fault;
use protocol::id::{AgentId, WebhookId, WorkspaceId};
use protocol::principal::{Principal, PrincipalKind};
use protocol::webhook::{
    DeliveryStatus, Redelivered, WebhookEventType, WebhookMessage, WebhookSpec, WebhookTestResult,
};
use secrecy::SecretString;
use store::{
    ChangeStamp, FeedBounds, MessagesFound, Redeliver, SaveWebhook, SavedWebhook, StoreError,
    WebhookRecord,
};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::deps::RunDeps;
use crate::named_agents::named_agents;
use request::{Receiver, Unsendable};
use secrets::signature::SigningSecret;

pub use delivering::RunView;
pub use message::thin;

const SECRET_PURPOSE: &str = "webhooks.secret";
/// Time for which the secret before a rotation signs, too.
const ROTATION_MS: i64 = 24 * 3600 * 1000;
/// Concurrent test calls of the process.
const TESTS: usize = 8;
/// Batches of one redelivery, of 1,000 deliveries each.
const REDELIVERIES: u64 = 100;
/// Maximum length of a URL, in bytes.
const MAX_URL: usize = 2048;

/// Cause of a refused change.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    #[error("the webhook is invalid")]
    Faults(Vec<Fault>),
    #[error("a webhook of this name exists")]
    NameTaken,
    #[error("8 test calls are in progress, which is the limit; wait for one to end")]
    Busy,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A saved webhook, and its secret if the response shows it.
pub struct SavedSecret {
    pub saved: SavedWebhook,
    pub secret: Option<String>,
}

/// The webhooks of all workspaces.
pub struct Webhooks {
    deps: Arc<RunDeps>,
    tests: Semaphore,
}

impl Webhooks {
    pub(super) fn new(deps: Arc<RunDeps>) -> Self {
        Self {
            deps,
            tests: Semaphore::new(TESTS),
        }
    }

    /// Creates a webhook for the API. Its secret is in the result.
    pub async fn create(
        &self,
        workspace: &WorkspaceId,
        spec: WebhookSpec,
        stamp: ChangeStamp,
    ) -> Result<SavedSecret, WebhookError> {
        let agents = self.check(workspace, &spec).await?;
        let secret = chosen_secret(spec.secret.clone())?;
        let by = stamp.by.clone();
        let mut record = self.record(workspace, &spec, agents, "api", by);
        record.secret = self.seal(&secret);
        let create = SaveWebhook::Create(Box::new(record));
        let saved = self.save(stamp, create).await?;
        Ok(SavedSecret {
            saved,
            secret: Some(secret),
        })
    }

    /// Replaces the settings of a webhook of the API.
    pub async fn update(
        &self,
        workspace: &WorkspaceId,
        id: WebhookId,
        spec: WebhookSpec,
        if_match: Option<i64>,
        stamp: ChangeStamp,
    ) -> Result<SavedWebhook, WebhookError> {
        if spec.secret.is_some() {
            let message = "is set by POST /v1/webhooks/{webhook_id}/rotate-secret; leave it out";
            return Err(fault("/secret", message));
        }
        let agents = self.check(workspace, &spec).await?;
        let by = stamp.by.clone();
        let mut record = self.record(workspace, &spec, agents, "api", by);
        record.id = id;
        let record = Box::new(record);
        let update = SaveWebhook::Update { record, if_match };
        self.save(stamp, update).await
    }

    /// Replaces the secret of a webhook of the API. The previous one signs for another day.
    pub async fn rotate_secret(
        &self,
        workspace: &WorkspaceId,
        id: WebhookId,
        secret: Option<String>,
        stamp: ChangeStamp,
    ) -> Result<SavedSecret, WebhookError> {
        let secret = chosen_secret(secret)?;
        let at = self.deps.clock.now_ms();
        let rotate = SaveWebhook::Rotate {
            id,
            workspace: workspace.clone(),
            secret: self.seal(&secret),
            until: at + ROTATION_MS,
            by: stamp.by.clone(),
            at,
        };
        Ok(SavedSecret {
            saved: self.save(stamp, rotate).await?,
            secret: Some(secret),
        })
    }

    /// Deletes a webhook of the API with its deliveries.
    pub async fn delete(
        &self,
        workspace: &WorkspaceId,
        id: WebhookId,
        if_match: Option<i64>,
        stamp: ChangeStamp,
    ) -> Result<SavedWebhook, WebhookError> {
        let delete = SaveWebhook::Delete {
            id,
            workspace: workspace.clone(),
            if_match,
            at: self.deps.clock.now_ms(),
        };
        self.save(stamp, delete).await
    }

    /// Applies the webhooks of the configuration; others of an earlier one are disabled. A changed secret is a
    /// rotation.
    pub async fn configure(
        &self,
        workspace: &WorkspaceId,
        specs: Vec<WebhookSpec>,
    ) -> Result<(), WebhookError> {
        let stored = self.deps.store.notifications();
        let stored = stored.all_webhooks(workspace).await?;
        // A gateway without webhooks writes nothing at its start.
        if specs.is_empty() && stored.is_empty() {
            return Ok(());
        }
        let names = specs.iter().map(|spec| spec.name.clone()).collect();
        let disable = SaveWebhook::DisableUnnamed {
            workspace: workspace.clone(),
            names,
            at: self.deps.clock.now_ms(),
        };
        let stamp = || self.deps.stamp(PrincipalKind::Config);
        self.save(stamp(), disable).await?;
        for spec in specs {
            let mut agents = spec.agents.is_some().then(Vec::new);
            for name in spec.agents.iter().flatten() {
                if let Some(agent) = self.find_agent(workspace, name).await? {
                    agents.get_or_insert_default().push(agent);
                } else {
                    tracing::warn!(
                        webhook.name = spec.name,
                        "webhook {} selects agent {name}, which does not exist; no message of it is sent",
                        spec.name
                    );
                }
            }
            let by = PrincipalKind::Config.into();
            let mut record = self.record(workspace, &spec, agents, "config", by);
            let secret = spec.secret.unwrap_or_default();
            let before = stored.iter().find(|one| one.name == record.name);
            record.secret = self.seal(&secret);
            if let Some(before) = before {
                if self.open(&before.secret).as_deref() == Ok(secret.as_str()) {
                    record.secret.clone_from(&before.secret);
                    record.previous_secret.clone_from(&before.previous_secret);
                } else {
                    let until = self.deps.clock.now_ms() + ROTATION_MS;
                    record.previous_secret = Some((before.secret.clone(), until));
                }
            }
            // Another replica may start at the same time and be first: then the rows are equal.
            let configure = SaveWebhook::Configure(Box::new(record));
            match self.save(stamp(), configure.clone()).await {
                Err(WebhookError::NameTaken) => self.save(stamp(), configure).await?,
                saved => saved?,
            };
        }
        Ok(())
    }

    /// Sends a test message, outside of all queues.
    pub async fn test(&self, record: &WebhookRecord) -> Result<WebhookTestResult, WebhookError> {
        let _permit = self.tests.try_acquire().map_err(|_| WebhookError::Busy)?;
        let message = WebhookMessage {
            id: Uuid::now_v7().to_string(),
            kind: WebhookEventType::Test,
            created_at: self.deps.clock.now_seconds(),
            workspace_id: record.workspace.to_string(),
            run_id: None,
            agent_id: None,
            interaction_id: None,
            action_id: None,
            budget: None,
            endpoint_id: None,
            run: None,
        };
        let begin = Instant::now();
        let sent = match self.receiver(record) {
            Ok(receiver) => receiver.send(&self.deps, &message).await,
            Err(Unsendable) => Err(Unsendable.to_string()),
        };
        let duration_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(match sent {
            Ok(answered) => WebhookTestResult {
                delivered: answered.is_success(),
                status: Some(answered.status),
                error: answered.fault(),
                duration_ms,
            },
            Err(error) => WebhookTestResult {
                delivered: false,
                status: None,
                error: Some(error),
                duration_ms,
            },
        })
    }

    /// Queues deliveries of messages since a time again, at most 100,000.
    pub async fn redeliver_since(
        &self,
        record: &WebhookRecord,
        since_ms: i64,
        status: Option<DeliveryStatus>,
    ) -> Result<Redelivered, StoreError> {
        let mut redelivered = Redelivered {
            count: 0,
            has_more: false,
        };
        let mut after = 0;
        for _ in 0..REDELIVERIES {
            let batch = Redeliver {
                workspace: record.workspace.clone(),
                webhook: record.id,
                message: None,
                since: since_ms,
                status,
                after,
            };
            let batch = self.deps.store.write(batch).await?;
            redelivered.count += batch.count;
            redelivered.has_more = batch.next_after.is_some();
            match batch.next_after {
                Some(next) => after = next,
                None => break,
            }
        }
        self.deps.notifier.webhooks.notify_one();
        Ok(redelivered)
    }

    /// Queues the delivery of one message again. False: there is none that is not pending.
    pub async fn redeliver_message(
        &self,
        record: &WebhookRecord,
        message: String,
    ) -> Result<bool, StoreError> {
        let redeliver = Redeliver {
            workspace: record.workspace.clone(),
            webhook: record.id,
            message: Some(message),
            since: 0,
            status: None,
            after: 0,
        };
        let batch = self.deps.store.write(redeliver).await?;
        self.deps.notifier.webhooks.notify_one();
        Ok(batch.count > 0)
    }

    /// Positions of the messages of the feed.
    pub async fn feed_bounds(&self) -> Result<FeedBounds, StoreError> {
        self.deps.store.notifications().feed_bounds().await
    }

    /// Messages after a position. Without any, waits for one, at most for `wait` and until the process stops.
    pub async fn feed_page(
        &self,
        workspace: &WorkspaceId,
        reach: &AgentReach,
        after: u64,
        limit: u64,
        wait: Duration,
    ) -> Result<MessagesFound, StoreError> {
        /// Time between two looks of a waiting reader.
        const BETWEEN_LOOKS: Duration = Duration::from_millis(500);

        let end = tokio::time::Instant::now() + wait;
        let mut through = after;
        loop {
            let store = self.deps.store.notifications();
            let found = store
                .messages_after(workspace, reach, through, limit)
                .await?;
            through = found.through;
            let is_over = tokio::time::Instant::now() >= end;
            if !found.items.is_empty() || found.has_more || is_over {
                return Ok(found);
            }
            let next = end.min(tokio::time::Instant::now() + BETWEEN_LOOKS);
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.deps.lifecycle.stopping.cancelled() => return Ok(found),
            }
        }
    }

    /// Checks a specification, and returns the ids of its agents.
    async fn check(
        &self,
        workspace: &WorkspaceId,
        spec: &WebhookSpec,
    ) -> Result<Option<Vec<AgentId>>, WebhookError> {
        let mut faults = check_webhook(spec);
        if let Some(url) = &spec.url
            && let Some(message) = self.url_fault(url)
        {
            faults.push(Fault::new("/url", message));
        }
        // An endless list would be one query for each of its items.
        if !faults.is_empty() {
            return Err(WebhookError::Faults(faults));
        }
        let Some(named) = &spec.agents else {
            return Ok(None);
        };
        let agents = named_agents(&self.deps.store, workspace, named).await?;
        agents.map(Some).map_err(WebhookError::Faults)
    }

    /// The message does not repeat the URL, which may hold a secret.
    fn url_fault(&self, url: &str) -> Option<String> {
        if url.len() > MAX_URL {
            return Some(format!("must be at most {MAX_URL} bytes"));
        }
        let checked = self.deps.egress.check_url(url);
        checked.err().map(|error| error.to_string())
    }

    async fn find_agent(
        &self,
        workspace: &WorkspaceId,
        named: &str,
    ) -> Result<Option<AgentId>, StoreError> {
        let agents = self.deps.store.agents();
        agents.find_agent_id(workspace, named).await
    }

    fn record(
        &self,
        workspace: &WorkspaceId,
        spec: &WebhookSpec,
        agents: Option<Vec<AgentId>>,
        origin: &str,
        by: Principal,
    ) -> WebhookRecord {
        let now = self.deps.clock.now_ms();
        WebhookRecord {
            id: WebhookId(Uuid::now_v7()),
            workspace: workspace.clone(),
            name: spec.name.clone(),
            origin: origin.to_owned(),
            enabled: spec.enabled,
            disabled_reason: None,
            url: spec.url.clone(),
            events: spec.events.clone(),
            agents,
            payload: spec.payload,
            secret: String::new(),
            previous_secret: None,
            failures: 0,
            open_until: 0,
            version: 1,
            created_at: now,
            updated_at: now,
            updated_by: by,
        }
    }

    async fn save(
        &self,
        stamp: ChangeStamp,
        save: SaveWebhook,
    ) -> Result<SavedWebhook, WebhookError> {
        let saved = self.deps.store.change(stamp, save).await;
        saved.map_err(|error| match error {
            // The unique index decides: two webhooks of one name may be created at the same time.
            StoreError::Taken => WebhookError::NameTaken,
            error => error.into(),
        })
    }

    fn seal(&self, secret: &str) -> String {
        self.deps.master_key.seal(SECRET_PURPOSE, secret.as_bytes())
    }

    fn open(&self, sealed: &str) -> Result<String, Unsendable> {
        let plain = self.deps.master_key.open(SECRET_PURPOSE, sealed);
        String::from_utf8(plain.map_err(|_| Unsendable)?).map_err(|_| Unsendable)
    }

    /// The receiver with the secrets that sign now.
    fn receiver(&self, record: &WebhookRecord) -> Result<Receiver, Unsendable> {
        let now = self.deps.clock.now_ms();
        let previous = record.previous_secret.as_ref();
        let previous = previous.filter(|(_, until)| *until > now);
        let sealed = [Some(&record.secret), previous.map(|(secret, _)| secret)];
        let secrets = sealed.into_iter().flatten().map(|sealed| {
            let plain = SecretString::from(self.open(sealed)?);
            SigningSecret::parse(&plain).map_err(|_| Unsendable)
        });
        Ok(Receiver {
            url: record.url.clone().ok_or(Unsendable)?,
            secrets: secrets.collect::<Result<_, _>>()?,
        })
    }
}

fn fault(pointer: &str, message: &str) -> WebhookError {
    WebhookError::Faults(vec![Fault::new(pointer, message)])
}

/// The given secret, or a new one.
fn chosen_secret(given: Option<String>) -> Result<String, WebhookError> {
    let Some(given) = given else {
        return Ok(SigningSecret::generate());
    };
    match given.parse::<SigningSecret>() {
        Ok(_) => Ok(given),
        Err(error) => Err(fault("/secret", &format!("is not valid: {error}"))),
    }
}
