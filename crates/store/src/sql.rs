//! SQL as text, for the pools and the writer's direct connections. Multi-row statements.
//!
//! In the pools the row count of a statement is a power of two, so few prepared statements cover all sizes. The direct
//! `PostgreSQL` connection sends an array for each column.

use std::fmt::Write as _;

use protocol::id::RunId;
use rusqlite::types::FromSql;
use sea_orm::sea_query::{LockBehavior, LockType};
use sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, EntityTrait, IdenStatic as _, Iterable as _,
    QueryResult, QuerySelect, Select, Statement, TryGetable, Value,
};
use tokio_postgres::types::FromSqlOwned;

use crate::error::StoreError;

/// An executor of SQL statements with parameters `$1`, `$2`, … .
pub(crate) trait Sql: Sync {
    fn backend(&self) -> DbBackend;

    /// Executes a statement. A later query or the commit may report its error.
    fn execute_sql(
        &self,
        sql: String,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns the rows of a statement.
    fn query_sql(
        &self,
        sql: String,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<Vec<SqlRow>, StoreError>> + Send;

    /// Awaits `first`, then `second`. The direct `PostgreSQL` connection sends the statements of both in this order,
    /// and so in one round trip if each has one statement.
    fn in_order<A: Send, B: Send>(
        &self,
        first: impl Future<Output = Result<A, StoreError>> + Send,
        second: impl Future<Output = Result<B, StoreError>> + Send,
    ) -> impl Future<Output = Result<(A, B), StoreError>> + Send {
        async move {
            let first = first.await?;
            Ok((first, second.await?))
        }
    }

    /// Executes a statement for each row of values. A pool sends many rows in one statement, because each
    /// statement costs a round trip.
    fn execute_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        async move {
            for (sql, values) in statements(rows, text) {
                self.execute_sql(sql, values).await?;
            }
            Ok(())
        }
    }

    /// The same for a full-text index. Its rows are best written last, because any later statement may flush the
    /// index.
    fn index_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.execute_rows(text, rows)
    }

    /// Returns the result rows for all rows of values, in no defined order.
    fn query_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> impl Future<Output = Result<Vec<SqlRow>, StoreError>> + Send {
        async move {
            let mut found = Vec::new();
            for (sql, values) in statements(rows, text) {
                found.extend(self.query_sql(sql, values).await?);
            }
            Ok(found)
        }
    }

    /// Executes an update for each row of values. Returns the first value (text) of each row with a change.
    /// `key`: the column of that value.
    fn update_rows<const N: usize>(
        &self,
        text: &str,
        key: &'static str,
        rows: Vec<[Value; N]>,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send {
        async move {
            // Rows without a change return nothing, so the answer names exactly the changed ones.
            let text = format!("{text} RETURNING {key} AS changed");
            let changed = self.query_rows(&text, rows).await?;
            changed.iter().map(|row| row.text("changed")).collect()
        }
    }
}

impl<C: ConnectionTrait> Sql for C {
    fn backend(&self) -> DbBackend {
        self.get_database_backend()
    }

    async fn execute_sql(&self, sql: String, values: Vec<Value>) -> Result<(), StoreError> {
        let statement = Statement::from_sql_and_values(self.backend(), sql, values);
        self.execute_raw(statement).await?;
        Ok(())
    }

    async fn query_sql(&self, sql: String, values: Vec<Value>) -> Result<Vec<SqlRow>, StoreError> {
        let statement = Statement::from_sql_and_values(self.backend(), sql, values);
        let rows = self.query_all_raw(statement).await?;
        Ok(rows.into_iter().map(SqlRow::Pooled).collect())
    }
}

/// A result row.
pub(crate) enum SqlRow {
    Pooled(QueryResult),
    SqliteDirect(crate::sqlite_direct::DirectRow),
    PostgresDirect(tokio_postgres::Row),
}

impl SqlRow {
    pub(crate) fn text(&self, column: &str) -> Result<String, StoreError> {
        self.get(column)
    }

