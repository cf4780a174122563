//! Approvals that amend the grant of their run, and their events in its ledger.

use protocol::id::RunId;

use super::{ApprovalRecord, COLUMNS, read_approval};
use crate::error::{StoreError, signed};
use crate::model::append::Append;
use crate::repositories::InteractionRepository;
use crate::sql::{Sql, executed, text};

/// Maximum amendments of one read without an event. The next read finds the others.
const UNANNOUNCED: u64 = 8;
/// Maximum amendments of a run that are listed: a run has fewer questions about them.
const LISTED: u64 = 200;

impl InteractionRepository<'_> {
    /// Amendments of a run, oldest first.
    pub async fn amendments_of_run(self, run: RunId) -> Result<Vec<ApprovalRecord>, StoreError> {
        let condition = format!("ORDER BY id LIMIT {LISTED}");
        self.found_amendments(run, &condition).await
    }

    /// Amendments of a run whose events are not in its ledger, at most 8.
    pub async fn unannounced_amendments(
        self,
        run: RunId,
    ) -> Result<Vec<ApprovalRecord>, StoreError> {
        let condition = format!("AND sequence IS NULL ORDER BY id LIMIT {UNANNOUNCED}");
        self.found_amendments(run, &condition).await
    }

    async fn found_amendments(
        self,
        run: RunId,
        condition: &str,
    ) -> Result<Vec<ApprovalRecord>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM approvals WHERE run_id = $1 AND definition_sha256 IS NOT NULL {condition}"
        );
        let rows = self.db.readers.query_sql(sql, vec![text(run)]).await?;
        rows.iter().map(read_approval).collect()
    }

    /// True if a ticket may answer an equal call of the run: one with the same key, or of an earlier attempt.
    pub async fn has_ticket(
        self,
        run: RunId,
        request_sha256: &str,
        key: Option<&str>,
        attempt: u32,
    ) -> Result<bool, StoreError> {
        let sql = "SELECT key FROM tool_calls WHERE run_id = $1 AND request_sha256 = $2 \
            AND (key = $3 OR attempt < $4) LIMIT 1";
        let values = vec![
            text(run),
            request_sha256.into(),
            key.unwrap_or_default().into(),
            i64::from(attempt).into(),
        ];
        let rows = self.db.readers.query_sql(sql.to_owned(), values).await?;
        Ok(!rows.is_empty())
    }
}

/// Writes the sequences of events that announce amendments.
pub(crate) async fn write_announced_amendments(
    tx: &impl Sql,
    appends: &[&Append],
) -> Result<(), StoreError> {
    let announced = appends.iter().flat_map(|append| &append.amended);
    let rows = announced.map(|(id, sequence)| [id.to_string().into(), signed(*sequence).into()]);
    let sql = "UPDATE approvals SET sequence = ?2 FROM rows WHERE approvals.id = ?1";
    executed(tx, rows.collect(), sql).await
}
