//! Dispatch intents: written before the POST, so an uncertain POST is never repeated.

mod batched;

use domain::run::Run;
use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::{ColumnTrait, EntityTrait, QueryFilter, QueryOrder};
use uuid::Uuid;

use crate::batch_op::{BatchOp, BatchResult};
use crate::entity::run_attempts;
use crate::error::StoreError;
use crate::model::dispatch::{AttemptOutcome, Dispatch, Dispatched};
use crate::mutation::BatchWork;
use crate::page::{PageBound, PageOf, ReadBudget};
use crate::repositories::RunRepository;
use crate::shared_parts::restore_text;
use crate::sql::{Sql, text};

pub(crate) use batched::{DispatchIntent, dispatch_all, insert_intents, note_all};

impl Dispatch {
    /// True for the first attempt, which starts the run's time.
    pub(crate) fn begins(&self) -> bool {
        self.run.status == RunStatus::Created
    }
}

impl BatchWork for Dispatch {
    type Output = Dispatched;

    fn order(&self) -> Uuid {
        self.run.id.0
    }

    fn weight(&self) -> usize {
        self.context.get().len()
    }

    fn op(&self) -> BatchOp<'_> {
        BatchOp::Dispatch(self)
    }

    fn output_of(&self, done: BatchResult) -> Option<Dispatched> {
        match done {
            BatchResult::Dispatch(dispatched) => Some(dispatched),
            _ => None,
        }
    }
}

impl Dispatch {
    /// The run as its row is after the dispatch, with time and reason of a cancel request.
    pub(crate) fn taken(
        &self,
        cancel_requested_at: Option<i64>,
        status_reason: Option<String>,
    ) -> Run {
        let mut run = Run {
            status: RunStatus::Running,
            attempt: self.attempt,
            fencing_token: self.run.fencing_token + 1,
            cancel_requested_at,
            status_reason,
            ..self.run.clone()
        };
        if self.begins() {
            run.started_at = Some(self.at);
            run.deadline_at = self.deadline_at;
        }
        run
    }

    /// The run, if this dispatch took it and the commit's reply was lost. The same owner may have taken the run to
    /// end it, so the intent itself must match.
    pub(crate) async fn find_own(&self, tx: &impl Sql) -> Result<Dispatched, StoreError> {
        let sql = "SELECT r.cancel_requested_at, r.status_reason FROM runs r, run_attempts a \
                   WHERE r.id = $1 AND r.status = $2 AND r.lease_epoch = $3 AND r.lease_owner = $4 \
                   AND r.attempt = $5 AND a.run_id = r.id AND a.attempt = r.attempt \
                   AND a.intent_at = $6 AND a.context = $7";
        let values = vec![
            text(self.run.id),
            RunStatus::Running.as_str().into(),
            (self.run.fencing_token + 1).into(),
            self.owner.as_str().into(),
            i64::from(self.attempt).into(),
            self.at.into(),
            // Stored without its shared parts, so it is compared without them.
            self.shared.apart(self.context.get()).text.into(),
        ];
        let rows = tx.query_sql(sql.to_owned(), values).await?;
        let Some(row) = rows.first() else {
            return Ok(Dispatched::Lost);
        };
        let cancel_requested_at = row.number_if_any("cancel_requested_at")?;
        let run = self.taken(cancel_requested_at, row.text_if_any("status_reason")?);
        Ok(Dispatched::Owned(Box::new(run)))
    }
}

/// Outcome of an attempt with streamed results.
pub const STARTED: &str = "started";

impl BatchWork for AttemptOutcome {
    type Output = ();

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn op(&self) -> BatchOp<'_> {
        BatchOp::Outcome(self)
    }

    fn output_of(&self, _done: BatchResult) -> Option<()> {
        Some(())
    }
}

impl RunRepository<'_> {
    /// Records the outcome of an attempt, without waiting for the commit.
    pub async fn record_attempt(
        self,
        run_id: RunId,
        attempt: u32,
        outcome: &str,
        http_status: Option<u16>,
    ) -> Result<(), StoreError> {
        let http_status = http_status.map(i64::from);
        let outcome = outcome.to_owned();
        self.db
            .write_later(AttemptOutcome {
                run_id,
                attempt,
                outcome,
                http_status,
            })
            .await
    }

    /// True when the runner streams the results of this attempt, and so appends none.
    pub async fn is_streaming(self, run_id: RunId, attempt: u32) -> Result<bool, StoreError> {
        let key = (run_id.to_string(), i64::from(attempt));
        let row = run_attempts::Entity::find_by_id(key);
        let row = row.one(&self.db.readers).await?;
        Ok(row.is_some_and(|row| row.outcome.as_deref() == Some(STARTED)))
    }

    /// The context of the run's newest attempt, as sent. A resume sends none.
    pub async fn find_context(
        self,
        run_id: RunId,
        budget: ReadBudget<'_>,
    ) -> Result<Option<String>, StoreError> {
        let own = run_attempts::Column::RunId.eq(run_id.to_string());
        let page = PageOf {
            rows: run_attempts::Entity::find()
                .filter(own.clone())
                .filter(run_attempts::Column::Context.ne("null"))
                .order_by_desc(run_attempts::Column::Attempt),
            key: run_attempts::Column::Attempt,
            owner: own.into(),
            without: None,
        };
        let bound = PageBound { budget, ..1.into() };
        let newest = page.read::<i64>(&self.db.readers, bound).await?.items.pop();
        let Some(attempt) = newest else {
            return Ok(None);
        };
        let restored = restore_text(self.db, &attempt.run_id, attempt.context, budget);
        restored.await.map(Some)
    }
}
