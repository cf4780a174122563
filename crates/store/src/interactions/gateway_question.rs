//! Questions of the gateway itself about a live run.

use std::collections::HashSet;

use domain::normalize::RunQuestion;
use protocol::id::{RunId, WorkspaceId};
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use crate::error::{StoreError, signed};
use crate::mutation::Mutation;
use crate::sql::{Sql, returned, text};
use crate::state::lock_live_run;
use crate::webhooks;

/// Sequence of a question without a ledger event: the runner's task is the only writer of the ledger.
pub const GATEWAY_QUESTION: u64 = 0;

/// A question to store.
#[derive(Clone, Debug)]
pub(super) struct GatewayQuestion {
    pub(super) id: Uuid,
    pub(super) workspace: WorkspaceId,
    pub(super) run_id: RunId,
    pub(super) question: RunQuestion,
    /// Epoch milliseconds.
    pub(super) at: i64,
}

/// Inserts questions. Those with an id that their run has used stay as they are.
pub(super) async fn insert_gateway_questions(
    tx: &impl Sql,
    questions: &[GatewayQuestion],
) -> Result<(), StoreError> {
    let rows = questions.iter().map(|one| {
        let question = &one.question;
        [
            Value::from(one.id.to_string()),
            one.workspace.as_str().into(),
            text(one.run_id),
            // The run's task numbers the ledger, and this question is none of its events.
            signed(GATEWAY_QUESTION).into(),
            question.interaction_id.as_str().into(),
            question.request.as_str().into(),
            question.expires_at.saturating_mul(1000).into(),
            one.at.into(),
            question.is_awaited.into(),
        ]
    });
    let sql = "INSERT INTO interactions (id, workspace_id, run_id, sequence, interaction_id, request, expires_at, \
        asked_at, is_awaited) VALUES rows ON CONFLICT (run_id, interaction_id) DO NOTHING RETURNING id";
    let inserted = returned(tx, rows.collect(), sql).await?;
    let inserted: Result<HashSet<_>, _> = inserted.iter().map(|row| row.text("id")).collect();
    let inserted = inserted?;
    let ids: Vec<_> = questions.iter().map(|one| one.id.to_string()).collect();
    // A repeated request asks nothing new.
    let new = questions
        .iter()
        .zip(&ids)
        .filter(|(_, id)| inserted.contains(*id));
    let messages = new.flat_map(|(one, id)| {
        let kinds = webhooks::question_kinds(&one.question);
        webhooks::question(one.run_id, id, one.at, kinds)
    });
    webhooks::note_rows(tx, messages.collect()).await
}

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
        let question = GatewayQuestion {
            id: self.id,
            workspace: self.workspace.clone(),
            run_id: self.run_id,
            question: self.question.clone(),
            at: self.at,
        };
        insert_gateway_questions(tx, &[question]).await?;
        Ok(true)
    }
}
