//! The ledger: event segments of a run, with the other rows of the same transaction.

mod batched;
mod lines;

use protocol::run::RunStatus;
use sea_orm::{DatabaseTransaction, EntityTrait};
use uuid::Uuid;

use crate::advisory_key::AdvisoryKey;
use crate::batch_op::{BatchOp, BatchResult};
use crate::conversation::lock_all;
use crate::entity::{run_rejections, runs};
use crate::error::{StoreError, signed};
use crate::failpoint;
use crate::interactions::insert_interactions;
use crate::model::append::{Append, Appended, RunEnd};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::release::record_judged;
use crate::sql::inserted;
use crate::transcript::write_transcripts;

use batched::{advance, insert_segments, items_of};

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

impl Mutation for Append {
    type Output = Appended;

    fn weight(&self) -> usize {
        self.lines.len() + self.terminal.as_ref().map_or(0, RunEnd::weight)
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn conversation(&self) -> Option<&str> {
        let promotion = self.terminal.as_ref()?.promotion.as_ref()?;
        Some(&promotion.conversation_key)
    }

    fn advisory_keys(&self) -> Vec<AdvisoryKey> {
        let scopes = self.states.iter();
        scopes
            .map(|update| AdvisoryKey::of(&update.identity))
            .collect()
    }

    const CHANGES_AGENTS: bool = false;

    fn batched(&self) -> Option<BatchOp<'_>> {
        let is_plain = self.to > self.from
            && self.states.is_empty()
            && self.rejections.is_empty()
            && self.audits.is_empty()
            && self.artifacts.is_empty()
            && self.interactions.is_empty()
            && self.judged_through.is_none();
        is_plain.then_some(match self.terminal {
            Some(_) => BatchOp::End(self),
            None => BatchOp::Append(self),
        })
    }

    fn output_of(&self, done: BatchResult) -> Option<Appended> {
        match done {
            BatchResult::Append(appended) => Some(appended),
            _ => None,
        }
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Appended, StoreError> {
        let promotion = self
            .terminal
            .as_ref()
            .and_then(|terminal| terminal.promotion.as_ref());
        lock_all(tx, self.conversation().into_iter()).await?;
        if advance(tx, &[self]).await?.is_empty() {
            return Ok(Appended::Lost);
        }
        if self.is_written(tx).await? {
            return Ok(Appended::Written { next: Vec::new() });
        }
        insert_segments(tx, &[self]).await?;
        insert_interactions(tx, self).await?;
        if let Some(through) = self.judged_through {
            record_judged(tx, self.run_id, through).await?;
        }
        let audits = self.apply_states(tx).await?;
        self.insert_rejections(tx).await?;
        crate::audit::insert(tx, &audits).await?;
        crate::artifacts::bind(tx, self.run_id, &self.artifacts).await?;
        let items: Vec<_> = items_of(self).collect();
        if !items.is_empty() {
            failpoint::pass("project.transcript").await?;
            write_transcripts(tx, items).await?;
        }
        let next = match promotion {
            Some(promotion) => promotion.promote(tx, self).await?,
            None => Vec::new(),
        };
        failpoint::pass(self.failpoints().0).await?;
        Ok(Appended::Written { next })
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        appended: &Self::Output,
    ) -> Result<bool, StoreError> {
        let moved = self.to > self.from || self.terminal.is_some();
        if !moved || *appended == Appended::Lost {
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

    /// Writes state. Updates beyond the limits stay in the ledger alone, with an audit row.
    async fn apply_states(&self, tx: &DatabaseTransaction) -> Result<Vec<AuditEntry>, StoreError> {
        let mut audits = self.audits.clone();
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
    async fn is_written(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        if self.to > self.from || self.terminal.is_some() || self.rejections.is_empty() {
            return Ok(false);
        }
        let first = (self.run_id.to_string(), signed(self.first_rejection));
        let found = run_rejections::Entity::find_by_id(first).one(tx).await?;
        Ok(found.is_some())
    }

    async fn insert_rejections(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        let numbered = self.rejections.iter().zip(self.first_rejection..);
        let rows = numbered.map(|(rejection, n)| {
            let number = rejection.runner_sequence.map(|number| number.to_string());
            [
                self.run_id.to_string().into(),
                signed(n).into(),
                rejection.reason.as_str().into(),
                number.into(),
                signed(rejection.bytes as u64).into(),
                rejection.excerpt.as_str().into(),
                self.at.into(),
                rejection.message.as_str().into(),
            ]
        });
        let into =
            "run_rejections (run_id, n, reason, runner_sequence, bytes, excerpt, at, message)";
        inserted(tx, into, rows.collect()).await
    }
}
