//! What tells a run to stop, and why.

use tokio_util::sync::CancellationToken;

/// A run's token, and why it fires.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    token: CancellationToken,
    /// Fires before the token where the gateway cancels the run.
    asked: CancellationToken,
}

impl Signal {
    pub(crate) fn new(token: CancellationToken) -> Self {
        let asked = CancellationToken::new();
        Self { token, asked }
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// The gateway cancels the run.
    pub(crate) fn cancel(&self) {
        self.asked.cancel();
        self.token.cancel();
    }

    /// The token has fired and nobody has cancelled the run: the server stops.
    pub(crate) fn is_shutdown(&self) -> bool {
        self.token.is_cancelled() && !self.asked.is_cancelled()
    }
}
