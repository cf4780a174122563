//! Clients with keys that may be restricted to agents. All routes that such a key opens read through this module.
//!
//! A handler with a [`ClientCaller`](super::ClientCaller) refuses restricted keys. A handler with a [`ScopedCaller`]
//! finds objects by its methods only; they answer 404 for objects of other agents, as for those of other workspaces.

use axum::extract::FromRequestParts;
use domain::api_key::AgentReach;
use domain::run::Run;
use http::request::Parts;
use protocol::api_key::KeyRole;
use protocol::event::EventAccepted;
use protocol::id::{AgentId, ApiKeyId, RunId, WorkspaceId};
use protocol::limiter::OwnLimits;
use runs::artifacts::ReadableArtifact;
use runs::intake::EventSender;
use runs::own_limits::StartingKey;
use store::{EventRecord, InteractionRecord, PlatformActionRecord, StoreError};

use super::{authenticate_key, needs};
use crate::error::{ApiError, ApiResult};
use crate::response_memory::ResponseMemory;
use crate::state::ApiState;

/// A client of a workspace, by an API key of any role but `owner`, with the agents that it reaches.
pub struct ScopedCaller {
    workspace: WorkspaceId,
    scope: AgentReach,
    limits: OwnLimits,
    pub key: ApiKeyId,
    pub answer: ResponseMemory,
    pub role: KeyRole,
}

/// An event with the response to its sender.
pub struct AnsweredEvent {
    pub record: EventRecord,
    /// The run of the event, if it has one.
    pub run_id: Option<RunId>,
}

impl FromRequestParts<ApiState> for ScopedCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let record = authenticate_key(parts, state).await?;
        match record.role {
            KeyRole::Admin
            | KeyRole::Operator
            | KeyRole::Viewer
            | KeyRole::Approver
            | KeyRole::Client => Ok(Self {
                workspace: record.workspace,
                scope: AgentReach::of(record.agents),
                limits: record.limits.unwrap_or_default(),
                key: record.id,
                answer: ResponseMemory::of(&parts.extensions)?,
                role: record.role,
            }),
            KeyRole::Owner => Err(needs("client or admin")),
        }
    }
}

