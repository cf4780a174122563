//! Errors of the store. "Not found" is not an error.

use std::borrow::Cow;

use sea_orm::{DbErr, RuntimeErr, SqlErr};
use tokio_postgres::error::SqlState;

use crate::page::OverBudget;

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// An invalid row: written by another program, or by a bug.
    #[error("column {column} of {row} has an invalid value")]
    Corrupt { column: &'static str, row: String },
    /// The name or id is taken.
    #[error("a row with this name or id exists")]
    Taken,
    /// Retention deleted the events during the read.
    #[error("the events of the run have been deleted")]
    Pruned,
    /// The decision inside the transaction was to store nothing.
    #[error("the decision was to store nothing")]
    Refused,
    /// The caller's memory budget cannot hold a page.
    #[error("memory budget cannot hold a page: {}", .0.reason)]
    OverBudget(OverBudget),
    /// The database did not answer in time: the outcome is unknown.
    #[error("the database cannot be reached")]
    Unreachable,
    /// Another session holds a needed row lock: nothing was written.
    #[error("another session holds a lock on a needed database row; retry later")]
    Locked,
    /// A bug: the transaction was rolled back.
    #[error("a write panicked")]
    Panicked,
    /// The writer has stopped, because the store was closed.
    #[error("the store is closed")]
    Closed,
    /// The server or file of the URL cannot be used.
    #[error("{database}: {why}")]
    Server { database: String, why: String },
    #[error(
        "the database is of an older version; back it up, then start `runnel serve` of this version, which migrates it"
    )]
    OlderDatabase,
    /// The database has a migration of another version.
    #[error(
        "the database has the migration {0}, which this version lacks; start the version that migrated it, or restore \
         a backup; a database of an unreleased version cannot be migrated: set another database.url"
    )]
    UnknownMigration(String),
    /// The URL of the database is not valid.
    #[error("{0}")]
    Address(String),
    /// The database itself.
    #[error("the database failed")]
    Db(#[source] DbErr),
    /// The same, from the direct `SQLite` connection.
    #[error("the database failed")]
    Sqlite(#[source] rusqlite::Error),
    /// The same, from the direct `PostgreSQL` connection.
    #[error("the database failed")]
    Postgres(#[source] tokio_postgres::Error),
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ffi::{SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE};
        let code = error.sqlite_error().map(|error| error.extended_code);
        match code {
            Some(SQLITE_CONSTRAINT_PRIMARYKEY | SQLITE_CONSTRAINT_UNIQUE) => Self::Taken,
            // Other constraint failures are faults of this crate.
            _ => Self::Sqlite(error),
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        if error.code() == Some(&SqlState::UNIQUE_VIOLATION) {
            return Self::Taken;
        }
        Self::Postgres(error)
    }
}

impl From<DbErr> for StoreError {
    fn from(error: DbErr) -> Self {
        match error.sql_err() {
            Some(SqlErr::UniqueConstraintViolation(_)) => Self::Taken,
            _ => Self::Db(error),
        }
    }
}

impl StoreError {
    /// True for transient errors: the database is away, busy, full or restarting.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Sqlite(error) => {
                sqlite_code_of(error).is_some_and(|code| is_transient_code(&code))
            }
            // Without a code the connection failed.
            Self::Postgres(error) => error
                .code()
                .is_none_or(|code| is_transient_code(code.code())),
            Self::Unreachable
            | Self::Locked
            | Self::Db(DbErr::Conn(_) | DbErr::ConnectionAcquire(_)) => true,
            Self::Db(
                DbErr::Exec(RuntimeErr::SqlxError(error))
                | DbErr::Query(RuntimeErr::SqlxError(error)),
            ) => match error.as_database_error() {
                Some(error) => error.code().is_some_and(|code| is_transient_code(&code)),
                // No reply of the server: the connection failed.
                None => true,
            },
            _ => false,
        }
    }

    /// True when a retry may succeed at once: the database aborted one of two conflicting writers.
    pub(crate) fn is_contention(&self) -> bool {
        if let Self::Sqlite(error) = self {
            return sqlite_code_of(error).is_some_and(|code| is_conflict_code(&code));
        }
        self.postgres_code()
            .is_some_and(|code| is_conflict_code(&code))
    }

    /// True when the database has certainly rolled the transaction back: results of its items are void. The row of a
    /// taken key may look like one that a void result has written.
    pub(crate) fn is_rolled_back(&self) -> bool {
        matches!(self, Self::Taken) || self.is_contention()
    }

    /// True after a lock timeout: only work that needs this lock has to wait.
    pub(crate) fn is_lock_wait(&self) -> bool {
        self.postgres_code().is_some_and(|code| code == "55P03")
    }

    /// True for a write in a read-only session.
    pub(crate) fn is_read_only(&self) -> bool {
        self.postgres_code().is_some_and(|code| code == "25006")
    }

    fn postgres_code(&self) -> Option<Cow<'_, str>> {
        if let Self::Postgres(error) = self {
            return Some(error.code()?.code().into());
        }
        let Self::Db(
            DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error)),
        ) = self
        else {
            return None;
        };
        error.as_database_error()?.code()
    }
}

