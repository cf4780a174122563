//! Notices between replicas on one `PostgreSQL`, by LISTEN and NOTIFY.
//!
//! A notice is sent in a transaction of its own and may be lost: whoever waits also looks by itself
//! from time to time.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DbBackend, Statement};
use sqlx::PgPool;
use sqlx::postgres::PgListener;

use crate::connect::{Backend, Store};
use crate::error::StoreError;

const CHANNEL: &str = "runnel";
/// Before the connection is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// What is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'a> {
    /// What somebody with a login of the database has sent, our own notices among it.
    Text(&'a str),
    /// The connection was away: anything may have been missed.
    Missed,
}

impl Store {
    /// Sends a notice of less than 8,000 bytes to everybody who listens. On `SQLite` nobody does.
    pub async fn notify(&self, notice: &str) -> Result<(), StoreError> {
        if self.backend() == Backend::Postgres {
            let values = [CHANNEL.into(), notice.into()];
            let sql = "SELECT pg_notify($1, $2)";
            let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
            self.readers.execute_raw(statement).await?;
        }
        Ok(())
    }

    /// Calls `hear` for what is sent, until dropped. On `SQLite` nothing is.
    pub async fn listen(&self, hear: impl Fn(Notice<'_>)) {
        if self.backend() == Backend::Sqlite {
            return std::future::pending().await;
        }
        let pool = self.readers.postgres_pool();
        let mut is_away = false;
        loop {
            let error = match follow(pool, &mut is_away, &hear).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if !is_away {
                tracing::warn!(%error, "notices of other replicas cannot be heard; they are looked for until that is over");
            }
            is_away = true;
            hear(Notice::Missed);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn follow(
    pool: &PgPool,
    is_away: &mut bool,
    hear: &impl Fn(Notice<'_>),
) -> Result<std::convert::Infallible, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    if std::mem::take(is_away) {
        tracing::info!("notices of other replicas are heard again");
    }
    // What was sent before this moment was not heard.
    hear(Notice::Missed);
    loop {
        match listener.try_recv().await? {
            Some(notice) => hear(Notice::Text(notice.payload())),
            None => hear(Notice::Missed),
        }
    }
}
