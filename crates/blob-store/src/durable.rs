//! Names that survive a power cut: a new name is durable after a sync of its directory.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// Creates a directory and its missing parents with mode 0700, and makes their names durable.
pub fn create_private(directory: &Path) -> io::Result<()> {
    let is_missing = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let missing: Vec<_> = directory.ancestors().take_while(is_missing).collect();
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory)?;
    missing.into_iter().try_for_each(sync_name)
}

/// Makes the name of a file or directory durable.
pub fn sync_name(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}
