//! Reservations of calls in progress: a row per call and budget, until the call is settled. The calling process
//! renews their lease. A reservation without renewal, or of an ended run, is released. A call settled later
//! counts in full.

use std::collections::HashSet;
use std::time::Duration;

use domain::budget::{Amount, Budget, BudgetExceeded, BudgetReached};
use protocol::id::RunId;
use protocol::run::RunStatus;
use protocol::webhook::WebhookEventType;
use sea_orm::sea_query::{Expr, ExprTrait as _, Query};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, Condition, ConnectionTrait, DatabaseTransaction, DbBackend,
    EntityTrait, QueryFilter, QuerySelect,
};
use uuid::Uuid;

use super::{BudgetLine, LOCK, SumKey, add};
use crate::database_clock::{database_now, lease_end, millis, read_now};
use crate::entity::{budget_reservations, runs};
use crate::error::{StoreError, signed, unsigned};
use crate::interactions::raised_to;
use crate::mutation::Mutation;
use crate::repositories::UsageRepository;
use crate::webhooks::{OutboxRow, note_rows};

/// Maximum rows per transaction.
const BATCH: u64 = 200;
/// Ids of one statement: databases limit the number of parameters.
const IDS: usize = 500;

const LIVE: [RunStatus; 4] = [
    RunStatus::Created,
    RunStatus::Queued,
    RunStatus::Claimed,
    RunStatus::Running,
];

/// The budget that refuses a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRefusal {
    /// Index of its line.
    pub line: usize,
    pub exceeded: BudgetExceeded,
}

/// Reserves an amount in every budget, or in none. A call in progress may reserve more.
#[derive(Clone, Debug)]
pub struct ReserveBudget {
    /// The call of the reservation.
    pub call_id: Uuid,
    pub run_id: RunId,
    pub lines: Vec<BudgetLine>,
    pub amount: Amount,
    /// Amount that the call has reserved before. Zero: this is its first reservation.
    pub before: Amount,
    /// Lease of the reservation, see [`UsageRepository::extend_reservations`].
    pub lease: Duration,
}

impl Mutation for ReserveBudget {
    type Output = Result<(), BudgetRefusal>;

    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        (!self.lines.is_empty()).then(|| LOCK.to_owned())
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        // Reserve first, then check: the rows are locked from then on. A refused reservation is reverted.
        for (taken, line) in self.lines.iter().enumerate() {
            let used = add(tx, line.sum(), self.amount, Amount::default()).await?;
            let before = minus(used, self.amount);
            if let Err(exceeded) = self.check(tx, line, before).await? {
                for line in &self.lines[..=taken] {
                    add(tx, line.sum(), Amount::default(), self.amount).await?;
                }
                self.note_reached(tx, line, &exceeded).await?;
                let line = taken;
                return Ok(Err(BudgetRefusal { line, exceeded }));
            }
        }
        if self.before != Amount::default() {
            self.grow_rows(tx).await?;
        } else if !self.lines.is_empty() {
            let until = read_now(tx).await? + millis(self.lease);
            let rows = self.lines.iter().map(|line| self.row(line, until));
            budget_reservations::Entity::insert_many(rows)
                .exec_without_returning(tx)
                .await?;
        }
        Ok(Ok(()))
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        output: &Self::Output,
    ) -> Result<bool, StoreError> {
        if output.is_err() {
            return Ok(false);
        }
        let of_call = budget_reservations::Column::CallId.eq(self.call_id.to_string());
        let found = budget_reservations::Entity::find().filter(of_call);
        let Some(row) = found.one(tx).await? else {
            return Ok(false);
        };
        // An earlier reservation of the call has a smaller amount.
        Ok(amount_of(&row)? == self.before.plus(self.amount))
    }
}

impl ReserveBudget {
    /// Checks the call next to `before`, with the limits that answers have raised for its run.
    async fn check(
        &self,
        tx: &DatabaseTransaction,
        line: &BudgetLine,
        before: Amount,
    ) -> Result<Result<(), BudgetExceeded>, StoreError> {
        let check = |budget: &Budget| {
            if self.before == Amount::default() {
                return budget.check(before, self.amount, line.resets_at);
            }
            // A call in progress has been counted already, and its seconds are settled at its end.
            let of_answer = Budget {
                calls: None,
                wall_ms: None,
                ..budget.clone()
            };
            of_answer.check(before, self.amount, line.resets_at)
        };
        // Read only for calls that the budget itself refuses: they are rare.
        match check(&line.budget) {
            Err(_) if line.budget.reached != BudgetReached::Refuse => {
                let raised = raised_to(tx, self.run_id, line).await?;
                Ok(check(&line.budget.raised(raised)))
            }
            checked => Ok(checked),
        }
    }

    /// Notes the refusal for webhooks, once for each subject, window and limit.
    async fn note_reached(
        &self,
        tx: &DatabaseTransaction,
        line: &BudgetLine,
        exceeded: &BudgetExceeded,
    ) -> Result<(), StoreError> {
        let (name, subject, window) = (&line.budget.name, &line.subject, line.window_start);
        let (what, limit) = (exceeded.what, exceeded.limit);
        let row = OutboxRow {
            run: self.run_id,
            kind: WebhookEventType::BudgetReached,
            subject: name,
            dedupe_key: Some(format!("budget/{window}/{what}/{limit}/{subject}/{name}")),
            at: read_now(tx).await?,
        };
        note_rows(tx, vec![row]).await
    }

