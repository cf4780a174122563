//! Granted tools.

use protocol::JsonObject;
use protocol::tool::{
    CallTool, KEY_SCOPE_HEADER, KeyScope, ToolCallResult, ToolDescription, ToolDetail,
};
use reqwest::Method;
use serde_json::Value;

use crate::host::{HostConnection, HostError};

/// Tools of the run.
#[derive(Clone, Copy, Debug)]
pub struct ToolsApi<'a>(pub(super) &'a HostConnection);

impl ToolsApi<'_> {
    /// Granted tool with the schema of its parameters.
    pub async fn get(self, name: &str) -> Result<ToolDescription, HostError> {
        let detail: ToolDetail = self.0.get(&["tools", name]).await?;
        Ok(detail.tool)
    }

    /// Calls a tool; may take the rest of the run. With a `key` (1 to 255 visible characters) the gateway
    /// executes the call once for all retries.
    pub async fn call(
        self,
        name: &str,
        parameters: JsonObject,
        key: Option<&str>,
    ) -> Result<Value, HostError> {
        let mut call = self
            .0
            .request(Method::POST, &["tools", name, "call"])
            .await?;
        if let Some(key) = key {
            call = call.header("idempotency-key", key);
        }
        let called: ToolCallResult = self
            .0
            .long_answer(call.json(&CallTool { parameters }))
            .await?;
        Ok(called.result)
    }

    /// Calls a tool once under a key (1 to 255 visible characters) that the runs of `scope` share. A repeated
    /// call gets the stored result. [`KeyScope::Conversation`] needs a run with a conversation.
    pub async fn call_once(
        self,
        name: &str,
        parameters: JsonObject,
        key: &str,
        scope: KeyScope,
    ) -> Result<ToolCallResult, HostError> {
        let call = self
            .0
            .request(Method::POST, &["tools", name, "call"])
            .await?;
        let call = call
            .header("idempotency-key", key)
            .header(KEY_SCOPE_HEADER, scope.as_str());
        self.0
            .long_answer(call.json(&CallTool { parameters }))
            .await
    }
}
