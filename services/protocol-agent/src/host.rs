//! Host API calls of the agent, in addition to those of [`AgentHost`] and [`RecordsHost`].

use agent_core::host::AgentHost;
use protocol::JsonObject;
use protocol::child_run::{ChildRun, ChildRunRequest};
use protocol::id::RunId;
use protocol::run::AgentRun;
use runner_kit::host::{CallOptions, Host};
use serde_json::Value;

pub use crate::records::{HostResult, RecordsHost};

/// Host API calls of the agent. Errors are those of the [`Host`] methods with the
/// same names. Clones are handles of the same host.
pub trait GraphAgentHost: AgentHost + RecordsHost {
    /// Ledger row of this run.
    fn run(&self) -> impl Future<Output = HostResult<AgentRun>> + Send;

    /// Calls a tool at most once for the key of the options.
    fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        options: CallOptions<'_>,
    ) -> impl Future<Output = HostResult<Value>> + Send;

    /// Bytes of an artifact from `first` to `last`, inclusive.
    fn read_artifact(
        &self,
        id: &str,
        first: u64,
        last: u64,
    ) -> impl Future<Output = HostResult<Vec<u8>>> + Send;

    /// Starts a child run. A repeated idempotency key returns the existing run.
    fn spawn_child(
        &self,
        request: &ChildRunRequest,
    ) -> impl Future<Output = HostResult<ChildRun>> + Send;

    /// State of a child run, after its end or `wait_seconds`. `None` if this run has no access to that id.
    fn child_run(
        &self,
        id: RunId,
        wait_seconds: u64,
    ) -> impl Future<Output = HostResult<Option<ChildRun>>> + Send;

    /// Requests the cancel of a child run.
    fn cancel_child(&self, id: RunId, reason: &str) -> impl Future<Output = HostResult<()>> + Send;
}

impl GraphAgentHost for Host {
    async fn run(&self) -> HostResult<AgentRun> {
        Host::run(self).await
    }

    async fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        options: CallOptions<'_>,
    ) -> HostResult<Value> {
        let answer = self.tools().call_once(name, parameters, options).await?;
        Ok(answer.result)
    }

    async fn read_artifact(&self, id: &str, first: u64, last: u64) -> HostResult<Vec<u8>> {
        self.artifacts().read(id, first, last).await
    }

    async fn spawn_child(&self, request: &ChildRunRequest) -> HostResult<ChildRun> {
        self.child_runs().spawn(request).await
    }

    async fn child_run(&self, id: RunId, wait_seconds: u64) -> HostResult<Option<ChildRun>> {
        self.child_runs().get(&id, wait_seconds).await
    }

    async fn cancel_child(&self, id: RunId, reason: &str) -> HostResult<()> {
        self.child_runs().cancel(&id, reason).await.map(drop)
    }
}
