//! Direct `SQLite` connection: statements run on the calling thread.
//!
//! The pool has a thread per connection, and each statement makes a round trip to it. For short runs this
//! hand-off costs more than the rows.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlError, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OpenFlags, ToSql};
use sea_orm::{DbBackend, Value};

use crate::error::StoreError;
use crate::sql::{Sql, SqlRow, over_one_row};

/// One connection.
pub(crate) struct SqliteDirect {
    connection: Mutex<Connection>,
    /// Full-text index rows, written just before the commit: a statement each, with rows of values.
    deferred: Mutex<Vec<(String, Vec<Vec<Value>>)>>,
}

/// A result row.
pub(crate) struct DirectRow {
    columns: Arc<[String]>,
    values: Vec<rusqlite::types::Value>,
}

impl DirectRow {
    pub(crate) fn get<T: FromSql>(&self, column: &str) -> Result<T, StoreError> {
        let index = self.columns.iter().position(|name| name == column);
        let value = index.and_then(|index| self.values.get(index));
        let read = value.map_or(Err(FromSqlError::InvalidType), |value| {
            T::column_result(ValueRef::from(value))
        });
        read.map_err(|_| StoreError::Corrupt {
            column: "of an answer",
            row: column.to_owned(),
        })
    }
}

/// Pages between two checkpoints of the write-ahead log, 32 MiB. A page rewritten in between is copied once.
const CHECKPOINT_PAGES: i64 = 8192;
/// Maximum size of the log after a checkpoint, 64 MiB; a slow reader makes it grow.
const LOG_BYTES: i64 = 2 * CHECKPOINT_PAGES * 4096;
/// Page cache, in KiB.
const CACHE_KIB: i64 = 16 * 1024;

/// Without `CREATE`: a missing file is an error. Without `URI`: the path is no URL.
const EXISTING: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

impl SqliteDirect {
    /// Opens an existing database for writing, with the settings of the pool.
    pub(crate) fn open(
        path: &Path,
        busy_timeout: Duration,
        statements: usize,
    ) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(path, EXISTING)?;
        connection.busy_timeout(busy_timeout)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // Statement journals are small.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        connection.set_prepared_statement_cache_capacity(statements);
        Ok(Self::of(connection))
    }

    /// Opens it for point reads, which take less time than a thread switch. A locked file is an error at once.
    pub(crate) fn open_read_only(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(path, EXISTING)?;
        connection.busy_timeout(Duration::ZERO)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(Self::of(connection))
    }

    fn of(connection: Connection) -> Self {
        Self {
            connection: Mutex::new(connection),
            deferred: Mutex::default(),
        }
    }

    // Valid after a panic: a connection is consistent between two statements.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a statement without parameters.
    pub(crate) fn run(&self, sql: &str) -> Result<(), StoreError> {
        let connection = self.connection();
        connection.prepare_cached(sql)?.execute(())?;
        Ok(())
    }

    /// Checkpoints and truncates the log, so the database file is complete by itself. False when a reader still
    /// uses the log.
    pub(crate) fn truncate_log(&self) -> Result<bool, StoreError> {
        let connection = self.connection();
        let empty = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: i64 = connection.query_row(empty, (), |row| row.get(0))?;
        Ok(is_busy == 0)
    }

    /// Changes when another connection commits a change.
    pub(crate) fn version(&self) -> Result<i64, StoreError> {
        let connection = self.connection();
        let mut asking = connection.prepare_cached("PRAGMA data_version")?;
        Ok(asking.query_row((), |row| row.get(0))?)
    }

    fn take_deferred(&self) -> Vec<(String, Vec<Vec<Value>>)> {
        std::mem::take(&mut *self.deferred.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Commits the transaction.
    pub(crate) fn commit(&self) -> Result<(), StoreError> {
        for (sql, rows) in self.take_deferred() {
            let connection = self.connection();
            let mut statement = connection.prepare_cached(&sql)?;
            for row in &rows {
                bind(&mut statement, row)?;
                statement.raw_execute()?;
            }
        }
        self.run("COMMIT")
    }

    /// Rolls back the transaction, if one is open.
    pub(crate) fn roll_back(&self) -> Result<(), StoreError> {
        self.take_deferred();
        let connection = self.connection();
        if !connection.is_autocommit() {
            connection.execute_batch("ROLLBACK")?;
        }
        Ok(())
    }

    fn execute(&self, sql: &str, values: &[Value]) -> Result<(), StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(sql)?;
        bind(&mut statement, values)?;
        statement.raw_execute()?;
        Ok(())
    }

    fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<SqlRow>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(sql)?;
        bind(&mut statement, values)?;
        let mut found = Vec::new();
        let columns = columns_of(&statement);
        read(&mut statement, &columns, &mut found)?;
        Ok(found)
    }
}

