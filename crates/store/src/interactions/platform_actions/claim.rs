//! Claims of platform actions and their results: one claim wins, and only its holder reports the result.

use protocol::id::{RunId, WorkspaceId};
use protocol::platform_action::PlatformActionStatus;
use sea_orm::{DatabaseTransaction, Value};
use uuid::Uuid;

use super::super::locked_run::{LockedRun, lock_run};
use super::{PlatformActionRecord, find};
use crate::error::StoreError;
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::sql::Sql as _;

/// Claims an action, or extends a claim.
#[derive(Clone, Debug)]
pub struct ClaimPlatformAction {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub id: String,
    pub purpose: ClaimPurpose,
    /// Hex SHA-256 of the claim's token: a copy of the database reports no results.
    pub token_sha256: String,
    /// The claiming API key.
    pub claimed_by: String,
    pub lease_ms: i64,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Purpose of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimPurpose {
    New,
    /// Extends the claim with the same token.
    Extension,
}

/// Result of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionClaim {
    Claimed(Box<PlatformActionRecord>),
    /// Another program has claimed it, or the token is not that of its claim.
    Taken,
    /// It is not open any more, or not yet.
    NotOpen(PlatformActionStatus),
    Absent,
}

impl Mutation for ClaimPlatformAction {
    type Output = ActionClaim;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ActionClaim, StoreError> {
        // First: all changes of the actions of a run take this lock, so they wait in one order.
        let run = lock_run(tx, &self.workspace, self.run_id).await?;
        let Some(found) = find(tx, &self.workspace, &self.id).await? else {
            return Ok(ActionClaim::Absent);
        };
        let is_own = found.claim_sha256.as_ref() == Some(&self.token_sha256);
        match found.status_at(self.at) {
            PlatformActionStatus::Open if self.purpose == ClaimPurpose::New => {}
            // Also a repetition of a claim whose commit lost its reply.
            PlatformActionStatus::Claimed if is_own => {}
            PlatformActionStatus::Open | PlatformActionStatus::Claimed => {
                return Ok(ActionClaim::Taken);
            }
            status => return Ok(ActionClaim::NotOpen(status)),
        }
        if matches!(run, Some(LockedRun::Cancelled)) && !is_own {
            return Ok(ActionClaim::NotOpen(PlatformActionStatus::Cancelled));
        }
        let sql = "UPDATE platform_actions SET status = 'claimed', claim_sha256 = $3, claimed_by = $4, \
            claimed_at = COALESCE(claimed_at, $5), expires_at = $5 + $6 WHERE workspace_id = $1 AND id = $2 \
            AND (status = 'open' OR (status = 'claimed' AND claim_sha256 = $3)) RETURNING id";
        let values: Vec<Value> = vec![
            self.workspace.as_str().into(),
            self.id.as_str().into(),
            self.token_sha256.as_str().into(),
            self.claimed_by.as_str().into(),
            self.at.into(),
            self.lease_ms.into(),
        ];
        if tx.query_sql(sql.to_owned(), values).await?.is_empty() {
            return Ok(ActionClaim::Taken);
        }
        let claimed = find(tx, &self.workspace, &self.id).await?;
        Ok(claimed.map_or(ActionClaim::Absent, |found| {
            ActionClaim::Claimed(Box::new(found))
        }))
    }
}

/// Stores the result of a claimed action.
#[derive(Clone, Debug)]
pub struct FinishPlatformAction {
    pub workspace: WorkspaceId,
    pub run_id: RunId,
    pub id: String,
    /// Hex SHA-256 of the claim's token.
    pub token_sha256: String,
    /// `Done` or `Failed`.
    pub status: PlatformActionStatus,
    /// `output` or `error` as JSON.
    pub result: Option<String>,
    /// Hash that identifies a repeated result.
    pub result_sha256: String,
    /// Written if the result is accepted.
    pub audit: AuditEntry,
    /// Epoch milliseconds.
    pub at: i64,
}

/// Result of [`FinishPlatformAction`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActionResultStored {
    Stored(Box<PlatformActionRecord>),
    /// The same result was stored before.
    Same(Box<PlatformActionRecord>),
    /// Another result was stored before.
    Other,
    /// The token is not that of the claim.
    NotClaimed,
    /// The claim has ended, or the action was never claimed in time.
    Late,
    Absent,
}

impl Mutation for FinishPlatformAction {
    type Output = ActionResultStored;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        self.result.as_ref().map_or(0, String::len)
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ActionResultStored, StoreError> {
        lock_run(tx, &self.workspace, self.run_id).await?;
        let Some(found) = find(tx, &self.workspace, &self.id).await? else {
            return Ok(ActionResultStored::Absent);
        };
        if found.claim_sha256.as_ref() != Some(&self.token_sha256) {
            return Ok(ActionResultStored::NotClaimed);
        }
        match found.status_at(self.at) {
            PlatformActionStatus::Claimed => {}
            PlatformActionStatus::Done | PlatformActionStatus::Failed => {
                let is_same = found.result_sha256.as_ref() == Some(&self.result_sha256);
                return Ok(if is_same {
                    ActionResultStored::Same(Box::new(found))
                } else {
                    ActionResultStored::Other
                });
            }
            _ => return Ok(ActionResultStored::Late),
        }
        let sql = "UPDATE platform_actions SET status = $3, result = $4, result_sha256 = $5, finished_at = $6 \
            WHERE workspace_id = $1 AND id = $2 AND status = 'claimed' AND claim_sha256 = $7 RETURNING id";
        let values: Vec<Value> = vec![
            self.workspace.as_str().into(),
            self.id.as_str().into(),
            self.status.as_str().into(),
            self.result.clone().into(),
            self.result_sha256.as_str().into(),
            self.at.into(),
            self.token_sha256.as_str().into(),
        ];
        if tx.query_sql(sql.to_owned(), values).await?.is_empty() {
            return Ok(ActionResultStored::Late);
        }
        crate::audit::insert(tx, [&self.audit]).await?;
        let finished = find(tx, &self.workspace, &self.id).await?;
        Ok(finished.map_or(ActionResultStored::Absent, |found| {
            ActionResultStored::Stored(Box::new(found))
        }))
    }
}
