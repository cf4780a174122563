//! Host API as a trait, so that the agent runs without a network in tests.

use protocol::JsonObject;
use protocol::child_run::{ChildRun, ChildRunRequest};
use protocol::context::AgentInput;
use protocol::history::TranscriptItem;
use protocol::host_api::{SteeringInputItem, SteeringMode};
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry};
use protocol::message::Message;
use protocol::model::{CountTokens, LlmInvokeResult, LlmRequest, Rerank, RerankResult};
use protocol::resources::StateScope;
use protocol::run::Page;
use protocol::tool::ToolDescription;
use runner_kit::host::{HistoryPageQuery, Host, HostError, ModelStream};
use serde_json::Value;

/// Result of a host call.
pub type HostCallResult<T> = Result<T, HostError>;

/// Host API calls of the agent. Errors are those of the [`Host`] method of the same name.
pub trait AgentHost: Send + Sync + 'static {
    /// Prompt that the entry has built, if any.
    fn prompt(&self) -> impl Future<Output = HostCallResult<Option<Vec<Message>>>> + Send;

    /// Page of the conversation's transcript.
    fn history(
        &self,
        query: &HistoryPageQuery,
    ) -> impl Future<Output = HostCallResult<Page<TranscriptItem>>> + Send;

    /// Value of the conversation's state.
    fn state_get(&self, key: &str) -> impl Future<Output = HostCallResult<Option<Value>>> + Send;

    /// Writes a value of the conversation's state.
    fn state_put(&self, key: &str, value: Value)
    -> impl Future<Output = HostCallResult<()>> + Send;

    fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> impl Future<Output = HostCallResult<Vec<RetrievalResultEntry>>> + Send;

    fn rerank(
        &self,
        model: &str,
        request: &Rerank,
    ) -> impl Future<Output = HostCallResult<Vec<RerankResult>>> + Send;

    fn count_tokens(
        &self,
        model: &str,
        request: &CountTokens,
    ) -> impl Future<Output = HostCallResult<u64>> + Send;

    fn invoke_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = HostCallResult<LlmInvokeResult>> + Send;

    fn stream_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = HostCallResult<ModelStream>> + Send;

    fn tool(&self, name: &str) -> impl Future<Output = HostCallResult<ToolDescription>> + Send;

    /// Calls a tool at most once per idempotency key.
    fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
    ) -> impl Future<Output = HostCallResult<Value>> + Send;

    /// Starts a child run of another agent and waits for its end; at most once per idempotency key.
    fn ask_agent(
        &self,
        agent: &str,
        prompt: &str,
        key: &str,
    ) -> impl Future<Output = HostCallResult<ChildRun>> + Send;

    /// Takes all events that steer this run.
    fn pull_steering(&self) -> impl Future<Output = HostCallResult<Vec<SteeringInputItem>>> + Send;
}

impl AgentHost for Host {
    async fn prompt(&self) -> HostCallResult<Option<Vec<Message>>> {
        Host::prompt(self).await
    }

    async fn history(&self, query: &HistoryPageQuery) -> HostCallResult<Page<TranscriptItem>> {
        self.history().page(query).await
    }

    async fn state_get(&self, key: &str) -> HostCallResult<Option<Value>> {
        let entry = self.state().get(StateScope::Conversation, key).await?;
        Ok(entry.map(|entry| entry.value))
    }

    async fn state_put(&self, key: &str, value: Value) -> HostCallResult<()> {
        let written = self.state().put(StateScope::Conversation, key, value).await;
        written.map(drop)
    }

    async fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> HostCallResult<Vec<RetrievalResultEntry>> {
        Host::retrieve(self, kb_id, query).await
    }

    async fn rerank(&self, model: &str, request: &Rerank) -> HostCallResult<Vec<RerankResult>> {
        self.models().rerank(model, request).await
    }

    async fn count_tokens(&self, model: &str, request: &CountTokens) -> HostCallResult<u64> {
        self.models().count_tokens(model, request).await
    }

    async fn invoke_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> HostCallResult<LlmInvokeResult> {
        self.models().invoke(model, request).await
    }

    async fn stream_model(&self, model: &str, request: &LlmRequest) -> HostCallResult<ModelStream> {
        self.models().stream(model, request).await
    }

    async fn tool(&self, name: &str) -> HostCallResult<ToolDescription> {
        self.tools().get(name).await
    }

    async fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
    ) -> HostCallResult<Value> {
        self.tools().call(name, parameters, Some(key)).await
    }

    async fn ask_agent(&self, agent: &str, prompt: &str, key: &str) -> HostCallResult<ChildRun> {
        let request = ChildRunRequest {
            agent_id: agent.to_owned(),
            input: AgentInput {
                text: Some(prompt.to_owned()),
                ..AgentInput::default()
            },
            context: JsonObject::new(),
            summary: None,
            grants: None,
            deadline_seconds: None,
            // A retried call finds the child run of the first attempt, so that no second one starts.
            idempotency_key: key.to_owned(),
        };
        let child = self.child_runs().spawn(&request).await?;
        self.child_runs().wait(&child.run_id).await
    }

    async fn pull_steering(&self) -> HostCallResult<Vec<SteeringInputItem>> {
        // All at once: the model sees them in one request.
        Host::pull_steering(self, SteeringMode::All, None).await
    }
}
