//! Statements as text, wherever they go: through the pool, or straight into `SQLite`. Many rows in few
//! of them.
//!
//! Every statement is as wide as a power of two, so that the database knows each by heart.

use std::fmt::Write as _;

use rusqlite::types::FromSql;
use sea_orm::sea_query::{LockBehavior, LockType};
use sea_orm::{
    ConnectionTrait, DbBackend, EntityTrait, IdenStatic as _, Iterable as _, QueryResult,
    QuerySelect, Select, Statement, TryGetable, Value,
};

use crate::error::StoreError;

/// What takes statements. Their parameters are `$1`, `$2`, … .
pub(crate) trait Sql: Sync {
    fn backend(&self) -> DbBackend;

    /// Whether a part of a transaction may be taken back. Else an error takes all of it back.
    fn has_savepoints(&self) -> bool {
        true
    }

    /// Does what a statement says.
    fn execute_sql(
        &self,
        sql: String,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The rows that a statement gives.
    fn query_sql(
        &self,
        sql: String,
        values: Vec<Value>,
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send;

    /// Does what a statement says of each row of values: many rows in one, where each costs a way there and back.
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

    /// The same for a full-text index, which is best written last: whatever statement follows may make it write
    /// what it gathers.
    fn index_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.execute_rows(text, rows)
    }

    /// The rows that it gives of all of them. Their order is the database's own.
    fn query_rows<const N: usize>(
        &self,
        text: &str,
        rows: Vec<[Value; N]>,
    ) -> impl Future<Output = Result<Vec<Row>, StoreError>> + Send {
        async move {
            let mut found = Vec::new();
            for (sql, values) in statements(rows, text) {
                found.extend(self.query_sql(sql, values).await?);
            }
            Ok(found)
        }
    }

    /// Does what an update says of each row of values, and gives the first values, which are text, of those that
    /// it changed something for. `key`: the column that has them.
    fn update_rows<const N: usize>(
        &self,
        text: &str,
        key: &'static str,
        rows: Vec<[Value; N]>,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send {
        async move {
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

    async fn query_sql(&self, sql: String, values: Vec<Value>) -> Result<Vec<Row>, StoreError> {
        let statement = Statement::from_sql_and_values(self.backend(), sql, values);
        let rows = self.query_all_raw(statement).await?;
        Ok(rows.into_iter().map(Row::Pooled).collect())
    }
}

/// A row of an answer.
pub(crate) enum Row {
    Pooled(QueryResult),
    Inline(crate::inline::InlineRow),
}

impl Row {
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

    fn get<T: TryGetable + FromSql>(&self, column: &str) -> Result<T, StoreError> {
        match self {
            Self::Pooled(row) => Ok(row.try_get("", column)?),
            Self::Inline(row) => row.get(column),
        }
    }
}

/// All columns of a table, by their names. A newer replica may add one: to a statement that PostgreSQL knows by heart,
/// `*` would then be another answer than it was, and an error for as long as the connection lives.
pub(crate) fn columns<E: EntityTrait>(table: &str) -> String {
    let names = E::Column::iter().map(|column| format!("{table}.{}", column.as_str()));
    names.collect::<Vec<_>>().join(", ")
}

/// Has a query lock the rows that it gives until the commit. On `SQLite` there is one writer, and nothing to lock.
pub(crate) fn locked<E: EntityTrait>(conn: &impl Sql, query: Select<E>) -> Select<E> {
    match conn.backend() {
        DbBackend::Postgres => query.lock(LockType::NoKeyUpdate),
        _ => query,
    }
}

/// Locks the rows that nobody has locked, and leaves the others out. `SQLite` has one writer.
pub(crate) fn unlocked<E: EntityTrait>(conn: &impl Sql, query: Select<E>) -> Select<E> {
    match conn.backend() {
        DbBackend::Postgres => {
            query.lock_with_behavior(LockType::NoKeyUpdate, LockBehavior::SkipLocked)
        }
        _ => query,
    }
}

/// What a list is that a statement looks among, the last of it again and again: as long as a power of two, as every
/// statement is wide. Somebody else chooses how many there are, and connections keep a statement for each number.
pub(crate) fn padded<T: Clone>(list: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut list: Vec<T> = list.into_iter().collect();
    if let Some(last) = list.last().cloned() {
        list.resize(list.len().next_power_of_two(), last);
    }
    list
}

/// Ends a subquery of `EXISTS`. `PostgreSQL` would join the subquery instead, and a plan of an empty table joins by a scan
/// and stays in use as the table grows; so it looks up each row in an index.
pub(crate) const EACH_ALONE: &str = "LIMIT 1 OFFSET 0";

/// An array literal of `PostgreSQL`, for `CAST($1 AS text[])`.
pub(crate) fn text_array<'a>(list: impl IntoIterator<Item = &'a str>) -> Value {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""));
    let list: Vec<_> = list.into_iter().map(quoted).collect();
    format!("{{{}}}", list.join(",")).into()
}

/// Rows of one statement at most: databases bound the number of its values.
const WIDEST: usize = 64;

/// The statements that write what one call of [`executed`] is given: wide, narrower, narrowest.
pub(crate) const WIDTHS: usize = WIDEST.ilog2() as usize + 1;

/// Does what `text` says of rows of values. In it `?1` is the first value of a row. `FROM rows` makes them a table
/// that stands alone behind its `FROM`, or before all others; `VALUES rows` are the rows as they are.
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

/// The same, for statements that give rows. Their order is the database's own.
pub(crate) async fn returned<const N: usize>(
    conn: &impl Sql,
    rows: Vec<[Value; N]>,
    text: &str,
) -> Result<Vec<Row>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    conn.query_rows(text, rows).await
}

