//! The gateway as the agent needs it: a trait, so that the agent runs without a network.

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
use runner_kit::host::{HistoryQuery, Host, ModelStream};
use serde_json::Value;

pub use crate::keep::{Answer, KeepHost};

/// The calls of the host API that the agent makes, besides those of its records. Each fails as [`Host`]'s of the same
/// name do. Clones are the same host.
pub trait AgentHost: KeepHost {
    /// The run's own row in the ledger.
    fn run(&self) -> impl Future<Output = Answer<AgentRun>> + Send;

    /// The prompt that the entry has put together, if it has.
    fn prompt(&self) -> impl Future<Output = Answer<Option<Vec<Message>>>> + Send;

    /// A page of the conversation's transcript, newest first.
    fn history(&self, limit: u32) -> impl Future<Output = Answer<Page<TranscriptItem>>> + Send;

    /// All that was sent to the conversation while the run works.
    fn pull_steering(&self) -> impl Future<Output = Answer<Vec<SteeringInputItem>>> + Send;

    /// A whole answer of a model.
    fn invoke_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = Answer<LlmInvokeResult>> + Send;

    /// A model's answer as it comes.
    fn stream_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = Answer<ModelStream>> + Send;

    /// A tool with its schema.
    fn tool(&self, name: &str) -> impl Future<Output = Answer<ToolDescription>> + Send;

    /// Calls a tool once under a key that the runs of `scope` share.
    fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
        scope: KeyScope,
    ) -> impl Future<Output = Answer<Value>> + Send;

    /// Bytes of an artifact from `first` to `last`, both included.
    fn read_artifact(
        &self,
        id: &str,
        first: u64,
        last: u64,
    ) -> impl Future<Output = Answer<Vec<u8>>> + Send;

    /// Passages of a knowledge base.
    fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> impl Future<Output = Answer<Vec<RetrievalResultEntry>>> + Send;

    /// Starts a child run; the same key answers with the same run.
    fn spawn_child(
        &self,
        request: &ChildRunRequest,
    ) -> impl Future<Output = Answer<ChildRun>> + Send;

    /// A child run, after its end or `wait_seconds`; `None` when this run may see none of that id.
    fn child_run(
        &self,
        id: RunId,
        wait_seconds: u64,
    ) -> impl Future<Output = Answer<Option<ChildRun>>> + Send;

    /// Asks a child run to end.
    fn cancel_child(&self, id: RunId, reason: &str) -> impl Future<Output = Answer<()>> + Send;
}

impl AgentHost for Host {
    async fn run(&self) -> Answer<AgentRun> {
        Host::run(self).await
    }

    async fn prompt(&self) -> Answer<Option<Vec<Message>>> {
        Host::prompt(self).await
    }

    async fn history(&self, limit: u32) -> Answer<Page<TranscriptItem>> {
        let query = HistoryQuery {
            limit: Some(limit),
            ..HistoryQuery::default()
        };
        self.history().page(&query).await
    }

    async fn pull_steering(&self) -> Answer<Vec<SteeringInputItem>> {
        Host::pull_steering(self, SteeringMode::All, None).await
    }

    async fn invoke_model(&self, model: &str, request: &LlmRequest) -> Answer<LlmInvokeResult> {
        self.models().invoke(model, request).await
    }

    async fn stream_model(&self, model: &str, request: &LlmRequest) -> Answer<ModelStream> {
        self.models().stream(model, request).await
    }

    async fn tool(&self, name: &str) -> Answer<ToolDescription> {
        self.tools().get(name).await
    }

    async fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
        scope: KeyScope,
    ) -> Answer<Value> {
        let answer = self.tools().call_once(name, parameters, key, scope).await?;
        Ok(answer.result)
    }

    async fn read_artifact(&self, id: &str, first: u64, last: u64) -> Answer<Vec<u8>> {
        self.artifacts().read(id, first, last).await
    }

    async fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> Answer<Vec<RetrievalResultEntry>> {
        Host::retrieve(self, kb_id, query).await
    }

    async fn spawn_child(&self, request: &ChildRunRequest) -> Answer<ChildRun> {
        self.child_runs().spawn(request).await
    }

    async fn child_run(&self, id: RunId, wait_seconds: u64) -> Answer<Option<ChildRun>> {
        self.child_runs().get(&id, wait_seconds).await
    }

    async fn cancel_child(&self, id: RunId, reason: &str) -> Answer<()> {
        self.child_runs().cancel(&id, reason).await.map(drop)
    }
}
