//! Host API calls of the agent, in addition to those of [`AgentHost`].

use agent_core::host::{AgentHost, HostResult};
use protocol::JsonObject;
use protocol::child_run::{ChildRun, ChildRunRequest};
use protocol::context::AgentInput;
use protocol::model::{CountTokens, Rerank, RerankResult};
use protocol::resources::StateScope;
use runner_kit::host::Host;
use serde_json::Value;

/// Host API calls of the agent. Errors are those of the [`Host`] method of the same name.
pub trait LocalAgentHost: AgentHost {
    /// Value of the conversation's state.
    fn state_get(&self, key: &str) -> impl Future<Output = HostResult<Option<Value>>> + Send;

    /// Writes a value of the conversation's state.
    fn state_put(&self, key: &str, value: Value) -> impl Future<Output = HostResult<()>> + Send;

    fn rerank(
        &self,
        model: &str,
        request: &Rerank,
    ) -> impl Future<Output = HostResult<Vec<RerankResult>>> + Send;

    fn count_tokens(
        &self,
        model: &str,
        request: &CountTokens,
    ) -> impl Future<Output = HostResult<u64>> + Send;

    /// Calls a tool at most once per idempotency key.
    fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
    ) -> impl Future<Output = HostResult<Value>> + Send;

    /// Starts a child run of another agent and waits for its end; at most once per idempotency key.
    fn ask_agent(
        &self,
        agent: &str,
        prompt: &str,
        key: &str,
    ) -> impl Future<Output = HostResult<ChildRun>> + Send;
}

impl LocalAgentHost for Host {
    async fn state_get(&self, key: &str) -> HostResult<Option<Value>> {
        let entry = self.state().get(StateScope::Conversation, key).await?;
        Ok(entry.map(|entry| entry.value))
    }

    async fn state_put(&self, key: &str, value: Value) -> HostResult<()> {
        let written = self.state().put(StateScope::Conversation, key, value).await;
        written.map(drop)
    }

    async fn rerank(&self, model: &str, request: &Rerank) -> HostResult<Vec<RerankResult>> {
        self.models().rerank(model, request).await
    }

    async fn count_tokens(&self, model: &str, request: &CountTokens) -> HostResult<u64> {
        self.models().count_tokens(model, request).await
    }

    async fn call_tool(&self, name: &str, parameters: JsonObject, key: &str) -> HostResult<Value> {
        self.tools().call(name, parameters, Some(key)).await
    }

    async fn ask_agent(&self, agent: &str, prompt: &str, key: &str) -> HostResult<ChildRun> {
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
}
