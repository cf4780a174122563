//! Senders of events, and the agents that they reach.

use domain::api_key::AgentReach;
use protocol::id::{RunId, WorkspaceId};

use super::{Intake, IntakeError};
use crate::own_limits::StartingKey;

/// Sender of an event.
#[derive(Clone, Copy, Debug)]
pub struct EventSender<'a> {
    pub workspace: &'a WorkspaceId,
    pub key: StartingKey,
    /// The agents that it reaches.
    pub scope: &'a AgentReach,
}

impl Intake {
    /// Fails unless the sender reaches the agent of an earlier run. `run`: the run of the event, if it has one.
    pub(super) async fn check_reach(
        &self,
        sender: EventSender<'_>,
        run: Option<RunId>,
    ) -> Result<(), IntakeError> {
        let Some(agents) = sender.scope.only() else {
            return Ok(());
        };
        let run = match run {
            Some(run) => self.deps.find_run(sender.workspace, run).await?,
            None => None,
        };
        let is_reached = run.is_some_and(|run| agents.contains(&run.agent_id));
        is_reached
            .then_some(())
            .ok_or_else(|| IntakeError::outside(agents))
    }
}
