//! Processes with a wrong clock.

use std::path::PathBuf;
use std::sync::Once;

use super::skipped;

static SKIPPED: Once = Once::new();

/// The faketime library; `None` with a printed notice if it is not installed.
pub fn faketime() -> Option<String> {
    let directories = ["/usr/lib", "/usr/lib64", "/usr/local/lib"];
    let inside = |directory: &str| {
        let below = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let below: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
        below.into_iter().chain([PathBuf::from(directory)])
    };
    let libraries = directories.iter().flat_map(|directory| inside(directory));
    let mut libraries = libraries.map(|path| path.join("faketime/libfaketimeMT.so.1"));
    let found = libraries.find(|library| library.exists());
    if found.is_none() {
        skipped(&SKIPPED, "faketime", "there is no libfaketime");
    }
    found.map(|library| library.display().to_string())
}
