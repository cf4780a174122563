//! The ledger: event segments of a run, with the other rows of the same transaction.

mod batched;
mod lines;

use protocol::run::RunStatus;
use sea_orm::{DatabaseTransaction, EntityTrait};
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::batch_op::{BatchOp, BatchResult};
use crate::entity::runs;
use crate::error::{StoreError, signed};
use crate::failpoint;
use crate::model::append::{Append, Appended, RunEnd};
use crate::model::audit::AuditEntry;
use crate::mutation::BatchWork;
use crate::sql::{Sql, text};

pub(crate) use batched::{append_all, end_all};
pub use lines::{LedgerRow, RejectionRecord};

impl RunEnd {
    /// Final status of a run: an accepted cancel overrides the runner's results.
    pub fn status_after(&self, cancel_requested_at: Option<i64>) -> RunStatus {
        cancel_requested_at.map_or(self.status, |_| RunStatus::Cancelled)
    }

    /// Bytes of its output and transcript messages.
    fn weight(&self) -> usize {
        let output = self.output.as_ref().map_or(0, String::len);
        let items = self.transcript.iter();
        output + items.map(|item| item.content_json.len()).sum::<usize>()
    }
}

impl BatchWork for Append {
    type Output = Appended;

    fn weight(&self) -> usize {
        let calls = self.accepted.iter();
        let accepted: usize = calls.map(|call| call.payload.len()).sum();
        self.lines.len() + accepted + self.terminal.as_ref().map_or(0, RunEnd::weight)
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn conversation(&self) -> Option<&str> {
        Some(&self.promotion()?.conversation_key)
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        let scopes = self.states.iter();
        scopes
            .map(|update| AdvisoryKey::of(&update.identity))
            .collect()
    }

    fn op(&self) -> BatchOp<'_> {
        match self.terminal {
            Some(_) => BatchOp::End(self),
            None => BatchOp::Append(self),
        }
    }

    fn output_of(&self, done: BatchResult) -> Option<Appended> {
        match done {
            BatchResult::Append(appended) => Some(appended),
            _ => None,
        }
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        appended: &Self::Output,
    ) -> Result<bool, StoreError> {
        let moved = self.to > self.from || self.terminal.is_some();
        if !moved || !matches!(appended, Appended::Written { .. }) {
            return Ok(false);
        }
        let row = runs::Entity::find_by_id(self.run_id.to_string())
            .one(tx)
            .await?;
        Ok(row.is_some_and(|row| {
            let status = self.terminal.as_ref().map_or(RunStatus::Running, |end| {
                end.status_after(row.cancel_requested_at)
            });
            row.fencing_token == self.epoch
                && row.last_sequence == signed(self.to)
                && row.status == status.as_str()
        }))
    }
}

impl Append {
    /// Failpoints before and after its commit.
    pub fn failpoints(&self) -> (&'static str, &'static str) {
        match self.terminal {
            Some(_) => ("terminal.before_commit", "terminal.after_commit"),
            None => ("relay.before_commit", "relay.after_commit"),
        }
    }

    /// Writes state. Updates beyond the limits stay in the ledger alone, with the returned audit rows.
    async fn apply_states(&self, tx: &impl Sql) -> Result<Vec<AuditEntry>, StoreError> {
        let mut audits = Vec::new();
        for update in &self.states {
            failpoint::pass("project.state").await?;
            let (workspace, run) = (&self.workspace, self.run_id);
            let applied = crate::state::apply_update(tx, workspace, run, update, self.at).await?;
            if let Err(full) = applied {
                audits.push(AuditEntry {
                    // A retry inserts another row: the first one was rolled back.
                    id: Uuid::now_v7(),
                    workspace: workspace.clone(),
                    run_id: run,
                    action: "state.updated",
                    resource: format!("{}/{}", update.scope.as_str(), update.key),
                    operation: "state",
                    allowed: false,
                    rule: full.to_string().into(),
                    interaction_id: None,
                    bytes: update.value.len() as u64,
                    at: self.at,
                    is_shared: false,
                });
            }
        }
        Ok(audits)
    }

    /// Detects an earlier commit by its rejections: without a new sequence or an end, the run's row does not
    /// show it.
    async fn is_written(&self, tx: &impl Sql) -> Result<bool, StoreError> {
        if self.to > self.from || self.terminal.is_some() || self.rejections.is_empty() {
            return Ok(false);
        }
        let sql = "SELECT n FROM run_rejections WHERE run_id = $1 AND n = $2";
        let first = vec![text(self.run_id), signed(self.first_rejection).into()];
        Ok(!tx.query_sql(sql.to_owned(), first).await?.is_empty())
    }
}
