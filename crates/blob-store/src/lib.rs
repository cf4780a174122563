//! Storage of artifact contents: a directory or an S3 bucket. The bucket is accessed through the guarded client.

pub mod durable;
mod guarded;

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use futures_util::StreamExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt as _};
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::task::TaskTracker;
use url::Url;

use durable::{create_private, sync_name};
use egress::Egress;
use guarded::GuardedConnector;

/// Buffer size before a part is sent. S3 accepts no smaller part except the last.
const PART_BYTES: usize = 5 * 1024 * 1024;

/// Configured location of all contents.
#[derive(Clone, Debug)]
pub enum ArtifactLocation {
    Directory(PathBuf),
    Bucket(BucketSettings),
}

/// An S3 bucket and its credentials.
#[derive(Clone, Debug)]
pub struct BucketSettings {
    pub bucket: String,
    /// Prefix of each key; may be empty.
    pub prefix: String,
    pub region: String,
    /// Endpoint of an S3-compatible server other than Amazon's.
    pub endpoint: Option<Url>,
    pub access_key_id: SecretString,
    pub secret_access_key: SecretString,
}

/// Failure to read or write a content. Shows no credential.
#[derive(Debug, thiserror::Error)]
pub enum ArtifactStoreError {
    #[error("the bytes are not there")]
    Gone,
    #[error("no artifact store is configured; set artifacts.url")]
    Nowhere,
    #[error("the directory {0} cannot be made")]
    Directory(PathBuf, #[source] std::io::Error),
    #[error("the artifact store failed")]
    Failed(#[source] object_store::Error),
}

impl From<object_store::Error> for ArtifactStoreError {
    fn from(error: object_store::Error) -> Self {
        match error {
            object_store::Error::NotFound { .. } => Self::Gone,
            error => Self::Failed(error),
        }
    }
}

/// Contents of all artifacts. Cheap to clone.
#[derive(Clone)]
pub struct ArtifactStore {
    /// `None`: no storage is configured.
    objects: Option<Arc<dyn ObjectStore>>,
    /// Root of directory storage. Used to remove partial uploads of killed processes.
    directory: Option<PathBuf>,
    /// Directories of contents whose names this process has synced: two hexadecimal digits, so few.
    durable: Arc<Mutex<HashSet<PathBuf>>>,
    prefix: String,
    tasks: TaskTracker,
}

impl ArtifactStore {
    /// Opens the storage. Aborted uploads are cleaned up in `tasks`.
    pub fn open(
        location: &ArtifactLocation,
        egress: &Egress,
        tasks: &TaskTracker,
    ) -> Result<Self, ArtifactStoreError> {
        let tasks = tasks.clone();
        match location {
            ArtifactLocation::Directory(directory) => {
                create_private(directory)
                    .map_err(|error| ArtifactStoreError::Directory(directory.clone(), error))?;
                if let Err(error) = make_all_private(directory) {
                    let (error, directory) =
                        (&error as &dyn std::error::Error, directory.display());
                    tracing::warn!(
                        error,
                        "artifacts in {directory} may be readable by other users; set mode 0700 on its subdirectories"
                    );
                }
                let objects = LocalFileSystem::new_with_prefix(directory)?.with_fsync(true);
                Ok(Self {
                    objects: Some(Arc::new(objects)),
                    directory: Some(directory.clone()),
                    durable: Arc::default(),
                    prefix: String::new(),
                    tasks,
                })
            }
            ArtifactLocation::Bucket(settings) => Ok(Self {
                objects: Some(Arc::new(bucket(settings, egress)?)),
                directory: None,
                durable: Arc::default(),
                prefix: settings.prefix.clone(),
                tasks,
            }),
        }
    }

    /// A store without storage: every operation fails.
    pub fn nowhere() -> Self {
        Self {
            objects: None,
            directory: None,
            durable: Arc::default(),
            prefix: String::new(),
            tasks: TaskTracker::new(),
        }
    }

    fn objects(&self) -> Result<&Arc<dyn ObjectStore>, ArtifactStoreError> {
        self.objects.as_ref().ok_or(ArtifactStoreError::Nowhere)
    }

    /// Checks access by writing and deleting a few bytes.
    pub async fn probe(&self) -> Result<(), ArtifactStoreError> {
        let key = format!("probe/{}", uuid::Uuid::now_v7().simple());
        let mut writing = self.begin(&key);
        writing.write(b"probe").await?;
        writing.finish().await?;
        self.delete(&key).await
    }

    /// Starts an upload. The content becomes visible when the upload finishes.
    pub fn begin(&self, key: &str) -> ArtifactWriter {
        ArtifactWriter {
            store: self.clone(),
            path: self.path(key),
            pending: BytesMut::new(),
            upload: None,
        }
    }

    /// Reads a range of a content.
    pub async fn read(
        &self,
        key: &str,
        part: Range<u64>,
    ) -> Result<
        impl Stream<Item = Result<Bytes, ArtifactStoreError>> + Send + 'static,
        ArtifactStoreError,
    > {
        // Some stores refuse an empty range, the only range of an empty content.
        let range = (!part.is_empty()).then_some(GetRange::Bounded(part));
        let options = GetOptions {
            range,
            ..GetOptions::default()
        };
        let found = self.objects()?.get_opts(&self.path(key), options).await?;
        Ok(found
            .into_stream()
            .map(|chunk| chunk.map_err(ArtifactStoreError::from)))
    }

    /// True when a content exists.
    pub async fn has(&self, key: &str) -> Result<bool, ArtifactStoreError> {
        match self.objects()?.head(&self.path(key)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes a content and a partial upload of it. Deleting a missing content succeeds.
    pub async fn delete(&self, key: &str) -> Result<(), ArtifactStoreError> {
        if let Some(directory) = &self.directory {
            // Each path is written once, so no other upload has this name.
            let left = directory.join(format!("{key}#1"));
            if let Err(error) = tokio::fs::remove_file(&left).await
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(ArtifactStoreError::Directory(left, error));
            }
        }
        match self.objects()?.delete(&self.path(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates the private parent directory of a content, and makes its name durable.
    async fn hide(&self, path: &Path) -> Result<(), ArtifactStoreError> {
        // `object_store` would create missing directories with the process's umask, readable by other users.
        let Some(directory) = &self.directory else {
            return Ok(());
        };
        let file = directory.join(path.as_ref());
        let hidden = file.parent().unwrap_or(directory).to_owned();
        if hidden.is_dir() && self.synced().contains(&hidden) {
            return Ok(());
        }
        let new = hidden.clone();
        // An existing directory may be new, too: another upload or a killed process has not synced it yet.
        let making = move || create_private(&new).and_then(|()| sync_name(&new));
        let made = tokio::task::spawn_blocking(making).await;
        if let Err(error) = made.map_err(std::io::Error::other).flatten() {
            return Err(ArtifactStoreError::Directory(hidden, error));
        }
        self.synced().insert(hidden);
        Ok(())
    }

    // Valid after a panic: one call changes it.
    fn synced(&self) -> MutexGuard<'_, HashSet<PathBuf>> {
        let durable = self.durable.lock();
        durable.unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}/{key}", self.prefix))
    }
}

/// Sets mode 0700 on existing content directories.
fn make_all_private(directory: &FilePath) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let found = entry.metadata()?;
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        // Content directories have two hexadecimal digits; other entries belong to the operator.
        let is_ours = name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit) && found.is_dir();
        if is_ours && found.permissions().mode() & 0o077 != 0 {
            std::fs::set_permissions(entry.path(), std::fs::Permissions::from_mode(0o700))?;
        }
    }
    Ok(())
}

fn bucket(
    settings: &BucketSettings,
    egress: &Egress,
) -> Result<object_store::aws::AmazonS3, ArtifactStoreError> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&settings.bucket)
        .with_region(&settings.region)
        .with_access_key_id(settings.access_key_id.expose_secret())
        .with_secret_access_key(settings.secret_access_key.expose_secret())
        // The guarded client decides which hosts may be reached without TLS.
        .with_allow_http(true)
        .with_http_connector(GuardedConnector(egress.clone()));
    if let Some(endpoint) = &settings.endpoint {
        builder = builder.with_endpoint(endpoint.as_str().trim_end_matches('/'));
    }
    Ok(builder.build()?)
}

