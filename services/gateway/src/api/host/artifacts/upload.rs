//! One upload of a run: the body is read chunk by chunk, and never held.

use std::time::Duration;

use domain::artifact::is_name;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use protocol::host_api::ArtifactMetadata;
use protocol::resources::ArtifactOperation;
use store::ArtifactOrigin;

use super::UploadQuery;
use crate::api::ApiState;
use crate::api::auth::{Call, RunCaller};
use crate::api::error::{ApiError, ApiResult};
use crate::api::query::single_header;
use crate::api::recheck::StreamedBody;
use crate::runs::artifacts::{LONGEST, NewArtifact, PATIENCE, Uploaded, Uploading, Whose};

/// A body that stands still for longer is given up.
const SILENCE: Duration = Duration::from_secs(30);
const NAME: &str = "artifact";
const CALL: Call<'static> = Call {
    action: "artifact_create",
    resource: "artifact",
    operation: "create",
};

/// Stores the body as an artifact of the run; the call is recorded with its bytes.
pub(super) async fn store(
    caller: &RunCaller,
    state: &ApiState,
    query: UploadQuery,
    headers: &HeaderMap,
    body: &mut StreamedBody,
) -> ApiResult<ArtifactMetadata> {
    let asked = caller.grant.snapshot.artifacts(ArtifactOperation::Create);
    if asked.is_err() {
        caller.granted(state, CALL, asked).await?;
    }
    let begun = new_artifact(caller, query, headers)
        .and_then(|new| state.runs.upload(new).map_err(ApiError::from));
    let mut upload = match begun {
        Ok(upload) => upload,
        Err(refused) => {
            caller.record(state, CALL, Some(refused.message())).await?;
            return Err(refused);
        }
    };
    let time = PATIENCE.min(state.runs.time_left(&caller.grant));
    let read = tokio::time::timeout(time, read(&mut upload, body)).await;
    if let Err(error) = read.map_err(|_| ApiError::slow_body()).flatten() {
        let audit = caller.audit_entry(state, CALL, Some(error.message()), 0);
        upload.give_up(Some(audit)).await?;
        return Err(error);
    }
    let run = &caller.grant.run;
    let whose = Whose {
        runner_id: Some(run.runner_id.to_string()),
        conversation_key: run.conversation_key.clone(),
        event_id: Some(run.event_id.clone()),
    };
    let audit = |size| {
        let bytes = usize::try_from(size).unwrap_or(usize::MAX);
        Some(caller.audit_entry(state, CALL, None, bytes))
    };
    match upload.finish(whose, audit).await {
        Ok(uploaded) => Ok(metadata(caller, state, uploaded)),
        Err(error) => {
            let error = ApiError::from(error);
            caller.record(state, CALL, Some(error.message())).await?;
            Err(error)
        }
    }
}

fn new_artifact(
    caller: &RunCaller,
    query: UploadQuery,
    headers: &HeaderMap,
) -> ApiResult<NewArtifact> {
    let name = query.name.unwrap_or_else(|| NAME.to_owned());
    if !is_name(&name) {
        let message = "`name` must have 1 to 255 bytes, no slashes and no control characters";
        return Err(ApiError::invalid_argument(message));
    }
    let keep = query.expires_in.map(Duration::from_secs);
    if keep.is_some_and(|keep| keep.is_zero() || keep > LONGEST) {
        let most = LONGEST.as_secs();
        let message = format!("`expires_in` must be 1 to {most} seconds");
        return Err(ApiError::invalid_argument(message));
    }
    let announced = single_header(headers, CONTENT_LENGTH.as_str())?;
    let declared = single_header(headers, CONTENT_TYPE.as_str())?;
    Ok(NewArtifact {
        workspace: caller.grant.run.workspace.clone(),
        origin: ArtifactOrigin::Runner,
        run: Some(caller.grant.run.id),
        name,
        declared: declared.map(str::to_owned),
        announced: announced.and_then(|length| length.parse().ok()),
        keep,
    })
}

async fn read(upload: &mut Uploading, body: &mut StreamedBody) -> ApiResult<()> {
    loop {
        let frame = tokio::time::timeout(SILENCE, body.next())
            .await
            .map_err(|_| ApiError::slow_body())?;
        let Some(frame) = frame? else { return Ok(()) };
        upload.take(&frame).await?;
    }
}

fn metadata(caller: &RunCaller, state: &ApiState, uploaded: Uploaded) -> ArtifactMetadata {
    let run = &caller.grant.run;
    ArtifactMetadata {
        artifact_id: uploaded.id.to_string(),
        name: uploaded.name,
        mime_type: uploaded.mime_type,
        size: uploaded.size,
        sha256: uploaded.sha256,
        origin: ArtifactOrigin::Runner.as_str().to_owned(),
        run_id: Some(run.id.to_string()),
        event_id: Some(run.event_id.clone()),
        sequence: None,
        created_at: Some(state.runs.clock().now_seconds()),
        expires_at: Some(uploaded.expires_at.div_euclid(1000)),
    }
}
