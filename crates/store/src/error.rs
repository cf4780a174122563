//! What can go wrong between the domain and its tables. "Not found" is not an error.

use sea_orm::{DbErr, RuntimeErr, SqlErr};

/// An error of the store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A row that cannot be: somebody else wrote it, or a bug of ours did.
    #[error("column {column} of {row} holds what it cannot hold")]
    Corrupt { column: &'static str, row: String },
    /// The name or id is taken.
    #[error("a row with this name or id exists")]
    Taken,
    /// The events were deleted for their age while they were read.
    #[error("the events of the run have been deleted")]
    Pruned,
    /// The decision inside the transaction was to store nothing.
    #[error("the decision was to store nothing")]
    Refused,
    /// The database did not answer in time: what was asked may or may not be done.
    #[error("the database cannot be reached")]
    Unreachable,
    /// A bug of ours, met inside a transaction that was taken back.
    #[error("a write panicked")]
    Panicked,
    /// The writer has stopped, because the store was closed.
    #[error("the store is closed")]
    Closed,
    /// The database itself.
    #[error("the database failed")]
    Db(#[source] DbErr),
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
    /// True when the same work may succeed later: the database is away or busy.
    pub fn may_pass(&self) -> bool {
        use sea_orm::RuntimeErr::SqlxError;
        match self {
            Self::Db(DbErr::Exec(SqlxError(error)) | DbErr::Query(SqlxError(error))) => {
                self.is_contention() || error.as_database_error().is_none()
            }
            Self::Unreachable | Self::Db(DbErr::Conn(_) | DbErr::ConnectionAcquire(_)) => true,
            _ => false,
        }
    }

    /// True when the same work may succeed on a second try: the database chose between two writers.
    pub(crate) fn is_contention(&self) -> bool {
        let Self::Db(
            DbErr::Exec(RuntimeErr::SqlxError(error)) | DbErr::Query(RuntimeErr::SqlxError(error)),
        ) = self
        else {
            return false;
        };
        let code = error
            .as_database_error()
            .and_then(|error| error.code().map(std::borrow::Cow::into_owned));
        // PostgreSQL: serialization failure, deadlock, lock timeout. SQLite: busy.
        matches!(
            code.as_deref(),
            Some("40001" | "40P01" | "55P03" | "5" | "517")
        )
    }
}

/// Parses a column that only this crate writes.
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

/// Parses a JSON column that only this crate writes.
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

/// A count or number that is never negative.
pub(crate) fn unsigned(column: &'static str, row: &str, value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| StoreError::Corrupt {
        column,
        row: row.to_owned(),
    })
}

/// A number for a BIGINT column. Ours never come near the end of it.
pub(crate) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
