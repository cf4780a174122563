//! `SQLite` files.

use std::path::Path;
use std::time::Duration;

use protocol::JsonObject;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use serde_json::{Number, Value};

use super::{ForeignError, ForeignLimits, ForeignRows, ForeignTable, ReadMeter, select};

/// Wait for the lock of another program.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Without `URI` and `CREATE`: the path is no URL, and a missing file is an error.
const READ_ONLY: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_ONLY.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// Reads the existing tables in one snapshot. Blocks the thread.
pub fn read_sqlite(
    path: &Path,
    tables: &[ForeignTable],
    limits: ForeignLimits,
) -> Result<Vec<ForeignRows>, ForeignError> {
    let connection = open(path).map_err(ForeignError::Sqlite)?;
    let mut meter = ReadMeter::new(limits);
    let mut found = Vec::new();
    for table in tables {
        if let Some(rows) = rows(&connection, table, &mut meter)? {
            found.push(ForeignRows {
                table: table.name,
                rows,
            });
        }
    }
    Ok(found)
}

fn open(path: &Path) -> Result<Connection, rusqlite::Error> {
    let connection = Connection::open_with_flags(path, READ_ONLY)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "query_only", true)?;
    // The schema is untrusted and must not call functions with side effects.
    connection.pragma_update(None, "trusted_schema", false)?;
    // A read transaction: all tables come from one snapshot.
    connection.execute_batch("BEGIN")?;
    Ok(connection)
}

/// `None`: no such table.
fn rows(
    connection: &Connection,
    table: &ForeignTable,
    meter: &mut ReadMeter,
) -> Result<Option<Vec<JsonObject>>, ForeignError> {
    let there = columns(connection, table.name).map_err(ForeignError::Sqlite)?;
    let Some(sql) = select(table, &there, meter.limits.rows) else {
        return Ok(None);
    };
    let mut statement = connection.prepare(&sql).map_err(ForeignError::Sqlite)?;
    let names: Vec<String> = statement
        .column_names()
        .into_iter()
        .map(str::to_owned)
        .collect();
    let mut read = statement.query([]).map_err(ForeignError::Sqlite)?;
    let mut rows = Vec::new();
    while let Some(row) = read.next().map_err(ForeignError::Sqlite)? {
        let bytes = size(row, names.len()).map_err(ForeignError::Sqlite)?;
        meter.count(table.name, rows.len(), bytes)?;
        rows.push(object(row, &names).map_err(ForeignError::Sqlite)?);
    }
    Ok(Some(rows))
}

fn columns(connection: &Connection, table: &str) -> Result<Vec<String>, rusqlite::Error> {
    let mut statement = connection.prepare(
        "SELECT c.name FROM sqlite_master AS t, pragma_table_info(t.name) AS c \
         WHERE t.type = 'table' AND t.name = ?1",
    )?;
    let names = statement.query_map([table], |row| row.get(0))?;
    names.collect()
}

/// Bytes of a row, measured before any copy.
fn size(row: &Row<'_>, columns: usize) -> Result<usize, rusqlite::Error> {
    let mut bytes = 0;
    for at in 0..columns {
        bytes += match row.get_ref(at)? {
            ValueRef::Text(text) => text.len(),
            _ => size_of::<Value>(),
        };
    }
    Ok(bytes)
}

/// Blobs have no JSON form and read as null.
fn object(row: &Row<'_>, names: &[String]) -> Result<JsonObject, rusqlite::Error> {
    let mut object = JsonObject::new();
    for (at, name) in names.iter().enumerate() {
        let value = match row.get_ref(at)? {
            ValueRef::Null | ValueRef::Blob(_) => Value::Null,
            ValueRef::Integer(number) => Value::from(number),
            ValueRef::Real(number) => Number::from_f64(number).map_or(Value::Null, Value::Number),
            ValueRef::Text(text) => Value::from(String::from_utf8_lossy(text)),
        };
        object.insert(name.clone(), value);
    }
    Ok(object)
}
