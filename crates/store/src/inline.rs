//! `SQLite` without a change of threads: statements run where they are called.
//!
//! The pool has a thread for each connection, and each statement goes there and back. What many short
//! runs cost would be that, and not their rows.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlError, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection, OpenFlags, ToSql};
use sea_orm::{DbBackend, Value};

use crate::error::StoreError;
use crate::sql::{Row, Sql, over_one_row};

/// One connection.
pub(crate) struct Inline {
    connection: Mutex<Connection>,
    /// What full-text indexes take at the end of the transaction: a statement each, with rows of values.
    late: Mutex<Vec<(String, Vec<Vec<Value>>)>>,
}

/// A row of an answer.
pub(crate) struct InlineRow {
    columns: Arc<[String]>,
    values: Vec<rusqlite::types::Value>,
}

impl InlineRow {
    pub(crate) fn get<T: FromSql>(&self, column: &str) -> Result<T, StoreError> {
        let place = self.columns.iter().position(|name| name == column);
        let value = place.and_then(|place| self.values.get(place));
        let read = value.map_or(Err(FromSqlError::InvalidType), |value| {
            T::column_result(ValueRef::from(value))
        });
        read.map_err(|_| StoreError::Corrupt {
            column: "of an answer",
            row: column.to_owned(),
        })
    }
}

/// Pages of the log between two of its moves into the database: what is written again and again in
/// between is moved once. 32 MiB.
const CHECKPOINT_PAGES: i64 = 8192;
/// What the log keeps of its length once all of it is moved: a reader that took long had it grow. 64 MiB.
const LOG_BYTES: i64 = 2 * CHECKPOINT_PAGES * 4096;
/// Kibibytes of pages that are kept at hand.
const CACHE_KIB: i64 = 16 * 1024;

/// A file that is not there is no database: none is made. A path is no URL.
const THERE: OpenFlags = OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

impl Inline {
    /// Opens a database that is there, to write into it as the pool would.
    pub(crate) fn open(
        path: &Path,
        busy_timeout: Duration,
        statements: usize,
    ) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(path, THERE)?;
        connection.busy_timeout(busy_timeout)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        // What a statement may have to take back is small.
        connection.pragma_update(None, "temp_store", "MEMORY")?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES)?;
        connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
        connection.set_prepared_statement_cache_capacity(statements);
        Ok(Self::of(connection))
    }

    /// Opens it for small questions: for what takes less time than to ask another thread. Waits for nobody.
    pub(crate) fn open_to_ask(path: &Path) -> Result<Self, StoreError> {
        let connection = Connection::open_with_flags(path, THERE)?;
        connection.busy_timeout(Duration::ZERO)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(Self::of(connection))
    }

    fn of(connection: Connection) -> Self {
        Self {
            connection: Mutex::new(connection),
            late: Mutex::default(),
        }
    }

    // Between two statements a connection is whole, after any panic.
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what a statement without parameters says.
    pub(crate) fn run(&self, sql: &str) -> Result<(), StoreError> {
        let connection = self.connection();
        connection.prepare_cached(sql)?.execute(())?;
        Ok(())
    }

    /// Moves the whole log into the database and empties it, so that the one file holds everything. What a reader
    /// still looks at stays in the log: false.
    pub(crate) fn empty_log(&self) -> Result<bool, StoreError> {
        let connection = self.connection();
        let empty = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: i64 = connection.query_row(empty, (), |row| row.get(0))?;
        Ok(is_busy == 0)
    }

    /// A number that is another one once somebody else has changed the database.
    pub(crate) fn version(&self) -> Result<i64, StoreError> {
        let connection = self.connection();
        let mut asking = connection.prepare_cached("PRAGMA data_version")?;
        Ok(asking.query_row((), |row| row.get(0))?)
    }

    fn take_late(&self) -> Vec<(String, Vec<Vec<Value>>)> {
        std::mem::take(&mut *self.late.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends a transaction.
    pub(crate) fn commit(&self) -> Result<(), StoreError> {
        for (sql, rows) in self.take_late() {
            let connection = self.connection();
            let mut statement = connection.prepare_cached(&sql)?;
            for row in &rows {
                bind(&mut statement, row)?;
                statement.raw_execute()?;
            }
        }
        self.run("COMMIT")
    }

    /// Takes a transaction back, if there is one still.
    pub(crate) fn roll_back(&self) -> Result<(), StoreError> {
        self.take_late();
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

    fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, StoreError> {
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

/// Reads what a statement gives.
fn read(
    statement: &mut CachedStatement<'_>,
    columns: &Arc<[String]>,
    found: &mut Vec<Row>,
) -> Result<(), StoreError> {
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let values = (0..columns.len()).map(|place| row.get(place));
        found.push(Row::Inline(InlineRow {
            columns: Arc::clone(columns),
            values: values.collect::<Result<_, _>>()?,
        }));
    }
    Ok(())
}

impl Sql for Inline {
    fn has_savepoints(&self) -> bool {
        false
    }

    fn backend(&self) -> DbBackend {
        DbBackend::Sqlite
    }

    async fn execute_sql(&self, sql: String, values: Vec<Value>) -> Result<(), StoreError> {
        self.execute(&sql, &values)
    }

    async fn query_sql(&self, sql: String, values: Vec<Value>) -> Result<Vec<Row>, StoreError> {
        self.query(&sql, &values)
    }

    // A row costs no way here. A statement over many would keep what it may have to take back, and pass its rows
    // through a table of its own.
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
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        late.push((over_one_row(text, N), rows));
        Ok(())
    }

    async fn query_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> Result<Vec<Row>, StoreError> {
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

    // What a statement is to give of its rows it first keeps in a table of its own, which costs more than the rows.
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

/// The text that a value is.
fn text_of(value: &Value) -> Result<String, StoreError> {
    match value {
        Value::String(Some(text)) => Ok(text.clone()),
        _ => Err(StoreError::Corrupt {
            column: "of a key",
            row: format!("{value:?}"),
        }),
    }
}

/// Binds values in their order: `$1` comes before `$2` in every statement, while `?1` and `?2` may come as they like.
fn bind(statement: &mut CachedStatement<'_>, values: &[Value]) -> Result<(), StoreError> {
    let wanted = statement.parameter_count();
    if wanted != values.len() {
        return Err(rusqlite::Error::InvalidParameterCount(values.len(), wanted).into());
    }
    for (place, value) in (1..).zip(values) {
        debug_assert_eq!(
            statement.parameter_name(place).map(|name| &name[1..]),
            Some(place.to_string().as_str()),
            "the parameters of a statement come in their order"
        );
        statement.raw_bind_parameter(place, Bound(value))?;
    }
    Ok(())
}

struct Bound<'a>(&'a Value);

impl ToSql for Bound<'_> {
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