/// An upload in progress.
pub struct ArtifactWriter {
    store: ArtifactStore,
    path: Path,
    pending: BytesMut,
    upload: Option<Box<dyn MultipartUpload>>,
}

impl ArtifactWriter {
    /// Buffers bytes and sends them in parts.
    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<(), ArtifactStoreError> {
        while !bytes.is_empty() {
            let missing = PART_BYTES - self.pending.len();
            let (now, later) = bytes.split_at(missing.min(bytes.len()));
            self.pending.extend_from_slice(now);
            bytes = later;
            if self.pending.len() == PART_BYTES {
                self.send_part().await?;
            }
        }
        Ok(())
    }

    async fn send_part(&mut self) -> Result<(), ArtifactStoreError> {
        let part = self.pending.split().freeze();
        if self.upload.is_none() {
            self.store.hide(&self.path).await?;
            // Begun late: a content smaller than one part needs a single request.
            let upload = self.store.objects()?.put_multipart(&self.path);
            self.upload = Some(upload.await?);
        }
        if let Some(upload) = &mut self.upload {
            upload.put_part(part.into()).await?;
        }
        Ok(())
    }

    /// Writes the rest of the buffer. The content is visible when this returns.
    pub async fn finish(mut self) -> Result<(), ArtifactStoreError> {
        // The content fits in the buffer: one PUT replaces the three calls of a multipart upload.
        if self.upload.is_none() {
            let all = self.pending.split().freeze();
            self.store.hide(&self.path).await?;
            self.store.objects()?.put(&self.path, all.into()).await?;
            return Ok(());
        }
        if !self.pending.is_empty() {
            self.send_part().await?;
        }
        if let Some(upload) = &mut self.upload {
            upload.complete().await?;
        }
        self.upload = None;
        Ok(())
    }
}

