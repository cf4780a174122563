//! Items of one commit that are done together: a few statements for all of them instead of some for each.
//!
//! Every statement is as wide as a power of two, so that the database knows each by heart.

use std::collections::{HashMap, HashSet};

use protocol::id::RunId;
use sea_orm::{ConnectionTrait, DatabaseTransaction, QueryResult, Statement, Value};

use crate::attempts::{AttemptOutcome, Dispatch, Dispatched};
use crate::database_clock::{lease_end_sql, millis};
use crate::error::{StoreError, signed};
use crate::failpoint;
use crate::ledger::{Append, Appended};

/// Rows of one statement at most: databases bound the number of its values.
const WIDEST: usize = 64;

/// Work of which many are done at once.
#[derive(Clone, Copy)]
pub enum Together<'a> {
    /// Events of a run, and nothing beside them.
    Append(&'a Append),
    Dispatch(&'a Dispatch),
    Outcome(&'a AttemptOutcome),
}

/// What became of it.
pub enum Done {
    Append(Appended),
    Dispatch(Dispatched),
    Outcome,
}

impl Together<'_> {
    /// Its kind and its run.
    pub(crate) fn key(&self) -> (u8, RunId) {
        match self {
            Self::Append(append) => (0, append.run_id),
            Self::Dispatch(dispatch) => (1, dispatch.run.id),
            Self::Outcome(outcome) => (2, outcome.run_id),
        }
    }
}

/// Does all of it; each run stands there once for each kind. In the order of `work`.
pub(crate) async fn apply(
    tx: &DatabaseTransaction,
    work: &[Together<'_>],
) -> Result<Vec<Done>, StoreError> {
    let (mut appends, mut dispatches, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    for one in work {
        match one {
            Together::Append(append) => appends.push(*append),
            Together::Dispatch(dispatch) => dispatches.push(*dispatch),
            Together::Outcome(outcome) => outcomes.push(*outcome),
        }
    }
    let mut dispatched = dispatch_all(tx, &dispatches).await?.into_iter();
    note_all(tx, &outcomes).await?;
    let mut appended = append_all(tx, &appends).await?.into_iter();
    let done = work.iter().map(|one| match one {
        Together::Append(_) => Done::Append(appended.next().unwrap_or(Appended::Lost)),
        Together::Dispatch(_) => Done::Dispatch(dispatched.next().unwrap_or(Dispatched::Lost)),
        Together::Outcome(_) => Done::Outcome,
    });
    Ok(done.collect())
}

async fn append_all(
    tx: &DatabaseTransaction,
    appends: &[&Append],
) -> Result<Vec<Appended>, StoreError> {
    // The compare-and-set that everything else hangs on, for each row by itself.
    let rows = appends.iter().map(|append| {
        [
            text(append.run_id),
            append.epoch.into(),
            signed(append.from).into(),
            signed(append.to).into(),
        ]
    });
    let update = |values: &str| {
        format!(
            "UPDATE runs SET last_sequence = v.column4 FROM ({values}) AS v \
             WHERE runs.id = v.column1 AND runs.lease_epoch = v.column2 \
             AND runs.last_sequence = v.column3 AND runs.status = 'running' RETURNING runs.id"
        )
    };
    let mut moved = HashSet::new();
    for row in returned(tx, rows.collect(), update).await? {
        moved.insert(row.try_get::<String>("", "id")?);
    }
    let written = |append: &&&Append| moved.contains(&append.run_id.to_string());
    let segments = appends.iter().filter(written).map(|append| {
        [
            text(append.run_id),
            signed(append.from + 1).into(),
            signed(append.to).into(),
            append.lines.as_str().into(),
            append.at.into(),
        ]
    });
    let insert = |values: &str| {
        format!(
            "INSERT INTO run_segments (run_id, first_sequence, last_sequence, payload, created_at) \
             {values}"
        )
    };
    executed(tx, segments.collect(), insert).await?;
    if !appends.is_empty() {
        failpoint::pass("relay.before_commit").await?;
    }
    let outcome = |append: &&Append| {
        if written(&append) {
            Appended::Written { next: Vec::new() }
        } else {
            Appended::Lost
        }
    };
    Ok(appends.iter().map(outcome).collect())
}

async fn dispatch_all(
    tx: &DatabaseTransaction,
    dispatches: &[&Dispatch],
) -> Result<Vec<Dispatched>, StoreError> {
    let rows = dispatches.iter().map(|dispatch| {
        let begins = dispatch.begins();
        [
            text(dispatch.run.id),
            dispatch.run.lease_epoch.into(),
            dispatch.run.status.as_str().into(),
            i64::from(dispatch.attempt).into(),
            dispatch.owner.as_str().into(),
            millis(dispatch.lease).into(),
            begins.then_some(dispatch.at).into(),
            begins.then_some(dispatch.deadline_at).into(),
        ]
    });
    let lease_end = lease_end_sql(tx.get_database_backend(), "v.column6");
    let update = |values: &str| {
        format!(
            "UPDATE runs SET status = 'running', attempt = v.column4, lease_owner = v.column5, \
             lease_epoch = v.column2 + 1, lease_expires_at = {lease_end}, \
             started_at = COALESCE(v.column7, runs.started_at), \
             deadline_at = COALESCE(v.column8, runs.deadline_at) FROM ({values}) AS v \
             WHERE runs.id = v.column1 AND runs.lease_epoch = v.column2 \
             AND runs.status = v.column3 \
             RETURNING runs.id, runs.cancel_requested_at, runs.status_reason"
        )
    };
    let mut moved = HashMap::new();
    for row in returned(tx, rows.collect(), update).await? {
        let told: (Option<i64>, Option<String>) = (
            row.try_get("", "cancel_requested_at")?,
            row.try_get("", "status_reason")?,
        );
        moved.insert(row.try_get::<String>("", "id")?, told);
    }
    let owned = |dispatch: &&&Dispatch| moved.contains_key(&dispatch.run.id.to_string());
    let intents = dispatches.iter().filter(owned).map(|dispatch| {
        [
            text(dispatch.run.id),
            i64::from(dispatch.attempt).into(),
            dispatch.at.into(),
            dispatch.context.as_str().into(),
        ]
    });
    let insert = |values: &str| {
        format!("INSERT INTO run_attempts (run_id, attempt, intent_at, context) {values}")
    };
    executed(tx, intents.collect(), insert).await?;
    let mut outcomes = Vec::with_capacity(dispatches.len());
    for dispatch in dispatches {
        outcomes.push(match moved.remove(&dispatch.run.id.to_string()) {
            None => dispatch.find_own(tx).await?,
            Some(told) => Dispatched::Owned(Box::new(dispatch.taken(told))),
        });
    }
    Ok(outcomes)
}
async fn note_all(
    tx: &DatabaseTransaction,
    outcomes: &[&AttemptOutcome],
) -> Result<(), StoreError> {
    let rows = outcomes.iter().map(|outcome| {
        [
            text(outcome.run_id),
            i64::from(outcome.attempt).into(),
            outcome.outcome.as_str().into(),
            outcome.http_status.into(),
        ]
    });
    let update = |values: &str| {
        format!(
            "UPDATE run_attempts SET outcome = v.column3, http_status = v.column4 \
             FROM ({values}) AS v \
             WHERE run_attempts.run_id = v.column1 AND run_attempts.attempt = v.column2"
        )
    };
    executed(tx, rows.collect(), update).await
}

fn text(id: RunId) -> Value {
    id.to_string().into()
}

async fn executed<const N: usize>(
    tx: &DatabaseTransaction,
    rows: Vec<[Value; N]>,
    sql: impl Fn(&str) -> String,
) -> Result<(), StoreError> {
    for statement in statements(tx, rows, sql) {
        tx.execute_raw(statement).await?;
    }
    Ok(())
}

async fn returned<const N: usize>(
    tx: &DatabaseTransaction,
    rows: Vec<[Value; N]>,
    sql: impl Fn(&str) -> String,
) -> Result<Vec<QueryResult>, StoreError> {
    let mut returned = Vec::new();
    for statement in statements(tx, rows, sql) {
        returned.extend(tx.query_all_raw(statement).await?);
    }
    Ok(returned)
}

/// One statement for the widest part, one for the widest part of the rest, and so on.
fn statements<const N: usize>(
    tx: &DatabaseTransaction,
    rows: Vec<[Value; N]>,
    sql: impl Fn(&str) -> String,
) -> Vec<Statement> {
    let backend = tx.get_database_backend();
    let mut statements = Vec::new();
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        let width = widths(rows.len());
        let values: Vec<Value> = rows.by_ref().take(width).flatten().collect();
        let sql = sql(&values_of(width, N));
        statements.push(Statement::from_sql_and_values(backend, sql, values));
    }
    statements
}

/// The largest power of two that is left, up to the widest.
fn widths(left: usize) -> usize {
    (1_usize << left.max(1).ilog2()).min(WIDEST)
}

/// `VALUES ($1, $2), ($3, $4)`.
fn values_of(rows: usize, columns: usize) -> String {
    let row = |row: usize| {
        let marks: Vec<_> = (1..=columns)
            .map(|column| format!("${}", row * columns + column))
            .collect();
        format!("({})", marks.join(", "))
    };
    let rows: Vec<_> = (0..rows).map(row).collect();
    format!("VALUES {}", rows.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_parted_into_powers_of_two() {
        let part = |mut left: usize| {
            let mut parts = Vec::new();
            while left > 0 {
                parts.push(widths(left));
                left -= widths(left);
            }
            parts
        };
        assert_eq!(part(1), [1]);
        assert_eq!(part(7), [4, 2, 1]);
        assert_eq!(part(200), [64, 64, 64, 8]);
        assert_eq!(values_of(2, 3), "VALUES ($1, $2, $3), ($4, $5, $6)");
    }
}
