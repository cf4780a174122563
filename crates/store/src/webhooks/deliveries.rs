//! Deliveries: claimed by a lease, recorded by compare-and-set of its epoch.

use std::time::Duration;

use domain::webhook::circuit_wait;
use protocol::id::{RunId, WebhookId, WorkspaceId};
use protocol::webhook::{DeliveryStatus, WebhookEventType};
use sea_orm::{DatabaseTransaction, Value};

use super::feed::{MESSAGE_COLUMNS, MessageRecord, event_type, read_message};
use super::{COLUMNS, WebhookRecord, delete_filters, read_webhook};
use crate::database_clock::{lease_end_sql, millis, read_now};
use crate::error::{StoreError, parsed, signed, unsigned};
use crate::mutation::Mutation;
use crate::page::ListPage;
use crate::repositories::Notifications;
use crate::sql::{PLAN_FENCE, Sql, SqlRow, row_lock};

/// Deliveries that one statement queues again.
const REDELIVERED: u64 = 1000;

/// Condition for a delivery `d` that may be tried: it is due, and no earlier one of its run is pending.
fn is_due(now: &str) -> String {
    format!(
        "d.status = 'pending' AND d.due_at <= {now} AND NOT EXISTS (SELECT 1 FROM webhook_deliveries e \
         WHERE e.webhook_id = d.webhook_id AND e.order_key = d.order_key AND e.status = 'pending' \
         AND e.position < d.position {PLAN_FENCE})"
    )
}

/// Claims due deliveries of a webhook. A delivery waits for earlier ones of its run.
pub struct ClaimDeliveries {
    pub webhook: WebhookId,
    pub limit: u64,
    pub lease: Duration,
}

/// A claimed delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedDelivery {
    pub message: MessageRecord,
    /// Tries, with this one.
    pub tries: u64,
    pub epoch: i64,
}

impl Mutation for ClaimDeliveries {
    type Output = Vec<ClaimedDelivery>;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Vec<ClaimedDelivery>, StoreError> {
        let now = lease_end_sql(tx.backend(), "0");
        let until = lease_end_sql(tx.backend(), "$1");
        let claim = format!(
            "UPDATE webhook_deliveries SET lease_epoch = lease_epoch + 1, tries = tries + 1, due_at = {until} \
             WHERE webhook_id = $2 AND status = 'pending' AND due_at <= {now} AND position IN \
             (SELECT d.position FROM webhook_deliveries d WHERE d.webhook_id = $2 AND {} \
             ORDER BY d.due_at, d.position LIMIT {}) RETURNING position, tries, lease_epoch",
            is_due(&now),
            self.limit
        );
        // One statement claims, so two replicas never get the same delivery.
        let values = vec![millis(self.lease).into(), self.webhook.to_string().into()];
        let mut claimed = Vec::new();
        for row in tx.query_sql(claim, values).await? {
            let position = row.number("position")?;
            let find =
                format!("SELECT {MESSAGE_COLUMNS} FROM webhook_messages m WHERE m.position = $1");
            let found = tx.query_sql(find, vec![position.into()]).await?;
            // The sweep deletes a message with its deliveries.
            let Some(message) = found.first() else {
                continue;
            };
            let message = read_message(message)?;
            claimed.push(ClaimedDelivery {
                tries: unsigned(
                    "webhook_deliveries.tries",
                    &message.id,
                    row.number("tries")?,
                )?,
                epoch: row.number("lease_epoch")?,
                message,
            });
        }
        Ok(claimed)
    }
}

/// Result of a try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    Delivered,
    /// The next try begins after `wait`. `None`: this was the last one. `pause`: wait of the webhook that the receiver
    /// demands.
    Failed {
        error: String,
        wait: Option<Duration>,
        pause: Option<Duration>,
    },
    /// The receiver exists no more: the webhook is disabled.
    Gone,
}

/// Records a try. False: another replica has claimed the delivery since, or it was queued again.
pub struct RecordDelivery {
    pub webhook: WebhookId,
    pub position: u64,
    pub epoch: i64,
    /// HTTP status of the response.
    pub status: Option<u16>,
    pub result: DeliveryResult,
    pub at: i64,
}

