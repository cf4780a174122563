//! Granted tools.

use protocol::JsonObject;
use protocol::tool::{
    APPROVED_BY_HEADER, CallTool, KEY_SCOPE_HEADER, KeyScope, ToolCallResult, ToolDescription,
    ToolDetail,
};
use reqwest::Method;
use serde_json::Value;

use crate::host::{HostConnection, HostError};

/// Options of a tool call that is made once.
#[derive(Clone, Copy, Debug)]
pub struct CallOptions<'a> {
    /// Idempotency key: 1 to 255 visible characters.
    pub key: &'a str,
    /// Runs that share the key. [`KeyScope::Conversation`] needs a run with a conversation.
    pub scope: KeyScope,
    /// The answered question that approved the call, for the audit log: `{run_id}/{interaction_id}` of this run or of an
    /// earlier run of its agent in its conversation.
    pub approved_by: Option<&'a str>,
}

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

    /// Calls a tool once under the key of the options. A repeated call gets the stored result.
    pub async fn call_once(
        self,
        name: &str,
        parameters: JsonObject,
        options: CallOptions<'_>,
    ) -> Result<ToolCallResult, HostError> {
        let call = self
            .0
            .request(Method::POST, &["tools", name, "call"])
            .await?;
        let mut call = call
            .header("idempotency-key", options.key)
            .header(KEY_SCOPE_HEADER, options.scope.as_str());
        if let Some(question) = options.approved_by {
            call = call.header(APPROVED_BY_HEADER, question);
        }
        self.0
            .long_answer(call.json(&CallTool { parameters }))
            .await
    }
}
