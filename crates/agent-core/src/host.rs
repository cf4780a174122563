//! Gateway of a run as a trait, so that agents run without a network in tests.

use protocol::history::TranscriptItem;
use protocol::host_api::{SteeringInputItem, SteeringMode};
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry};
use protocol::message::Message;
use protocol::model::{LlmInvokeResult, LlmRequest};
use protocol::run::Page;
use protocol::tool::ToolDescription;
use runner_kit::host::{HistoryPageQuery, Host, HostError, ModelStream};

/// Result of a host call.
pub type HostResult<T> = Result<T, HostError>;

/// Host API calls of every agent that calls models. Errors are those of the [`Host`] method of the same name.
pub trait AgentHost: Send + Sync + 'static {
    /// Prompt that the entry has built, if any.
    fn prompt(&self) -> impl Future<Output = HostResult<Option<Vec<Message>>>> + Send;

    /// Page of the conversation's transcript, newest first by default.
    fn history(
        &self,
        query: &HistoryPageQuery,
    ) -> impl Future<Output = HostResult<Page<TranscriptItem>>> + Send;

    /// Takes all events that steer this run.
    fn pull_steering(&self) -> impl Future<Output = HostResult<Vec<SteeringInputItem>>> + Send;

    /// Passages of a knowledge base for a query, best first.
    fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> impl Future<Output = HostResult<Vec<RetrievalResultEntry>>> + Send;

    /// Complete answer of a model.
    fn invoke_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = HostResult<LlmInvokeResult>> + Send;

    /// Streamed answer of a model.
    fn stream_model(
        &self,
        model: &str,
        request: &LlmRequest,
    ) -> impl Future<Output = HostResult<ModelStream>> + Send;

    /// Description and schema of a tool.
    fn tool(&self, name: &str) -> impl Future<Output = HostResult<ToolDescription>> + Send;
}

impl AgentHost for Host {
    async fn prompt(&self) -> HostResult<Option<Vec<Message>>> {
        Host::prompt(self).await
    }

    async fn history(&self, query: &HistoryPageQuery) -> HostResult<Page<TranscriptItem>> {
        self.history().page(query).await
    }

    async fn pull_steering(&self) -> HostResult<Vec<SteeringInputItem>> {
        // All at once: the model sees them in one request.
        Host::pull_steering(self, SteeringMode::All, None).await
    }

    async fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> HostResult<Vec<RetrievalResultEntry>> {
        Host::retrieve(self, kb_id, query).await
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
}
