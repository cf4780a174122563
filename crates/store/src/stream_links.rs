//! Links to the stream of one run. Only the hash of a link's token is stored.

use protocol::id::{ApiKeyId, RunId, WorkspaceId};
use sea_orm::{DatabaseTransaction, Value};

use crate::error::{StoreError, parsed};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::repositories::{RetentionRepository, RunRepository};
use crate::sql::{Sql, SqlRow};

/// Maximum links deleted per transaction.
const SWEPT: u64 = 500;

/// The run and the creator of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLink {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub key: ApiKeyId,
}

/// A new link. Times are epoch milliseconds.
#[derive(Clone, Debug)]
pub struct CreateStreamLink {
    pub link: StreamLink,
    pub token_sha256: String,
    /// The stream must be opened before this.
    pub expires_at: i64,
    pub audit: AuditEntry,
}

impl Mutation for CreateStreamLink {
    type Output = ();
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let sql = "INSERT INTO stream_links (token_sha256, workspace_id, run_id, api_key_id, expires_at) \
                   VALUES ($1, $2, $3, $4, $5)";
        let values: Vec<Value> = vec![
            self.token_sha256.as_str().into(),
            self.link.workspace.as_str().into(),
            self.link.run_id.to_string().into(),
            self.link.key.to_string().into(),
            self.expires_at.into(),
        ];
        tx.execute_sql(sql.to_owned(), values).await?;
        crate::audit::insert(tx, [&self.audit]).await
    }

    async fn is_committed(&self, tx: &DatabaseTransaction, (): &()) -> Result<bool, StoreError> {
        crate::audit::is_recorded(tx, &self.audit).await
    }
}

/// A stored link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredStreamLink {
    pub link: StreamLink,
    pub is_opened: bool,
    /// End of the time in which the stream can be opened or, once opened, resumed.
    pub expires_at: i64,
}

/// Opens the stream of a link for the first and only time. Times are epoch milliseconds.
#[derive(Clone, Debug)]
pub struct OpenStreamLink {
    pub token_sha256: String,
    /// The opened stream can be resumed before this.
    pub resumable_until: i64,
    pub at: i64,
    pub audit: AuditEntry,
}

impl Mutation for OpenStreamLink {
    /// False: the link was opened before, or has expired.
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        let sql = "UPDATE stream_links SET opened_at = $2, expires_at = $3 WHERE token_sha256 = $1 \
                   AND opened_at IS NULL AND expires_at > $2 RETURNING run_id";
        let values: Vec<Value> = vec![
            self.token_sha256.as_str().into(),
            self.at.into(),
            self.resumable_until.into(),
        ];
        if tx.query_sql(sql.to_owned(), values).await?.is_empty() {
            return Ok(false);
        }
        crate::audit::insert(tx, [&self.audit]).await?;
        Ok(true)
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &bool,
    ) -> Result<bool, StoreError> {
        Ok(*output && crate::audit::is_recorded(tx, &self.audit).await?)
    }
}

impl RunRepository<'_> {
    /// A link by the hash of its token.
    pub async fn find_stream_link(
        self,
        token_sha256: &str,
    ) -> Result<Option<StoredStreamLink>, StoreError> {
        let sql = "SELECT workspace_id, run_id, api_key_id, expires_at, opened_at FROM stream_links \
                   WHERE token_sha256 = $1";
        let values = vec![token_sha256.into()];
        let found = self.db.readers.query_sql(sql.to_owned(), values).await?;
        found.first().map(read_link).transpose()
    }
}

fn read_link(row: &SqlRow) -> Result<StoredStreamLink, StoreError> {
    let (run, key) = (row.text("run_id")?, row.text("api_key_id")?);
    Ok(StoredStreamLink {
        link: StreamLink {
            workspace: WorkspaceId(row.text("workspace_id")?),
            run_id: parsed("stream_links.run_id", &run, &run)?,
            key: parsed("stream_links.api_key_id", &run, &key)?,
        },
        is_opened: row.number_if_any("opened_at")?.is_some(),
        expires_at: row.number("expires_at")?,
    })
}

struct SweepStreamLinks {
    at: i64,
}

impl Mutation for SweepStreamLinks {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        // In one order, so that replicas do not deadlock.
        let sql = format!(
            "DELETE FROM stream_links WHERE token_sha256 IN (SELECT token_sha256 FROM stream_links \
             WHERE expires_at < $1 ORDER BY expires_at, token_sha256 LIMIT {SWEPT}) RETURNING run_id"
        );
        let deleted = tx.query_sql(sql, vec![self.at.into()]).await?;
        Ok(deleted.len() as u64)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of expired links; returns their number. `at`: epoch milliseconds.
    pub async fn sweep_stream_links(self, at: i64) -> Result<u64, StoreError> {
        // Skips the writer when there is nothing to do.
        let sql = "SELECT 1 FROM stream_links WHERE expires_at < $1 LIMIT 1";
        let old = self
            .db
            .readers
            .query_sql(sql.to_owned(), vec![at.into()])
            .await?;
        if old.is_empty() {
            return Ok(0);
        }
        self.db.write(SweepStreamLinks { at }).await
    }
}