    pub(crate) fn text_if_any(&self, column: &str) -> Result<Option<String>, StoreError> {
        self.get(column)
    }

    pub(crate) fn number(&self, column: &str) -> Result<i64, StoreError> {
        self.get(column)
    }

    pub(crate) fn number_if_any(&self, column: &str) -> Result<Option<i64>, StoreError> {
        self.get(column)
    }

    pub(crate) fn bytes(&self, column: &str) -> Result<Vec<u8>, StoreError> {
        self.get(column)
    }

    pub(crate) fn flag(&self, column: &str) -> Result<bool, StoreError> {
        self.get(column)
    }

    fn get<T: TryGetable + FromSql + FromSqlOwned>(&self, column: &str) -> Result<T, StoreError> {
        match self {
            Self::Pooled(row) => Ok(row.try_get("", column)?),
            Self::SqliteDirect(row) => row.get(column),
            Self::PostgresDirect(row) => row.try_get(column).map_err(|_| StoreError::Corrupt {
                column: "of an answer",
                row: column.to_owned(),
            }),
        }
    }
}

/// All columns of a table by name. A newer replica may add a column. `*` would then change the result of a
/// cached `PostgreSQL` statement, an error until the connection closes.
pub(crate) fn columns<E: EntityTrait>(table: &str) -> String {
    let names = E::Column::iter().map(|column| format!("{table}.{}", column.as_str()));
    names.collect::<Vec<_>>().join(", ")
}

/// Clause that locks the result rows of a statement until the commit. Empty on `SQLite`, which has one writer.
pub(crate) fn row_lock(conn: &impl Sql) -> &'static str {
    match conn.backend() {
        // See `locked`.
        DbBackend::Postgres => "FOR NO KEY UPDATE",
        _ => "",
    }
}

/// Clause that locks the unlocked result rows of a statement, and skips the rest. Empty on `SQLite`.
pub(crate) fn unlocked_rows(conn: &impl Sql) -> &'static str {
    match conn.backend() {
        DbBackend::Postgres => "FOR NO KEY UPDATE SKIP LOCKED",
        _ => "",
    }
}

/// Locks the result rows until the commit. No lock on `SQLite`, which has one writer.
pub(crate) fn locked<E: EntityTrait>(conn: &impl Sql, query: Select<E>) -> Select<E> {
    match conn.backend() {
        // Not `FOR UPDATE`: that mode would also block inserts of rows that reference these by foreign key.
        DbBackend::Postgres => query.lock(LockType::NoKeyUpdate),
        _ => query,
    }
}

/// Locks the unlocked result rows and skips the rest. No lock on `SQLite`, which has one writer.
pub(crate) fn unlocked<E: EntityTrait>(conn: &impl Sql, query: Select<E>) -> Select<E> {
    match conn.backend() {
        DbBackend::Postgres => {
            // A replica that waited for these rows would stop its entire batch; the next pass takes the skipped ones.
            query.lock_with_behavior(LockType::NoKeyUpdate, LockBehavior::SkipLocked)
        }
        _ => query,
    }
}

/// Pads a list with its last value to a power of two, for `IN` lists. Clients choose the length, and connections
/// cache one statement per length.
pub(crate) fn padded<T: Clone>(list: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = list.into_iter().collect();
    if let Some(last) = list.last().cloned() {
        list.resize(list.len().next_power_of_two(), last);
    }
    list
}

/// Ends a subquery of `EXISTS`. Without it `PostgreSQL` joins the subquery, and a cached plan of an empty table scans
/// the table as it grows.
pub(crate) const PLAN_FENCE: &str = "LIMIT 1 OFFSET 0";

