//! Opening a database: migrations, connections for the writer, a pool of readers.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use migrations::{Migrator, MigratorTrait};
use sea_orm::{ConnectOptions, ConnectionTrait, Database, DatabaseConnection};
use sqlx::pool::PoolOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Postgres, Sqlite};
use tokio::sync::Mutex;

use crate::error::StoreError;
use crate::inline::Inline;
use crate::readers::{Quick, Readers};
use crate::shared_parts::PartCache;
use crate::writer::{self, Writer};

/// Which database stands behind a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Sqlite,
    Postgres,
}

/// The tables of one gateway. Cheap to clone.
#[derive(Clone)]
pub struct Store {
    pub(crate) readers: Readers,
    /// For questions about single rows.
    pub(crate) quick: Quick,
    pub(crate) writer: Writer,
    pub(crate) parts: PartCache,
    backend: Backend,
    /// The connection that renews leases: see [`Store::lease_keeper`].
    pub(crate) renewing: Option<Arc<ConnectOptions>>,
    /// Whether the database answered.
    answered: Kept<bool>,
    /// Whether something small could be written.
    proof: Kept<Condition>,
}

/// When something was last tried, and whether that went well. Held while it is tried: who asks meanwhile gets the
/// same answer.
type Kept<T> = Arc<Mutex<Option<(Instant, T)>>>;

const READERS: u32 = 8;
/// Places for write connections. The writer uses one at a time; a place whose connection dies without a word
/// just as it is handed back is lost until the system gives that connection up, which takes a quarter of an hour.
const WRITE_PLACES: u32 = 3;
/// Statements that a connection knows by heart: each kind that the writer has comes in all its widths.
const STATEMENTS: usize = 60 * crate::sql::WIDTHS;
const BETWEEN_PROOFS: Duration = Duration::from_secs(1);
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection may take to show that it is alive, when it comes back to the pool and when it is taken out.
const PROOF_OF_LIFE: Duration = Duration::from_secs(1);
/// The longest that a transaction may wait for its next answer, however long a lease is.
const LONGEST_SILENCE: Duration = Duration::from_secs(15);
/// The shortest: a disk may be slow.
const SHORTEST_SILENCE: Duration = Duration::from_secs(1);

// A replica that stops in the middle of a transaction must not hold up the others for ever, and an
// acknowledged commit is on disk.
const POSTGRES_SETTINGS: [(&str, &str); 2] = [
    ("idle_in_transaction_session_timeout", "10s"),
    ("synchronous_commit", "on"),
];
/// The longest that a statement waits for a lock: all that is written with it waits, too. Whoever needs a lock that is
/// kept for longer is set aside by the writer, and tried again. More than a server takes to find that two wait for each other.
const LONGEST_LOCK_WAIT: Duration = Duration::from_millis(1500);

/// A read that takes longer costs more than its answer is worth; pages and searches are bounded, so that
/// none should. `SQLite` has the bounds alone.
const READING: [(&str, &str); 1] = [("statement_timeout", "2s")];

/// The writer looks rows up by key. A connection keeps its plans, and a plan of a new table joins by a scan, also once the
/// table is large. So the writer joins by lookups alone, and an index page costs less than a scan of a few pages.
const WRITING: [(&str, &str); 3] = [
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("random_page_cost", "0.1"),
];

impl Store {
    /// Connects to `sqlite://PATH` or `postgres://…`, migrates, and gives the store with the writer's
    /// work, which the caller runs as a task until [`Store::close`].
    pub async fn open(
        url: &str,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), StoreError> {
        Self::open_for_leases(url, LONGEST_SILENCE * 3).await
    }

