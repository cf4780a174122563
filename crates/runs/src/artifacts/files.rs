//! Files of the operator, copied into the blob store, so that granted files stay readable.

use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use domain::artifact::is_allowed;
use protocol::resources::{FileOperation, FileResource};
use tokio::fs::File;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use uuid::Uuid;

use super::sniff;
use crate::limits::ArtifactLimits;
use blob_store::{ArtifactStore, ArtifactStoreError};

const CHUNK_BYTES: usize = 256 * 1024;

/// A file of the configuration, which runs can be granted.
#[derive(Clone, Copy, Debug)]
pub struct OwnFile<'a> {
    pub name: &'a str,
    pub path: &'a Path,
    pub kind: FileOperation,
    pub declared: Option<&'a str>,
}

/// Cause of a file that cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("it cannot be read")]
    Read(#[from] std::io::Error),
    #[error("the type {0} is not in artifacts.mime_types")]
    TypeRefused(String),
    #[error("the file is larger than artifacts.max_bytes ({0} bytes)")]
    TooLarge(u64),
    #[error("the file changed during the copy; start again")]
    Changed,
    #[error(transparent)]
    BlobStore(#[from] ArtifactStoreError),
}

/// Blob key of a file with this digest.
pub(super) fn blob_key_of_file(sha256: &str) -> String {
    format!("files/{sha256}")
}

/// Copies a file into the blob store unless it is there, and returns its resource.
pub async fn enter_file(
    store: &ArtifactStore,
    limits: &ArtifactLimits,
    own: OwnFile<'_>,
) -> Result<FileResource, FileError> {
    let mut file = File::open(own.path).await?;
    let (mut head, mut size) = (Vec::new(), 0);
    let sha256 = read_all(&mut file, limits.max_bytes, async |chunk| {
        size += chunk.len() as u64;
        if head.len() < sniff::HEAD_BYTES {
            head.extend_from_slice(chunk);
        }
        Ok(())
    })
    .await?;
    let mime_type = sniff::media_type(own.declared, &head);
    if !is_allowed(&mime_type, &limits.mime_types) {
        return Err(FileError::TypeRefused(mime_type));
    }
    let key = blob_key_of_file(&sha256);
    // Addressed by content: all replicas and starts share one copy.
    if !store.has(&key).await? {
        file.rewind().await?;
        let mut writing = store.begin(&key);
        let copied = read_all(&mut file, limits.max_bytes, async |chunk| {
            Ok(writing.write(chunk).await?)
        })
        .await?;
        // The file was read twice, and an operator may have replaced it in between.
        if copied != sha256 {
            return Err(FileError::Changed);
        }
        writing.finish().await?;
    }
    Ok(FileResource {
        id: file_id(own.name, &sha256).to_string(),
        name: own.name.to_owned(),
        kind: own.kind,
        mime_type,
        size,
        sha256,
    })
}

/// Reads a file in chunks; returns its SHA-256.
async fn read_all(
    file: &mut File,
    max_bytes: u64,
    mut take: impl AsyncFnMut(&[u8]) -> Result<(), FileError>,
) -> Result<String, FileError> {
    let (mut digest, mut size) = (Context::new(&SHA256), 0);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = file.read(&mut chunk).await?;
        if count == 0 {
            return Ok(store::hex(digest.finish().as_ref()));
        }
        size += count as u64;
        if size > max_bytes {
            return Err(FileError::TooLarge(max_bytes));
        }
        digest.update(&chunk[..count]);
        take(&chunk[..count]).await?;
    }
}

/// Id of a file by name and content, so that all replicas agree.
fn file_id(name: &str, sha256: &str) -> Uuid {
    let mut digest = Context::new(&SHA256);
    for part in ["runnel file", name, sha256] {
        digest.update(part.as_bytes());
        // Separates the parts: ("ab", "c") must not hash like ("a", "bc").
        digest.update(&[0]);
    }
    let digest = digest.finish();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest.as_ref()[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}