fn sqlite_code_of(error: &rusqlite::Error) -> Option<String> {
    Some(error.sqlite_error()?.extended_code.to_string())
}

/// `PostgreSQL`: serialization failure, deadlock, lock timeout. `SQLite`: busy.
fn is_conflict_code(code: &str) -> bool {
    match sqlite_code(code) {
        Some(code) => code == 5,
        None => matches!(code, "40001" | "40P01" | "55P03"),
    }
}

/// Transient codes. `PostgreSQL`: lost connection, exhausted resource, server shutdown, start or disk failure,
/// timeout. `SQLite`: locked table or file, disk failure or full disk.
fn is_transient_code(code: &str) -> bool {
    match sqlite_code(code) {
        // Busy, locked, I/O error, full, cannot open.
        Some(code) => matches!(code, 5 | 6 | 10 | 13 | 14),
        None => {
            is_conflict_code(code)
                || ["08", "53", "57", "58"].contains(&code.get(..2).unwrap_or_default())
                // Read-only after a failover, idle within a transaction, transaction timeout.
                || matches!(code, "25006" | "25P03" | "25P04")
        }
    }
}

/// The primary code of an extended `SQLite` code. `SQLite` codes are numbers; `PostgreSQL` codes have five
/// characters.
fn sqlite_code(code: &str) -> Option<u32> {
    let code: u32 = (code.len() < 5).then(|| code.parse().ok())??;
    Some(code & 0xff)
}

/// Parses a text column written only by this crate.
pub(crate) fn parsed<T: std::str::FromStr>(
    column: &'static str,
    row: &str,
    text: &str,
) -> Result<T, StoreError> {
    text.parse().map_err(|_| StoreError::Corrupt {
        column,
        row: row.to_owned(),
    })
}

/// Parses a JSON column written only by this crate.
pub(crate) fn parsed_json<T: serde::de::DeserializeOwned>(
    column: &'static str,
    row: &str,
    text: &str,
) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|_| StoreError::Corrupt {
        column,
        row: row.to_owned(),
    })
}

/// A non-negative number.
pub(crate) fn unsigned(column: &'static str, row: &str, value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| StoreError::Corrupt {
        column,
        row: row.to_owned(),
    })
}

/// A number for a BIGINT column; real values stay far below the limit.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_transient_and_permanent_codes() {
        for code in ["5", "517", "261", "40001", "40P01", "55P03"] {
            assert!(is_conflict_code(code) && is_transient_code(code), "{code}");
        }
        for code in [
            "13", "10", "1034", "8458", "08006", "53100", "57P01", "57P03", "57014", "58030",
        ] {
            assert!(!is_conflict_code(code) && is_transient_code(code), "{code}");
        }
        for code in ["19", "2067", "11", "23505", "42P01", "22P05", "28P01", ""] {
            assert!(
                !is_conflict_code(code) && !is_transient_code(code),
                "{code}"
            );
        }
    }
}
