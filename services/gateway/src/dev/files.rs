//! Files in the playground's data directory, readable by the owner only.

use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use secrets::seal::MasterKey;

/// URL and API key of the playground, for `send`.
#[derive(Serialize, Deserialize)]
pub(crate) struct DevFile {
    pub(crate) url: String,
    pub(crate) api_key: String,
}

/// Name of the file in the data directory.
pub(crate) const DEV_FILE: &str = "dev.json";

/// Creates the directory if needed and sets mode 0700.
pub(super) fn make_private_dir(directory: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(directory)
        // `create_dir_all` accepts an existing directory, whose mode may be wider.
        .and_then(|()| std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)));
    made.with_context(|| format!("the data directory {} cannot be made", directory.display()))
}

/// Writes a file that only the owner can read.
pub(crate) fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
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
        opened.write_all(text.as_bytes())
    };
    write().with_context(|| format!("cannot write {}", file.display()))
}

/// Creates the master key of the directory, unless it exists.
pub(super) fn make_master_key(data_dir: &Path) -> anyhow::Result<()> {
    let file = data_dir.join("master.key");
    // Secrets in the database are sealed with the key, so it must never be replaced.
    if file.exists() {
        return Ok(());
    }
    let (_, text) = MasterKey::generate();
    write_private(&file, &text)
}
