//! Online copy of an `SQLite` database.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::StoreError;

/// Time to wait for a lock of the writer.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);
/// Without `CREATE`: a missing file is an error. Without `URI`: the path is no URL.
const EXISTING: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// Copies a database into a file that is new or empty, and checks the copy. A gateway may write meanwhile: the copy
/// has the state of one moment. Returns the number of runs in the copy. Blocks the thread.
pub fn copy_sqlite(database: &Path, copy: &Path) -> Result<u64, StoreError> {
    let source = open(database)?;
    let path = copy.to_str().ok_or_else(|| StoreError::Corrupt {
        column: "of the path",
        row: copy.display().to_string(),
    })?;
    // Unlike a copy of the file, it includes the write-ahead log and reads one snapshot.
    source.execute("VACUUM INTO ?1", [path])?;
    drop(source);
    let copied = open(copy)?;
    // Reads each page of the copy, so a disk error shows now and not at the restore.
    let fault: String = copied.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if fault != "ok" {
        return Err(StoreError::Corrupt {
            column: "of the copy",
            row: fault,
        });
    }
    let runs: i64 = copied.query_row("SELECT count(*) FROM runs", [], |row| row.get(0))?;
    Ok(runs.unsigned_abs())
}

fn open(path: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open_with_flags(path, EXISTING)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}
