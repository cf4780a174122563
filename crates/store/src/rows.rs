//! Many rows in few statements.
//!
//! Every statement is as wide as a power of two, so that the database knows each by heart.

use std::fmt::Write as _;

use sea_orm::{ConnectionTrait, QueryResult, Statement, Value};

use crate::error::StoreError;

/// Rows of one statement at most: databases bound the number of its values.
const WIDEST: usize = 64;

/// The statements that write what one call of [`executed`] is given: wide, narrower, narrowest.
pub(crate) const WIDTHS: usize = WIDEST.ilog2() as usize + 1;

/// Does what `sql` says of rows of values: it is given `VALUES ($1, $2), ($3, $4)`.
pub(crate) async fn executed<const N: usize>(
    conn: &impl ConnectionTrait,
    rows: Vec<[Value; N]>,
    sql: impl Fn(&str) -> String,
) -> Result<(), StoreError> {
    for statement in statements(conn, rows, sql) {
        conn.execute_raw(statement).await?;
    }
    Ok(())
}

/// The same, for statements that give rows. Their order is the database's own.
pub(crate) async fn returned<const N: usize>(
    conn: &impl ConnectionTrait,
    rows: Vec<[Value; N]>,
    sql: impl Fn(&str) -> String,
) -> Result<Vec<QueryResult>, StoreError> {
    let mut returned = Vec::new();
    for statement in statements(conn, rows, sql) {
        returned.extend(conn.query_all_raw(statement).await?);
    }
    Ok(returned)
}

/// Inserts rows. `into`: `table (column, column)`.
pub(crate) async fn inserted<const N: usize>(
    conn: &impl ConnectionTrait,
    into: &str,
    rows: Vec<[Value; N]>,
) -> Result<(), StoreError> {
    executed(conn, rows, |values| format!("INSERT INTO {into} {values}")).await
}

/// One statement for the widest part, one for the widest part of the rest, and so on.
fn statements<const N: usize>(
    conn: &impl ConnectionTrait,
    rows: Vec<[Value; N]>,
    sql: impl Fn(&str) -> String,
) -> Vec<Statement> {
    let backend = conn.get_database_backend();
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
}
