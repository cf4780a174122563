//! `[artifacts]` and `[[files]]`.

use std::path::PathBuf;
use std::time::Duration;

use domain::artifact::{is_media_type, is_name};
use serde_json::Value;
use url::Url;

use super::fault::ConfigFault;
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, integer, name, one_of, parsed, seconds, text};
use egress::parse_plain_url;

const GIB: u64 = 1024 * 1024 * 1024;
const DAY: f64 = 86_400.0;

/// `[artifacts]`: files that runs create and events carry.
#[derive(Clone, Debug)]
pub struct ArtifactsConfig {
    /// `None`: a directory next to the database.
    pub url: Option<ArtifactUrl>,
    /// Endpoint of an S3-compatible server other than Amazon's.
    pub endpoint: Option<Url>,
    pub region: Option<String>,
    pub access_key_id: Option<SecretRef>,
    pub secret_access_key: Option<SecretRef>,
    /// Maximum size of one artifact.
    pub max_bytes: u64,
    /// Maximum size of all artifacts of a workspace.
    pub workspace_bytes: u64,
    /// Maximum percentage of it for one run.
    pub run_percent: u64,
    /// Maximum percentage of it for all runs of one agent.
    pub agent_percent: u64,
    /// Default lifetime of an artifact.
    pub expires: Duration,
    /// Exact types, `image/*`, or `*/*`.
    pub mime_types: Vec<String>,
}

/// Location of the artifact store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactUrl {
    Directory(PathBuf),
    Bucket { bucket: String, prefix: String },
}

impl ArtifactsConfig {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let url = table.optional("url", artifact_url);
        let endpoint = table.optional("endpoint", |value| {
            parse_plain_url(&text(value)?).map_err(|error| error.to_string())
        });
        let region = table.optional("region", name);
        let access_key_id = table.optional("access_key_id", parsed);
        let secret_access_key = table.optional("secret_access_key", parsed);
        let max_bytes = table.required("max_bytes", integer(1..=5 * GIB));
        let workspace_bytes = table.required("workspace_bytes", integer(1..=1024 * 1024 * GIB));
        let run_percent = table.required("run_percent", integer(1..=100));
        let agent_percent = table.required("agent_percent", integer(1..=100));
        let expires = table.required("expires_seconds", seconds(1.0..=90.0 * DAY));
        let mime_types = table.items("mime_types", |pointer, value, faults| {
            media_type_rule(value).map_err(|message| {
                faults.push(ConfigFault::new(pointer, message));
                Reported
            })
        });
        // A quota below the maximum size would refuse uploads that `max_bytes` allows.
        let holds_one = !matches!((&max_bytes, &workspace_bytes), (Ok(one), Ok(all)) if one > all);
        let message = "must not be less than artifacts.max_bytes";
        let order = table.demand("workspace_bytes", holds_one, message);
        table.close()?;
        order?;
        Ok(Self {
            url: url?,
            endpoint: endpoint?,
            region: region?,
            access_key_id: access_key_id?,
            secret_access_key: secret_access_key?,
            max_bytes: max_bytes?,
            workspace_bytes: workspace_bytes?,
            run_percent: run_percent?,
            agent_percent: agent_percent?,
            expires: expires?,
            mime_types: mime_types?,
        })
    }
}

fn artifact_url(value: Value) -> Result<ArtifactUrl, &'static str> {
    const SHAPE: &str = "must be file://PATH or s3://BUCKET/PREFIX";
    let text = text(value)?;
    if let Some(path) = text.strip_prefix("file://") {
        let path = (!path.is_empty()).then(|| PathBuf::from(path));
        return path.map(ArtifactUrl::Directory).ok_or(SHAPE);
    }
    let (bucket, prefix) = match text.strip_prefix("s3://").ok_or(SHAPE)? {
        // Credentials and parameters do not belong into the URL.
        location if location.contains(['?', '#', '@']) => return Err(SHAPE),
        location => location.split_once('/').unwrap_or((location, "")),
    };
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let is_bucket = (3..=63).contains(&bucket.len()) && bucket.bytes().all(is_plain);
    is_bucket
        .then(|| ArtifactUrl::Bucket {
            bucket: bucket.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
        })
        .ok_or(SHAPE)
}

fn media_type_rule(value: Value) -> Result<String, &'static str> {
    let rule = text(value)?.to_ascii_lowercase();
    let is_family = rule
        .strip_suffix("/*")
        .is_some_and(|family| family == "*" || is_media_type(&format!("{family}/x")));
    (is_family || !rule.contains('*') && is_media_type(&rule))
        .then_some(rule)
        .ok_or("must be a media type, like image/png, image/* or */*")
}

/// `[[files]]`: a file of the operator that can be granted to runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    pub name: String,
    pub path: PathBuf,
    /// `config` or `knowledge`.
    pub kind: String,
    pub mime_type: Option<String>,
}

impl FileEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let name = table.required("name", file_name);
        let path = table.required("path", |value| text(value).map(PathBuf::from));
        let kind = table.required("kind", one_of(&["config", "knowledge"]));
        let mime_type = table.optional("mime_type", |value| {
            let kind = text(value)?;
            is_media_type(&kind)
                .then_some(kind)
                .ok_or("must be a media type, like text/csv")
        });
        table.close()?;
        Ok(Self {
            name: name?,
            path: path?,
            kind: kind?,
            mime_type: mime_type?,
        })
    }
}

fn file_name(value: Value) -> Result<String, &'static str> {
    let name = text(value)?;
    is_name(&name)
        .then_some(name)
        .ok_or("must be a file name: 1 to 255 bytes without slashes and control characters")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn storage_is_a_directory_or_a_bucket() {
        let read = |url: &str| artifact_url(json!(url)).ok();
        let bucket = |bucket: &str, prefix: &str| {
            Some(ArtifactUrl::Bucket {
                bucket: bucket.to_owned(),
                prefix: prefix.to_owned(),
            })
        };
        assert_eq!(
            read("file:///var/a b"),
            Some(ArtifactUrl::Directory(PathBuf::from("/var/a b")))
        );
        assert_eq!(read("s3://files"), bucket("files", ""));
        assert_eq!(read("s3://files/a/b/"), bucket("files", "a/b"));
        for wrong in [
            "file://",
            "s3://",
            "s3://ab",
            "s3://key:secret@files/a",
            "s3://files/a?x=1",
            "https://files",
            "/var/files",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn media_types_are_exact_or_wildcards() {
        for rule in ["image/png", "image/*", "*/*", "application/vnd.x+json"] {
            assert_eq!(media_type_rule(json!(rule)).as_deref(), Ok(rule));
        }
        for rule in ["image", "*", "*/png", "im*/x", "image/p*", "", "a b/c"] {
            assert!(media_type_rule(json!(rule)).is_err(), "{rule}");
        }
    }
}
