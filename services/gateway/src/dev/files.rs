//! Files in the playground's data directory, readable by the owner only.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context as _;
use cli::dev_file::write_private;
use secrets::seal::MasterKey;

/// Creates the directory if needed and sets mode 0700.
pub(super) fn make_private_dir(directory: &Path) -> anyhow::Result<()> {
    let made = std::fs::create_dir_all(directory)
        // `create_dir_all` accepts an existing directory, whose mode may be wider.
        .and_then(|()| std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)));
    made.with_context(|| format!("the data directory {} cannot be made", directory.display()))
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
