//! Async runs: the runner appends results later. Any replica accepts them, in the runner's numbering without
//! gaps. The run's owner validates them and is the only writer of the ledger. See `release` for the take-over of a
//! lost owner.

use std::time::Duration;

use protocol::id::RunId;
use protocol::run::RunStatus;
use sea_orm::sea_query::{Expr, ExprTrait, OnConflict};
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, JoinType,
    PaginatorTrait, QueryFilter, QueryOrder, QuerySelect, RelationTrait as _,
};
use uuid::Uuid;

use crate::database_clock::{database_now, lease_end, millis, read_now};
use crate::entity::{run_appends, run_deferrals, runs};
use crate::error::{StoreError, parsed_json, signed, unsigned};
use crate::model::audit::AuditEntry;
use crate::mutation::Mutation;
use crate::repositories::LeaseRepository;
use crate::state::lock_live_run;

pub(crate) use accepting::{accept_calls, refuse_overtaken};
pub use closing::{AppendsClosed, CloseAppends};
pub use digests::result_digest;

mod accepting;
mod closing;
mod digests;

/// Append calls per read.
const CALLS_PER_READ: u64 = 8;

/// Opens a run for appended results.
#[derive(Clone, Debug)]
pub struct StartAsyncRun {
    pub run_id: RunId,
    pub attempt: u32,
    pub fencing_token: i64,
    /// Number of the last result that the runner has streamed before; 0 for none.
    pub streamed_through: u64,
    /// The run ends after this long without a heartbeat.
    pub lease: Duration,
}

impl Mutation for StartAsyncRun {
    /// False: the run has ended, or another process owns it.
    type Output = bool;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<bool, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(false);
        }
        // Another owner attaches to the runner by a later attempt, and would process no result of this one.
        let owned = runs::Entity::find_by_id(self.run_id.to_string())
            .filter(runs::Column::FencingToken.eq(self.fencing_token));
        if owned.count(tx).await? == 0 {
            return Ok(false);
        }
        let row = run_deferrals::ActiveModel {
            run_id: Set(self.run_id.to_string()),
            attempt: Set(i64::from(self.attempt)),
            accepted_through: Set(signed(self.streamed_through)),
            judged_through: Set(signed(self.streamed_through)),
            bytes: Set(0),
            lease_expires_at: Set(read_now(tx).await? + millis(self.lease)),
            is_closed: Set(false),
        };
        // A retry after a lost reply keeps the results appended meanwhile.
        let there = OnConflict::column(run_deferrals::Column::RunId)
            .update_column(run_deferrals::Column::Attempt)
            .to_owned();
        run_deferrals::Entity::insert(row)
            .on_conflict(there)
            .exec_without_returning(tx)
            .await?;
        Ok(true)
    }
}

/// Appends results of a run, in the runner's numbering.
#[derive(Clone, Debug)]
pub struct AppendResults {
    pub run_id: RunId,
    pub attempt: u32,
    pub lease: Duration,
    /// Each with its number, without gaps.
    pub results: Vec<(u64, String)>,
    /// Digest of each result, see [`result_digest`].
    pub digests: Vec<String>,
    /// Maximum bytes that one run may append. The call that exceeds it is still stored, so its judgement ends
    /// the run.
    pub max_bytes: u64,
    pub audit: AuditEntry,
}

/// Result of an append call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultsAppended {
    /// All results up to this number are stored.
    Through(u64),
    /// A number is missing before the first result: nothing was stored.
    Gap { expected: u64 },
    /// Another result has this number: nothing was stored.
    Conflict { sequence: u64 },
    /// The run has appended more than its limit.
    Full,
    /// The runner has not answered with 202, or streams its results.
    NotAsync,
    /// Or its owner is about to end it.
    RunEnded,
}

