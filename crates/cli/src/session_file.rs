//! The file with the session of `runnel login`, which only its owner can read.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clock::Clock;
use serde::{Deserialize, Serialize};

use crate::dev_file::write_private;
use crate::gateway::environment;

/// URL and key of a gateway, until the session expires.
#[derive(Serialize, Deserialize)]
pub(super) struct SessionFile {
    pub(super) url: String,
    pub(super) api_key: String,
    /// Epoch seconds.
    pub(super) expires_at: i64,
}

impl SessionFile {
    /// The stored session. `None`: there is none, or it has expired.
    pub(super) fn read() -> anyhow::Result<Option<Self>> {
        let Some(file) = path() else { return Ok(None) };
        let text = match std::fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        let session: Self = serde_json::from_slice(&text).with_context(|| {
            format!("{} is malformed; run `runnel login` again", file.display())
        })?;
        Ok(Some(session).filter(|session| session.expires_at > Clock::system().now_seconds()))
    }

    /// Replaces the stored session.
    pub(super) fn write(&self) -> anyhow::Result<()> {
        let file = path().context("no home directory is known; set HOME")?;
        if let Some(directory) = file.parent() {
            std::fs::create_dir_all(directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
        }
        write_private(&file, &serde_json::to_string(self)?)
    }

    /// True if there was a session.
    pub(super) fn delete() -> anyhow::Result<bool> {
        let Some(file) = path() else { return Ok(false) };
        match std::fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot delete {}", file.display())),
        }
    }
}

/// In the directory for configuration files of the XDG specification.
fn path() -> Option<PathBuf> {
    let base = environment("XDG_CONFIG_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(Path::new(&environment("HOME")?).join(".config")));
    base.map(|base| base.join("runnel").join("session.json"))
}
