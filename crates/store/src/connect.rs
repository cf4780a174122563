//! Opens a database: migrations, write connections, pool of readers.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use migrations::{Migrator, MigratorTrait, SchemaManager};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection};
use sqlx::pool::PoolOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, Sqlite};

use crate::database_server::{probe_file, probe_server, wait_for_server};
use crate::engine::{Backend, StoreEngine};
use crate::error::StoreError;
use crate::part_cache::PartCache;
use crate::postgres_connector::PostgresConnector;
use crate::postgres_sessions::{apply_session_settings, replace_unusable_sessions};
use crate::readers::{PointReads, Readers};
use crate::signing_keys::{self, SigningKeyRecord};
use crate::sqlite_direct::SqliteDirect;
use crate::writer::{self, DirectConnection, PostgresSlot};

const READ_CONNECTIONS: u32 = 8;
/// Maximum write connections. The writer uses one at a time. A connection that dies silently on release occupies its
/// slot until its TCP timeout, about 15 minutes.
const WRITE_CONNECTIONS: u32 = 3;
/// Statement cache size per connection: each statement of the writer exists in all widths.
const STATEMENTS: usize = 60 * crate::sql::WIDTHS;
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum silence within a transaction, however long a lease is.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(15);
/// Minimum silence: a disk may be slow.
const MIN_SILENCE: Duration = Duration::from_secs(1);

// A replica that stops within a transaction must not block others. An acknowledged commit is on disk.
// Notices, such as those of `IF NOT EXISTS`, are no news.
const POSTGRES_SETTINGS: [(&str, &str); 3] = [
    ("idle_in_transaction_session_timeout", "10s"),
    ("synchronous_commit", "on"),
    ("client_min_messages", "warning"),
];
/// Maximum wait for a lock: the other items of the batch wait, too. On timeout the item moves to the lock-wait
/// queue. Longer than the server's `deadlock_timeout`.
const MAX_LOCK_WAIT: Duration = Duration::from_millis(1500);

/// A read of more than 2 s costs more than its result is worth. Pages and searches are bounded, so none should.
/// `SQLite` has no statement timeout, only these bounds.
const READ_SETTINGS: [(&str, &str); 1] = [("statement_timeout", "2s")];

/// The writer looks rows up by key. A connection caches plans, and a plan made for an empty table keeps scanning
/// the table after it grows. So the writer uses index lookups only, at a page cost below that of a short scan.
const WRITE_SETTINGS: [(&str, &str); 3] = [
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("random_page_cost", "0.1"),
];

/// Connects and migrates, see `Store::open_for_leases`. Returns the engine and the writer's future.
pub(crate) async fn open(
    url: &str,
    lease: Duration,
    migrations: Migrations,
) -> Result<(StoreEngine, impl Future<Output = ()> + Send + use<>), StoreError> {
    let backend = backend_of(url)?;
    let silence = (lease / 3).clamp(MIN_SILENCE, MAX_SILENCE);
    let lock_wait = lock_wait(silence);
    let options = |connections| {
        options(
            url,
            backend,
            connections,
            session(lock_wait, &WRITE_SETTINGS),
        )
    };
    let writes = match backend {
        Backend::Sqlite => {
            // One pooled connection: the file has one write lock.
            let writes = Database::connect(options(1)).await?;
            migrate(&writes, backend, migrations).await?;
            writes
        }
        Backend::Postgres => {
            // The pool's own error names neither the server nor the cause.
            wait_for_server(url, ACQUIRE_TIMEOUT).await?;
            // One connection, because the advisory lock of the migration belongs to its session.
            let alone = Database::connect(options(1)).await?;
            migrate(&alone, backend, migrations).await?;
            alone.close().await?;
            Database::connect(options(WRITE_CONNECTIONS)).await?
        }
    };
    let renewing = (backend == Backend::Postgres).then(|| {
        let mut renewing = options(1);
        renewing.connect_lazy(true);
        Arc::new(renewing)
    });
    let reading = self::options(
        url,
        backend,
        READ_CONNECTIONS,
        session(lock_wait, &READ_SETTINGS),
    );
    let readers = Readers::new(Database::connect(reading).await?);
    let path = sqlite_file(url);
    let asking = path.as_deref().map(SqliteDirect::open_read_only);
    let point_reads = PointReads::new(readers.clone(), asking.transpose()?);
    let direct = match backend {
        Backend::Sqlite => path
            .map(|path| SqliteDirect::open(&path, BUSY_TIMEOUT, STATEMENTS))
            .transpose()?
            .map(DirectConnection::Sqlite),
        Backend::Postgres => {
            let connector = PostgresConnector::new(url, session(lock_wait, &WRITE_SETTINGS))?;
            let slot = Box::new(PostgresSlot::new(connector));
            Some(DirectConnection::Postgres(slot))
        }
    };
    let (writer, work) = writer::writer(writes, direct, silence);
    let engine = StoreEngine {
        readers,
        point_reads,
        writer,
        parts: PartCache::default(),
        backend,
        renewing,
    };
    Ok((engine, work))
}

