//! Cancel requests.

use domain::run::Run;
use protocol::id::{RunId, WorkspaceId};
use protocol::principal::Principal;
use protocol::run::RunStatus;
use sea_orm::sea_query::Expr;
use sea_orm::{ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter};
use uuid::Uuid;

use crate::entity::runs;
use crate::error::StoreError;
use crate::failpoint;
use crate::mutation::Mutation;
use crate::repositories::RunRepository;
use crate::runs::find;

/// A cancel request.
#[derive(Clone, Debug)]
pub struct CancelCause {
    pub by: Principal,
    /// The status reason of the run. `None`: no reason.
    pub reason: Option<String>,
}

impl From<Principal> for CancelCause {
    fn from(by: Principal) -> Self {
        Self { by, reason: None }
    }
}

/// Result of a cancel request.
#[derive(Clone, Debug)]
pub enum CancelOutcome {
    /// Recorded: the run's owner will end it.
    Requested(Box<Run>),
    /// The run had already ended.
    Ended(Box<Run>),
    Unknown,
}

impl RunRepository<'_> {
    /// Records a cancel request. The run's owner acts on it; the first request stays.
    pub async fn request_cancel(
        self,
        workspace: &WorkspaceId,
        id: RunId,
        request: CancelCause,
        at: i64,
    ) -> Result<CancelOutcome, StoreError> {
        self.db
            .write(RequestCancel {
                workspace: workspace.clone(),
                id,
                request,
                at,
            })
            .await
    }
}

struct RequestCancel {
    workspace: WorkspaceId,
    id: RunId,
    request: CancelCause,
    at: i64,
}

impl Mutation for RequestCancel {
    type Output = CancelOutcome;

    fn order(&self) -> Uuid {
        self.id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<CancelOutcome, StoreError> {
        let live = [
            RunStatus::Created,
            RunStatus::Queued,
            RunStatus::Claimed,
            RunStatus::Running,
        ];
        let mut update = runs::Entity::update_many()
            .col_expr(runs::Column::CancelRequestedAt, Expr::value(self.at))
            .col_expr(
                runs::Column::CancelledBy,
                Expr::value(self.request.by.stored()),
            );
        // Without a reason the column keeps its value.
        if let Some(reason) = &self.request.reason {
            update = update.col_expr(runs::Column::StatusReason, Expr::value(reason.as_str()));
        }
        update
            .filter(runs::Column::Id.eq(self.id.to_string()))
            .filter(runs::Column::WorkspaceId.eq(self.workspace.as_str()))
            .filter(runs::Column::Status.is_in(live.map(RunStatus::as_str)))
            // The first request stays: its time and reason are what the client saw.
            .filter(runs::Column::CancelRequestedAt.is_null())
            .exec(tx)
            .await?;
        failpoint::pass("cancel.before_commit").await?;
        // Read in the same transaction: the run may have ended just before.
        Ok(match find(tx, &self.workspace, self.id).await? {
            None => CancelOutcome::Unknown,
            Some(run) if run.status.is_terminal() => CancelOutcome::Ended(Box::new(run)),
            Some(run) => CancelOutcome::Requested(Box::new(run)),
        })
    }
}
