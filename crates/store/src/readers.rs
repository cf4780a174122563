//! Pool of read connections. Every query has a timeout, because a dead connection never replies.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sea_orm::{
    ConnectionTrait, DatabaseConnection, DbBackend, DbErr, ExecResult, QueryResult, RuntimeErr,
    Statement, Value,
};
use sqlx::PgPool;

use crate::error::StoreError;
use crate::sql::{Sql, SqlRow};
use crate::sqlite_direct::SqliteDirect;

/// Timeout of one query, with the wait for a connection.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone)]
pub(crate) struct Readers(DatabaseConnection);

impl Readers {
    pub(crate) fn new(pool: DatabaseConnection) -> Self {
        Self(pool)
    }

    /// The underlying pool, for long-lived listeners.
    pub(crate) fn postgres_pool(&self) -> &PgPool {
        self.0.get_postgres_connection_pool()
    }

    pub(crate) async fn ping(&self) -> Result<(), DbErr> {
        bounded(self.0.ping()).await
    }

    /// True on a standby, and while the server or the database is set to read-only. Never on `SQLite`.
    pub(crate) async fn is_read_only(&self) -> Result<bool, DbErr> {
        let backend = self.get_database_backend();
        if backend == DbBackend::Sqlite {
            return Ok(false);
        }
        let sql = "SELECT current_setting('transaction_read_only')";
        let row = self.query_one_raw(Statement::from_string(backend, sql));
        let setting: Option<String> = row.await?.map(|row| row.try_get_by_index(0)).transpose()?;
        Ok(setting.as_deref() != Some("off"))
    }
}

/// Point reads on the path of every request. `SQLite` answers them on the calling thread.
#[derive(Clone)]
pub(crate) struct PointReads {
    pool: Readers,
    sqlite_direct: Option<Arc<SqliteDirect>>,
}

impl PointReads {
    pub(crate) fn new(pool: Readers, sqlite_direct: Option<SqliteDirect>) -> Self {
        let sqlite_direct = sqlite_direct.map(Arc::new);
        Self {
            pool,
            sqlite_direct,
        }
    }
}

impl Sql for PointReads {
    fn backend(&self) -> DbBackend {
        self.pool.backend()
    }

    async fn execute_sql(&self, sql: String, values: Vec<Value>) -> Result<(), StoreError> {
        self.pool.execute_sql(sql, values).await
    }

    async fn query_sql(&self, sql: String, values: Vec<Value>) -> Result<Vec<SqlRow>, StoreError> {
        if let Some(sqlite_direct) = &self.sqlite_direct {
            match sqlite_direct.query_sql(sql.clone(), values.clone()).await {
                // Another connection holds the file: wait in the pool, which blocks no other task.
                Err(error) if error.is_contention() => {}
                answered => return answered,
            }
        }
        self.pool.query_sql(sql, values).await
    }
}

async fn bounded<T>(asking: impl Future<Output = Result<T, DbErr>>) -> Result<T, DbErr> {
    let answered = tokio::time::timeout(QUERY_TIMEOUT, asking).await;
    answered.unwrap_or_else(|_| {
        let message = format!("the database did not answer within {QUERY_TIMEOUT:?}");
        Err(DbErr::Conn(RuntimeErr::Internal(message)))
    })
}

#[async_trait]
impl ConnectionTrait for Readers {
    fn get_database_backend(&self) -> DbBackend {
        self.0.get_database_backend()
    }

    async fn execute_raw(&self, statement: Statement) -> Result<ExecResult, DbErr> {
        bounded(self.0.execute_raw(statement)).await
    }

    async fn execute_unprepared(&self, sql: &str) -> Result<ExecResult, DbErr> {
        bounded(self.0.execute_unprepared(sql)).await
    }

    async fn query_one_raw(&self, statement: Statement) -> Result<Option<QueryResult>, DbErr> {
        bounded(self.0.query_one_raw(statement)).await
    }

    async fn query_all_raw(&self, statement: Statement) -> Result<Vec<QueryResult>, DbErr> {
        bounded(self.0.query_all_raw(statement)).await
    }
}
