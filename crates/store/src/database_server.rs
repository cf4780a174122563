//! Reaches the database of a URL before it is opened, for the start and for `check-config --probe`.

use std::io::Read as _;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};

use crate::error::StoreError;

/// Timeout of a probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// First bytes of a database file.
const SQLITE_HEADER: &[u8] = b"SQLite format 3\0";

/// Reaches a server and describes it.
pub(crate) async fn probe_server(url: &str) -> Result<String, StoreError> {
    let options = options(url)?;
    let why = match tokio::time::timeout(PROBE_TIMEOUT, describe(&options)).await {
        Ok(Ok(version)) => return Ok(format!("PostgreSQL {version}")),
        Ok(Err(error)) => reason(&error),
        Err(_) => "it does not answer".to_owned(),
    };
    Err(StoreError::Server {
        place: place(&options),
        why,
    })
}

async fn describe(options: &PgConnectOptions) -> Result<String, sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let version = sqlx::query_scalar("SELECT current_setting('server_version')");
    let version = version.fetch_one(&mut connection).await;
    let _ = connection.close().await;
    version
}

/// Reads the head of a database file and describes it.
pub(crate) fn probe_file(path: &Path) -> Result<String, StoreError> {
    let failed = |why: String| StoreError::Server {
        place: path.display().to_string(),
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
        let connecting = PgConnection::connect_with(&options);
        match tokio::time::timeout_at(give_up.into(), connecting).await {
            Ok(Ok(connection)) => {
                let _ = connection.close().await;
                return Ok(());
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
            Err(_) => break,
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(StoreError::Server {
        place: place(&options),
        why,
    })
}

fn options(url: &str) -> Result<PgConnectOptions, StoreError> {
    PgConnectOptions::from_str(url).map_err(|error| StoreError::Address(error.to_string()))
}

fn place(options: &PgConnectOptions) -> String {
    let (host, port) = (options.get_host(), options.get_port());
    let database = options.get_database().unwrap_or_default();
    format!("PostgreSQL at {host}:{port}, database {database}")
}

/// The cause alone, without the driver's preamble.
fn reason(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        sqlx::Error::Io(error) => error.to_string(),
        error => error.to_string(),
    }
}
