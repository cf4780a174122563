//! Questions to users.

use protocol::admin::OnUnknownEffect;
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
    /// Decides whether a person is asked about a tool call with an unknown outcome. Only a policy that differs from the
    /// default adds this decision, and a child run has no person to ask.
    pub(in crate::authorization) fn unknown_effects(&mut self) {
        let asks = self.agent.resource_policy.on_unknown_effect == OnUnknownEffect::Ask;
        if asks && self.parent.is_none() {
            let rule = "resource_policy.on_unknown_effect is fail";
            let checks = [(Layer::AgentPolicy, asks, rule)];
            self.decide("interactions", "gateway", "unknown_effect", &checks);
        }
    }
}
