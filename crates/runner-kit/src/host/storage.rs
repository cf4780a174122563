//! Blob storage.

use protocol::host_api::StorageKeys;
use protocol::resources::StorageArea;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde::Serialize;

use crate::host::{Host, HostError, client};

/// A blob as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub content_type: String,
    pub bytes: Vec<u8>,
}

/// Which keys of an area are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StorageQuery {
    /// Only keys that begin so.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// The `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
    /// At most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl Host {
    /// A blob, or `None` when there is none.
    pub async fn storage_get(
        &self,
        area: StorageArea,
        key: &str,
    ) -> Result<Option<Blob>, HostError> {
        let request = self
            .request(Method::GET, &["storage", area.as_str(), key])
            .await?;
        let answer = match self.send(request).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer?,
        };
        let content_type = answer.headers().get(CONTENT_TYPE);
        let content_type = content_type.and_then(|value| value.to_str().ok());
        Ok(Some(Blob {
            content_type: content_type.unwrap_or_default().to_owned(),
            bytes: client::read(answer).await?,
        }))
    }

    /// Writes a blob of at most 10 MiB, whatever was there.
    pub async fn storage_put(
        &self,
        area: StorageArea,
        key: &str,
        blob: Blob,
    ) -> Result<(), HostError> {
        let request = self
            .request(Method::PUT, &["storage", area.as_str(), key])
            .await?;
        let request = request.header(CONTENT_TYPE, blob.content_type);
        self.send(request.body(blob.bytes)).await.map(drop)
    }

    /// Removes a blob; false when there was none.
    pub async fn storage_delete(&self, area: StorageArea, key: &str) -> Result<bool, HostError> {
        let request = self
            .request(Method::DELETE, &["storage", area.as_str(), key])
            .await?;
        match self.send(request).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The keys of an area, in byte order.
    pub async fn storage_list(
        &self,
        area: StorageArea,
        query: &StorageQuery,
    ) -> Result<StorageKeys, HostError> {
        let request = self
            .request(Method::GET, &["storage", area.as_str()])
            .await?;
        self.answer(request.query(query)).await
    }
}