impl Mutation for AppendResults {
    type Output = ResultsAppended;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    fn weight(&self) -> usize {
        self.results.iter().map(|(_, raw)| raw.len()).sum()
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<ResultsAppended, StoreError> {
        // Locks the run's row, which serialises calls of one run.
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(ResultsAppended::RunEnded);
        }
        // Only the current attempt may append: a runner of an earlier attempt gets an error.
        let Some(deferral) = find(tx, self.run_id, self.attempt).await? else {
            return Ok(ResultsAppended::NotAsync);
        };
        // Before the checks, because the audit row also proves an earlier commit, see `is_committed`.
        crate::audit::insert(tx, [&self.audit]).await?;
        let through = deferral.accepted_through;
        if let Some(sequence) = self.conflict(tx, through).await? {
            return Ok(ResultsAppended::Conflict { sequence });
        }
        let new: Vec<_> = self
            .results
            .iter()
            .filter(|(sequence, _)| *sequence > through)
            .collect();
        let new_ones = new.first().zip(new.last());
        // Repeated results still get their answer after the close, so a runner's retry succeeds.
        if deferral.is_closed {
            return Ok(match new_ones {
                Some(_) => ResultsAppended::RunEnded,
                None => ResultsAppended::Through(through),
            });
        }
        // A repeated call proves that the runner is alive: renew its lease.
        let Some((first, last)) = new_ones else {
            self.note(tx, through, deferral.bytes).await?;
            return Ok(ResultsAppended::Through(through));
        };
        if first.0 != through + 1 {
            return Ok(ResultsAppended::Gap {
                expected: through + 1,
            });
        }
        // Checked before the bytes of this call: the call that exceeds the limit is stored, and its validation ends
        // the run.
        if deferral.bytes > self.max_bytes {
            return Ok(ResultsAppended::Full);
        }
        let bytes: u64 = new.iter().map(|(_, raw)| raw.len() as u64).sum();
        let bytes = deferral.bytes.saturating_add(bytes);
        let raws: Vec<_> = new.iter().map(|(_, raw)| raw.as_str()).collect();
        let digests = self.results.iter().zip(&self.digests);
        let digests = digests.filter(|((number, _), _)| *number > through);
        let row = run_appends::ActiveModel {
            run_id: Set(self.run_id.to_string()),
            first_sequence: Set(signed(first.0)),
            last_sequence: Set(signed(last.0)),
            payload: Set(format!("[{}]", raws.join(","))),
            digests: Set(digests.map(|(_, digest)| digest.as_str()).collect()),
        };
        run_appends::Entity::insert(row)
            .exec_without_returning(tx)
            .await?;
        self.note(tx, last.0, bytes).await?;
        Ok(ResultsAppended::Through(last.0))
    }

    async fn is_committed(
        &self,
        tx: &DatabaseTransaction,
        _output: &ResultsAppended,
    ) -> Result<bool, StoreError> {
        crate::audit::is_recorded(tx, &self.audit).await
    }
}

impl AppendResults {
    async fn note(
        &self,
        tx: &DatabaseTransaction,
        through: u64,
        bytes: u64,
    ) -> Result<(), StoreError> {
        run_deferrals::Entity::update_many()
            .col_expr(
                run_deferrals::Column::AcceptedThrough,
                Expr::value(signed(through)),
            )
            .col_expr(run_deferrals::Column::Bytes, Expr::value(signed(bytes)))
            .col_expr(
                run_deferrals::Column::LeaseExpiresAt,
                lease_end(tx.get_database_backend(), self.lease),
            )
            .filter(run_deferrals::Column::RunId.eq(self.run_id.to_string()))
            .exec(tx)
            .await?;
        Ok(())
    }
}

/// A heartbeat of a run's runner.
#[derive(Clone, Copy, Debug)]
pub struct Heartbeat {
    pub run_id: RunId,
    pub attempt: u32,
    pub lease: Duration,
}

/// Result of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeating {
    Alive(AsyncRun),
    /// The runner has not answered with 202, or streams its results.
    NotAsync,
    /// Or its owner is about to end it.
    RunEnded,
}

/// State of an async run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncRun {
    /// All results up to this number are stored.
    pub accepted_through: u64,
    pub bytes: u64,
    /// Database clock, epoch milliseconds.
    pub lease_expires_at: i64,
    /// It accepts no more results: see [`CloseAppends`].
    pub is_closed: bool,
}

/// Appended results of a run that wait for judgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    /// All results up to this number are stored.
    pub accepted_through: u64,
    /// All results up to this number are judged and committed, if the owner's version records it.
    pub judged_through: Option<u64>,
}

impl Backlog {
    /// True when results up to this number are judged, or when that is unknown.
    pub fn is_judged_to(self, through: u64) -> bool {
        self.judged_through.is_none_or(|judged| judged >= through)
    }
}

impl Mutation for Heartbeat {
    type Output = Heartbeating;
    const CHANGES_AGENTS: bool = false;

