//! A database for one test.

use std::path::Path;
use std::sync::Once;

use sqlx::error::DatabaseError;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqliteConnection};
use url::Url;
use uuid::Uuid;

use super::twins::is_twin_skipped;
use super::{TempDirectory, hex, skipped, until};

static SKIPPED: Once = Once::new();

#[derive(Clone, Copy, Debug)]
pub enum Engine {
    Sqlite,
    Postgres,
}

pub enum Database {
    /// A file in the test's directory, removed with the directory.
    Sqlite { url: String },
    /// A database on the server from the environment, dropped with this value.
    Postgres { server: Url, name: String },
}

impl Database {
    /// Returns `None` for `PostgreSQL` if the environment names no server.
    pub async fn create(engine: Engine, directory: &TempDirectory) -> Option<Self> {
        match engine {
            Engine::Sqlite => {
                let path = directory.file("runnel.db");
                Some(Self::Sqlite {
                    url: format!("sqlite://{}", path.display()),
                })
            }
            Engine::Postgres => {
                let server = postgres_server()?;
                Some(create(server, "").await)
            }
        }
    }

    /// Turns the database into a template. It must have no open connections from then on.
    pub fn into_source(self) -> DatabaseSnapshot {
        match &self {
            Self::Sqlite { url } => {
                let file = url.strip_prefix("sqlite://").unwrap();
                DatabaseSnapshot::Sqlite(std::fs::read(file).unwrap())
            }
            Self::Postgres { server, name } => {
                let source = DatabaseSnapshot::Postgres(server.clone(), name.clone());
                // Keep it for the lifetime of the process; a later test process drops it.
                std::mem::forget(self);
                source
            }
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::Sqlite { url } => url.clone(),
            Self::Postgres { server, name } => {
                let mut url = server.clone();
                url.set_path(name);
                url.into()
            }
        }
    }
}

/// A migrated database: the bytes of a file, or the name of a database on a server.
pub enum DatabaseSnapshot {
    Sqlite(Vec<u8>),
    Postgres(Url, String),
}

impl DatabaseSnapshot {
    pub async fn copy(&self, directory: &TempDirectory) -> Database {
        match self {
            Self::Sqlite(bytes) => {
                let path = directory.file("runnel.db");
                std::fs::write(&path, bytes).unwrap();
                Database::Sqlite {
                    url: format!("sqlite://{}", path.display()),
                }
            }
            Self::Postgres(server, name) => {
                create(server.clone(), &format!("TEMPLATE {name}")).await
            }
        }
    }
}

async fn create(server: Url, options: &str) -> Database {
    let unique = Uuid::new_v4().simple().to_string();
    let name = format!("{}{}_{}", prefix(), std::process::id(), &unique[..16]);
    let sql = format!("CREATE DATABASE {name} {options}");
    execute(&server, sql).await.unwrap();
    Database::Postgres { server, name }
}

/// Name prefix of all test databases of processes in the same PID namespace.
fn prefix() -> String {
    let location = [
        std::fs::read("/proc/sys/kernel/random/boot_id").ok(),
        std::fs::read_link("/proc/self/ns/pid")
            .ok()
            .map(|link| link.into_os_string().into_encoded_bytes()),
    ];
    let location: Vec<u8> = location.into_iter().flatten().flatten().collect();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &location);
    format!("runnel_e2e_{}_", hex(&digest.as_ref()[..4]))
}

/// Drops the databases of test processes that ended without cleanup.
pub async fn drop_abandoned(server: &Url) {
    let prefix = prefix();
    let sql = format!("SELECT datname::text FROM pg_database WHERE datname LIKE '{prefix}%'");
    for name in rows(server.as_str(), &sql).await {
        let process = name[prefix.len()..].split('_').next().unwrap();
        let has_ended =
            Path::new("/proc/self").exists() && !Path::new("/proc").join(process).exists();
        if has_ended {
            // Ignore errors: another process may drop the same database.
            let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            let _ = execute(server, sql).await;
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let Self::Postgres { server, name } = self else {
            return;
        };
        let server = server.clone();
        let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        // Drop cannot await, and a failed test must clean up, too. So use a separate thread and runtime.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(execute(&server, sql))
        });
        if !matches!(dropped.join(), Ok(Ok(()))) {
            eprintln!("could not drop the database {name}");
        }
    }
}

/// The first column, as text, of all rows of a query.
pub async fn rows(url: &str, sql: &str) -> Vec<String> {
    try_rows(url, sql).await.unwrap()
}

/// Changes rows that a gateway may change at the same time. False: the gateway won a deadlock, and nothing changed.
pub async fn change_rows(url: &str, sql: &str) -> bool {
    match try_rows(url, sql).await {
        Ok(_) => true,
        Err(error) => {
            let code = error.as_database_error().and_then(DatabaseError::code);
            assert_eq!(code.as_deref(), Some("40P01"), "{error}");
            false
        }
    }
}

async fn try_rows(url: &str, sql: &str) -> sqlx::Result<Vec<String>> {
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite:") {
        let mut database = SqliteConnection::connect(url).await?;
        let rows = sqlx::raw_sql(sql).fetch_all(&mut database).await?;
        database.close().await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    } else {
        let mut database = PgConnection::connect(url).await?;
        let rows = sqlx::raw_sql(sql).fetch_all(&mut database).await?;
        database.close().await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

/// Returns `None` and prints a notice if the environment names no server, or if this run skips the test's
/// PostgreSQL half.
pub fn postgres_server() -> Option<Url> {
    if is_twin_skipped() {
        return None;
    }
    if let Ok(url) = std::env::var("RUNNEL_TEST_POSTGRES_URL") {
        return Some(Url::parse(&url).unwrap());
    }
    skipped(&SKIPPED, "postgres", "there is no RUNNEL_TEST_POSTGRES_URL");
    None
}

async fn execute(server: &Url, sql: String) -> sqlx::Result<()> {
    let mut connection = PgConnection::connect(server.as_str()).await?;
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await?;
    connection.close().await
}

/// Waits until this number of gateways of a `PostgreSQL` database receive notifications. Earlier ones are lost.
pub async fn listening(url: &str, gateways: usize) {
    let sessions = "SELECT pid::text FROM pg_stat_activity \
        WHERE datname = current_database() AND query LIKE 'LISTEN %'";
    until("LISTEN", async || {
        rows(url, sessions).await.len() >= gateways
    })
    .await;
}
