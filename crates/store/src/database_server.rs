//! Reaches the database of a URL before it is opened, for the start and for `check-config --probe`.

use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use crate::error::StoreError;
use crate::postgres_sessions::takes_writes;

/// Timeout of a probe. A server that starts, or has a high load, answers late.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);
const POOLED: &str = "it shares its sessions between clients, as a connection pooler in transaction or statement \
    mode does: set pool_mode = session in PgBouncer, or connect to the server directly";
const READ_ONLY: &str = "it accepts no writes: it is a standby, or default_transaction_read_only is on; name the \
    primary in database.url";
/// First bytes of a database file.
const SQLITE_HEADER: &[u8] = b"SQLite format 3\0";

/// Reaches a server and describes it.
pub(crate) async fn probe_server(url: &str) -> Result<String, StoreError> {
    let options = options(url)?;
    let why = match tokio::time::timeout(PROBE_TIMEOUT, describe(&options)).await {
        Ok(Ok((Session::Usable, version))) => return Ok(format!("PostgreSQL {version}")),
        Ok(Ok((session, _))) => session.fault().to_owned(),
        Ok(Err(error)) => reason(&error),
        Err(_) => "it does not answer".to_owned(),
    };
    Err(StoreError::Server {
        database: address_of(&options),
        why,
    })
}

async fn describe(options: &PgConnectOptions) -> Result<(Session, String), sqlx::Error> {
    let session = session_of(options).await?;
    let mut connection = PgConnection::connect_with(options).await?;
    let version = text_of(&mut connection, "SHOW server_version").await;
    // The version is already read; a failed close changes nothing.
    let _ = connection.close().await;
    Ok((session, version?))
}

/// State of the sessions at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Session {
    Usable,
    /// Session settings, LISTEN, advisory locks and prepared statements do not work.
    Pooled,
    ReadOnly,
}

impl Session {
    fn fault(self) -> &'static str {
        match self {
            Self::Usable => "",
            Self::Pooled => POOLED,
            Self::ReadOnly => READ_ONLY,
        }
    }
}

async fn session_of(options: &PgConnectOptions) -> Result<Session, sqlx::Error> {
    let mut first = PgConnection::connect_with(options).await?;
    let mut second = PgConnection::connect_with(options).await?;
    let session = if is_pooled(&mut first, &mut second).await? {
        Session::Pooled
    } else if takes_writes(&mut first).await? {
        Session::Usable
    } else {
        Session::ReadOnly
    };
    // Both probes have their answer; a failed close changes nothing.
    let _ = tokio::join!(first.close(), second.close());
    Ok(session)
}

/// True when two connections share a server session: the second one sees the setting of the first one, or the
/// first one loses it while a transaction of the second one holds the session.
async fn is_pooled(
    first: &mut PgConnection,
    second: &mut PgConnection,
) -> Result<bool, sqlx::Error> {
    // Simple queries only: a pooler may separate the messages of a prepared statement.
    const READ: &str = "SELECT coalesce(current_setting('runnel.session', true), '')";
    let mark = uuid::Uuid::new_v4().to_string();
    let set = format!("SELECT set_config('runnel.session', '{mark}', false)");
    first.execute(sqlx::raw_sql(AssertSqlSafe(set))).await?;
    let lost_before = text_of(&mut *first, READ).await? != mark;
    // The open transaction pins a pooled session, so the first connection gets another one.
    let mut held = match second.begin().await {
        Ok(held) => held,
        // Statement mode refuses transactions.
        Err(sqlx::Error::Database(error)) if error.message().contains("statement pooling") => {
            return Ok(true);
        }
        Err(error) => return Err(error),
    };
    let seen = text_of(&mut held, READ).await? == mark;
    let lost = lost_before || text_of(&mut *first, READ).await? != mark;
    held.rollback().await?;
    Ok(seen || lost)
}

async fn text_of(connection: &mut PgConnection, sql: &'static str) -> Result<String, sqlx::Error> {
    let row = sqlx::raw_sql(sql).fetch_one(connection).await?;
    row.try_get(0)
}

/// Reads the head of a database file and describes it.
pub(crate) fn probe_file(path: &Path) -> Result<String, StoreError> {
    let failed = |why: String| StoreError::Server {
        database: path.display().to_string(),
        why,
    };
    let mut header = Vec::new();
    match std::fs::File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let mut above = path
                .ancestors()
                .skip(1)
                .filter(|path| *path != Path::new(""));
            return match above.find(|path| path.exists()) {
                Some(above) if !above.is_dir() => {
                    Err(failed(format!("{} is no directory", above.display())))
                }
                _ => Ok("SQLite; `serve` makes the file".to_owned()),
            };
        }
        opened => {
            let read = opened.and_then(|file| file.take(16).read_to_end(&mut header));
            read.map_err(|error| failed(error.to_string()))?;
        }
    }
    // An empty file is a valid database: `SQLite` writes the header with the first table.
    if header.is_empty() || header == SQLITE_HEADER {
        Ok("SQLite".to_owned())
    } else {
        Err(failed("it is no SQLite database".to_owned()))
    }
}

/// Connects until the server accepts, within `patience`. The pool's own error names neither the server nor the
/// cause.
pub(crate) async fn wait_for_server(url: &str, patience: Duration) -> Result<(), StoreError> {
    const PAUSE: Duration = Duration::from_millis(200);
    // Starting up, or out of connections: an old replica frees its own.
    const TRANSIENT_CODES: [&str; 2] = ["57P03", "53300"];
    let options = options(url)?;
    let give_up = Instant::now() + patience;
    let mut why = "it does not answer".to_owned();
    while Instant::now() < give_up {
        match tokio::time::timeout_at(give_up.into(), session_of(&options)).await {
            Ok(Ok(Session::Usable)) => return Ok(()),
            Ok(Ok(session)) => {
                session.fault().clone_into(&mut why);
                // A failover ends by itself, a pooler's mode does not.
                if session == Session::Pooled {
                    break;
                }
            }
            Ok(Err(error)) => {
                why = reason(&error);
                let code = error.as_database_error();
                let code = code.map(|error| error.code().unwrap_or_default());
                // Other errors of the server are permanent.
                if code.is_some_and(|code| !TRANSIENT_CODES.contains(&&*code)) {
                    break;
                }
            }
            // The timeout covers the entire wait, so no time is left for another try.
            Err(_) => break,
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(StoreError::Server {
        database: address_of(&options),
        why,
    })
}

fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
    PgConnectOptions::from_str(url).map_err(|error| StoreError::Address(error.to_string()))
}

fn address_of(options: &PgConnectOptions) -> String {
    let (host, port) = (options.get_host(), options.get_port());
    let database = options.get_database().unwrap_or_default();
    format!("PostgreSQL at {host}:{port}, database {database}")
}

/// The cause only, without the driver's preamble.
fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) if error.message().contains("extra_float_digits") => format!(
            "{}: set ignore_startup_parameters = extra_float_digits in PgBouncer",
            error.message()
        ),
        sqlx::Error::Database(error) => error.message().to_owned(),
        sqlx::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}
