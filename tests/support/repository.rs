//! Files of this repository.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut above = here.ancestors();
    above
        .find(|directory| directory.join("Cargo.lock").exists())
        .expect("the tests are built in the repository")
}

/// A file of the repository.
pub fn repository_file(path: &str) -> PathBuf {
    repository().join(path)
}