impl Mutation for RecordDelivery {
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let (status, error, wait) = match &self.result {
            DeliveryResult::Delivered => (DeliveryStatus::Delivered, None, Duration::ZERO),
            DeliveryResult::Gone => (DeliveryStatus::Dead, None, Duration::ZERO),
            DeliveryResult::Failed { error, wait, .. } => {
                let status = match wait {
                    Some(_) => DeliveryStatus::Pending,
                    None => DeliveryStatus::Dead,
                };
                (status, Some(error.clone()), wait.unwrap_or_default())
            }
        };
        let update = format!(
            "UPDATE webhook_deliveries SET status = $4, last_status = $5, last_error = $6, finished_at = $7, \
             due_at = {} WHERE webhook_id = $1 AND position = $2 AND lease_epoch = $3 AND status = 'pending' \
             RETURNING position",
            lease_end_sql(tx.backend(), "$8")
        );
        let is_over = status != DeliveryStatus::Pending;
        let values: Vec<Value> = vec![
            self.webhook.to_string().into(),
            signed(self.position).into(),
            self.epoch.into(),
            status.as_str().into(),
            self.status.map(i64::from).into(),
            error.into(),
            is_over.then_some(self.at).into(),
            millis(wait).into(),
        ];
        let is_recorded = !tx.query_sql(update, values).await?.is_empty();
        self.record_health(tx).await?;
        Ok(is_recorded)
    }
}

impl RecordDelivery {
    /// Closes, opens or ends the circuit of the webhook.
    async fn record_health(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let id = || self.webhook.to_string();
        match &self.result {
            DeliveryResult::Delivered => {
                let close = "UPDATE webhooks SET failures = 0, open_until = 0 WHERE id = $1 \
                             AND (failures > 0 OR open_until > 0)";
                tx.execute_sql(close.to_owned(), vec![id().into()]).await
            }
            DeliveryResult::Gone => {
                let disable = "UPDATE webhooks SET enabled = FALSE, disabled_reason = 'gone', \
                               version = version + 1, updated_at = $1 WHERE id = $2 AND enabled";
                let values = vec![self.at.into(), id().into()];
                tx.execute_sql(disable.to_owned(), values).await?;
                delete_filters(tx, self.webhook).await
            }
            DeliveryResult::Failed { pause, .. } => {
                let find = format!(
                    "SELECT failures, open_until FROM webhooks WHERE id = $1 {}",
                    row_lock(tx)
                );
                let found = tx.query_sql(find, vec![id().into()]).await?;
                let Some(row) = found.first() else {
                    return Ok(());
                };
                let failures = unsigned("webhooks.failures", &id(), row.number("failures")?)? + 1;
                let wait = circuit_wait(failures).unwrap_or_default();
                let wait = wait.max(pause.unwrap_or_default());
                let mut open_until = row.number("open_until")?;
                if !wait.is_zero() {
                    open_until = open_until.max(read_now(tx).await? + millis(wait));
                }
                let open = "UPDATE webhooks SET failures = $1, open_until = $2 WHERE id = $3";
                let values = vec![signed(failures).into(), open_until.into(), id().into()];
                tx.execute_sql(open.to_owned(), values).await
            }
        }
    }
}

/// Deliveries of a webhook to try again, as if their messages were new.
pub struct Redeliver {
    pub workspace: WorkspaceId,
    pub webhook: WebhookId,
    /// Only the delivery of this message.
    pub message: Option<String>,
    /// Messages from this time on, in epoch milliseconds.
    pub since: i64,
    /// `None`: all that are not pending.
    pub status: Option<DeliveryStatus>,
    /// Positions after this one.
    pub after: i64,
}

/// A batch of [`Redeliver`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedeliveredBatch {
    pub count: u64,
    /// Position of the last one, if others may follow.
    pub next_after: Option<i64>,
}

impl Mutation for Redeliver {
    type Output = RedeliveredBatch;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<RedeliveredBatch, StoreError> {
        let now = lease_end_sql(tx.backend(), "0");
        let statuses = match self.status {
            Some(status) => format!("= '{}'", status.as_str()),
            None => "<> 'pending'".to_owned(),
        };
        let message = match &self.message {
            Some(_) => "AND m.id = $5",
            None => "",
        };
        // The epoch changes, so that a try in progress records nothing.
        let update = format!(
            "UPDATE webhook_deliveries SET status = 'pending', tries = 0, due_at = {now}, queued_at = {now}, \
             finished_at = NULL, lease_epoch = lease_epoch + 1 WHERE webhook_id = $1 AND position IN \
             (SELECT d.position FROM webhook_deliveries d JOIN webhooks w ON w.id = d.webhook_id \
             JOIN webhook_messages m ON m.position = d.position WHERE d.webhook_id = $1 AND w.workspace_id = $2 \
             AND d.status {statuses} AND d.status <> 'pending' AND m.created_at >= $3 AND d.position > $4 {message} \
             ORDER BY d.position LIMIT {REDELIVERED}) RETURNING position"
        );
        let mut values: Vec<Value> = vec![
            self.webhook.to_string().into(),
            self.workspace.as_str().into(),
            self.since.into(),
            self.after.into(),
        ];
        values.extend(self.message.as_deref().map(Value::from));
        let rows = tx.query_sql(update, values).await?;
        let positions: Result<Vec<_>, _> = rows.iter().map(|row| row.number("position")).collect();
        let positions = positions?;
        let count = positions.len() as u64;
        Ok(RedeliveredBatch {
            count,
            next_after: positions.into_iter().max().filter(|_| count == REDELIVERED),
        })
    }
}

