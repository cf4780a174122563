//! Runs from their rows.

use std::str::FromStr;

use domain::run::Run;
use domain::trace::TraceParent;
use protocol::id::{EndpointId, WorkspaceId};
use protocol::principal::Principal;
use protocol::raw::RawJson;
use protocol::run::RunStatus;

use crate::entity::runs;
use crate::error::{StoreError, parsed, unsigned};

/// Converts the readable rows: a corrupt row does not stop the others.
pub(crate) fn readable(models: Vec<runs::Model>) -> Vec<Run> {
    let read = |model: runs::Model| match to_domain(model) {
        Ok(run) => Some(run),
        Err(error) => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "unreadable run row skipped"
            );
            None
        }
    };
    models.into_iter().filter_map(read).collect()
}

fn id_if_any<T: FromStr>(
    column: &'static str,
    row: &str,
    id: Option<&str>,
) -> Result<Option<T>, StoreError> {
    id.map(|id| parsed(column, row, id)).transpose()
}

/// The principal in a column; `None` for NULL.
pub(crate) fn principal_if_any(
    column: &'static str,
    row: &str,
    stored: Option<&str>,
) -> Result<Option<Principal>, StoreError> {
    let read = |stored| {
        Principal::from_stored(stored).ok_or_else(|| StoreError::Corrupt {
            column,
            row: row.to_owned(),
        })
    };
    stored.map(read).transpose()
}

pub(crate) fn to_domain(model: runs::Model) -> Result<Run, StoreError> {
    let row = model.id.as_str();
    let corrupt = |column| StoreError::Corrupt {
        column,
        row: row.to_owned(),
    };
    let json = |column, text: String| RawJson::parse(text).map_err(|_| corrupt(column));
    let json_if_any =
        |column, text: Option<String>| text.map(|text| json(column, text)).transpose();
    Ok(Run {
        id: parsed("runs.id", row, &model.id)?,
        workspace: WorkspaceId(model.workspace_id.clone()),
        agent_id: parsed("runs.agent_id", row, &model.agent_id)?,
        agent_version: model.agent_version,
        runner_id: parsed("runs.runner_id", row, &model.runner_id)?,
        endpoint_id: parsed::<EndpointId>("runs.endpoint_id", row, &model.endpoint_id)?,
        status: RunStatus::parse(&model.status).ok_or_else(|| corrupt("runs.status"))?,
        attempt: u32::try_from(model.attempt).map_err(|_| corrupt("runs.attempt"))?,
        last_sequence: unsigned("runs.last_sequence", row, model.last_sequence)?,
        output: json_if_any("runs.output", model.output)?,
        error: json_if_any("runs.error", model.error)?,
        usage: json_if_any("runs.usage", model.usage)?,
        metadata: json("runs.metadata", model.metadata)?,
        parent_run_id: id_if_any("runs.parent_run_id", row, model.parent_run_id.as_deref())?,
        retry_of: id_if_any("runs.retry_of", row, model.retry_of.as_deref())?,
        retry_from: (model.retry_from)
            .map(|sequence| unsigned("runs.retry_from", row, sequence))
            .transpose()?,
        posted_by: id_if_any("runs.posted_by", row, model.posted_by.as_deref())?,
        cancelled_by: principal_if_any("runs.cancelled_by", row, model.cancelled_by.as_deref())?,
        event_id: model.event_id,
        trace_parent: model.trace_parent.as_deref().and_then(TraceParent::parse),
        conversation_key: model.conversation_key,
        status_reason: model.status_reason,
        fencing_token: model.fencing_token,
        deadline_at: model.deadline_at,
        cancel_requested_at: model.cancel_requested_at,
        snapshot_sha256: model.snapshot_sha256,
        created_at: model.created_at,
        started_at: model.started_at,
        finished_at: model.finished_at,
        pruned_at: model.pruned_at,
    })
}
