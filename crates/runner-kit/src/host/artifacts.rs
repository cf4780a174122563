//! Files of the run.

use protocol::host_api::ArtifactMetadata;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;

use crate::host::{Blob, HostConnection, HostError};

/// Files of the run.
#[derive(Clone, Copy, Debug)]
pub struct ArtifactsApi<'a>(pub(super) &'a HostConnection);

impl ArtifactsApi<'_> {
    /// Uploads a file of the run; `artifact.created` announces it.
    pub async fn create(self, name: &str, file: Blob) -> Result<ArtifactMetadata, HostError> {
        let call = self.0.request(Method::POST, &["artifacts"]).await?;
        let call = call.query(&[("name", name)]);
        let call = call.header(CONTENT_TYPE, file.content_type);
        self.0.long_answer(call.body(file.bytes)).await
    }

    /// Metadata of a file, or `None`.
    pub async fn get(self, id: &str) -> Result<Option<ArtifactMetadata>, HostError> {
        match self.0.get(&["artifacts", id]).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Bytes of a file from `first` to `last`, inclusive; at most 16 MiB per call.
    pub async fn read(self, id: &str, first: u64, last: u64) -> Result<Vec<u8>, HostError> {
        let call = self
            .0
            .request(Method::GET, &["artifacts", id, "content"])
            .await?;
        let call = call.header("range", format!("bytes={first}-{last}"));
        Ok(self.0.send_long(call).await?.body)
    }
}
