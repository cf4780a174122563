//! Notifications between replicas on one `PostgreSQL`, by LISTEN and NOTIFY.
//!
//! A notification has its own transaction and may be lost, so receivers also poll.

use std::time::Duration;

use sea_orm::{ConnectionTrait, DbBackend, Statement};
use sqlx::PgPool;
use sqlx::postgres::PgListener;

use crate::engine::Backend;
use crate::error::StoreError;
use crate::repositories::Notifications;

const CHANNEL: &str = "runnel";
/// Pause before a reconnect.
const PAUSE: Duration = Duration::from_secs(1);

/// A received notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotifyEvent<'a> {
    /// Payload sent by any database login, including our own.
    Text(&'a str),
    /// The connection was lost: notifications may be missing.
    Missed,
}

impl Notifications<'_> {
    /// Sends a payload of less than 8,000 bytes to all listeners. No effect on `SQLite`.
    pub async fn notify(self, notice: &str) -> Result<(), StoreError> {
        if self.db.backend() == Backend::Postgres {
            let values = [CHANNEL.into(), notice.into()];
            let sql = "SELECT pg_notify($1, $2)";
            let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, values);
            self.db.readers.execute_raw(statement).await?;
        }
        Ok(())
    }

    /// Calls `hear` for each notification until dropped. Never called on `SQLite`.
    pub async fn listen(self, hear: impl Fn(NotifyEvent<'_>)) {
        if self.db.backend() == Backend::Sqlite {
            return std::future::pending().await;
        }
        let pool = self.db.readers.postgres_pool();
        let mut is_away = false;
        loop {
            let error = match follow(pool, &mut is_away, &hear).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if !is_away {
                tracing::warn!(%error, "notifications of other replicas are lost, polling until the connection returns");
            }
            is_away = true;
            // The callers read the database again for whatever the outage hid.
            hear(NotifyEvent::Missed);
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn follow(
    pool: &PgPool,
    is_away: &mut bool,
    hear: &impl Fn(NotifyEvent<'_>),
) -> Result<std::convert::Infallible, sqlx::Error> {
    let mut listener = PgListener::connect_with(pool).await?;
    listener.listen(CHANNEL).await?;
    if std::mem::take(is_away) {
        tracing::info!("notifications of other replicas received again");
    }
    // Earlier notifications were missed.
    hear(NotifyEvent::Missed);
    loop {
        match listener.try_recv().await? {
            Some(notice) => hear(NotifyEvent::Text(notice.payload())),
            None => hear(NotifyEvent::Missed),
        }
    }
}