/// A delivery with facts of its message. Times are epoch milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryRecord {
    pub position: u64,
    pub message_id: String,
    pub kind: WebhookEventType,
    pub run_id: Option<RunId>,
    pub status: DeliveryStatus,
    pub tries: u64,
    pub due_at: i64,
    pub last_status: Option<u16>,
    pub last_error: Option<String>,
    pub created_at: i64,
    pub finished_at: Option<i64>,
}

impl Notifications<'_> {
    /// Webhooks whose circuit allows a try of a due delivery.
    pub async fn due_webhooks(self, limit: u64) -> Result<Vec<WebhookRecord>, StoreError> {
        let now = lease_end_sql(self.db.readers.backend(), "0");
        let sql = format!(
            "SELECT {COLUMNS} FROM webhooks WHERE enabled AND open_until <= {now} AND deleted_at IS NULL AND EXISTS \
             (SELECT 1 FROM webhook_deliveries d WHERE d.webhook_id = webhooks.id AND {} {PLAN_FENCE}) \
             ORDER BY open_until, id LIMIT {limit}",
            is_due(&now)
        );
        let found = self.db.readers.query_sql(sql, Vec::new()).await?;
        found.iter().map(read_webhook).collect()
    }

    /// Deliveries of a webhook, newest first, before a position.
    pub async fn newest_deliveries(
        self,
        webhook: WebhookId,
        status: Option<DeliveryStatus>,
        before: Option<i64>,
        limit: u64,
    ) -> Result<ListPage<DeliveryRecord>, StoreError> {
        let mut values: Vec<Value> = vec![
            webhook.to_string().into(),
            before.unwrap_or(i64::MAX).into(),
        ];
        let filter = status.map_or("", |status| {
            values.push(status.as_str().into());
            "AND d.status = $3"
        });
        // One more than the page shows whether another follows.
        let sql = format!(
            "SELECT d.position, m.id, m.event_type, m.run_id, d.status, d.tries, d.due_at, d.last_status, d.last_error, \
             m.created_at, d.finished_at FROM webhook_deliveries d JOIN webhook_messages m ON m.position = d.position \
             WHERE d.webhook_id = $1 AND d.position < $2 {filter} ORDER BY d.position DESC LIMIT {}",
            limit + 1
        );
        let found = self.db.readers.query_sql(sql, values).await?;
        let items = found
            .iter()
            .take(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(ListPage {
            items: items.map(read_delivery).collect::<Result<_, _>>()?,
            has_more: found.len() as u64 > limit,
        })
    }

    /// Pending deliveries, at most `limit`.
    pub async fn count_pending_deliveries(self, limit: u64) -> Result<u64, StoreError> {
        let sql = format!(
            "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM (SELECT 1 FROM webhook_deliveries WHERE status = 'pending' \
             LIMIT {limit}) pending"
        );
        let found = self.db.readers.query_sql(sql, Vec::new()).await?;
        let count = found.first().map_or(Ok(0), |row| row.number("n"))?;
        unsigned("webhook_deliveries", "count", count)
    }
}

fn read_delivery(row: &SqlRow) -> Result<DeliveryRecord, StoreError> {
    let id = row.text("id")?;
    let run_id = row.text_if_any("run_id")?;
    let status = DeliveryStatus::parse(&row.text("status")?);
    let last_status = row.number_if_any("last_status")?;
    Ok(DeliveryRecord {
        position: unsigned("webhook_deliveries.position", &id, row.number("position")?)?,
        kind: event_type(row, &id)?,
        run_id: run_id
            .map(|run| parsed("webhook_messages.run_id", &id, &run))
            .transpose()?,
        status: status.ok_or_else(|| StoreError::Corrupt {
            column: "webhook_deliveries.status",
            row: id.clone(),
        })?,
        tries: unsigned("webhook_deliveries.tries", &id, row.number("tries")?)?,
        due_at: row.number("due_at")?,
        last_status: last_status.and_then(|status| u16::try_from(status).ok()),
        last_error: row.text_if_any("last_error")?,
        created_at: row.number("created_at")?,
        finished_at: row.number_if_any("finished_at")?,
        message_id: id,
    })
}
