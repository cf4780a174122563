//! Sources of a migration: documents and databases.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use store::foreign::{read_postgres, read_sqlite};
use url::Url;

use super::langbot_tables::{LIMITS, TABLES, document};
use crate::config::{SecretRef, parse_toml};
use cli::output;

/// Maximum size of a file.
const FILE_BYTES: u64 = 16 * 1024 * 1024;
/// Header of a database file.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// URL schemes; the last one names the driver of `SQLAlchemy`.
const POSTGRES: [&str; 3] = ["postgres://", "postgresql://", "postgresql+asyncpg://"];

/// Reads a source as a document, with its name for reports. `workspace`: the only one to read from a database.
pub(super) async fn read_source(
    source: &str,
    workspace: Option<&str>,
) -> anyhow::Result<(String, Value)> {
    if let Some(url) = postgres_url(source)? {
        let shown = location_of(&url);
        let read = read_postgres(&url, TABLES, LIMITS).await;
        let tables = read.with_context(|| shown.clone())?;
        let value = document(tables, workspace).with_context(|| shown.clone())?;
        return Ok((shown, value));
    }
    let path = Path::new(source);
    let shown = path.display().to_string();
    if is_sqlite(path) {
        let read = read_sqlite(path, TABLES, LIMITS);
        let tables = read.with_context(|| shown.clone())?;
        let value = document(tables, workspace).with_context(|| shown.clone())?;
        return Ok((shown, value));
    }
    Ok((shown, read_document(path)?))
}

/// URL of a database. `env:NAME` and `file:PATH` keep its password off the command line.
fn postgres_url(source: &str) -> anyhow::Result<Option<String>> {
    let is_url = |text: &str| POSTGRES.iter().any(|scheme| text.starts_with(scheme));
    let url = if is_url(source) {
        source.to_owned()
    } else if source.starts_with("env:") || source.starts_with("file:") {
        let reference: SecretRef = source.parse()?;
        let held = reference.resolve()?;
        let text = held.expose_secret();
        ensure!(
            is_url(text),
            "{source} holds no URL of PostgreSQL: postgres://USER@HOST/DATABASE"
        );
        text.to_owned()
    } else {
        return Ok(None);
    };
    // The suffix names a Python driver; the client here knows only the plain scheme.
    Ok(Some(url.replacen(
        "postgresql+asyncpg://",
        "postgres://",
        1,
    )))
}

/// Location of a database, without user, password and options.
fn location_of(url: &str) -> String {
    let parsed = Url::parse(url).ok();
    let location = parsed.as_ref().and_then(|url| {
        let port = url.port().map(|port| format!(":{port}"));
        let host = url.host_str().filter(|host| !host.is_empty())?;
        let path = url.path();
        Some(format!(
            "postgres://{host}{}{path}",
            port.unwrap_or_default()
        ))
    });
    location.unwrap_or_else(|| "the database".to_owned())
}

fn is_sqlite(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| {
        let mut first = file.take(SQLITE.len() as u64);
        first.read_to_end(&mut head)
    });
    read.is_ok() && head == SQLITE
}

/// Reads a file as a document. Errors contain only the location, since a parser message may quote secrets.
fn read_document(path: &Path) -> anyhow::Result<Value> {
    let shown = path.display();
    let size = fs::metadata(path)
        .with_context(|| format!("{shown} cannot be read"))?
        .len();
    ensure!(
        size <= FILE_BYTES,
        "{shown} is larger than 16 MiB; migrate its pipelines in parts"
    );
    let bytes = fs::read(path).with_context(|| format!("{shown} cannot be read"))?;
    let text = text_of(&bytes, path)?;
    let extension = path.extension().and_then(|extension| extension.to_str());
    match extension {
        Some("toml") => Ok(parse_toml(path, text).map_err(|fault| anyhow::anyhow!(fault.message))?),
        Some("yaml" | "yml") => bail!("{shown} is YAML; convert it to JSON first"),
        // A parser message may quote a secret, so it has only the position.
        _ => serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            anyhow::anyhow!("{shown} is no valid JSON at line {line}, column {column}")
        }),
    }
}

/// UTF-8 text of a file. The error names other encodings and formats of exports.
fn text_of<'a>(bytes: &'a [u8], path: &Path) -> anyhow::Result<&'a str> {
    let shown = path.display();
    let other = match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        // UTF-16 without a mark: in JSON and TOML, every second byte is zero.
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, 1..=255, ..] | [1..=255, 0, ..] => Some("UTF-16"),
        _ => None,
    };
    if let Some(other) = other {
        bail!("{shown} is {other}; save it as UTF-8 and run this again");
    }
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if text.len() < bytes.len() {
        output::remark(&format!(
            "{shown} begins with a byte order mark, which is skipped"
        ));
    }
    std::str::from_utf8(text)
        .with_context(|| format!("{shown} cannot be read as text: it is not in UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_hide_credentials() {
        for (url, expected) in [
            (
                "postgres://me:hidden@db.test:5433/langbot?sslmode=require",
                "postgres://db.test:5433/langbot",
            ),
            (
                "postgres:///langbot?host=/run&password=hidden",
                "the database",
            ),
            ("postgres://[", "the database"),
        ] {
            assert_eq!(location_of(url), expected);
        }
        let url = postgres_url("postgresql+asyncpg://me@db/langbot").unwrap();
        assert_eq!(url.as_deref(), Some("postgres://me@db/langbot"));
        assert_eq!(postgres_url("data/langbot.db").unwrap(), None);
    }
}
