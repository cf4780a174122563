//! Blob storage.

use protocol::host_api::StorageKeys;
use protocol::resources::StorageArea;
use reqwest::header::{CONTENT_TYPE, ETAG, HeaderName, IF_MATCH, IF_NONE_MATCH};
use reqwest::{Method, Response};
use serde::Serialize;

use crate::host::{Host, HostError, client};

/// A blob as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub content_type: String,
    pub bytes: Vec<u8>,
}

/// Condition of a write on the stored blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutCondition {
    /// There is none under the key (`If-None-Match: *`).
    Absent,
    /// It has this entity tag, as an answer gave it, quotes included (`If-Match`).
    Matches(String),
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
        let found = self.storage_find(area, key).await?;
        Ok(found.map(|(blob, _)| blob))
    }

    /// A blob and its entity tag, for [`PutCondition::Matches`]; `None` when there is none.
    pub async fn storage_find(
        &self,
        area: StorageArea,
        key: &str,
    ) -> Result<Option<(Blob, String)>, HostError> {
        let request = self
            .request(Method::GET, &["storage", area.as_str(), key])
            .await?;
        let answer = match self.send(request).await {
            Err(error) if error.is_not_found() => return Ok(None),
            answer => answer?,
        };
        let tag = header(&answer, &ETAG);
        let blob = Blob {
            content_type: header(&answer, &CONTENT_TYPE),
            bytes: client::read(answer).await?,
        };
        Ok(Some((blob, tag)))
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

    /// Writes a blob of at most 10 MiB if `condition` holds, and answers its entity tag. If it does not hold, the
    /// error is a conflict ([`HostError::is_conflict`]) and nothing changes.
    pub async fn storage_put_if(
        &self,
        area: StorageArea,
        key: &str,
        blob: Blob,
        condition: PutCondition,
    ) -> Result<String, HostError> {
        let request = self
            .request(Method::PUT, &["storage", area.as_str(), key])
            .await?;
        let request = match condition {
            PutCondition::Absent => request.header(IF_NONE_MATCH, "*"),
            PutCondition::Matches(tag) => request.header(IF_MATCH, tag),
        };
        let request = request.header(CONTENT_TYPE, blob.content_type);
        let answer = self.send(request.body(blob.bytes)).await?;
        Ok(header(&answer, &ETAG))
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

fn header(answer: &Response, name: &HeaderName) -> String {
    let value = answer.headers().get(name);
    let value = value.and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}
