//! Calls with the token of an actor. Each call has a session of its own, which no other actor can use.

use egress::Egress;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;
use http::header::AUTHORIZATION;
use rmcp::model::{CallToolRequestParams, CallToolResponse};
use tokio_util::sync::CancellationToken;

use super::super::McpTransport;
use super::super::on_behalf_of::Bearer;
use super::connection::http_transport;
use super::lifecycle::OpenError;
use super::listener::NotificationHandler;
use super::request_limit::BoundedTransport;
use super::{ManagedServer, outcome};

impl ManagedServer {
    /// Opens a session with the token, calls the tool, and closes the session. The caller applies the timeout.
    pub(super) async fn call_as(
        &self,
        egress: &Egress,
        redactor: &Redactor,
        bearer: &Bearer,
        request: CallToolRequestParams,
    ) -> Result<CallToolResponse, UpstreamError> {
        let McpTransport::Http { url, headers } = &self.spec.transport else {
            let message = "a child process takes no token of an actor".to_owned();
            return Err(UpstreamError::Unsupported(message));
        };
        let mut headers = headers.clone();
        headers.insert(AUTHORIZATION, bearer.header.clone());
        let transport = http_transport(&self.spec, egress, url, headers);
        let transport = BoundedTransport::new(transport, CancellationToken::new());
        let listener = NotificationHandler::new(std::sync::Arc::default());
        let opened = self.lifecycle.open(listener, transport, redactor).await;
        // The tool was not called, whatever the failure is.
        let service = opened.map_err(|error| match error {
            OpenError::Upstream(refused @ UpstreamError::Credential { .. }) => refused,
            other => UpstreamError::Away(other.to_string()),
        })?;
        let called = service.peer().call_tool_once(request).await;
        // Dropping the service closes the session.
        drop(service);
        called.map_err(|error| outcome::failure(redactor, error))
    }
}
