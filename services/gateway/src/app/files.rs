//! The artifact store, and the operator's files in it.

use std::path::Path;

use anyhow::Context as _;
use protocol::resources::FileOperation;
use tokio_util::task::TaskTracker;

use crate::app::Declared;
use crate::app::settings::run_limits;
use crate::config::Config;
use blob_store::{ArtifactLocation, ArtifactStore};
use egress::Egress;
use runs::artifacts::{OwnFile, enter_file};

/// Opens the artifact store and adds the configured files to the catalog.
pub(super) async fn open(
    config: &Config,
    declared: &mut Declared,
    egress: &Egress,
    tasks: &TaskTracker,
) -> anyhow::Result<ArtifactStore> {
    let store = open_artifact_store(config, &declared.artifacts, egress, tasks).await?;
    let limits = run_limits(config).artifacts;
    for (index, entry) in config.files.iter().enumerate() {
        let own = OwnFile {
            name: &entry.name,
            path: Path::new(&entry.path),
            // The configuration check refuses other names.
            kind: FileOperation::parse(&entry.kind).unwrap_or(FileOperation::Config),
            declared: entry.mime_type.as_deref(),
        };
        let file = enter_file(&store, &limits, own).await.with_context(|| {
            format!("files[{index}]: {} cannot be offered", entry.path.display())
        })?;
        declared.catalog.files.push(file);
    }
    Ok(store)
}

/// Opens the store and checks that it is writable. If the default directory is not available, the gateway starts
/// without artifacts.
async fn open_artifact_store(
    config: &Config,
    location: &ArtifactLocation,
    egress: &Egress,
    tasks: &TaskTracker,
) -> anyhow::Result<ArtifactStore> {
    let opened = ArtifactStore::open(location, egress, tasks);
    // Opening a bucket sends no request, so a write tests its credentials.
    let probed = match &opened {
        Ok(store) => store.probe().await,
        Err(_) => Ok(()),
    };
    // An explicit setting that does not work is an error; the default is optional.
    let is_needed = config.artifacts.url.is_some() || !config.files.is_empty();
    match (opened, probed, location) {
        (Ok(store), Ok(()), ArtifactLocation::Directory(directory)) => {
            // Each replica would have its own directory, and would not find the artifacts of others.
            if !config.database.url.starts_with("sqlite:") && config.artifacts.url.is_none() {
                tracing::warn!(
                    "artifacts are stored in {}: if several replicas use this PostgreSQL, set artifacts.url \
                     to storage that all of them can reach",
                    directory.display()
                );
            }
            Ok(store)
        }
        (Ok(store), Ok(()), ArtifactLocation::Bucket(_)) => Ok(store),
        // A bucket outage does not stop the gateway from starting.
        (Ok(store), Err(error), ArtifactLocation::Bucket(settings)) => {
            let error = &error as &dyn std::error::Error;
            let bucket = &settings.bucket;
            tracing::error!(
                error,
                "cannot write artifacts to bucket {bucket}; uploads fail until it recovers"
            );
            Ok(store)
        }
        (Ok(_), Err(error), ArtifactLocation::Directory(_)) | (Err(error), _, _) if is_needed => {
            Err(anyhow::Error::new(error).context("artifacts cannot be written (artifacts.url)"))
        }
        (_, Err(error), _) | (Err(error), _, _) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "no artifact store is available; set artifacts.url");
            Ok(ArtifactStore::nowhere())
        }
    }
}
