//! Uploads of artifacts by runs and clients. The body is streamed and never buffered in full.

use std::time::Duration;

use domain::artifact::is_name;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use protocol::host_api::ArtifactMetadata;
use protocol::id::{RunId, WorkspaceId};
use serde::Deserialize;
use store::ArtifactOrigin;

use crate::error::body::slow_body;
use crate::error::{ApiError, ApiResult};
use crate::query::single_header;
use crate::recheck::StreamedBody;
use runs::artifacts::{ArtifactOwner, ArtifactUpload, MAX_KEEP, NewArtifact, StoredArtifact};

/// Timeout for the next chunk of a body.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);
const NAME: &str = "artifact";

/// Name and lifetime of an upload.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct UploadQuery {
    /// Name of the artifact, 1 to 255 bytes without slashes. Default: `artifact`.
    #[param(min_length = 1, max_length = 255)]
    name: Option<String>,
    /// Lifetime in seconds, at most 90 days. Default: the operator's setting.
    #[param(minimum = 1, maximum = 7_776_000)]
    expires_in: Option<u64>,
}

impl UploadQuery {
    /// Validates name, lifetime and headers of an upload.
    pub fn announced(
        self,
        headers: &HeaderMap,
        workspace: WorkspaceId,
        origin: ArtifactOrigin,
        run: Option<RunId>,
    ) -> ApiResult<NewArtifact> {
        let name = self.name.unwrap_or_else(|| NAME.to_owned());
        if !is_name(&name) {
            let message = "`name` must have 1 to 255 bytes, no slashes and no control characters";
            return Err(ApiError::invalid_argument(message));
        }
        let keep = self.expires_in.map(Duration::from_secs);
        if keep.is_some_and(|keep| keep.is_zero() || keep > MAX_KEEP) {
            let max_seconds = MAX_KEEP.as_secs();
            let message = format!("`expires_in` must be 1 to {max_seconds} seconds");
            return Err(ApiError::invalid_argument(message));
        }
        let announced = single_header(headers, CONTENT_LENGTH.as_str())?;
        let declared = single_header(headers, CONTENT_TYPE.as_str())?;
        Ok(NewArtifact {
            workspace,
            origin,
            run,
            name,
            declared: declared.map(str::to_owned),
            // Only for an early refusal by size; the bytes are counted anyway.
            announced: announced.and_then(|length| length.parse().ok()),
            keep,
        })
    }
}

/// Reads the complete body within `time`.
pub async fn read(
    upload: &mut ArtifactUpload,
    body: &mut StreamedBody,
    time: Duration,
) -> ApiResult<()> {
    let reading = async {
        loop {
            // Each chunk has its own timeout, so that an idle client does not hold a slot for all of `time`.
            let frame = tokio::time::timeout(CHUNK_TIMEOUT, body.next())
                .await
                .map_err(|_| slow_body())?;
            let Some(frame) = frame? else { return Ok(()) };
            upload.take(&frame).await?;
        }
    };
    let read = tokio::time::timeout(time, reading).await;
    read.map_err(|_| slow_body()).flatten()
}

/// Builds the metadata of a stored artifact for the response.
pub fn metadata(
    uploaded: StoredArtifact,
    origin: ArtifactOrigin,
    run: Option<RunId>,
    owner: ArtifactOwner,
    created_at: i64,
) -> ArtifactMetadata {
    ArtifactMetadata {
        artifact_id: uploaded.id.to_string(),
        name: uploaded.name,
        mime_type: uploaded.mime_type,
        size: uploaded.size,
        sha256: uploaded.sha256,
        origin: origin.as_str().to_owned(),
        run_id: run.map(|run| run.to_string()),
        event_id: owner.event_id,
        sequence: None,
        created_at: Some(created_at),
        expires_at: Some(uploaded.expires_at.div_euclid(1000)),
    }
}