impl ScopedCaller {
    /// The caller as the sender of an event or of a retry. The intake refuses events of other agents.
    pub fn sender(&self) -> EventSender<'_> {
        EventSender {
            workspace: &self.workspace,
            key: self.starting_key(),
            scope: &self.scope,
        }
    }

    /// The key with the limits of the runs that it starts.
    pub fn starting_key(&self) -> StartingKey {
        StartingKey {
            id: self.key,
            limits: self.limits,
        }
    }

    /// The credential of a stream.
    pub fn credential(&self) -> (&WorkspaceId, ApiKeyId) {
        (&self.workspace, self.key)
    }

    /// The agents that the caller reaches.
    pub fn reach(&self) -> &AgentReach {
        &self.scope
    }

    /// The workspace of a list, and the agents that the list must be filtered by; `None`: all.
    pub fn list_scope(&self) -> (&WorkspaceId, Option<Vec<AgentId>>) {
        (&self.workspace, self.scope.only().map(<[_]>::to_vec))
    }

    /// A run that the caller reaches.
    pub async fn find_run(&self, state: &ApiState, id: RunId) -> ApiResult<Run> {
        let run = self.find_reached_run(state, id).await?;
        run.ok_or_else(|| ApiError::not_found("run", id))
    }

    /// An interaction of a run that the caller reaches.
    pub async fn find_interaction(
        &self,
        state: &ApiState,
        id: &str,
    ) -> ApiResult<(&WorkspaceId, InteractionRecord)> {
        let store = state.runs.store();
        let found = store.interactions().find_interaction(&self.workspace, id);
        let found = found.await?;
        // Filtered after the query: a foreign object looks like one that does not exist.
        let reached = found.filter(|record| self.scope.reaches(record.agent_id));
        let record = reached.ok_or_else(|| ApiError::not_found("interaction", id))?;
        Ok((&self.workspace, record))
    }

    /// A platform action of a run that the caller reaches.
    pub async fn find_platform_action(
        &self,
        state: &ApiState,
        id: &str,
    ) -> ApiResult<(&WorkspaceId, PlatformActionRecord)> {
        let actions = state.runs.store().interactions();
        let found = actions.find_platform_action(&self.workspace, id).await?;
        let reached = found.filter(|record| self.scope.reaches(record.agent_id));
        let record = reached.ok_or_else(|| ApiError::not_found("action", id))?;
        Ok((&self.workspace, record))
    }

    /// An event with a run that the caller reaches. Callers without a restriction also find events without a run.
    pub async fn find_event(
        &self,
        state: &ApiState,
        id: &str,
    ) -> ApiResult<(&WorkspaceId, AnsweredEvent)> {
        let events = state.runs.store().events();
        let found = match events.find_event(&self.workspace, id).await? {
            Some(record) => Some(answered(record)?),
            None => None,
        };
        let found = match found {
            Some(event) if self.reaches(state, event.run_id).await? => Some(event),
            _ => None,
        };
        let event = found.ok_or_else(|| ApiError::not_found("event", id))?;
        Ok((&self.workspace, event))
    }

    /// An artifact of a run that the caller reaches, or of the event of such a run. An upload that no event names
    /// belongs to the workspace.
    pub async fn find_artifact(&self, state: &ApiState, id: &str) -> ApiResult<ReadableArtifact> {
        let found = state
            .runs
            .artifacts
            .artifact_of_workspace(&self.workspace, id);
        let found = match found.await? {
            Some(artifact) if self.reaches_artifact(state, &artifact).await? => Some(artifact),
            _ => None,
        };
        found.ok_or_else(|| ApiError::not_found("artifact", id))
    }

    async fn reaches_artifact(
        &self,
        state: &ApiState,
        artifact: &ReadableArtifact,
    ) -> ApiResult<bool> {
        if self.scope == AgentReach::All {
            return Ok(true);
        }
        let metadata = &artifact.metadata;
        if let Some(run) = &metadata.run_id {
            // An unreadable id gives `None`, thus no access.
            return self.reaches(state, run.parse().ok().map(RunId)).await;
        }
        // An upload without an event belongs to no agent.
        let Some(event) = &metadata.event_id else {
            return Ok(false);
        };
        let events = state.runs.store().events();
        match events.find_event(&self.workspace, event).await? {
            Some(record) => self.reaches(state, answered(record)?.run_id).await,
            None => Ok(false),
        }
    }

    /// True if the caller reaches the objects of a run. `None`: an object without a run.
    async fn reaches(&self, state: &ApiState, run: Option<RunId>) -> ApiResult<bool> {
        match run {
            // First, so that unrestricted keys cost no query.
            _ if self.scope == AgentReach::All => Ok(true),
            Some(run) => Ok(self.find_reached_run(state, run).await?.is_some()),
            None => Ok(false),
        }
    }

    async fn find_reached_run(&self, state: &ApiState, id: RunId) -> ApiResult<Option<Run>> {
        let runs = state.runs.store().runs();
        let run = runs.find_run(&self.workspace, id).await?;
        Ok(run.filter(|run| self.scope.reaches(run.agent_id)))
    }
}

fn answered(record: EventRecord) -> Result<AnsweredEvent, StoreError> {
    let answer = serde_json::from_str(&record.answer);
    let answer: EventAccepted = answer.map_err(|_| StoreError::Corrupt {
        column: "events.answer",
        row: record.event_id.clone(),
    })?;
    Ok(AnsweredEvent {
        // A steered event has no run of its own: the run that absorbed it decides.
        run_id: record.taken_up_by.or(answer.run_id),
        record,
    })
}