/// Migrates the database. An advisory lock serialises replicas, so the pool must have exactly one connection.
async fn migrate(
    writes: &DatabaseConnection,
    backend: Backend,
    migrations: Migrations,
) -> Result<(), StoreError> {
    let (lock, unlock) = (
        "SELECT pg_advisory_lock(7245736)",
        "SELECT pg_advisory_unlock(7245736)",
    );
    if backend == Backend::Postgres {
        // Another replica may build a large index first.
        let patiently = format!("BEGIN; SET LOCAL lock_timeout = 0; {lock}; COMMIT");
        writes.execute_unprepared(&patiently).await?;
    }
    let applied = Migrator::get_migration_models(writes).await?;
    let applied: Vec<_> = applied.into_iter().map(|model| model.version).collect();
    let own = Migrator::migrations();
    let own: Vec<_> = own.iter().map(|migration| migration.name()).collect();
    // An early return needs no unlock: its session closes.
    check_applied(&applied, &own, migrations)?;
    let migrated = Migrator::up(writes, None).await;
    if backend == Backend::Postgres {
        writes.execute_unprepared(unlock).await?;
    }
    Ok(migrated?)
}

/// Refuses databases of newer and unreleased versions, and older ones unless they are migrated.
fn check_applied(
    applied: &[String],
    own: &[&str],
    migrations: Migrations,
) -> Result<(), StoreError> {
    let unknown = applied.iter().find(|name| !own.contains(&name.as_str()));
    if let Some(name) = unknown {
        return Err(StoreError::UnknownMigration(name.clone()));
    }
    let is_older = !applied.is_empty() && applied.len() < own.len();
    if is_older && migrations == Migrations::New {
        return Err(StoreError::OlderDatabase);
    }
    Ok(())
}

/// Databases that are migrated when they are opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrations {
    All,
    /// New databases only. Migrating an older one stops the replicas of its version from restarting.
    New,
}

/// Reaches the database without a change and describes it.
pub async fn probe_database(url: &str) -> Result<String, StoreError> {
    match backend_of(url)? {
        Backend::Sqlite => {
            let path = sqlite_file(url).or_else(|| sqlite_path(url));
            let path = path.ok_or_else(|| StoreError::Address("it has no path".to_owned()))?;
            probe_file(&path)
        }
        Backend::Postgres => probe_server(url).await,
    }
}

/// Reads the signing keys without a change: no migration, no new file. Empty before the first start.
pub async fn probe_signing_keys(url: &str) -> Result<Vec<SigningKeyRecord>, StoreError> {
    let mut options = match backend_of(url)? {
        Backend::Sqlite => {
            let Some(file) = sqlite_file(url) else {
                return Ok(Vec::new());
            };
            let mut log = file.clone().into_os_string();
            log.push("-wal");
            // Without a write-ahead log no process writes, and the driver must not create one.
            let is_closed = !Path::new(&log).exists();
            let mut options = ConnectOptions::new("sqlite::memory:");
            options.map_sqlx_sqlite_opts(move |_| {
                let options = SqliteConnectOptions::new().filename(&file);
                options.read_only(true).immutable(is_closed)
            });
            options
        }
        Backend::Postgres => ConnectOptions::new(url),
    };
    let options = options.max_connections(1).acquire_timeout(ACQUIRE_TIMEOUT);
    let connection = Database::connect(options.sqlx_logging(false).to_owned()).await?;
    let schema = SchemaManager::new(&connection);
    let keys = if schema.has_table("signing_keys").await? {
        signing_keys::list(&connection).await
    } else {
        Ok(Vec::new())
    };
    connection.close().await?;
    keys
}

