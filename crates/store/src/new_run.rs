//! New runs: who may win their event, and the rows they begin with.

use std::collections::BTreeSet;

use protocol::id::{AgentId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::{
    ActiveValue::Set, ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter,
};
use uuid::Uuid;

use crate::agents::{AgentRecord, agent_record};
use crate::entity::{agents, runners, runs};
use crate::error::StoreError;
use crate::runners::{RunnerRecord, runner_record};
use crate::transcript::{TranscriptWrite, write_transcript};

/// An agent that might win, with what is known of its runner.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub agent: AgentRecord,
    pub runner: Option<RunnerRecord>,
}

/// The row of a new run.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: RunId,
    pub agent_id: AgentId,
    pub agent_version: i64,
    pub runner_id: RunnerId,
    pub endpoint_id: EndpointId,
    pub deadline_at: i64,
    /// The agent's specification, frozen, as JSON.
    pub agent_spec: String,
    pub snapshot: String,
    pub snapshot_sha256: String,
}

/// The user's transcript item of a message event.
#[derive(Clone, Debug)]
pub struct UserMessage {
    pub id: Uuid,
    pub content: Option<String>,
    pub content_json: String,
    pub attachment_refs: String,
}

/// The event that a run is for, and where it stands.
pub(crate) struct RunEvent<'a> {
    pub(crate) workspace: &'a WorkspaceId,
    pub(crate) event_id: &'a str,
    pub(crate) conversation_key: Option<&'a str>,
    pub(crate) at: i64,
}

/// The enabled agents of a workspace, with their runners.
pub(crate) async fn candidates(
    tx: &DatabaseTransaction,
    workspace: &WorkspaceId,
) -> Result<Vec<Candidate>, StoreError> {
    let enabled = agents::Entity::find()
        .filter(agents::Column::WorkspaceId.eq(workspace.as_str()))
        .filter(agents::Column::Enabled.eq(true))
        .all(tx)
        .await?;
    with_runners(tx, workspace, enabled).await
}

/// Agents with what is known of their runners.
pub(crate) async fn with_runners(
    conn: &impl ConnectionTrait,
    workspace: &WorkspaceId,
    agents: Vec<agents::Model>,
) -> Result<Vec<Candidate>, StoreError> {
    let names: BTreeSet<_> = agents.iter().map(|agent| agent.runner_id.clone()).collect();
    let known = runners::Entity::find()
        .filter(runners::Column::WorkspaceId.eq(workspace.as_str()))
        .filter(runners::Column::RunnerId.is_in(names))
        .all(conn)
        .await?;
    let mut candidates = Vec::with_capacity(agents.len());
    for agent in agents {
        let runner = known
            .iter()
            .find(|runner| runner.runner_id == agent.runner_id);
        let runner = runner.cloned().map(runner_record).transpose()?;
        candidates.push(Candidate {
            agent: agent_record(agent)?,
            runner,
        });
    }
    Ok(candidates)
}

/// Writes a run that waits to be dispatched (`created`) or for another run to end (`queued`).
pub(crate) async fn insert_run(
    tx: &DatabaseTransaction,
    event: &RunEvent<'_>,
    run: &NewRun,
    status: RunStatus,
) -> Result<(), StoreError> {
    let row = runs::ActiveModel {
        id: Set(run.id.to_string()),
        workspace_id: Set(event.workspace.to_string()),
        event_id: Set(event.event_id.to_owned()),
        agent_id: Set(run.agent_id.to_string()),
        agent_version: Set(run.agent_version),
        runner_id: Set(run.runner_id.to_string()),
        endpoint_id: Set(run.endpoint_id.to_string()),
        conversation_key: Set(event.conversation_key.map(str::to_owned)),
        status: Set(status.as_str().to_owned()),
        status_reason: Set(None),
        attempt: Set(0),
        lease_owner: Set(None),
        lease_epoch: Set(0),
        lease_expires_at: Set(None),
        last_sequence: Set(0),
        deadline_at: Set(run.deadline_at),
        cancel_requested_at: Set(None),
        agent_spec: Set(run.agent_spec.clone()),
        snapshot: Set(run.snapshot.clone()),
        snapshot_sha256: Set(run.snapshot_sha256.clone()),
        output: Set(None),
        error: Set(None),
        usage: Set(None),
        metadata: Set("{}".to_owned()),
        created_at: Set(event.at),
        started_at: Set(None),
        finished_at: Set(None),
        pruned_at: Set(None),
    };
    runs::Entity::insert(row).exec_without_returning(tx).await?;
    Ok(())
}

/// Writes the user's message of an event into its conversation, under the run that hears it.
pub(crate) async fn insert_user_message(
    tx: &DatabaseTransaction,
    event: &RunEvent<'_>,
    run: RunId,
    message: &UserMessage,
) -> Result<(), StoreError> {
    let Some(key) = event.conversation_key else {
        return Ok(());
    };
    let item = TranscriptWrite {
        id: message.id,
        conversation_key: key.to_owned(),
        event_id: event.event_id.to_owned(),
        role: "user",
        content: message.content.clone(),
        content_json: message.content_json.clone(),
        attachment_refs: message.attachment_refs.clone(),
    };
    write_transcript(tx, run, &item, event.at).await
}
