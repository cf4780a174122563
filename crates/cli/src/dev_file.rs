//! The file by which commands find the playground, and files that only their owner can read.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// URL and API key of the playground, for `send`.
#[derive(Serialize, Deserialize)]
pub struct DevFile {
    pub url: String,
    pub api_key: String,
}

/// Name of the file in the data directory.
pub const DEV_FILE: &str = "dev.json";

/// Writes a file that only the owner can read.
pub fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut opened = options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(file)?;
        // The mode of `open` applies only to a new file.
        opened.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        opened.write_all(text.as_bytes())?;
        // An empty master key after a power cut would make all stored secrets unreadable.
        opened.sync_all()
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}