    /// [`Store::open`] for who holds leases of this length: within a transaction the database is silent no longer
    /// than a third of it, one second at least and 15 at most, and the whole takes half as long again at most, so
    /// that a connection that dies without a word is replaced while leases of four seconds and more still hold.
    pub async fn open_for_leases(
        url: &str,
        lease: Duration,
    ) -> Result<(Self, impl Future<Output = ()> + Send + use<>), StoreError> {
        let backend = backend_of(url)?;
        let silence = (lease / 3).clamp(SHORTEST_SILENCE, LONGEST_SILENCE);
        let lock_wait = lock_wait(silence);
        let options =
            |connections| options(url, backend, connections, session(lock_wait, &WRITING));
        let writes = match backend {
            Backend::Sqlite => {
                let writes = Database::connect(options(1)).await?;
                migrate(&writes, backend).await?;
                writes
            }
            Backend::Postgres => {
                reach(url).await?;
                let alone = Database::connect(options(1)).await?;
                migrate(&alone, backend).await?;
                alone.close().await?;
                Database::connect(options(WRITE_PLACES)).await?
            }
        };
        let renewing = (backend == Backend::Postgres).then(|| {
            let mut renewing = options(1);
            renewing.connect_lazy(true);
            Arc::new(renewing)
        });
        let reading = self::options(url, backend, READERS, session(lock_wait, &READING));
        let readers = Readers::new(Database::connect(reading).await?);
        let path = sqlite_file(url);
        let asking = path.as_deref().map(Inline::open_to_ask);
        let quick = Quick::new(readers.clone(), asking.transpose()?);
        let inline = path.map(|path| Inline::open(&path, BUSY_TIMEOUT, STATEMENTS));
        let (writer, work) = writer::writer(writes, inline.transpose()?, silence);
        Ok((
            Self {
                readers,
                quick,
                writer,
                parts: PartCache::default(),
                backend,
                renewing,
                answered: Arc::default(),
                proof: Arc::default(),
            },
            work,
        ))
    }

    /// Which database this is.
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether the database answers a query and the writer takes work. After a commit that failed
    /// for the database's sake, a disk that is full for example, it takes no writes until a small
    /// one is committed. Both are tried here: once a second, however many ask.
    pub async fn condition(&self) -> Condition {
        // Boxed, as is the other: what asks a database is large, and lies in every handler that waits for it.
        if !self.writer.is_open() || !kept(&self.answered, Box::pin(self.answers())).await {
            return Condition::Unreachable;
        }
        if !self.writer.is_failing() {
            return Condition::Sound;
        }
        let proving = async {
            if self.prove_writing().await {
                Condition::Sound
            } else if self.answers().await {
                Condition::TakesNoWrites
            } else {
                // It has gone since it was asked.
                Condition::Unreachable
            }
        };
        kept(&self.proof, Box::pin(proving)).await
    }

    async fn answers(&self) -> bool {
        self.readers.ping().await.is_ok()
    }

    /// Ends the writer once what is queued has been committed. Later writes are refused.
    pub async fn close(&self) {
        self.writer.close().await;
    }
}

/// What can be done with the database now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Sound,
    /// It answers, and writes fail: its disk is full or broken, for example.
    TakesNoWrites,
    /// It does not answer, or the store is closed.
    Unreachable,
}

/// What was found out within the last second, or else is now.
async fn kept<T: Copy>(last: &Kept<T>, trying: impl Future<Output = T>) -> T {
    let mut last = last.lock().await;
    if let Some((at, known)) = *last
        && at.elapsed() < BETWEEN_PROOFS
    {
        return known;
    }
    let found = trying.await;
    *last = Some((Instant::now(), found));
    found
}

/// Waits until the server lets us in, as long as for any connection. A pool would say that it has waited, and
/// neither for whom nor why.
async fn reach(url: &str) -> Result<(), StoreError> {
    const PAUSE: Duration = Duration::from_millis(200);
    // It starts, or has no place left: a replica that goes leaves its own.
    const FOR_NOW: [&str; 2] = ["57P03", "53300"];
    let told = |message: String| StoreError::Db(sea_orm::DbErr::Custom(message));
    let options = PgConnectOptions::from_str(url);
    let options = options.map_err(|error| told(format!("database.url: {error}")))?;
    let give_up = Instant::now() + ACQUIRE_TIMEOUT;
    let mut why = "it does not answer".to_owned();
    while Instant::now() < give_up {
        let connecting = PgConnection::connect_with(&options);
        match tokio::time::timeout_at(give_up.into(), connecting).await {
            Ok(Ok(connection)) => {
                let _ = connection.close().await;
                return Ok(());
            }
            Ok(Err(error)) => {
                let answered = error.as_database_error();
                why =
                    answered.map_or_else(|| error.to_string(), |error| error.message().to_owned());
                let code = answered.map(|error| error.code().unwrap_or_default());
                // Who was answered otherwise is answered so again.
                if code.is_some_and(|code| !FOR_NOW.contains(&&*code)) {
                    break;
                }
            }
            Err(_) => break,
        }
        tokio::time::sleep(PAUSE).await;
    }
    let (host, port) = (options.get_host(), options.get_port());
    let database = options.get_database().unwrap_or_default();
    let place = format!("PostgreSQL at {host}:{port}, database {database}");
    Err(told(format!("database.url: {place}: {why}")))
}

