//! `PostgreSQL` databases.

use std::str::FromStr as _;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use protocol::JsonObject;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{ForeignError, ForeignLimits, ForeignRows, ForeignTable, ReadMeter, select};

/// Timeout of connect and read together.
const SECONDS: u64 = 30;
/// SQLSTATE of a statement without permission, or without permission for all rows.
const FORBIDDEN: &str = "42501";
/// One snapshot for all tables. Rows hidden by a policy are an error.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL row_security = off; \
    SET LOCAL statement_timeout = '20s'; SET LOCAL lock_timeout = '5s'";
/// Columns of a table on the search path.
const COLUMNS: &str = "SELECT a.attname::text FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid \
    WHERE c.oid = to_regclass($1) AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped";

/// Reads the existing tables. `url`: `postgres://…`, with a password if required.
pub async fn read_postgres(
    url: &str,
    tables: &[ForeignTable],
    limits: ForeignLimits,
) -> Result<Vec<ForeignRows>, ForeignError> {
    let options = PgConnectOptions::from_str(url).map_err(|_| ForeignError::Url)?;
    let reading = async {
        let connected = PgConnection::connect_with(&options).await;
        let mut connection = connected.map_err(ForeignError::Connect)?;
        let found = read(&mut connection, tables, limits).await;
        // The rows are read; a failed close changes nothing.
        let _ = connection.close().await;
        found
    };
    let read = tokio::time::timeout(Duration::from_secs(SECONDS), reading).await;
    read.unwrap_or(Err(ForeignError::Timeout(SECONDS)))
}

async fn read(
    connection: &mut PgConnection,
    tables: &[ForeignTable],
    limits: ForeignLimits,
) -> Result<Vec<ForeignRows>, ForeignError> {
    let begun = sqlx::raw_sql(BEGIN).execute(&mut *connection).await;
    begun.map_err(ForeignError::Connect)?;
    let mut meter = ReadMeter::new(limits);
    let mut found = Vec::new();
    for table in tables {
        if let Some(rows) = rows(connection, table, &mut meter).await? {
            found.push(ForeignRows {
                table: table.name,
                rows,
            });
        }
    }
    Ok(found)
}

/// `None`: no such table.
async fn rows(
    connection: &mut PgConnection,
    table: &ForeignTable,
    meter: &mut ReadMeter,
) -> Result<Option<Vec<JsonObject>>, ForeignError> {
    let failed = |source| failed(table.name, source);
    let there = sqlx::query_scalar(COLUMNS).bind(table.name);
    let there: Vec<String> = there.fetch_all(&mut *connection).await.map_err(failed)?;
    let limits = meter.limits;
    let Some(sql) = select(table, &there, limits.rows) else {
        return Ok(None);
    };
    // A row beyond the limit does not leave the server.
    let sql = format!(
        "SELECT CASE WHEN octet_length(j) <= {most} THEN j END FROM (SELECT row_to_json(r)::text AS j FROM ({sql}) AS r) AS q",
        most = limits.bytes
    );
    let mut read = sqlx::query_scalar(AssertSqlSafe(sql)).fetch(connection);
    let mut rows = Vec::new();
    while let Some(row) = read.try_next().await.map_err(failed)? {
        let row: Option<String> = row;
        let row = row.ok_or(ForeignError::Bytes(limits.bytes))?;
        meter.count(table.name, rows.len(), row.len())?;
        // Its JSON has numbers of any size.
        let object = serde_json::from_str::<JsonObject>(&row);
        rows.push(object.map_err(|_| ForeignError::Json {
            table: table.name,
            row: rows.len() + 1,
        })?);
    }
    Ok(Some(rows))
}

fn failed(table: &'static str, source: sqlx::Error) -> ForeignError {
    let code = source
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    if code.as_deref() == Some(FORBIDDEN) {
        ForeignError::Forbidden(table)
    } else {
        ForeignError::Query { table, source }
    }
}
