//! Large tool results: stored as artifacts of the run and returned as a preview.

use std::time::Duration;

use domain::artifact::is_name;
use protocol::resources::ArtifactOperation;
use serde_json::Value;
use store::ArtifactOrigin;

use runs::artifacts::{ArtifactOwner, NewArtifact, UploadError};
use tools::{AvailableTool, OversizedResult, SizedResult};
use web::auth::RunCaller;
use web::state::ApiState;

/// Timeout for storing the result as an artifact.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns a result within the size limit. A larger one is truncated and has an `artifact_id` if the run may
/// read artifacts and storing succeeded. A storage failure does not fail the tool call.
pub(super) async fn offload(
    caller: &RunCaller,
    state: &ApiState,
    tool: &AvailableTool,
    result: Value,
) -> Value {
    let large = match tool.sized_result(result) {
        SizedResult::Inline(result) => return result,
        SizedResult::Large(large) => large,
    };
    let may_read = caller.grant.snapshot.artifacts(ArtifactOperation::Read);
    if may_read.is_err() {
        return large.preview(None);
    }
    let name = &tool.resource.tool_name;
    let keeping = tokio::time::timeout(STORE_TIMEOUT, keep(caller, state, name, &large));
    match keeping.await.unwrap_or(Err(UploadError::Expired)) {
        Ok(id) => large.preview(Some(id)),
        Err(error) => {
            tracing::warn!(
                run.id = %caller.grant.run.id, error = &error as &dyn std::error::Error,
                "a large tool result could not be stored, the run gets a truncated result"
            );
            large.preview(None)
        }
    }
}

async fn keep(
    caller: &RunCaller,
    state: &ApiState,
    tool_name: &str,
    large: &OversizedResult,
) -> Result<String, UploadError> {
    let run = &caller.grant.run;
    let bytes = large.text.as_bytes();
    let mut upload = state.runs.artifacts.upload(NewArtifact {
        workspace: run.workspace.clone(),
        origin: ArtifactOrigin::Tool,
        run: Some(run.id),
        name: name_of(tool_name, large.mime_type),
        declared: Some(large.mime_type.to_owned()),
        announced: Some(bytes.len() as u64),
        keep: None,
    })?;
    if let Err(error) = upload.take(bytes).await {
        upload.give_up(None).await?;
        return Err(error);
    }
    let owner = ArtifactOwner {
        runner_id: Some(run.runner_id.to_string()),
        conversation_key: run.conversation_key.clone(),
        event_id: Some(run.event_id.clone()),
    };
    // The audit log has the tool call; this upload is not a call of its own.
    let stored = upload.finish(owner, |_| None).await?;
    Ok(stored.id.to_string())
}

fn name_of(tool_name: &str, mime_type: &str) -> String {
    let ending = if mime_type == "application/json" {
        "json"
    } else {
        "txt"
    };
    let name = format!("{tool_name}.{ending}");
    if is_name(&name) {
        name
    } else {
        format!("result.{ending}")
    }
}