fn columns_of(statement: &CachedStatement<'_>) -> Arc<[String]> {
    let names = statement.column_names().into_iter().map(str::to_owned);
    names.collect()
}

/// Reads the result rows of a statement.
fn read(
    statement: &mut CachedStatement<'_>,
    columns: &Arc<[String]>,
    found: &mut Vec<SqlRow>,
) -> Result<(), StoreError> {
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let values = (0..columns.len()).map(|index| row.get(index));
        found.push(SqlRow::SqliteDirect(DirectRow {
            columns: Arc::clone(columns),
            values: values.collect::<Result<_, _>>()?,
        }));
    }
    Ok(())
}

impl Sql for SqliteDirect {
    fn backend(&self) -> DbBackend {
        DbBackend::Sqlite
    }

    async fn execute_sql(&self, sql: String, values: Vec<Value>) -> Result<(), StoreError> {
        self.execute(&sql, &values)
    }

    async fn query_sql(&self, sql: String, values: Vec<Value>) -> Result<Vec<SqlRow>, StoreError> {
        self.query(&sql, &values)
    }

    // No round trip on this connection, so run one prepared statement per row; a multi-row statement needs a
    // journal and a temporary table.
    async fn execute_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> Result<(), StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(&over_one_row(text, N))?;
        for row in &rows {
            bind(&mut statement, row)?;
            statement.raw_execute()?;
        }
        Ok(())
    }

    async fn index_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> Result<(), StoreError> {
        let rows = rows.into_iter().map(Vec::from).collect();
        let mut deferred = self.deferred.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.push((over_one_row(text, N), rows));
        Ok(())
    }

    async fn query_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> Result<Vec<SqlRow>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(&over_one_row(text, N))?;
        let columns = columns_of(&statement);
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            bind(&mut statement, row)?;
            read(&mut statement, &columns, &mut found)?;
        }
        Ok(found)
    }

    // `RETURNING` over many rows fills a temporary table first, which costs more than single rows.
    async fn update_rows<const N: usize>(
        &self,
        text: &str,
        _key: &'static str,
        rows: Vec<[Value; N]>,
    ) -> Result<Vec<String>, StoreError> {
        let connection = self.connection();
        let mut statement = connection.prepare_cached(&over_one_row(text, N))?;
        let mut changed = Vec::with_capacity(rows.len());
        for row in &rows {
            bind(&mut statement, row)?;
            if statement.raw_execute()? > 0 {
                changed.push(text_of(&row[0])?);
            }
        }
        Ok(changed)
    }
}

/// The text of a value.
fn text_of(value: &Value) -> Result<String, StoreError> {
    match value {
        Value::String(Some(text)) => Ok(text.clone()),
        _ => Err(StoreError::Corrupt {
            column: "of a key",
            row: format!("{value:?}"),
        }),
    }
}

/// Binds values in order: statements use `$1` before `$2`, while `?1` and `?2` may come in any order.
fn bind(statement: &mut CachedStatement<'_>, values: &[Value]) -> Result<(), StoreError> {
    let wanted = statement.parameter_count();
    if wanted != values.len() {
        return Err(rusqlite::Error::InvalidParameterCount(values.len(), wanted).into());
    }
    for (index, value) in (1..).zip(values) {
        debug_assert_eq!(
            statement.parameter_name(index).map(|name| &name[1..]),
            Some(index.to_string().as_str()),
            "the parameters of a statement come in their order"
        );
        statement.raw_bind_parameter(index, BoundValue(value))?;
    }
    Ok(())
}

struct BoundValue<'a>(&'a Value);

impl ToSql for BoundValue<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match self.0 {
            Value::String(Some(text)) => ValueRef::Text(text.as_bytes()),
            Value::BigInt(Some(number)) => ValueRef::Integer(*number),
            Value::Bool(Some(flag)) => ValueRef::Integer(i64::from(*flag)),
            Value::String(None) | Value::BigInt(None) | Value::Bool(None) => ValueRef::Null,
            _ => {
                return Err(rusqlite::Error::ToSqlConversionFailure(
                    "no such value is written".into(),
                ));
            }
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}
