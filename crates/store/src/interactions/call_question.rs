//! The gateway's questions whether a live run may call a tool.

use domain::approval::{ApprovalDecision, decision_of};
use domain::normalize::RunQuestion;
use protocol::id::{RunId, WorkspaceId};
use protocol::interaction::AwaitedInteraction;
use sea_orm::DatabaseTransaction;
use uuid::Uuid;

use super::gateway_question::{GatewayQuestion, insert_gateway_questions};
use crate::error::{StoreError, parsed_json};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::sql::{Sql, text};
use crate::state::lock_live_run;

/// Questions about calls after which a run asks for no amendment: a run that tries out names must not fill the inbox.
const MAX_QUESTIONS: i64 = 100;

/// Asks about a call of a live run, unless an open question or a denial is about the same call.
#[derive(Clone, Debug)]
pub struct AskAboutCall {
    /// The gateway's id of a new question.
    pub id: Uuid,
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub question: RunQuestion,
    /// Tool and parameters as canonical JSON.
    pub call: String,
    /// Hash of `call`.
    pub call_sha256: String,
    /// Audit row of a call that the run was not granted, written with its question. `None`: it was granted the tool.
    pub denial: Option<AuditEntry>,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of a question about a call.
#[derive(Clone, Debug, PartialEq)]
pub enum AskedAboutCall {
    /// A question is open. `id`: the gateway's; `interaction_id`: its id in the run.
    Open {
        id: String,
        interaction_id: String,
    },
    /// A person denied the same call of this run before.
    Denied(AwaitedInteraction),
    /// The run has as many questions about calls as amendments may add to.
    Full,
    RunEnded,
}

impl Mutation for AskAboutCall {
    type Output = AskedAboutCall;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        self.question.request.len() + self.call.len()
    }

    /// Idempotent: an applied question is open.
    async fn apply(&self, tx: &DatabaseTransaction) -> Result<AskedAboutCall, StoreError> {
        // Orders the questions about equal calls.
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(AskedAboutCall::RunEnded);
        }
        let sql = "SELECT id, interaction_id, given_answer, closed_at, expires_at FROM interactions \
            WHERE run_id = $1 AND held_sha256 = $2 ORDER BY id DESC LIMIT 1";
        let values = vec![text(self.run_id), self.call_sha256.as_str().into()];
        let found = tx.query_sql(sql.to_owned(), values).await?;
        if let Some(row) = found.first() {
            let id = row.text("id")?;
            match row.text_if_any("given_answer")? {
                Some(given) => {
                    let given = parsed_json("interactions.given_answer", &id, &given)?;
                    if is_denial(&given) {
                        return Ok(AskedAboutCall::Denied(given));
                    }
                    // An approval was used, revoked or has expired: the next call needs another one.
                }
                None if row.number_if_any("closed_at")?.is_none()
                    && row.number("expires_at")? > self.at =>
                {
                    let interaction_id = row.text("interaction_id")?;
                    return Ok(AskedAboutCall::Open { id, interaction_id });
                }
                None => {}
            }
        }
        if let Some(denial) = &self.denial {
            if count_questions(tx, self.run_id).await? >= MAX_QUESTIONS {
                return Ok(AskedAboutCall::Full);
            }
            // With the question: polls for its answer are no further denials.
            crate::audit::insert(tx, [denial]).await?;
        }
        let question = GatewayQuestion {
            id: self.id,
            workspace: self.workspace.clone(),
            run_id: self.run_id,
            question: self.question.clone(),
            at: self.at,
        };
        insert_gateway_questions(tx, &[question]).await?;
        let sql =
            "UPDATE interactions SET held_call = $2, held_sha256 = $3 WHERE id = $1".to_owned();
        let values = vec![
            self.id.to_string().into(),
            self.call.as_str().into(),
            self.call_sha256.as_str().into(),
        ];
        tx.execute_sql(sql, values).await?;
        Ok(AskedAboutCall::Open {
            id: self.id.to_string(),
            interaction_id: self.question.interaction_id.clone(),
        })
    }
}

async fn count_questions(tx: &impl Sql, run: RunId) -> Result<i64, StoreError> {
    let sql = "SELECT CAST(COUNT(*) AS BIGINT) AS n FROM interactions WHERE run_id = $1 AND held_sha256 IS NOT NULL";
    let counted = tx.query_sql(sql.to_owned(), vec![text(run)]).await?;
    counted.first().map_or(Ok(0), |row| row.number("n"))
}

fn is_denial(given: &AwaitedInteraction) -> bool {
    let AwaitedInteraction::Submitted { action_id, .. } = given else {
        return false;
    };
    decision_of(action_id.as_deref()) == Some(ApprovalDecision::Deny)
}
