//! Opens the configured database. Only the owner can read the SQLite file.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use blob_store::durable::create_private;
use percent_encoding::percent_decode_str;
use store::{Migrations, Store};
use tokio_util::task::TaskTracker;

use crate::config::Config;

/// Opens the database and runs its writer in `tasks`. Files that it creates have mode 0600.
pub(crate) async fn open_store(
    config: &Config,
    tasks: &TaskTracker,
    migrations: Migrations,
) -> anyhow::Result<Store> {
    let url = &config.database.url;
    // The driver would create the file with the mode of the umask.
    if let Some(path) = embedded_file(url) {
        make_private(&path).with_context(|| format!("the file of {url} cannot be made"))?;
    }
    let (store, writer) = Store::open_with(url, config.runs.lease, migrations)
        .await
        .context("database.url cannot be opened")?;
    // The store is unusable without its writer, so both start together.
    tasks.spawn(writer);
    Ok(store)
}

/// Locks the embedded database for one gateway: a second one would end the first one's live runs as orphans. The
/// operating system releases the lock when the process ends.
pub(super) fn lock(url: &str) -> anyhow::Result<Option<File>> {
    let Some(path) = embedded_file(url) else {
        return Ok(None);
    };
    make_private(&path).with_context(|| format!("the file of {url} cannot be made"))?;
    // A separate file: SQLite locks the database file itself.
    let mut name = path.into_os_string();
    name.push(".lock");
    let lock_path = PathBuf::from(name);
    let opened = private_file().open(&lock_path);
    let file = opened.with_context(|| format!("{} cannot be opened", lock_path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => bail!(
            "{url} is open in another gateway: stop that one first, or set `database.url` to a file of its own, or \
             to PostgreSQL, which many gateways share"
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("{} cannot be locked", lock_path.display()))
        }
    }
}

/// File path of an embedded database.
pub(crate) fn embedded_file(url: &str) -> Option<PathBuf> {
    let path = url
        .strip_prefix("sqlite://")
        .or_else(|| url.strip_prefix("sqlite:"))?;
    let path = path.split('?').next().unwrap_or(path);
    // Decoded in the same way as by the database driver.
    let path = percent_decode_str(path).decode_utf8().ok()?;
    (!path.is_empty() && !path.contains(":memory:")).then(|| PathBuf::from(path.as_ref()))
}

fn make_private(path: &Path) -> std::io::Result<()> {
    if let Some(directory) = path.parent() {
        // Only new directories get the mode; an existing one may be shared on purpose.
        create_private(directory)?;
    }
    private_file().open(path).map(drop)
}

/// Opens a file, or creates it with mode 0600.
fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn embedded_database_is_private_and_locked() {
        let directory = std::env::temp_dir().join(uuid::Uuid::now_v7().to_string());
        let path = directory.join("new/runnel.db");
        let url = format!("sqlite://{}?mode=rwc", path.display());
        let held = lock(&url).unwrap();
        assert!(held.is_some());
        let refused = lock(&url).unwrap_err().to_string();
        assert!(refused.contains("open in another gateway"), "{refused}");
        for (entry, mode) in [(path.as_path(), 0o600), (path.parent().unwrap(), 0o700)] {
            let found = std::fs::metadata(entry).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode, "{}", entry.display());
        }
        drop(held);
        assert!(lock(&url).unwrap().is_some());
        assert!(lock("postgres://localhost/x").unwrap().is_none());
        std::fs::remove_dir_all(directory).unwrap();
    }
}
