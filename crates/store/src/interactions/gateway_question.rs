//! Questions of the gateway itself about a live run.

use domain::normalize::RunQuestion;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::sql::{Sql as _, text};
use crate::state::lock_live_run;
use crate::webhooks;

/// Sequence of a question without a ledger event: the runner's task is the only writer of the ledger.
pub const GATEWAY_QUESTION: u64 = 0;

/// Stores a question about a live run. A question with the same id stays as it is.
#[derive(Clone, Debug)]
pub struct AskAboutRun {
    /// The gateway's id of the question.
    pub id: Uuid,
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub question: RunQuestion,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Mutation for AskAboutRun {
    /// False if the run has ended.
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        self.question.request.len()
    }

    /// Idempotent.
    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(false);
        }
        let sql = format!(
            "INSERT INTO interactions (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, \
             asked_at, is_awaited) VALUES ($1, $2, $3, {GATEWAY_QUESTION}, $4, $5, $6, $7, $8) \
             ON CONFLICT (run_id, interaction_id) DO NOTHING RETURNING id"
        );
        let (id, question) = (self.id.to_string(), &self.question);
        let values = vec![
            id.as_str().into(),
            self.workspace.as_str().into(),
            text(self.run_id),
            question.interaction_id.as_str().into(),
            question.request.as_str().into(),
            question.expires_at.saturating_mul(1000).into(),
            self.at.into(),
            question.is_awaited.into(),
        ];
        // A repeated request asks nothing new.
        if !tx.query_sql(sql, values).await?.is_empty() {
            let kinds = webhooks::question_kinds(question);
            let messages = webhooks::question(self.run_id, &id, self.at, kinds);
            webhooks::note_rows(tx, messages.collect()).await?;
        }
        Ok(true)
    }
}
