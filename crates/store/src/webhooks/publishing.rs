//! Positions of messages, and deliveries for the webhooks that select them.

use sea_orm::DatabaseTransaction;

use crate::database_clock::lease_end_sql;
use crate::error::{StoreError, unsigned};
use crate::mutation::Mutation;
use crate::repositories::Notifications;
use crate::sql::Sql;

/// Maximum messages per transaction.
const BATCH: u64 = 500;

/// Gives committed messages their positions and deliveries.
pub struct PublishMessages;

impl Mutation for PublishMessages {
    /// The number of published messages.
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        // This lock orders replicas: positions become visible in their order, so a reader misses none.
        let lock = "UPDATE webhook_feed SET position = position WHERE id = 1 RETURNING position";
        let locked = tx.query_sql(lock.to_owned(), Vec::new()).await?;
        let Some(before) = locked.first().map(|row| row.number("position")) else {
            return Ok(0);
        };
        let before = before?;
        let number = format!(
            "UPDATE webhook_messages SET position = $1 + n.number FROM (SELECT seq, ROW_NUMBER() OVER (ORDER BY seq) \
             AS number FROM webhook_messages WHERE position IS NULL ORDER BY seq LIMIT {BATCH}) n \
             WHERE webhook_messages.seq = n.seq"
        );
        tx.execute_sql(number, vec![before.into()]).await?;
        let last = "SELECT MAX(position) AS last FROM webhook_messages".to_owned();
        let last = tx.query_sql(last, Vec::new()).await?;
        let last = last.first().map(|row| row.number_if_any("last"));
        let last = last.transpose()?.flatten().unwrap_or(before);
        if last <= before {
            return Ok(0);
        }
        let now = lease_end_sql(tx.backend(), "0");
        let deliveries = format!(
            "INSERT INTO webhook_deliveries (webhook_id, position, order_key, status, tries, due_at, lease_epoch, \
             queued_at) SELECT f.webhook_id, m.position, COALESCE(m.run_id, m.id), 'pending', 0, {now}, 0, {now} \
             FROM webhook_messages m JOIN webhook_filters f ON f.workspace_id = m.workspace_id \
             AND f.event_type = m.event_type AND f.agent_id IN ('', m.agent_id) \
             JOIN webhooks w ON w.id = f.webhook_id \
             WHERE m.position > $1 AND m.position <= $2 AND w.url IS NOT NULL"
        );
        let range = vec![before.into(), last.into()];
        tx.execute_sql(deliveries, range).await?;
        let advance = "UPDATE webhook_feed SET position = $1 WHERE id = 1".to_owned();
        tx.execute_sql(advance, vec![last.into()]).await?;
        unsigned("webhook_feed.position", "1", last - before)
    }
}

impl Notifications<'_> {
    /// True if a committed message has no position.
    pub async fn has_unpublished_messages(self) -> Result<bool, StoreError> {
        let sql = "SELECT 1 FROM webhook_messages WHERE position IS NULL LIMIT 1".to_owned();
        Ok(!self.db.readers.query_sql(sql, Vec::new()).await?.is_empty())
    }
}
