//! Migrations on both databases, and the schema that they create.
use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{StoreFixture, on_both};
use migrations::{Migrator, MigratorTrait, SchemaManager};
use sea_orm::{ConnectionTrait, Database, QueryResult, Statement};
use store::{Backend, Migrations, Store, StoreError};

on_both!(
    migrations_create_documented_schema,
    migrates_down_and_up,
    refuses_database_of_another_version,
);

/// A migration changes `schema/*.txt`, too.
async fn migrations_create_documented_schema(bench: StoreFixture) {
    let (query, documented) = match bench.backend() {
        Backend::Sqlite => (
            include_str!("schema/sqlite.sql"),
            include_str!("schema/sqlite.txt"),
        ),
        Backend::Postgres => (
            include_str!("schema/postgres.sql"),
            include_str!("schema/postgres.txt"),
        ),
    };
    let db = Database::connect(bench.url()).await.unwrap();
    let statement = Statement::from_string(db.get_database_backend(), query);
    let rows = db.query_all_raw(statement).await.unwrap();
    // `SQLite` returns the text of a statement as it was written.
    let line = |row: &QueryResult| {
        let text: String = row.try_get_by_index(0).unwrap();
        let words: Vec<_> = text.split_whitespace().collect();
        words.join(" ")
    };
    let created: BTreeSet<String> = rows.iter().map(line).collect();
    let documented: BTreeSet<String> = documented.lines().map(str::to_owned).collect();
    let missing: Vec<_> = documented.difference(&created).collect();
    let new: Vec<_> = created.difference(&documented).collect();
    assert!(
        missing.is_empty() && new.is_empty(),
        "the schema differs: missing {missing:#?}, new {new:#?}"
    );
    db.close().await.unwrap();
}

async fn migrates_down_and_up(bench: StoreFixture) {
    let db = Database::connect(bench.url()).await.unwrap();
    Migrator::down(&db, None).await.unwrap();
    assert!(!SchemaManager::new(&db).has_table("runs").await.unwrap());
    Migrator::up(&db, None).await.unwrap();
    db.close().await.unwrap();
}

async fn refuses_database_of_another_version(bench: StoreFixture) {
    let newer = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m2099_newer', 0)";
    bench.tamper(newer).await;
    for migrations in [Migrations::New, Migrations::All] {
        let opened = Store::open_with(&bench.url(), Duration::from_secs(30), migrations).await;
        let refused = opened.map(drop).unwrap_err();
        assert!(
            matches!(&refused, StoreError::UnknownMigration(name) if name == "m2099_newer"),
            "{refused}"
        );
    }
}
