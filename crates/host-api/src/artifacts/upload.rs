//! Artifact upload of a run.

use http::HeaderMap;
use protocol::host_api::ArtifactMetadata;
use protocol::resources::ArtifactOperation;
use store::ArtifactOrigin;

use runs::artifacts::{ArtifactOwner, UPLOAD_TIMEOUT};
use web::artifact_upload::{UploadQuery, metadata, read};
use web::auth::{AuditedCall, RunCaller};
use web::error::{ApiError, ApiResult};
use web::recheck::StreamedBody;
use web::state::ApiState;

const CALL: AuditedCall<'static> = AuditedCall {
    action: "artifact_create",
    resource: "artifact",
    operation: "create",
};

/// Stores the body as an artifact of the run, and audits its size.
pub(super) async fn store(
    caller: &RunCaller,
    state: &ApiState,
    query: UploadQuery,
    headers: &HeaderMap,
    body: &mut StreamedBody,
) -> ApiResult<ArtifactMetadata> {
    let permission = caller.grant.snapshot.artifacts(ArtifactOperation::Create);
    // Audited here only if denied; otherwise the entry follows with the size.
    if permission.is_err() {
        caller.granted(state, CALL, permission).await?;
    }
    let run = &caller.grant.run;
    let origin = ArtifactOrigin::Runner;
    let begun = query
        .announced(headers, run.workspace.clone(), origin, Some(run.id))
        .and_then(|new| state.runs.artifacts.upload(new).map_err(ApiError::from));
    let mut upload = match begun {
        Ok(upload) => upload,
        Err(refused) => {
            caller.record(state, CALL, Some(refused.message())).await?;
            return Err(refused);
        }
    };
    // An upload must not last longer than its run.
    let time = UPLOAD_TIMEOUT.min(state.runs.aborts.time_left(&caller.grant));
    if let Err(error) = read(&mut upload, body, time).await {
        // In one transaction with the removal, so that each upload has an audit entry.
        let audit = caller.audit_entry(state, CALL, Some(error.message()), 0);
        upload.give_up(Some(audit)).await?;
        return Err(error);
    }
    let artifact_owner = ArtifactOwner {
        runner_id: Some(run.runner_id.to_string()),
        conversation_key: run.conversation_key.clone(),
        event_id: Some(run.event_id.clone()),
    };
    let audit = |size| {
        // Infallible on 64 bits; the audit needs no exact size beyond.
        let bytes = usize::try_from(size).unwrap_or(usize::MAX);
        Some(caller.audit_entry(state, CALL, None, bytes))
    };
    match upload.finish(artifact_owner.clone(), audit).await {
        Ok(uploaded) => {
            let now = state.runs.clock().now_seconds();
            Ok(metadata(
                uploaded,
                origin,
                Some(run.id),
                artifact_owner,
                now,
            ))
        }
        Err(error) => {
            let error = ApiError::from(error);
            caller.record(state, CALL, Some(error.message())).await?;
            Err(error)
        }
    }
}
