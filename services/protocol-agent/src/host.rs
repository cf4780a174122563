//! Host API of the agent as a trait, so that tests run without a network.

use protocol::JsonObject;
use protocol::child_run::{ChildRun, ChildRunRequest};
use protocol::history::TranscriptItem;
use protocol::host_api::{SteeringInputItem, SteeringMode};
use protocol::id::RunId;
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry};
use protocol::message::Message;
use protocol::model::{LlmInvokeResult, LlmRequest};
use protocol::run::{AgentRun, Page};
use protocol::tool::{KeyScope, ToolDescription};
use runner_kit::host::{HistoryPageQuery, Host, ModelStream};
use serde_json::Value;

pub use crate::records::{HostResult, RecordsHost};

/// Host API calls of the agent, in addition to those for its records. Errors are those of the [`Host`] methods with the
/// same names. Clones are handles of the same host.
pub trait GraphAgentHost: RecordsHost {
    /// Ledger row of this run.
    fn run(&self) -> impl Future<Output = HostResult<AgentRun>> + Send;

    /// Prompt of the entry; `None` if it has none.
    fn prompt(&self) -> impl Future<Output = HostResult<Option<Vec<Message>>>> + Send;

    /// Page of the conversation's transcript, newest first.
    fn history(&self, limit: u32) -> impl Future<Output = HostResult<Page<TranscriptItem>>> + Send;

    /// Takes the steering inputs that arrived during the run.
    fn pull_steering(&self) -> impl Future<Output = HostResult<Vec<SteeringInputItem>>> + Send;

    /// Complete response of a model.
    fn invoke_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = HostResult<LlmInvokeResult>> + Send;

    /// Streamed response of a model.
    fn stream_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = HostResult<ModelStream>> + Send;

    /// Description and schema of a tool.
    fn tool(&self, name: &str) -> impl Future<Output = HostResult<ToolDescription>> + Send;

    /// Calls a tool at most once for a key. `scope`: runs that share the key.
    fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
        scope: KeyScope,
    ) -> impl Future<Output = HostResult<Value>> + Send;

    /// Bytes of an artifact from `first` to `last`, inclusive.
    fn read_artifact(
        &self,
        id: &str,
        first: u64,
        last: u64,
    ) -> impl Future<Output = HostResult<Vec<u8>>> + Send;

    /// Passages of a knowledge base for a query.
    fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> impl Future<Output = HostResult<Vec<RetrievalResultEntry>>> + Send;

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

    async fn prompt(&self) -> HostResult<Option<Vec<Message>>> {
        Host::prompt(self).await
    }

    async fn history(&self, limit: u32) -> HostResult<Page<TranscriptItem>> {
        let query = HistoryPageQuery {
            limit: Some(limit),
            ..HistoryPageQuery::default()
        };
        self.history().page(&query).await
    }

    async fn pull_steering(&self) -> HostResult<Vec<SteeringInputItem>> {
        Host::pull_steering(self, SteeringMode::All, None).await
    }

    async fn invoke_model(&self, model: &str, request: &LlmRequest) -> HostResult<LlmInvokeResult> {
        self.models().invoke(model, request).await
    }

    async fn stream_model(&self, model: &str, request: &LlmRequest) -> HostResult<ModelStream> {
        self.models().stream(model, request).await
    }

    async fn tool(&self, name: &str) -> HostResult<ToolDescription> {
        self.tools().get(name).await
    }

    async fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
        scope: KeyScope,
    ) -> HostResult<Value> {
        let answer = self.tools().call_once(name, parameters, key, scope).await?;
        Ok(answer.result)
    }

    async fn read_artifact(&self, id: &str, first: u64, last: u64) -> HostResult<Vec<u8>> {
        self.artifacts().read(id, first, last).await
    }

    async fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> HostResult<Vec<RetrievalResultEntry>> {
        Host::retrieve(self, kb_id, query).await
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
