//! Databases of other programs: read in one snapshot, never written, and read completely or not at all.

use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use store::foreign::{ForeignError, ForeignLimits, ForeignTable, read_postgres};

use crate::support::{TestDatabase, create_database};

const TABLES: [ForeignTable; 2] = [
    ForeignTable {
        name: "things",
        columns: &["uuid", "config", "is_default", "gone"],
    },
    ForeignTable {
        name: "absent",
        columns: &["uuid"],
    },
];
const LIMITS: ForeignLimits = ForeignLimits {
    rows: 2,
    bytes: 1000,
};

async fn holding(sql: &str) -> Option<TestDatabase> {
    let database = create_database().await?;
    let mut connection = PgConnection::connect(&database.url()).await.unwrap();
    let sql = format!(
        "CREATE TABLE things (uuid TEXT, config JSON, is_default BOOLEAN, created_at TIMESTAMP); {sql}"
    );
    let made = sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection);
    made.await.unwrap();
    Some(database)
}

#[tokio::test]
async fn reads_rows_of_postgres_as_json() {
    let sql = r#"INSERT INTO things VALUES ('b', '{"a": 1}', false, '2026-01-02'), ('a', NULL, true, '2026-01-01')"#;
    let Some(database) = holding(sql).await else {
        return;
    };
    let read = read_postgres(&database.url(), &TABLES, LIMITS)
        .await
        .unwrap();
    let rows = json!([
        {"uuid": "a", "config": null, "is_default": true},
        {"uuid": "b", "config": {"a": 1}, "is_default": false},
    ]);
    assert_eq!(read.len(), 1, "the other table is not there");
    assert_eq!(json!(read[0].rows), rows);
    database.drop().await;
}

#[tokio::test]
async fn refuses_large_and_many_rows_of_postgres() {
    for (sql, is_many) in [
        ("INSERT INTO things (uuid) VALUES ('a'), ('b'), ('c')", true),
        (
            "INSERT INTO things (uuid) VALUES (repeat('x', 2000))",
            false,
        ),
    ] {
        let Some(database) = holding(sql).await else {
            return;
        };
        let read = read_postgres(&database.url(), &TABLES, LIMITS).await;
        match read {
            Err(ForeignError::Rows { .. }) => assert!(is_many),
            Err(ForeignError::Bytes(1000)) => assert!(!is_many),
            other => panic!("{other:?}"),
        }
        database.drop().await;
    }
}

#[tokio::test]
async fn reports_invalid_and_unreachable_urls() {
    let url = read_postgres("not a url", &TABLES, LIMITS).await;
    assert!(matches!(url, Err(ForeignError::Url)), "{url:?}");
    let closed = "postgres://me:hidden@127.0.0.1:1/db";
    let closed = read_postgres(closed, &TABLES, LIMITS).await.unwrap_err();
    assert!(matches!(closed, ForeignError::Connect(_)), "{closed:?}");
    assert!(!format!("{closed:?}").contains("hidden"));
}
