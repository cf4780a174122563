//! Agents of which a run may start child runs.

use protocol::resources::AgentResource;

use super::{Layer, LayerEvaluation};

impl LayerEvaluation<'_> {
    /// Decides the callable agents among those that the agent's policy lists.
    pub(in crate::authorization) fn agents(
        &mut self,
        peers: &[AgentResource],
    ) -> Vec<AgentResource> {
        let mut granted = Vec::new();
        for peer in peers {
            let mut operations = peer.operations.clone();
            operations.retain(|operation| {
                // The policy is applied before: only listed agents are candidates.
                let checks = [
                    (
                        Layer::Manifest,
                        self.manifest.permissions.agents.contains(operation),
                        "",
                    ),
                    (
                        Layer::AgentPolicy,
                        true,
                        "resource_policy.agents does not name it",
                    ),
                ];
                self.decide("agents", &peer.agent_id, operation.as_str(), &checks)
            });
            if !operations.is_empty() {
                granted.push(AgentResource {
                    operations,
                    ..peer.clone()
                });
            }
        }
        granted
    }
}
