//! Reaches the database and the artifact store, without opening them.

use std::path::Path;

use tokio_util::task::TaskTracker;

use super::probe_table::ProbeRow;
use crate::config::Config;
use blob_store::{ArtifactLocation, ArtifactStore};
use egress::Egress;

/// Results for the database and the artifact store: a description, or the reason why it cannot be used.
pub(super) struct StorageProbe {
    pub(super) database: Result<String, String>,
    pub(super) artifacts: Result<String, String>,
    database_name: String,
    artifacts_name: String,
}

impl StorageProbe {
    /// Changes nothing, except that a few bytes are written to a bucket and deleted again.
    pub(super) async fn run(config: &Config, place: &ArtifactLocation, egress: &Egress) -> Self {
        let (database, artifacts) = tokio::join!(
            store::probe_database(&config.database.url),
            probe_artifacts(place, egress)
        );
        Self {
            database: database.map_err(|error| in_words(&error)),
            artifacts,
            database_name: config.database.place(),
            artifacts_name: match place {
                ArtifactLocation::Directory(directory) => directory.display().to_string(),
                ArtifactLocation::Bucket(settings) => format!("s3://{}", settings.bucket),
            },
        }
    }

    pub(super) fn is_good(&self) -> bool {
        self.database.is_ok() && self.artifacts.is_ok()
    }

    pub(super) fn rows(&self) -> [ProbeRow; 2] {
        [
            ProbeRow::of("database", &self.database_name, &self.database),
            ProbeRow::of("artifacts", &self.artifacts_name, &self.artifacts),
        ]
    }
}

async fn probe_artifacts(place: &ArtifactLocation, egress: &Egress) -> Result<String, String> {
    let ArtifactLocation::Directory(directory) = place else {
        let store = ArtifactStore::open(place, egress, &TaskTracker::new());
        let store = store.map_err(|error| in_words(&error))?;
        let probed = store.probe().await;
        return match probed {
            Ok(()) => Ok("takes and deletes files".to_owned()),
            Err(error) => Err(in_words(&error)),
        };
    };
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
        if !words.ends_with(&text) {
            words = format!("{words}: {text}");
        }
        cause = error.source();
    }
    words
}