/// An array literal of `PostgreSQL`, for `CAST($1 AS text[])`.
pub(crate) fn text_array<'a>(list: impl IntoIterator<Item = &'a str>) -> Value {
    // Backslash and quote are special inside a quoted element of an array literal.
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""));
    let list: Vec<_> = list.into_iter().map(quoted).collect();
    format!("{{{}}}", list.join(",")).into()
}

/// Maximum rows of one statement: databases limit the number of parameters.
const WIDEST: usize = 64;

/// Number of statement widths that one call of [`executed`] may use.
pub(crate) const WIDTHS: usize = WIDEST.ilog2() as usize + 1;

/// Executes `text` for rows of values. `?1` is the first value of a row. `FROM rows` becomes a table, the only one or
/// the first in its `FROM`; `VALUES rows` becomes the rows themselves.
pub(crate) async fn executed<const N: usize>(
    conn: &impl Sql,
    rows: Vec<[Value; N]>,
    text: &str,
) -> Result<(), StoreError> {
    if rows.is_empty() {
        return Ok(());
    }
    conn.execute_rows(text, rows).await
}

/// The same for statements that return rows, in no defined order.
pub(crate) async fn returned<const N: usize>(
    conn: &impl Sql,
    rows: Vec<[Value; N]>,
    text: &str,
) -> Result<Vec<SqlRow>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    conn.query_rows(text, rows).await
}

/// Updates rows. Returns the first value of each row of values with a change; `key` is its column.
pub(crate) async fn updated<const N: usize>(
    conn: &impl Sql,
    rows: Vec<[Value; N]>,
    text: &str,
    key: &'static str,
) -> Result<Vec<String>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    conn.update_rows(text, key, rows).await
}

/// Inserts rows. `into`: `table (column, column)`.
pub(crate) async fn inserted<const N: usize>(
    conn: &impl Sql,
    into: &str,
    rows: Vec<[Value; N]>,
) -> Result<(), StoreError> {
    executed(conn, rows, &format!("INSERT INTO {into} VALUES rows")).await
}

/// Rewrites a statement over rows as one over a single row; `columns` is its number of parameters.
pub(crate) fn over_one_row(text: &str, columns: usize) -> String {
    if text.contains("VALUES rows") {
        let own: Vec<_> = (1..=columns).map(|number| format!("?{number}")).collect();
        return text.replacen("VALUES rows", &format!("VALUES ({})", own.join(", ")), 1);
    }
    text.replacen("FROM rows, ", "FROM ", 1)
        .replacen(" FROM rows", "", 1)
}

/// Rewrites it as one over many rows, given by `values`.
fn over_rows(text: &str, values: &str) -> String {
    text.replacen("VALUES rows", values, 1)
        .replacen("FROM rows", &format!("FROM ({values}) AS v"), 1)
        .replace('?', "v.column")
}

/// Rewrites it as one over an array for each column, of these types of `PostgreSQL`.
pub(crate) fn over_arrays(text: &str, types: &[&str]) -> String {
    let (mut arrays, mut columns) = (String::new(), String::new());
    for (number, name) in (1..).zip(types) {
        let comma = if number == 1 { "" } else { ", " };
        let _ = write!(arrays, "{comma}CAST(${number} AS {name})");
        let _ = write!(columns, "{comma}column{number}");
    }
    text.replacen("VALUES rows", &format!("SELECT * FROM unnest({arrays})"), 1)
        .replacen(
            "FROM rows",
            &format!("FROM unnest({arrays}) AS v ({columns})"),
            1,
        )
        .replace('?', "v.column")
}

/// Splits rows into statements, widest first.
fn statements<const N: usize>(rows: Vec<[Value; N]>, text: &str) -> Vec<(String, Vec<Value>)> {
    let mut statements = Vec::new();
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        // Powers of two: a connection caches one prepared statement for each width, see `STATEMENTS`.
        let width = widths(rows.len());
        let values: Vec<Value> = rows.by_ref().take(width).flatten().collect();
        statements.push((over_rows(text, &values_of(width, N)), values));
    }
    statements
}