/// Migrates. Replicas that start together take turns: the lock is the connection's, and the pool must have
/// one.
async fn migrate(writes: &DatabaseConnection, backend: Backend) -> Result<(), StoreError> {
    let (lock, unlock) = (
        "SELECT pg_advisory_lock(7245736)",
        "SELECT pg_advisory_unlock(7245736)",
    );
    if backend == Backend::Postgres {
        // Another replica that builds an index first may take its time.
        let patiently = format!("BEGIN; SET LOCAL lock_timeout = 0; {lock}; COMMIT");
        writes.execute_unprepared(&patiently).await?;
    }
    let migrated = Migrator::up(writes, None).await;
    if backend == Backend::Postgres {
        writes.execute_unprepared(unlock).await?;
    }
    Ok(migrated?)
}

/// What keeps this URL from leading to a database, as far as it says so itself.
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
        let message = "database.url must begin with sqlite:// or postgres://";
        Err(StoreError::Db(sea_orm::DbErr::Custom(message.to_owned())))
    }
}

/// How long a statement waits for a lock, when a transaction may be silent for so long.
fn lock_wait(silence: Duration) -> Duration {
    LONGEST_LOCK_WAIT.min(silence / 2)
}

/// The statements that set up a session of `PostgreSQL`.
fn session(lock_wait: Duration, more: &[(&str, &str)]) -> String {
    let lock_wait = format!("{}ms", lock_wait.as_millis());
    let settings = POSTGRES_SETTINGS.iter().chain(more).copied();
    settings
        .chain([("lock_timeout", &*lock_wait)])
        .map(|(name, value)| format!("SET {name} = '{value}'"))
        .collect::<Vec<_>>()
        .join("; ")
}

/// `session`: what each connection to `PostgreSQL` is told first.
fn options(url: &str, backend: Backend, connections: u32, session: String) -> ConnectOptions {
    let sqlite_url = match sqlite_path(url) {
        // `mode=rwc` makes the file when it is not there.
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
            options.map_sqlx_sqlite_pool_opts(leave_broken_transactions);
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
            .test_before_acquire(false)
            .map_sqlx_postgres_pool_opts(move |pool| {
                tell_session(leave_silent_connections(pool), session.clone())
            })
            .map_sqlx_postgres_opts(|postgres| postgres.statement_cache_capacity(STATEMENTS));
    }
    options
}

/// `SQLite` rolls back by itself when the disk fails it. The driver then counts a transaction that
/// is there no more, and would refuse every other: such a connection is not used again.
fn leave_broken_transactions(pool: PoolOptions<Sqlite>) -> PoolOptions<Sqlite> {
    pool.after_release(|connection, _| {
        Box::pin(async move {
            // Behind a rollback that is on its way.
            connection.ping().await?;
            Ok(!connection.is_in_transaction())
        })
    })
}

/// A connection that is cut off without a word would keep its place in the pool for a quarter of an
/// hour, and who gets it would wait for as long as he may wait at all.
fn leave_silent_connections(pool: PoolOptions<Postgres>) -> PoolOptions<Postgres> {
    pool.after_release(|connection, _| Box::pin(is_alive(connection)))
        .before_acquire(|connection, _| Box::pin(is_alive(connection)))
}

/// By statements: a pooler lets settings through that are made within a session, and few that come with its start.
fn tell_session(pool: PoolOptions<Postgres>, session: String) -> PoolOptions<Postgres> {
    pool.after_connect(move |connection, _| {
        let telling = sqlx::raw_sql(AssertSqlSafe(session.clone()));
        Box::pin(async move {
            let told = tokio::time::timeout(PROOF_OF_LIFE, telling.execute(connection)).await;
            told.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map(drop)
        })
    })
}

async fn is_alive(connection: &mut PgConnection) -> Result<bool, sqlx::Error> {
    match tokio::time::timeout(PROOF_OF_LIFE, connection.ping()).await {
        Ok(alive) => alive.map(|()| true),
        Err(_) => Err(sqlx::Error::PoolTimedOut),
    }
}

/// The file that the pool has opened: it reads percent signs as URLs have them.
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn however_many_ask_the_database_is_asked_once_in_a_moment() {
        let (last, asked) = (Kept::<bool>::default(), AtomicUsize::new(0));
        let ask = || {
            kept(&last, async {
                asked.fetch_add(1, Ordering::Relaxed);
                // The others come meanwhile.
                tokio::task::yield_now().await;
                true
            })
        };
        let answers = tokio::join!(ask(), ask(), ask());
        assert_eq!(answers, (true, true, true));
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        let before = Instant::now().checked_sub(2 * BETWEEN_PROOFS).unwrap();
        *last.lock().await = Some((before, true));
        assert!(!kept(&last, async { false }).await, "it is old");
        assert!(!ask().await, "what failed is kept, too");
    }
}
