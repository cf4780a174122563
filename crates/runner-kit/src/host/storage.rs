//! Blob storage.

use protocol::host_api::StorageKeys;
use protocol::resources::StorageArea;
use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use serde::Serialize;

use crate::host::client::HostAnswer;
use crate::host::{HostConnection, HostError};

/// Stored blob, at most 10 MiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub content_type: String,
    pub bytes: Vec<u8>,
}

/// Condition of a write on the stored blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutCondition {
    /// No blob under the key (`If-None-Match: *`).
    Absent,
    /// Entity tag of the blob, as a response returned it, with quotes (`If-Match`).
    Matches(String),
}

/// Selection of keys in an area.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StorageKeyQuery {
    /// Only keys with this prefix; empty: all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
    /// At most 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Blob storage of the run.
#[derive(Clone, Copy, Debug)]
pub struct StorageApi<'a>(pub(super) &'a HostConnection);

impl StorageApi<'_> {
    /// Blob, or `None`.
    pub async fn get(self, area: StorageArea, key: &str) -> Result<Option<Blob>, HostError> {
        let found = self.find(area, key).await?;
        Ok(found.map(|(blob, _)| blob))
    }

    /// A blob and its entity tag, for [`PutCondition::Matches`]; `None` when there is none.
    pub async fn find(
        self,
        area: StorageArea,
        key: &str,
    ) -> Result<Option<(Blob, String)>, HostError> {
        let request = self
            .0
            .request(Method::GET, &["storage", area.as_str(), key])
            .await?;
        let answer = match self.0.send(request).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer?,
        };
        let tag = header(&answer, &ETAG);
        let blob = Blob {
            content_type: header(&answer, &CONTENT_TYPE),
            bytes: answer.body,
        };
        Ok(Some((blob, tag)))
    }

    /// Writes a blob of at most 10 MiB without a condition.
    pub async fn put(self, area: StorageArea, key: &str, blob: Blob) -> Result<(), HostError> {
        let request = self
            .0
            .request(Method::PUT, &["storage", area.as_str(), key])
            .await?;
        let request = request.header(CONTENT_TYPE, blob.content_type);
        self.0.send(request.body(blob.bytes)).await.map(drop)
    }

    /// Writes a blob of at most 10 MiB if `condition` holds, and returns its entity tag. Otherwise the call
    /// fails as a conflict ([`HostError::is_conflict`]) and nothing changes.
    pub async fn put_if(
        self,
        area: StorageArea,
        key: &str,
        blob: Blob,
        condition: PutCondition,
    ) -> Result<String, HostError> {
        let request = self
            .0
            .request(Method::PUT, &["storage", area.as_str(), key])
            .await?;
        let request = match condition {
            PutCondition::Absent => request.header(IF_NONE_MATCH, "*"),
            PutCondition::Matches(tag) => request.header(IF_MATCH, tag),
        };
        let request = request.header(CONTENT_TYPE, blob.content_type);
        let answer = self.0.send(request.body(blob.bytes)).await?;
        Ok(header(&answer, &ETAG))
    }

    /// Deletes a blob; false when absent.
    pub async fn delete(self, area: StorageArea, key: &str) -> Result<bool, HostError> {
        let request = self
            .0
            .request(Method::DELETE, &["storage", area.as_str(), key])
            .await?;
        match self.0.send(request).await {
            Ok(_) => Ok(true),
            // A retry after a lost response finds the blob deleted.
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Keys of an area, in byte order.
    pub async fn list(
        self,
        area: StorageArea,
        query: &StorageKeyQuery,
    ) -> Result<StorageKeys, HostError> {
        let request = self
            .0
            .request(Method::GET, &["storage", area.as_str()])
            .await?;
        self.0.answer(request.query(query)).await
    }
}

fn header(answer: &HostAnswer, name: &HeaderName) -> String {
    let value = answer.headers.get(name);
    let value = value.and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}