/// The largest power of two up to `left` and `WIDEST`.
fn widths(left: usize) -> usize {
    (1_usize << left.max(1).ilog2()).min(WIDEST)
}

/// `VALUES ($1, $2), ($3, $4)`.
fn values_of(rows: usize, columns: usize) -> String {
    let mut values = String::with_capacity(8 + rows * columns * 6);
    values.push_str("VALUES ");
    for index in 0..rows * columns {
        values.push_str(match (index, index % columns) {
            (0, _) => "(",
            (_, 0) => "), (",
            _ => ", ",
        });
        let _ = write!(values, "${}", index + 1);
    }
    values.push(')');
    values
}

/// Skips rows locked by other replicas.
pub(crate) fn skip_locked<S: QuerySelect>(tx: &DatabaseTransaction, query: S) -> S {
    // SQLite has one writer and no such clause.
    match tx.get_database_backend() {
        DbBackend::Postgres => query.lock_with_behavior(LockType::Update, LockBehavior::SkipLocked),
        _ => query,
    }
}

/// A run's id as a value.
pub(crate) fn text(id: RunId) -> Value {
    id.to_string().into()
}

/// The plan of a statement on an empty database of `SQLite`: one line for each step.
#[cfg(test)]
pub(crate) async fn sqlite_plan(sql: &str, values: Vec<Value>) -> String {
    use migrations::{Migrator, MigratorTrait as _};

    let db = sea_orm::Database::connect("sqlite::memory:").await.unwrap();
    Migrator::up(&db, None).await.unwrap();
    let explained = db.query_sql(format!("EXPLAIN QUERY PLAN {sql}"), values);
    let steps = explained.await.unwrap();
    let steps = steps.iter().map(|step| step.text("detail").unwrap());
    steps.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_rows_into_powers_of_two() {
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
        assert_eq!(values_of(1, 1), "VALUES ($1)");
    }

    #[test]
    fn pads_lists_to_powers_of_two() {
        assert_eq!(padded([1, 2, 3]), [1, 2, 3, 3]);
        assert_eq!(padded([1, 2]), [1, 2]);
        assert!(padded(Vec::<u8>::new()).is_empty());
    }

    #[test]
    fn expands_row_statements_for_many_or_one() {
        const ARRAYS: &str = "unnest(CAST($1 AS text[]), CAST($2 AS bigint[]))";
        let check = |text: &str, many: &str, arrays: &str, one: &str| {
            assert_eq!(over_rows(text, "VALUES ($1, $2)"), many);
            let arrays = arrays.replace("{arrays}", ARRAYS);
            assert_eq!(over_arrays(text, &["text[]", "bigint[]"]), arrays);
            assert_eq!(over_one_row(text, 2), one);
        };
        check(
            "INSERT INTO t (a, b) VALUES rows RETURNING a",
            "INSERT INTO t (a, b) VALUES ($1, $2) RETURNING a",
            "INSERT INTO t (a, b) SELECT * FROM {arrays} RETURNING a",
            "INSERT INTO t (a, b) VALUES (?1, ?2) RETURNING a",
        );
        check(
            "UPDATE t SET a = ?2 FROM rows WHERE t.b = ?1",
            "UPDATE t SET a = v.column2 FROM (VALUES ($1, $2)) AS v WHERE t.b = v.column1",
            "UPDATE t SET a = v.column2 FROM {arrays} AS v (column1, column2) WHERE t.b = v.column1",
            "UPDATE t SET a = ?2 WHERE t.b = ?1",
        );
        check(
            "SELECT t.a FROM rows, t WHERE t.b = ?1",
            "SELECT t.a FROM (VALUES ($1, $2)) AS v, t WHERE t.b = v.column1",
            "SELECT t.a FROM {arrays} AS v (column1, column2), t WHERE t.b = v.column1",
            "SELECT t.a FROM t WHERE t.b = ?1",
        );
    }
}
