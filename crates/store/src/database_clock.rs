//! The database clock, shared by all replicas.
//!
//! Timestamps that one replica writes and another compares use it. A replica with a wrong clock cannot take work
//! from others.

use std::time::Duration;

use sea_orm::sea_query::{Expr, ExprTrait, SimpleExpr};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, Statement};

use crate::engine::{Backend, StoreEngine};
use crate::error::StoreError;

fn sql(backend: DbBackend) -> &'static str {
    match backend {
        DbBackend::Postgres => "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)",
        // The clock of the process, which hosts the database.
        _ => "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
    }
}

/// Now, in epoch milliseconds.
pub(crate) fn database_now(backend: DbBackend) -> SimpleExpr {
    Expr::cust(sql(backend))
}

/// The same as a value, for rows written as parameters.
pub(crate) async fn read_now(tx: &DatabaseTransaction) -> Result<i64, StoreError> {
    let backend = tx.get_database_backend();
    let query = Statement::from_string(backend, format!("SELECT {} AS now", sql(backend)));
    let Some(row) = tx.query_one_raw(query).await? else {
        return Err(StoreError::Unreachable);
    };
    Ok(row.try_get("", "now")?)
}

/// End of a lease that starts now.
pub(crate) fn lease_end(backend: DbBackend, lease: Duration) -> SimpleExpr {
    database_now(backend).add(millis(lease))
}

/// SQL for the end of a lease of `millis` that starts now.
pub(crate) fn lease_end_sql(backend: DbBackend, millis: &str) -> String {
    format!("{} + {millis}", sql(backend))
}

/// SQL for now, read once in a statement: a clock that is read for each row would rule out an index.
pub(crate) fn now_once(backend: DbBackend) -> String {
    format!("(SELECT {})", sql(backend))
}

/// `age` before now.
pub(crate) fn ago(backend: DbBackend, age: Duration) -> SimpleExpr {
    database_now(backend).sub(millis(age))
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2)
}

/// Time of the database in epoch milliseconds. `None` on `SQLite`, which uses the process clock.
pub(crate) async fn read_clock(db: &StoreEngine) -> Result<Option<i64>, StoreError> {
    if db.backend() == Backend::Sqlite {
        return Ok(None);
    }
    let backend = db.readers.get_database_backend();
    let query = format!("SELECT {} AS now", sql(backend));
    let row = db
        .readers
        .query_one_raw(Statement::from_string(backend, query));
    let row = row.await?;
    Ok(row.map(|row| row.try_get("", "now")).transpose()?)
}
