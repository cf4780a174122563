//! Handler of server messages other than responses.

use std::sync::Arc;

use rmcp::ClientHandler;
use rmcp::model::{ClientCapabilities, Implementation, InitializeRequestParams, ProtocolVersion};
use rmcp::service::{NotificationContext, RoleClient};
use tokio::sync::Notify;

/// Handles list change notifications. It declares no client capabilities.
pub(super) struct NotificationHandler {
    changed: Arc<Notify>,
}

impl NotificationHandler {
    pub(super) fn new(changed: Arc<Notify>) -> Self {
        Self { changed }
    }
}

impl ClientHandler for NotificationHandler {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    fn get_info(&self) -> InitializeRequestParams {
        let ours = Implementation::new("runnel", env!("CARGO_PKG_VERSION"));
        // The last protocol version with this handshake.
        InitializeRequestParams::new(ClientCapabilities::default(), ours)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}
