//! Ends of old deliveries, and deletion of old messages.

use sea_orm::DatabaseTransaction;

use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::RetentionRepository;
use crate::sql::Sql;

/// Maximum rows of a kind per transaction.
const SWEPT: u64 = 500;

/// Ends and deletes what is old. Times are epoch milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct SweepWebhooks {
    /// Pending deliveries that were queued before are dead: their circuit was open for a day.
    pub pending_before: i64,
    /// Delivered ones that were queued before are deleted.
    pub delivered_before: i64,
    /// Messages from before are deleted with all their deliveries.
    pub messages_before: i64,
    pub at: i64,
}

impl Mutation for SweepWebhooks {
    /// Number of changed rows.
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some("webhook sweep".to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let of_age = |status: &str| {
            format!(
                "(webhook_id, position) IN (SELECT webhook_id, position FROM webhook_deliveries \
                 WHERE status = '{status}' AND queued_at < $1 ORDER BY queued_at LIMIT {SWEPT}) AND status = '{status}'"
            )
        };
        let end = format!(
            "UPDATE webhook_deliveries SET status = 'dead', finished_at = $2, \
             last_error = COALESCE(last_error, 'no try succeeded within a day') WHERE {} RETURNING position",
            of_age("pending")
        );
        let values = vec![self.pending_before.into(), self.at.into()];
        let mut count = tx.query_sql(end, values).await?.len();
        let delete = format!(
            "DELETE FROM webhook_deliveries WHERE {} RETURNING position",
            of_age("delivered")
        );
        let values = vec![self.delivered_before.into()];
        count += tx.query_sql(delete, values).await?.len();
        count += self.delete_messages(tx).await?;
        count += delete_of_removed(tx).await?;
        Ok(count as u64)
    }
}

impl SweepWebhooks {
    async fn delete_messages(&self, tx: &DatabaseTransaction) -> Result<usize, StoreError> {
        // A prefix of the positions, so that a reader can tell whether it has missed a message.
        let find = format!(
            "SELECT MAX(o.position) AS last FROM (SELECT position, created_at FROM webhook_messages \
             WHERE position IS NOT NULL ORDER BY position LIMIT {SWEPT}) o WHERE o.created_at < $1"
        );
        let found = tx
            .query_sql(find, vec![self.messages_before.into()])
            .await?;
        let last = found.first().map(|row| row.number_if_any("last"));
        let Some(last) = last.transpose()?.flatten() else {
            return Ok(0);
        };
        let deliveries = "DELETE FROM webhook_deliveries WHERE webhook_id IN (SELECT id FROM webhooks) \
                          AND position <= $1";
        tx.execute_sql(deliveries.to_owned(), vec![last.into()])
            .await?;
        let messages =
            "DELETE FROM webhook_messages WHERE position <= $1 RETURNING position".to_owned();
        let deleted = tx.query_sql(messages, vec![last.into()]).await?;
        let floor = "UPDATE webhook_feed SET deleted_through = $1 WHERE id = 1".to_owned();
        tx.execute_sql(floor, vec![last.into()]).await?;
        Ok(deleted.len())
    }
}

/// Deletes deliveries of a deleted webhook, and its row after the last one.
async fn delete_of_removed(tx: &DatabaseTransaction) -> Result<usize, StoreError> {
    let find = "SELECT id FROM webhooks WHERE deleted_at IS NOT NULL ORDER BY id LIMIT 1";
    let found = tx.query_sql(find.to_owned(), Vec::new()).await?;
    let Some(id) = found.first().map(|row| row.text("id")).transpose()? else {
        return Ok(0);
    };
    let delete = format!(
        "DELETE FROM webhook_deliveries WHERE webhook_id = $1 AND position IN (SELECT position \
         FROM webhook_deliveries WHERE webhook_id = $1 ORDER BY position LIMIT {SWEPT}) RETURNING position"
    );
    let deleted = tx.query_sql(delete, vec![id.as_str().into()]).await?;
    if deleted.is_empty() {
        let row = "DELETE FROM webhooks WHERE id = $1".to_owned();
        tx.execute_sql(row, vec![id.into()]).await?;
    }
    Ok(deleted.len().max(1))
}

impl RetentionRepository<'_> {
    /// Sweeps a batch; returns the number of changed rows.
    pub async fn sweep_webhooks(self, sweep: SweepWebhooks) -> Result<u64, StoreError> {
        // Skips the writer when there is nothing to do.
        let sql = "SELECT 1 FROM webhook_deliveries WHERE status = 'pending' AND queued_at < $1 \
                   UNION ALL SELECT 1 FROM webhook_deliveries WHERE status = 'delivered' AND queued_at < $2 \
                   UNION ALL SELECT 1 FROM webhooks WHERE deleted_at IS NOT NULL \
                   UNION ALL SELECT 1 FROM (SELECT created_at FROM webhook_messages WHERE position IS NOT NULL \
                   ORDER BY position LIMIT 1) o WHERE o.created_at < $3 LIMIT 1";
        let values = vec![
            sweep.pending_before.into(),
            sweep.delivered_before.into(),
            sweep.messages_before.into(),
        ];
        let due = self.db.readers.query_sql(sql.to_owned(), values).await?;
        if due.is_empty() {
            return Ok(0);
        }
        self.db.write(sweep).await
    }
}