    /// Adds the amount to the rows of the call. Without rows, which a lapsed lease has released, nothing is reserved: the
    /// settlement would not find it.
    async fn grow_rows(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        use budget_reservations::Column;
        let total = self.before.plus(self.amount);
        let grown = budget_reservations::Entity::update_many()
            .col_expr(Column::Tokens, Expr::value(signed(total.tokens)))
            .col_expr(Column::CostMicros, Expr::value(signed(total.cost_micros)))
            .filter(Column::CallId.eq(self.call_id.to_string()))
            .exec(tx)
            .await?;
        if grown.rows_affected == 0 {
            for line in &self.lines {
                add(tx, line.sum(), Amount::default(), self.amount).await?;
            }
        }
        Ok(())
    }

    fn row(&self, line: &BudgetLine, until: i64) -> budget_reservations::ActiveModel {
        budget_reservations::ActiveModel {
            call_id: Set(self.call_id.to_string()),
            budget: Set(line.budget.name.clone()),
            subject: Set(line.subject.clone()),
            window_start: Set(line.window_start),
            run_id: Set(self.run_id.to_string()),
            calls: Set(signed(self.amount.calls)),
            tokens: Set(signed(self.amount.tokens)),
            cost_micros: Set(signed(self.amount.cost_micros)),
            wall_ms: Set(signed(self.amount.wall_ms)),
            lease_expires_at: Set(Some(until)),
        }
    }
}

/// Deletes the reservations of a call. Returns their budgets and subjects; missing ones were released earlier.
pub(super) async fn take(
    tx: &impl ConnectionTrait,
    call_id: Uuid,
) -> Result<HashSet<(String, String)>, StoreError> {
    let taken = budget_reservations::Entity::delete_many()
        .filter(budget_reservations::Column::CallId.eq(call_id.to_string()))
        .exec_with_returning(tx)
        .await?;
    Ok(taken
        .into_iter()
        .map(|row| (row.budget, row.subject))
        .collect())
}

struct ExtendReservations {
    call_ids: Vec<Uuid>,
    lease: Duration,
}

impl Mutation for ExtendReservations {
    type Output = ();

    const CHANGES_AGENTS: bool = false;

    // Settling locks the rows of a call one by one, too.
    fn lock(&self) -> Option<String> {
        Some(LOCK.to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        for ids in self.call_ids.chunks(IDS) {
            let calls = ids.iter().map(ToString::to_string);
            budget_reservations::Entity::update_many()
                .col_expr(
                    budget_reservations::Column::LeaseExpiresAt,
                    lease_end(tx.get_database_backend(), self.lease),
                )
                .filter(budget_reservations::Column::CallId.is_in(calls))
                .exec(tx)
                .await?;
        }
        Ok(())
    }
}

struct ReleaseReservations;

impl Mutation for ReleaseReservations {
    type Output = u64;

    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some(LOCK.to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let rows = budget_reservations::Entity::find()
            .filter(abandoned(tx.get_database_backend()))
            .limit(BATCH)
            .all(tx)
            .await?;
        for row in &rows {
            let sum = SumKey {
                budget: &row.budget,
                subject: &row.subject,
                window_start: row.window_start,
            };
            add(tx, sum, Amount::default(), amount_of(row)?).await?;
            let key = (row.call_id.clone(), row.budget.clone(), row.subject.clone());
            budget_reservations::Entity::delete_by_id(key)
                .exec(tx)
                .await?;
        }
        Ok(rows.len() as u64)
    }
}

/// Reservations with an expired lease, usually of a dead process, or of an ended run.
fn abandoned(backend: DbBackend) -> Condition {
    // Older gateways write no lease: their rows end with the run.
    let lapsed = Expr::col(budget_reservations::Column::LeaseExpiresAt).lt(database_now(backend));
    Condition::any().add(lapsed).add(of_ended_runs())
}

fn of_ended_runs() -> Condition {
    let run = (runs::Entity, runs::Column::Id);
    let of_run = (
        budget_reservations::Entity,
        budget_reservations::Column::RunId,
    );
    let live = Query::select()
        .expr(Expr::value(1))
        .from(runs::Entity)
        .and_where(Expr::col(run).equals(of_run))
        .and_where(runs::Column::Status.is_in(LIVE.map(RunStatus::as_str)))
        .to_owned();
    Condition::all().add(Expr::exists(live).not())
}

fn amount_of(row: &budget_reservations::Model) -> Result<Amount, StoreError> {
    let read = |value| unsigned("budget_reservations", &row.call_id, value);
    Ok(Amount {
        calls: read(row.calls)?,
        tokens: read(row.tokens)?,
        cost_micros: read(row.cost_micros)?,
        wall_ms: read(row.wall_ms)?,
    })
}

fn minus(one: Amount, other: Amount) -> Amount {
    Amount {
        calls: one.calls.saturating_sub(other.calls),
        tokens: one.tokens.saturating_sub(other.tokens),
        cost_micros: one.cost_micros.saturating_sub(other.cost_micros),
        wall_ms: one.wall_ms.saturating_sub(other.wall_ms),
    }
}

impl UsageRepository<'_> {
    /// Extends the reservations of these calls by `lease`. Their process repeats this before the lease expires.
    pub async fn extend_reservations(
        self,
        call_ids: Vec<Uuid>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        self.db.write(ExtendReservations { call_ids, lease }).await
    }

    /// Releases a batch of abandoned reservations; returns the number of rows.
    pub async fn release_reservations(self) -> Result<u64, StoreError> {
        // Skips the writer when there is nothing to do.
        let found = budget_reservations::Entity::find()
            .filter(abandoned(self.db.readers.get_database_backend()))
            .one(&self.db.readers)
            .await?;
        match found {
            Some(_) => self.db.write(ReleaseReservations).await,
            None => Ok(0),
        }
    }
}
