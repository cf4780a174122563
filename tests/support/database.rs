//! A database that belongs to one test.

use std::sync::Once;

use sqlx::{AssertSqlSafe, Connection, PgConnection, Row, SqliteConnection};
use url::Url;
use uuid::Uuid;

use super::{Directory, skipped};

static SKIPPED: Once = Once::new();

#[derive(Clone, Copy, Debug)]
pub enum Engine {
    Sqlite,
    Postgres,
}

pub enum Database {
    /// A file in the test's directory, which goes with it.
    Sqlite { url: String },
    /// A database on the server that the environment names, dropped with this value.
    Postgres { server: Url, name: String },
}

impl Database {
    /// `None` when the engine is `PostgreSQL` and no server was named.
    pub async fn create(engine: Engine, directory: &Directory) -> Option<Self> {
        match engine {
            Engine::Sqlite => {
                let path = directory.file("runnel.db");
                Some(Self::Sqlite {
                    url: format!("sqlite://{}", path.display()),
                })
            }
            Engine::Postgres => {
                let server = postgres_server()?;
                let name = format!("runnel_e2e_{}", Uuid::new_v4().simple());
                execute(&server, format!("CREATE DATABASE {name}"))
                    .await
                    .unwrap();
                Some(Self::Postgres { server, name })
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

impl Drop for Database {
    fn drop(&mut self) {
        let Self::Postgres { server, name } = self else {
            return;
        };
        let server = server.clone();
        let sql = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        // A thread and a runtime of its own: drop cannot await, and a failed test cleans up as well.
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

/// The first column, a text, of what a query finds.
pub async fn rows(url: &str, sql: &str) -> Vec<String> {
    let sql = AssertSqlSafe(sql.to_owned());
    if url.starts_with("sqlite:") {
        let mut database = SqliteConnection::connect(url).await.unwrap();
        let rows = sqlx::raw_sql(sql).fetch_all(&mut database).await.unwrap();
        database.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    } else {
        let mut database = PgConnection::connect(url).await.unwrap();
        let rows = sqlx::raw_sql(sql).fetch_all(&mut database).await.unwrap();
        database.close().await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

pub fn postgres_server() -> Option<Url> {
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