    fn order(&self) -> Uuid {
        self.run_id.0
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<Heartbeating, StoreError> {
        if !lock_live_run(tx, self.run_id).await? {
            return Ok(Heartbeating::RunEnded);
        }
        match find(tx, self.run_id, self.attempt).await? {
            None => return Ok(Heartbeating::NotAsync),
            Some(deferral) if deferral.is_closed => return Ok(Heartbeating::RunEnded),
            Some(_) => {}
        }
        run_deferrals::Entity::update_many()
            .col_expr(
                run_deferrals::Column::LeaseExpiresAt,
                lease_end(tx.get_database_backend(), self.lease),
            )
            .filter(run_deferrals::Column::RunId.eq(self.run_id.to_string()))
            .exec(tx)
            .await?;
        // Read again for the new lease end, which the database clock sets.
        let deferral = find(tx, self.run_id, self.attempt).await?;
        Ok(deferral.map_or(Heartbeating::NotAsync, Heartbeating::Alive))
    }
}

async fn find(
    conn: &impl ConnectionTrait,
    run: RunId,
    attempt: u32,
) -> Result<Option<AsyncRun>, StoreError> {
    let row = run_deferrals::Entity::find_by_id(run.to_string())
        .filter(run_deferrals::Column::Attempt.eq(i64::from(attempt)))
        .one(conn)
        .await?;
    row.map(|row| {
        let column = "run_deferrals.accepted_through";
        Ok(AsyncRun {
            accepted_through: unsigned(column, &row.run_id, row.accepted_through)?,
            bytes: unsigned("run_deferrals.bytes", &row.run_id, row.bytes)?,
            lease_expires_at: row.lease_expires_at,
            is_closed: row.is_closed,
        })
    })
    .transpose()
}

impl LeaseRepository<'_> {
    /// Remaining time of the runner's heartbeat lease in milliseconds, by the database clock. `None`: it
    /// expired, or the runner does not append.
    pub async fn heartbeat_remaining(
        self,
        run: RunId,
        attempt: u32,
    ) -> Result<Option<u64>, StoreError> {
        let now = database_now(self.db.readers.get_database_backend());
        let left = Expr::col(run_deferrals::Column::LeaseExpiresAt).sub(now);
        let left: Option<i64> = run_deferrals::Entity::find_by_id(run.to_string())
            .select_only()
            .expr_as(left, "left_ms")
            .filter(run_deferrals::Column::Attempt.eq(i64::from(attempt)))
            .into_tuple()
            .one(&self.db.readers)
            .await?;
        Ok(left.and_then(|left| u64::try_from(left).ok()))
    }

    /// Progress of a live run's appended results in this attempt. `None`: it has ended, or does not append.
    pub async fn find_backlog(
        self,
        run: RunId,
        attempt: u32,
    ) -> Result<Option<Backlog>, StoreError> {
        let row = run_deferrals::Entity::find_by_id(run.to_string())
            .join(JoinType::InnerJoin, run_deferrals::Relation::Run.def())
            .filter(run_deferrals::Column::Attempt.eq(i64::from(attempt)))
            .filter(runs::Column::Status.eq(RunStatus::Running.as_str()))
            .one(&self.db.readers)
            .await?;
        row.map(|row| {
            let column = "run_deferrals.accepted_through";
            Ok(Backlog {
                accepted_through: unsigned(column, &row.run_id, row.accepted_through)?,
                // Negative: the owner's version does not record it.
                judged_through: u64::try_from(row.judged_through).ok(),
            })
        })
        .transpose()
    }

    /// Results of a run after a number, from at most eight calls, as sent; with the number of the last one.
    pub async fn appended_results(
        self,
        run: RunId,
        after: u64,
    ) -> Result<Option<(u64, Vec<String>)>, StoreError> {
        let rows = run_appends::Entity::find()
            .filter(run_appends::Column::RunId.eq(run.to_string()))
            // Calls are stored as a unit, so `after` never lies within one.
            .filter(run_appends::Column::FirstSequence.gt(signed(after)))
            .order_by_asc(run_appends::Column::FirstSequence)
            .limit(CALLS_PER_READ)
            .all(&self.db.readers)
            .await?;
        let Some(last) = rows.last().map(|row| row.last_sequence) else {
            return Ok(None);
        };
        let mut results = Vec::new();
        for row in rows {
            let column = "run_appends.payload";
            let raws: Vec<Box<serde_json::value::RawValue>> =
                parsed_json(column, &row.run_id, &row.payload)?;
            results.extend(raws.iter().map(|raw| raw.get().to_owned()));
        }
        let last = unsigned("run_appends.last_sequence", &run.to_string(), last)?;
        Ok(Some((last, results)))
    }
}