impl Drop for ArtifactWriter {
    /// Aborts the upload in a task, because `drop` cannot await.
    fn drop(&mut self) {
        // Present after a failure or a cancelled caller: the provider bills the parts until the abort.
        if let Some(mut upload) = self.upload.take() {
            self.store.tasks.spawn(async move {
                if let Err(error) = upload.abort().await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        "cannot abort an upload; its parts remain in the bucket"
                    );
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::TryStreamExt as _;

    use super::*;

    fn store(directory: &FilePath) -> ArtifactStore {
        let egress = Egress::new(Vec::new(), Duration::from_secs(1)).unwrap();
        let location = ArtifactLocation::Directory(directory.to_owned());
        ArtifactStore::open(&location, &egress, &TaskTracker::new()).unwrap()
    }

    async fn read(store: &ArtifactStore, key: &str, part: Range<u64>) -> Vec<u8> {
        let chunks: Vec<Bytes> = store
            .read(key, part)
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        chunks.concat()
    }

    #[tokio::test]
    async fn reads_ranges_of_multipart_uploads_until_deleted() {
        let directory = std::env::temp_dir().join(format!("runnel-{}", uuid::Uuid::new_v4()));
        let store = store(&directory);
        store.probe().await.unwrap();
        let bytes: Vec<u8> = (0..PART_BYTES * 2 + 7)
            .map(|n| u8::try_from(n % 251).unwrap())
            .collect();
        let mut writing = store.begin("ab/one");
        for chunk in bytes.chunks(700_001) {
            writing.write(chunk).await.unwrap();
            assert!(!store.has("ab/one").await.unwrap());
        }
        writing.finish().await.unwrap();
        let size = bytes.len() as u64;
        assert_eq!(read(&store, "ab/one", 0..size).await, bytes);
        let middle = PART_BYTES - 3..PART_BYTES + 4;
        let part = middle.start as u64..middle.end as u64;
        assert_eq!(read(&store, "ab/one", part).await, bytes[middle]);
        store.begin("ab/none").finish().await.unwrap();
        assert!(read(&store, "ab/none", 0..0).await.is_empty());

        let mut left = store.begin("ab/left");
        left.write(&bytes).await.unwrap();
        drop(left);
        for key in ["ab/one", "ab/one", "ab/none", "ab/left"] {
            store.delete(key).await.unwrap();
        }
        assert!(matches!(
            store.read("ab/one", 0..1).await.err(),
            Some(ArtifactStoreError::Gone)
        ));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
