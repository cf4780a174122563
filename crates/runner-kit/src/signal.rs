//! Stop signal of a run, with its cause.

use tokio_util::sync::CancellationToken;

/// Cancellation token of a run, and its cause.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    token: CancellationToken,
    /// Fires before the token when the gateway cancels the run.
    requested: CancellationToken,
}

impl Signal {
    pub(crate) fn new(token: CancellationToken) -> Self {
        let requested = CancellationToken::new();
        Self { token, requested }
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Fires when the gateway cancels the run.
    pub(crate) fn requested(&self) -> &CancellationToken {
        &self.requested
    }

    /// Cancels the run for the gateway.
    pub(crate) fn cancel(&self) {
        self.requested.cancel();
        // After the cause: `is_shutdown` must not see a fired token without it.
        self.token.cancel();
    }

    /// True when the token fired without a cancel: the server stops.
    pub(crate) fn is_shutdown(&self) -> bool {
        self.token.is_cancelled() && !self.requested.is_cancelled()
    }
}
