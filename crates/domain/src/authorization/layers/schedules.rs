//! Wakes: closed unless manifest and agent policy agree.

use protocol::resources::ScheduleOperation;

use super::{Layer, LayerEvaluation};

impl LayerEvaluation<'_> {
    /// Decides whether the run may wake its agent later. Recorded only if the manifest or the policy names it.
    pub(in crate::authorization) fn schedules(&mut self) {
        let operation = ScheduleOperation::Wake;
        let is_requested = self.manifest.permissions.schedules.contains(&operation);
        let is_allowed = self.agent.resource_policy.schedules.contains(&operation);
        if !is_requested && !is_allowed {
            return;
        }
        let checks = [
            (Layer::Manifest, is_requested, ""),
            (
                Layer::AgentPolicy,
                is_allowed,
                "resource_policy.schedules does not name it",
            ),
            (
                // Its event has no conversation that a wake could continue.
                Layer::Parent,
                self.parent.is_none(),
                "a child run wakes no agent",
            ),
        ];
        self.decide("schedules", "agent", operation.as_str(), &checks);
    }
}
