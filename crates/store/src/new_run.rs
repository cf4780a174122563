//! New runs: who may win their event, and the rows they begin with.

use std::collections::BTreeSet;
use std::sync::Arc;

use protocol::id::{AgentId, EndpointId, RunId, RunnerId, WorkspaceId};
use protocol::run::RunStatus;
use sea_orm::{ColumnTrait, ConnectionTrait, DatabaseTransaction, EntityTrait, QueryFilter};
use uuid::Uuid;

use crate::agents::{AgentRecord, agent_record};
use crate::endpoints::{EndpointAddress, endpoint_addresses};
use crate::entity::{agents, runners};
use crate::error::StoreError;
use crate::rows::inserted;
use crate::runners::{RunnerRecord, runner_record};
use crate::transcript::TranscriptWrite;

/// An agent that might win, with what is known of its runner and how that is called.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub agent: AgentRecord,
    pub runner: Option<RunnerRecord>,
    pub endpoint: Option<Arc<EndpointAddress>>,
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
#[derive(Clone, Copy)]
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
    let served_by: BTreeSet<_> = known
        .iter()
        .map(|runner| runner.endpoint_id.clone())
        .collect();
    let endpoints = endpoint_addresses(conn, workspace, served_by).await?;
    let endpoints: Vec<_> = endpoints.into_iter().map(Arc::new).collect();
    let mut candidates = Vec::with_capacity(agents.len());
    for agent in agents {
        let runner = known
            .iter()
            .find(|runner| runner.runner_id == agent.runner_id);
        let runner = runner.cloned().map(runner_record).transpose()?;
        let serves = |endpoint: &&Arc<EndpointAddress>| {
            let runner: Option<&RunnerRecord> = runner.as_ref();
            runner.is_some_and(|runner| runner.endpoint_id == endpoint.id)
        };
        candidates.push(Candidate {
            agent: agent_record(agent)?,
            endpoint: endpoints.iter().find(serves).cloned(),
            runner,
        });
    }
    Ok(candidates)
}

/// A run that waits to be dispatched (`created`) or for another run to end (`queued`).
pub(crate) struct RunRow<'a> {
    pub(crate) event: RunEvent<'a>,
    pub(crate) run: &'a NewRun,
    pub(crate) status: RunStatus,
}

/// Writes new runs.
pub(crate) async fn insert_runs(
    tx: &DatabaseTransaction,
    rows: &[RunRow<'_>],
) -> Result<(), StoreError> {
    let values = rows.iter().map(|RunRow { event, run, status }| {
        [
            run.id.to_string().into(),
            event.workspace.as_str().into(),
            event.event_id.into(),
            run.agent_id.to_string().into(),
            run.agent_version.into(),
            run.runner_id.to_string().into(),
            run.endpoint_id.to_string().into(),
            event.conversation_key.map(str::to_owned).into(),
            status.as_str().into(),
            0_i64.into(),
            0_i64.into(),
            0_i64.into(),
            run.deadline_at.into(),
            run.agent_spec.as_str().into(),
            run.snapshot.as_str().into(),
            run.snapshot_sha256.as_str().into(),
            "{}".into(),
            event.at.into(),
        ]
    });
    let into = "runs (id, workspace_id, event_id, agent_id, agent_version, runner_id, endpoint_id, \
        conversation_key, status, attempt, lease_epoch, last_sequence, deadline_at, agent_spec, \
        snapshot, snapshot_sha256, metadata, created_at)";
    inserted(tx, into, values.collect()).await
}

/// The user's message of an event as an item of its conversation, under the run that hears it. `None`
/// without a conversation.
pub(crate) fn user_item(event: &RunEvent<'_>, message: UserMessage) -> Option<TranscriptWrite> {
    Some(TranscriptWrite {
        id: message.id,
        conversation_key: event.conversation_key?.to_owned(),
        event_id: event.event_id.to_owned(),
        role: "user",
        content: message.content,
        content_json: message.content_json,
        attachment_refs: message.attachment_refs,
    })
}
