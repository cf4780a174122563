//! What is reserved for calls that go on: a row for each budget of each call, until the call is settled. The process
//! that makes the call renews the lease of its rows; what is not renewed, or whose run has ended, is given back. A
//! call that is settled after that counts in full.

use std::collections::HashSet;
use std::time::Duration;

use domain::budget::{Amount, Exceeded};
use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, ExprTrait as _, Query};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, Condition, ConnectionTrait, DatabaseTransaction, DbBackend,
    EntityTrait, QueryFilter, QuerySelect,
};
use uuid::Uuid;

use super::{BudgetLine, LOCK, Sum, add};
use crate::connect::Store;
use crate::database_clock::{database_now, lease_end, millis, read_now};
use crate::entity::{budget_reservations, runs};
use crate::error::{StoreError, signed, unsigned};
use crate::writer::Work;

/// Rows of one transaction.
const BATCH: u64 = 200;
/// Ids of one statement: databases bound the number of its values.
const IDS: usize = 500;

const LIVE: [RunStatus; 4] = [
    RunStatus::Created,
    RunStatus::Queued,
    RunStatus::Claimed,
    RunStatus::Running,
];

/// Takes an amount out of every budget, or out of none.
#[derive(Clone, Debug)]
pub struct ReserveBudget {
    /// The call that it is for.
    pub call_id: Uuid,
    pub run_id: RunId,
    pub lines: Vec<BudgetLine>,
    pub amount: Amount,
    /// How long it is reserved unless that is renewed: see [`Store::hold_reservations`].
    pub lease: Duration,
}

impl Work for ReserveBudget {
    type Output = Result<(), Exceeded>;

    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        (!self.lines.is_empty()).then(|| LOCK.to_owned())
    }

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Self::Output, StoreError> {
        // Taken first and looked at after: the rows are ours from then on. What is refused is given back.
        for (taken, line) in self.lines.iter().enumerate() {
            let used = add(tx, line.sum(), self.amount, Amount::default()).await?;
            let before = minus(used, self.amount);
            if let Err(exceeded) = line.budget.check(before, self.amount, line.resets_at) {
                for line in &self.lines[..=taken] {
                    add(tx, line.sum(), Amount::default(), self.amount).await?;
                }
                return Ok(Err(exceeded));
            }
        }
        if !self.lines.is_empty() {
            let until = read_now(tx).await? + millis(self.lease);
            let rows = self.lines.iter().map(|line| self.row(line, until));
            budget_reservations::Entity::insert_many(rows)
                .exec_without_returning(tx)
                .await?;
        }
        Ok(Ok(()))
    }

    async fn stands(
        &self,
        tx: &DatabaseTransaction,
        told: &Self::Output,
    ) -> Result<bool, StoreError> {
        if told.is_err() {
            return Ok(false);
        }
        let of_call = budget_reservations::Column::CallId.eq(self.call_id.to_string());
        let found = budget_reservations::Entity::find().filter(of_call);
        Ok(found.one(tx).await?.is_some())
    }
}

impl ReserveBudget {
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

/// Takes back what is reserved for a call. Gives the budgets of which something was, each with its subject: of others
/// it was given back before, and the sums know.
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

struct HoldReservations {
    call_ids: Vec<Uuid>,
    lease: Duration,
}

impl Work for HoldReservations {
    type Output = ();

    const CHANGES_AGENTS: bool = false;

    // The rows of a call are also taken one after the other by who settles it.
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

struct EndReservations;

impl Work for EndReservations {
    type Output = u64;

    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some(LOCK.to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let rows = budget_reservations::Entity::find()
            .filter(left_behind(tx.get_database_backend()))
            .limit(BATCH)
            .all(tx)
            .await?;
        for row in &rows {
            let sum = Sum {
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

/// What nobody holds any more, as a rule because its process died, or whose run has ended, for which nobody calls.
fn left_behind(backend: DbBackend) -> Condition {
    // Older gateways write none: theirs end with their runs.
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

impl Store {
    /// Keeps what is reserved for these calls for so long from now on. Their process says so again before that.
    pub async fn hold_reservations(
        &self,
        call_ids: Vec<Uuid>,
        lease: Duration,
    ) -> Result<(), StoreError> {
        self.write(HoldReservations { call_ids, lease }).await
    }

    /// Gives back what is reserved and not held any more, a bounded number of rows; says of how many.
    pub async fn end_reservations(&self) -> Result<u64, StoreError> {
        // The writer is asked only where there is something to do.
        let found = budget_reservations::Entity::find()
            .filter(left_behind(self.readers.get_database_backend()))
            .one(&self.readers)
            .await?;
        match found {
            Some(_) => self.write(EndReservations).await,
            None => Ok(0),
        }
    }
}
