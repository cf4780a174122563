//! A large result of a tool: kept as an artifact of the run, and shown by its beginning.

use std::time::Duration;

use domain::artifact::is_name;
use protocol::resources::ArtifactOperation;
use serde_json::Value;
use store::ArtifactOrigin;

use crate::ApiState;
use crate::auth::RunCaller;
use runs::artifacts::{NewArtifact, UploadError, Whose};
use tools::{HandedOver, KnownTool, LargeResult};

/// A place of artifacts that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A result as the runner gets it. Where it is too large, it has an `artifact_id` if the run may read
/// artifacts and this one could be kept: what went wrong with that is no failure of the tool.
pub(super) async fn hand_over(
    caller: &RunCaller,
    state: &ApiState,
    tool: &KnownTool,
    result: Value,
) -> Value {
    let large = match tool.handed_over(result) {
        HandedOver::Whole(result) => return result,
        HandedOver::Large(large) => large,
    };
    let may_read = caller.grant.snapshot.artifacts(ArtifactOperation::Read);
    if may_read.is_err() {
        return large.preview(None);
    }
    let name = &tool.resource.tool_name;
    let keeping = tokio::time::timeout(PATIENCE, keep(caller, state, name, &large));
    match keeping.await.unwrap_or(Err(UploadError::Expired)) {
        Ok(id) => large.preview(Some(id)),
        Err(error) => {
            tracing::warn!(
                run.id = %caller.grant.run.id, error = &error as &dyn std::error::Error,
                "a large result of a tool is not kept: its run has the beginning alone"
            );
            large.preview(None)
        }
    }
}

async fn keep(
    caller: &RunCaller,
    state: &ApiState,
    tool_name: &str,
    large: &LargeResult,
) -> Result<String, UploadError> {
    let run = &caller.grant.run;
    let bytes = large.text.as_bytes();
    let mut upload = state.runs.upload(NewArtifact {
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
    let whose = Whose {
        runner_id: Some(run.runner_id.to_string()),
        conversation_key: run.conversation_key.clone(),
        event_id: Some(run.event_id.clone()),
    };
    // The call of the tool is on record; no other was made.
    let kept = upload.finish(whose, |_| None).await?;
    Ok(kept.id.to_string())
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
