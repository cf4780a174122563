//! Granted tools, knowledge bases and files, the entry's prompt, and steering input.

use protocol::JsonObject;
use protocol::host_api::{
    ArtifactMetadata, EffectivePrompt, SteeringInputItem, SteeringMode, SteeringPull,
    SteeringPullResult,
};
use protocol::knowledge::{RetrievalQuery, RetrievalResultEntry, RetrievalResults};
use protocol::message::Message;
use protocol::tool::{
    CallTool, KEY_SCOPE_HEADER, KeyScope, ToolCallResult, ToolDescription, ToolDetail,
};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::Value;

use crate::host::{Blob, Host, HostError, client};

impl Host {
    /// Prompt that the entry has built, or `None`.
    pub async fn prompt(&self) -> Result<Option<Vec<Message>>, HostError> {
        match self.get::<EffectivePrompt>(&["prompt"]).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => Ok(Some(answer?.prompt)),
        }
    }

    /// Granted tool with the schema of its parameters.
    pub async fn tool(&self, name: &str) -> Result<ToolDescription, HostError> {
        let detail: ToolDetail = self.get(&["tools", name]).await?;
        Ok(detail.tool)
    }

    /// Calls a tool; may take the rest of the run. With a `key` (1 to 255 visible characters) the gateway
    /// executes the call once for all retries.
    pub async fn call_tool(
        &self,
        name: &str,
        parameters: JsonObject,
        key: Option<&str>,
    ) -> Result<Value, HostError> {
        let mut call = self.request(Method::POST, &["tools", name, "call"]).await?;
        if let Some(key) = key {
            call = call.header("idempotency-key", key);
        }
        let called: ToolCallResult = self
            .long_answer(call.json(&CallTool { parameters }))
            .await?;
        Ok(called.result)
    }

    /// Calls a tool once under a key (1 to 255 visible characters) that the runs of `scope` share. A repeated
    /// call gets the stored result. [`KeyScope::Conversation`] needs a run with a conversation.
    pub async fn call_tool_once(
        &self,
        name: &str,
        parameters: JsonObject,
        key: &str,
        scope: KeyScope,
    ) -> Result<ToolCallResult, HostError> {
        let call = self.request(Method::POST, &["tools", name, "call"]).await?;
        let call = call
            .header("idempotency-key", key)
            .header(KEY_SCOPE_HEADER, scope.as_str());
        self.long_answer(call.json(&CallTool { parameters })).await
    }

    /// Passages of a knowledge base for a query, best first.
    pub async fn retrieve(
        &self,
        kb_id: &str,
        query: &RetrievalQuery,
    ) -> Result<Vec<RetrievalResultEntry>, HostError> {
        let call = self
            .request(Method::POST, &["knowledge-bases", kb_id, "retrieve"])
            .await?;
        let found: RetrievalResults = self.long_answer(call.json(query)).await?;
        Ok(found.results)
    }

    /// Takes events that steer this run, oldest first; 1 to 100 items.
    pub async fn pull_steering(
        &self,
        mode: SteeringMode,
        limit: Option<u64>,
    ) -> Result<Vec<SteeringInputItem>, HostError> {
        let call = self.request(Method::POST, &["steering", "pull"]).await?;
        let pulled: SteeringPullResult = self
            .answer(call.json(&SteeringPull { mode, limit }))
            .await?;
        Ok(pulled.items)
    }

    /// Uploads a file of the run; `artifact.created` announces it.
    pub async fn create_artifact(
        &self,
        name: &str,
        file: Blob,
    ) -> Result<ArtifactMetadata, HostError> {
        let call = self.request(Method::POST, &["artifacts"]).await?;
        let call = call.query(&[("name", name)]);
        let call = call.header(CONTENT_TYPE, file.content_type);
        self.long_answer(call.body(file.bytes)).await
    }

    /// Metadata of a file, or `None`.
    pub async fn artifact(&self, id: &str) -> Result<Option<ArtifactMetadata>, HostError> {
        match self.get(&["artifacts", id]).await {
            Err(error) if error.is_not_found() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Bytes of a file from `first` to `last`, inclusive; at most 16 MiB per call.
    pub async fn read_artifact(
        &self,
        id: &str,
        first: u64,
        last: u64,
    ) -> Result<Vec<u8>, HostError> {
        let call = self
            .request(Method::GET, &["artifacts", id, "content"])
            .await?;
        let call = call.header("range", format!("bytes={first}-{last}"));
        client::read(self.send_long(call).await?).await
    }
}
