//! Questions to users.

use protocol::resources::InteractionOperation;

use super::{Layer, LayerEvaluation};

impl LayerEvaluation<'_> {
    /// Decides whether questions are stored and answerable. Otherwise they are telemetry.
    pub(in crate::authorization) fn interactions(&mut self, is_shown: bool) -> bool {
        let operation = InteractionOperation::Request;
        let checks = [
            (
                Layer::Manifest,
                self.manifest.permissions.interactions.contains(&operation),
                // Checked in this order: operators see the missing permission before the missing capability.
                "",
            ),
            (
                Layer::Manifest,
                self.manifest.capabilities.interactions,
                "capabilities.interactions is false",
            ),
            (
                Layer::AgentPolicy,
                self.agent.delivery_policy.interactions,
                "delivery_policy.interactions is false",
            ),
            (
                Layer::EventScope,
                is_shown,
                "the event's delivery names no interactions that its surface can show",
            ),
        ];
        self.decide("interactions", "delivery", operation.as_str(), &checks)
    }
}