/// Checks the syntax of a database URL.
pub fn check_database_url(url: &str) -> Result<(), String> {
    match backend_of(url).map_err(|error| error.to_string())? {
        Backend::Sqlite => Ok(()),
        Backend::Postgres => PgConnectOptions::from_str(url)
            .map(drop)
            .map_err(|error| error.to_string()),
    }
}

fn backend_of(url: &str) -> Result<Backend, StoreError> {
    if url.starts_with("sqlite:") {
        Ok(Backend::Sqlite)
    } else if url.starts_with("postgres:") || url.starts_with("postgresql:") {
        Ok(Backend::Postgres)
    } else {
        let message = "the address must begin with sqlite:// or postgres://";
        Err(StoreError::Address(message.to_owned()))
    }
}

/// Lock timeout for a silence limit.
fn lock_wait(silence: Duration) -> Duration {
    MAX_LOCK_WAIT.min(silence / 2)
}

/// Statements that configure a `PostgreSQL` session.
fn session(lock_wait: Duration, more: &[(&str, &str)]) -> String {
    let lock_wait = format!("{}ms", lock_wait.as_millis());
    let settings = POSTGRES_SETTINGS.iter().chain(more).copied();
    settings
        .chain([("lock_timeout", &*lock_wait)])
        .map(|(name, value)| format!("SET {name} = '{value}'"))
        .collect::<Vec<_>>()
        .join("; ")
}

/// `session`: statements for each new `PostgreSQL` connection.
fn options(url: &str, backend: Backend, connections: u32, session: String) -> ConnectOptions {
    let sqlite_url = match sqlite_path(url) {
        // `mode=rwc` creates a missing file.
        Some(path) => format!("sqlite://{}?mode=rwc", path.display()),
        None => url.to_owned(),
    };
    let mut options = ConnectOptions::new(sqlite_url);
    options
        .max_connections(connections)
        .min_connections(1)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .sqlx_logging(false);
    if backend == Backend::Sqlite {
        if connections == 1 {
            options.map_sqlx_sqlite_pool_opts(drop_broken_connections);
        }
        options.map_sqlx_sqlite_opts(|sqlite| {
            sqlite
                .journal_mode(SqliteJournalMode::Wal)
                .synchronous(SqliteSynchronous::Full)
                .busy_timeout(BUSY_TIMEOUT)
                .statement_cache_capacity(STATEMENTS)
                .foreign_keys(true)
        });
    }
    if backend == Backend::Postgres {
        options
            // A check before each use costs a round trip; the silence timeout detects dead connections.
            .test_before_acquire(false)
            .map_sqlx_postgres_pool_opts(move |pool| {
                apply_session_settings(replace_unusable_sessions(pool), session.clone())
            })
            .map_sqlx_postgres_opts(|postgres| postgres.statement_cache_capacity(STATEMENTS));
    }
    options
}

/// `SQLite` rolls back on a disk failure. The driver still counts the transaction and would fail every later
/// one, so the pool drops such a connection.
fn drop_broken_connections(pool: PoolOptions<Sqlite>) -> PoolOptions<Sqlite> {
    pool.after_release(|connection, _| {
        Box::pin(async move {
            // After a pending rollback.
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    })
}

/// The file opened by the pool, which decodes percent signs as in URLs.
fn sqlite_file(url: &str) -> Option<PathBuf> {
    let url = format!("sqlite://{}", sqlite_path(url)?.display());
    let opened = SqliteConnectOptions::from_str(&url).ok()?;
    let file = opened.get_filename();
    file.is_file().then(|| file.to_owned())
}

fn sqlite_path(url: &str) -> Option<PathBuf> {
    let path = url
        .strip_prefix("sqlite://")
        .or_else(|| url.strip_prefix("sqlite:"))?;
    Some(PathBuf::from(path.split('?').next().unwrap_or(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serve_migrates_older_databases() {
        let own = ["one", "two"];
        let check = |applied: &[&str], migrations| {
            let applied: Vec<_> = applied.iter().map(ToString::to_string).collect();
            check_applied(&applied, &own, migrations)
        };
        let older = check(&["one"], Migrations::New);
        assert!(matches!(older, Err(StoreError::OlderDatabase)), "{older:?}");
        assert!(check(&["one"], Migrations::All).is_ok());
        for applied in [&[][..], &own] {
            assert!(check(applied, Migrations::New).is_ok(), "{applied:?}");
        }
    }
}
