//! Imports from databases of other programs.
//!
//! Reads are read-only and bounded: no statement writes, and no file is created. A table with more rows than the
//! limit is an error. Reads cover tables without views, and existing columns only.

mod postgres;
mod sqlite;

use protocol::JsonObject;

pub use postgres::read_postgres;
pub use sqlite::read_sqlite;

/// A table and its columns to read.
#[derive(Clone, Copy, Debug)]
pub struct ForeignTable {
    /// Lower-case letters and `_`.
    pub name: &'static str,
    /// The same. Columns missing in the database are skipped.
    pub columns: &'static [&'static str],
}

/// Limits of one read.
#[derive(Clone, Copy, Debug)]
pub struct ForeignLimits {
    /// Maximum rows of one table.
    pub rows: usize,
    /// Maximum bytes of all values of all tables.
    pub bytes: usize,
}

/// Rows of an existing table, oldest first, then by id.
#[derive(Clone, Debug, PartialEq)]
pub struct ForeignRows {
    pub table: &'static str,
    pub rows: Vec<JsonObject>,
}

/// Reason of a failed read. Contains no values and no address.
#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    #[error(
        "cannot be read as an SQLite database; one that its program has open needs its -wal and -shm files in the same directory"
    )]
    Sqlite(#[source] rusqlite::Error),
    #[error("is no URL of PostgreSQL: postgres://USER@HOST/DATABASE")]
    Url,
    #[error("PostgreSQL cannot be reached")]
    Connect(#[source] sqlx::Error),
    #[error("PostgreSQL did not answer within {0} seconds")]
    Timeout(u64),
    #[error(
        "the role may not read all rows of {0}: connect as a superuser, or as an owner with BYPASSRLS"
    )]
    Forbidden(&'static str),
    #[error("table {table} cannot be read")]
    Query {
        table: &'static str,
        #[source]
        source: sqlx::Error,
    },
    #[error("row {row} of table {table} holds JSON that cannot be read")]
    Json { table: &'static str, row: usize },
    #[error("table {table} has more than {rows} rows")]
    Rows { table: &'static str, rows: usize },
    #[error("its tables hold more than {0} bytes")]
    Bytes(usize),
}

/// Counts the rows of a table and the bytes of a database.
struct ReadMeter {
    limits: ForeignLimits,
    bytes: usize,
}

impl ReadMeter {
    fn new(limits: ForeignLimits) -> Self {
        Self { limits, bytes: 0 }
    }

    /// Counts a row before it is stored.
    fn count(
        &mut self,
        table: &'static str,
        before: usize,
        bytes: usize,
    ) -> Result<(), ForeignError> {
        if before >= self.limits.rows {
            return Err(ForeignError::Rows {
                table,
                rows: self.limits.rows,
            });
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.limits.bytes {
            return Err(ForeignError::Bytes(self.limits.bytes));
        }
        Ok(())
    }
}

/// The statement of a table; reads one row above the limit, to detect an excess.
fn select(table: &ForeignTable, there: &[String], rows: usize) -> Option<String> {
    let columns: Vec<_> = table
        .columns
        .iter()
        // The names come from code, never from the database; columns of newer or older versions may be missing.
        .filter(|column| there.iter().any(|name| name == *column))
        .map(|column| format!("\"{column}\""))
        .collect();
    let order: Vec<_> = ["created_at", "uuid"]
        .iter()
        .filter(|column| there.iter().any(|name| name == *column))
        .map(|column| format!("\"{column}\""))
        .collect();
    let order = if order.is_empty() {
        String::new()
    } else {
        format!(" ORDER BY {}", order.join(", "))
    };
    let (columns, name, limit) = (columns.join(", "), table.name, rows.saturating_add(1));
    (!columns.is_empty()).then(|| format!("SELECT {columns} FROM \"{name}\"{order} LIMIT {limit}"))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use serde_json::json;

    use super::*;

    const TABLE: ForeignTable = ForeignTable {
        name: "things",
        columns: &["uuid", "config", "is_default", "gone"],
    };
    const LIMITS: ForeignLimits = ForeignLimits {
        rows: 2,
        bytes: 1000,
    };

    struct File(std::path::PathBuf);

    impl File {
        fn holding(sql: &str) -> Self {
            let name = format!("foreign-{}.db", uuid::Uuid::now_v7().simple());
            let path = std::env::temp_dir().join(name);
            Connection::open(&path).unwrap().execute_batch(sql).unwrap();
            Self(path)
        }

        fn read(&self) -> Result<Vec<ForeignRows>, ForeignError> {
            read_sqlite(&self.0, &[TABLE], LIMITS)
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    const MADE: &str = "CREATE TABLE things (uuid TEXT, config JSON, is_default BOOLEAN, note TEXT, created_at DATETIME);";

    #[test]
    fn reads_declared_columns_oldest_first() {
        let file = File::holding(&format!(
            "{MADE} INSERT INTO things VALUES ('b', '{{\"a\": 1}}', 0, 'x', 2), ('a', NULL, 1, 'y', 1);"
        ));
        let before = std::fs::read(&file.0).unwrap();
        let read = file.read().unwrap();
        let rows = json!([
            {"uuid": "a", "config": null, "is_default": 1},
            {"uuid": "b", "config": "{\"a\": 1}", "is_default": 0},
        ]);
        assert_eq!(json!(read[0].rows), rows);
        assert_eq!(std::fs::read(&file.0).unwrap(), before);
    }

    #[test]
    fn refuses_more_than_the_limits() {
        let rows = File::holding(&format!(
            "{MADE} INSERT INTO things (uuid) VALUES ('a'), ('b'), ('c');"
        ));
        assert!(matches!(rows.read(), Err(ForeignError::Rows { .. })));
        let bytes = File::holding(&format!(
            "{MADE} INSERT INTO things (uuid, config) VALUES ('a', 'x' || hex(zeroblob(2000)));"
        ));
        assert!(matches!(bytes.read(), Err(ForeignError::Bytes(1000))));
    }

    #[test]
    fn reads_no_views_and_creates_no_files() {
        let view = File::holding("CREATE VIEW things AS SELECT 'a' AS uuid;");
        assert_eq!(view.read().unwrap(), []);
        let missing = File(std::env::temp_dir().join("no-such-directory/things.db"));
        assert!(matches!(missing.read(), Err(ForeignError::Sqlite(_))));
        assert!(!missing.0.exists());
    }
}
