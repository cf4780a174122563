//! Sessions of `PostgreSQL`: settings, liveness, and replacement after a failover.

use std::time::Duration;

use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Postgres, Row};

/// Timeout of a check when the pool opens, releases or acquires a connection, and of one on the direct connection.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// Ends this session on the server if it is older than a second, and fails then. Closing the connection is not
/// enough: a pooler in session mode hands its server session to the next client. A younger session shows the
/// present state of the server; the limit bounds the rate of new sessions during a failover.
pub(crate) const END_SESSION: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
    WHERE pid = pg_backend_pid() AND backend_start < clock_timestamp() - interval '1 second'";

/// Drops dead sessions: each would occupy its slot for about 15 minutes, and its next user would wait for the full
/// timeout. Replaces read-only sessions, see [`replace_read_only`].
pub(crate) fn replace_unusable_sessions(pool: PoolOptions<Postgres>) -> PoolOptions<Postgres> {
    // On release, so the check of liveness delays no caller; a failover may come later, so write access is checked on
    // use.
    pool.after_release(|connection, _| Box::pin(checked(is_alive(connection))))
        .before_acquire(|connection, _| Box::pin(checked(replace_read_only(connection))))
}

/// By statements: a connection pooler accepts settings within a session, but few startup parameters.
pub(crate) fn apply_session_settings(
    pool: PoolOptions<Postgres>,
    session: String,
) -> PoolOptions<Postgres> {
    pool.after_connect(move |connection, _| {
        let settings = AssertSqlSafe(session.clone());
        Box::pin(async move {
            checked(async {
                connection.execute(sqlx::raw_sql(settings)).await?;
                // A pooler may hand over a session from before a failover.
                replace_read_only(connection).await
            })
            .await
            .map(drop)
        })
    })
}

/// True when new transactions of this session can write. False on a standby, and while
/// `default_transaction_read_only` is on.
pub(crate) async fn takes_writes(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    let setting = sqlx::raw_sql("SHOW transaction_read_only");
    let setting: String = setting.fetch_one(connection).await?.try_get(0)?;
    Ok(setting == "off")
}

/// A session from a failover stays read-only for ever: opened while the server was demoted, or on the standby.
/// Fails after it ended such a session, so that the pool opens a new one.
async fn replace_read_only(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    if !takes_writes(connection).await? {
        connection.execute(sqlx::raw_sql(END_SESSION)).await?;
    }
    Ok(true)
}

async fn is_alive(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    connection.ping().await?;
    Ok(true)
}

async fn checked(
    check: impl Future<Output = Result<bool, sqlx::Error>>,
) -> Result<bool, sqlx::Error> {
    let checked = tokio::time::timeout(CHECK_TIMEOUT, check).await;
    checked.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}