/// Updates rows. Gives the first values of those rows of values that it changed something for; `key` is their column.
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

/// A statement over rows as one over a single row of so many values, which are the statement's own.
pub(crate) fn over_one_row(text: &str, columns: usize) -> String {
    if text.contains("VALUES rows") {
        let own: Vec<_> = (1..=columns).map(|place| format!("?{place}")).collect();
        return text.replacen("VALUES rows", &format!("VALUES ({})", own.join(", ")), 1);
    }
    text.replacen("FROM rows, ", "FROM ", 1)
        .replacen(" FROM rows", "", 1)
}

/// The same over many: `values` are theirs.
fn over_rows(text: &str, values: &str) -> String {
    text.replacen("VALUES rows", values, 1)
        .replacen("FROM rows", &format!("FROM ({values}) AS v"), 1)
        .replace('?', "v.column")
}

/// One statement for the widest part, one for the widest part of the rest, and so on.
fn statements<const N: usize>(rows: Vec<[Value; N]>, text: &str) -> Vec<(String, Vec<Value>)> {
    let mut statements = Vec::new();
    let mut rows = rows.into_iter();
    while rows.len() > 0 {
        let width = widths(rows.len());
        let values: Vec<Value> = rows.by_ref().take(width).flatten().collect();
        statements.push((over_rows(text, &values_of(width, N)), values));
    }
    statements
}

/// The largest power of two that is left, up to the widest.
fn widths(left: usize) -> usize {
    (1_usize << left.max(1).ilog2()).min(WIDEST)
}

/// `VALUES ($1, $2), ($3, $4)`.
fn values_of(rows: usize, columns: usize) -> String {
    let mut values = String::with_capacity(8 + rows * columns * 6);
    values.push_str("VALUES ");
    for place in 0..rows * columns {
        values.push_str(match (place, place % columns) {
            (0, _) => "(",
            (_, 0) => "), (",
            _ => ", ",
        });
        let _ = write!(values, "${}", place + 1);
    }
    values.push(')');
    values
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
        assert_eq!(values_of(1, 1), "VALUES ($1)");
    }

    #[test]
    fn a_list_is_as_long_as_a_power_of_two_and_of_the_same() {
        assert_eq!(padded([1, 2, 3]), [1, 2, 3, 3]);
        assert_eq!(padded([1, 2]), [1, 2]);
        assert!(padded(Vec::<u8>::new()).is_empty());
    }

    #[test]
    fn a_statement_over_rows_is_one_over_many_or_one_over_each() {
        let check = |text: &str, many: &str, one: &str| {
            assert_eq!(over_rows(text, "VALUES ($1, $2)"), many);
            assert_eq!(over_one_row(text, 2), one);
        };
        check(
            "INSERT INTO t (a, b) VALUES rows RETURNING a",
            "INSERT INTO t (a, b) VALUES ($1, $2) RETURNING a",
            "INSERT INTO t (a, b) VALUES (?1, ?2) RETURNING a",
        );
        check(
            "UPDATE t SET a = ?2 FROM rows WHERE t.b = ?1",
            "UPDATE t SET a = v.column2 FROM (VALUES ($1, $2)) AS v WHERE t.b = v.column1",
            "UPDATE t SET a = ?2 WHERE t.b = ?1",
        );
        check(
            "SELECT t.a FROM rows, t WHERE t.b = ?1",
            "SELECT t.a FROM (VALUES ($1, $2)) AS v, t WHERE t.b = v.column1",
            "SELECT t.a FROM t WHERE t.b = ?1",
        );
    }
}
