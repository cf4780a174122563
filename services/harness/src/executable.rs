//! Search for executables on the `PATH` of the service.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Absolute path of an executable: a path relative to the service's directory, or a name on its `PATH`.
pub(crate) fn find(command: &str) -> Option<PathBuf> {
    if command.contains('/') {
        return executable(Path::new(command));
    }
    let path = search_path();
    std::env::split_paths(&path).find_map(|directory| executable(&directory.join(command)))
}

fn executable(path: &Path) -> Option<PathBuf> {
    let metadata = path.metadata().ok()?;
    let is_executable = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
    // Harnesses start in their workspace, where a relative path leads elsewhere.
    is_executable.then(|| std::path::absolute(path).ok())?
}

/// `PATH` of the service, which harnesses inherit.
#[expect(clippy::disallowed_methods, reason = "PATH is the operator's to set")]
pub(crate) fn search_path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| "/usr/local/bin:/usr/bin:/bin".to_owned())
}
