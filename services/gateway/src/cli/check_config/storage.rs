//! Reaches the database and the artifact store without a change, and tries the master key.

use std::path::Path;

use tokio_util::task::TaskTracker;

use super::probe_table::ProbeRow;
use crate::config::Config;
use blob_store::{ArtifactLocation, ArtifactStore};
use egress::Egress;
use keys::keyring::check_master_key;
use secrets::seal::MasterKey;

/// Results for the database and the artifact store: a description, or the reason why it cannot be used.
pub(super) struct StorageProbe {
    pub(super) database: Result<String, String>,
    pub(super) artifacts: Result<String, String>,
    /// `None`: the database cannot be used.
    pub(super) master_key: Option<Result<String, String>>,
    database_name: String,
    artifacts_name: String,
}

impl StorageProbe {
    /// Changes nothing, except that a few bytes are written to a bucket and deleted again.
    pub(super) async fn run(
        config: &Config,
        master_key: &MasterKey,
        location: &ArtifactLocation,
        egress: &Egress,
    ) -> Self {
        let url = &config.database.url;
        let (database, artifacts) = tokio::join!(
            store::probe_database(url),
            probe_artifacts(location, egress)
        );
        Self {
            // Only sealed records of a database can test the key.
            master_key: match &database {
                Ok(_) => Some(probe_master_key(url, master_key).await),
                Err(_) => None,
            },
            database: database.map_err(|error| in_words(&error)),
            artifacts,
            database_name: config.database.display_url(),
            artifacts_name: match location {
                ArtifactLocation::Directory(directory) => directory.display().to_string(),
                ArtifactLocation::Bucket(settings) => format!("s3://{}", settings.bucket),
            },
        }
    }

    pub(super) fn is_good(&self) -> bool {
        let master_key = self.master_key.as_ref();
        self.database.is_ok() && self.artifacts.is_ok() && master_key.is_none_or(Result::is_ok)
    }

    pub(super) fn rows(&self) -> Vec<ProbeRow> {
        let master_key = self.master_key.iter();
        let master_key =
            master_key.map(|result| ProbeRow::of("master key", "auth.master_key", result));
        std::iter::once(ProbeRow::of(
            "database",
            &self.database_name,
            &self.database,
        ))
        .chain(master_key)
        .chain([ProbeRow::of(
            "artifacts",
            &self.artifacts_name,
            &self.artifacts,
        )])
        .collect()
    }
}

async fn probe_master_key(url: &str, master_key: &MasterKey) -> Result<String, String> {
    let records = store::probe_signing_keys(url).await;
    let records = records.map_err(|error| in_words(&error))?;
    if records.is_empty() {
        return Ok("not used yet".to_owned());
    }
    match check_master_key(master_key, &records) {
        Ok(()) => Ok("opens the signing keys".to_owned()),
        Err(error) => Err(format!("{error}; name the key of its first start")),
    }
}

async fn probe_artifacts(location: &ArtifactLocation, egress: &Egress) -> Result<String, String> {
    let ArtifactLocation::Directory(directory) = location else {
        let store = ArtifactStore::open(location, egress, &TaskTracker::new());
        let store = store.map_err(|error| in_words(&error))?;
        let probed = store.probe().await;
        return match probed {
            Ok(()) => Ok("takes and deletes files".to_owned()),
            Err(error) => Err(in_words(&error)),
        };
    };
    // `serve` creates missing directories, so the nearest existing one decides.
    let mut above = directory.ancestors().filter(|path| *path != Path::new(""));
    match above.find(|path| path.exists()) {
        Some(found) if !found.is_dir() => Err(format!("{} is no directory", found.display())),
        Some(found) if found == directory.as_path() => Ok("a directory".to_owned()),
        _ => Ok("`serve` makes the directory".to_owned()),
    }
}

/// An error and its causes, each once.
fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Some errors repeat their cause in their own text.
        if !words.ends_with(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    words
}
