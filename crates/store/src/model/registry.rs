//! Agents, their runners and endpoints.

use std::sync::Arc;

use protocol::admin::{AgentSpec, DeltaMode, EndpointMode, Fault};
use protocol::id::{AgentId, EndpointId, RunnerId, WorkspaceId};
use protocol::principal::Principal;
use protocol::resources::SkillResource;

/// An agent with its stored metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentRecord {
    pub id: AgentId,
    pub workspace: WorkspaceId,
    pub origin: String,
    pub spec: AgentSpec,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    /// Cause of the last change; `None`: an older gateway did not record it.
    pub updated_by: Option<Principal>,
    /// Faults that disable an agent of the config file; empty for all others.
    pub refused: Vec<Fault>,
}

/// A runner of the registry.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerRecord {
    pub id: RunnerId,
    pub endpoint_id: EndpointId,
    pub status: RunnerStatus,
    /// Reason why agents cannot be bound to it.
    pub reason: Option<String>,
    /// The manifest as JSON.
    pub manifest: String,
    pub manifest_sha256: String,
    /// Time of the last list with this runner.
    pub seen_at: i64,
}

/// Status of a runner in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerStatus {
    /// Accepts agents, and its runs are dispatched.
    Accepted,
    /// It has another major protocol version.
    Incompatible,
    /// Its endpoint no longer lists it, but an agent is bound to it.
    Absent,
}

/// Address and secrets for calls of an endpoint. `secret` and `headers` are sealed under the master key.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointAddress {
    pub id: EndpointId,
    pub base_url: String,
    pub mode: EndpointMode,
    pub delta_mode: DeltaMode,
    pub secret: String,
    pub headers: String,
}

/// An agent that may handle the event, with its runner and endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub agent: AgentRecord,
    pub runner: Option<RunnerRecord>,
    pub endpoint: Option<Arc<EndpointAddress>>,
    /// Skills registered by its runs, by name.
    pub skills: Vec<SkillResource>,
    /// A pause holds its new runs.
    pub is_paused: bool,
}
