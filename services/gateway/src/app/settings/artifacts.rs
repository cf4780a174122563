//! The artifact store and the operator's files.

use std::path::{Path, PathBuf};

use store::ArtifactShares;

use crate::config::{ArtifactUrl, ArtifactsConfig, Config, ConfigFault, SecretRef};
use blob_store::{ArtifactLocation, BucketSettings};
use egress::Egress;

use super::secrets;

const REGION: &str = "us-east-1";

/// `None`: the cause is in `faults`.
pub(super) fn location(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> Option<ArtifactLocation> {
    check_files(config, faults);
    match &config.artifacts.url {
        Some(ArtifactUrl::Bucket { bucket, prefix }) => {
            self::bucket(config, egress, bucket, prefix, faults)
        }
        Some(ArtifactUrl::Directory(_)) | None => {
            refuse_unused_keys(config, faults);
            artifact_directory(config).map(ArtifactLocation::Directory)
        }
    }
}

/// Directory of the artifacts; `None` if they are in a bucket.
pub(crate) fn artifact_directory(config: &Config) -> Option<PathBuf> {
    match &config.artifacts.url {
        Some(ArtifactUrl::Bucket { .. }) => None,
        Some(ArtifactUrl::Directory(directory)) => Some(directory.clone()),
        None => Some(default_directory(&config.database.url)),
    }
}

/// Quotas by owner, as shares of the workspace quota. Runs leave a quarter for events; clients leave half for
/// runs and events.
pub(super) fn shares(config: &ArtifactsConfig) -> ArtifactShares {
    // Divided first: the product could overflow for quotas near the maximum.
    let all = config.workspace_bytes;
    ArtifactShares {
        run: all / 100 * config.run_percent,
        agent: all / 100 * config.agent_percent,
        runs: all / 4 * 3,
        uploads: all / 2,
    }
}

fn default_directory(url: &str) -> PathBuf {
    let file = url.strip_prefix("sqlite://").map(|path| {
        let path = percent_encoding::percent_decode_str(path);
        PathBuf::from(path.decode_utf8_lossy().into_owned())
    });
    let directory = file.as_deref().and_then(Path::parent);
    // Without a file, such as with PostgreSQL, the directory is below the working directory.
    directory
        .unwrap_or(Path::new("./runnel-data"))
        .join("artifacts")
}

/// Refuses bucket keys that have no effect without a bucket.
fn refuse_unused_keys(config: &Config, faults: &mut Vec<ConfigFault>) {
    let artifacts = &config.artifacts;
    for (key, is_there) in [
        ("endpoint", artifacts.endpoint.is_some()),
        ("region", artifacts.region.is_some()),
        ("access_key_id", artifacts.access_key_id.is_some()),
        ("secret_access_key", artifacts.secret_access_key.is_some()),
    ] {
        if is_there {
            let message = "is only for a bucket: set artifacts.url to s3://BUCKET/PREFIX";
            faults.push(ConfigFault::new(format!("artifacts.{key}"), message));
        }
    }
}

fn bucket(
    config: &Config,
    egress: Option<&Egress>,
    bucket: &str,
    prefix: &str,
    faults: &mut Vec<ConfigFault>,
) -> Option<ArtifactLocation> {
    let (artifacts, before) = (&config.artifacts, faults.len());
    let checked = egress
        .zip(artifacts.endpoint.as_ref())
        .map(|(egress, endpoint)| egress.check_url(endpoint.as_str()));
    if let Some(Err(error)) = checked {
        faults.push(ConfigFault::new("artifacts.endpoint", error));
    }
    let mut secret = |key: &str, reference: Option<&SecretRef>| {
        let pointer = format!("artifacts.{key}");
        if reference.is_none() {
            let message = "is required for a bucket";
            faults.push(ConfigFault::new(pointer.clone(), message));
        }
        reference.map(|reference| secrets::secret(reference, &pointer, faults))
    };
    let access_key_id = secret("access_key_id", artifacts.access_key_id.as_ref());
    let secret_access_key = secret("secret_access_key", artifacts.secret_access_key.as_ref());
    // Both secrets are resolved before the first `?`, so that both faults are reported.
    let settings = BucketSettings {
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
        region: artifacts.region.clone().unwrap_or_else(|| REGION.into()),
        endpoint: artifacts.endpoint.clone(),
        access_key_id: access_key_id?,
        secret_access_key: secret_access_key?,
    };
    (faults.len() == before).then_some(ArtifactLocation::Bucket(settings))
}

fn check_files(config: &Config, faults: &mut Vec<ConfigFault>) {
    let max_bytes = config.artifacts.max_bytes;
    for (index, entry) in config.files.iter().enumerate() {
        // Symbolic links are followed: the operator may link to a file elsewhere.
        let fault = match std::fs::metadata(&entry.path) {
            Err(error) => format!("cannot be read: {error}"),
            Ok(found) if !found.is_file() => "is no file".to_owned(),
            Ok(found) if found.len() > max_bytes => {
                format!("is larger than artifacts.max_bytes, {max_bytes} bytes")
            }
            Ok(_) => continue,
        };
        faults.push(ConfigFault::new(format!("files[{index}].path"), fault));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_default_to_the_database_directory() {
        for (url, directory) in [
            (
                "sqlite://./runnel-data/runnel.db",
                "./runnel-data/artifacts",
            ),
            ("sqlite:///var/a%25b/r.db", "/var/a%b/artifacts"),
            ("sqlite://r.db", "artifacts"),
            ("postgres://u@h/d", "./runnel-data/artifacts"),
        ] {
            assert_eq!(default_directory(url), Path::new(directory), "{url}");
        }
    }
}
