//! Wakes: the run wakes its agent later, in its conversation.

use protocol::schedule::{AgentWake, WakeRequest};
use reqwest::Method;

use crate::host::{HostConnection, HostError};

/// Wakes of the run's agent.
#[derive(Clone, Copy, Debug)]
pub struct WakesApi<'a>(pub(super) &'a HostConnection);

impl WakesApi<'_> {
    /// Wakes the agent later. The same `key` returns the same wake; with another request the call fails as a conflict
    /// ([`HostError::is_conflict`]).
    pub async fn request(self, request: &WakeRequest) -> Result<AgentWake, HostError> {
        let call = self.0.request(Method::POST, &["schedules"]).await?;
        self.0.answer(call.json(request)).await
    }

    /// Cancels a wake of the conversation. A wake that is due already is a conflict.
    pub async fn cancel(self, key: &str) -> Result<AgentWake, HostError> {
        let call = self.0.request(Method::DELETE, &["schedules", key]).await?;
        self.0.answer(call).await
    }
}
