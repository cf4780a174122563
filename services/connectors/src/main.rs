//! The binary `runnel-connectors`.

use std::io::{self, Write as _};

use connectors::catalogue::PLATFORMS;

/// Prints the manifests of all platforms, one a line.
fn main() -> io::Result<()> {
    let mut out = io::stdout().lock();
    for platform in PLATFORMS {
        let manifest = platform.manifest(platform.id());
        writeln!(out, "{}", serde_json::json!(manifest))?;
    }
    Ok(())
}
