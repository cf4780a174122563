//! Platform actions: closed unless manifest, agent policy and approval agree.

use protocol::JsonObject;
use protocol::platform_action::ActionApproval;
use serde_json::json;

use super::{Layer, LayerEvaluation};
use crate::platform_action::action_names;

impl LayerEvaluation<'_> {
    /// Decides each action of the catalogue that the manifest or the policy names. Returns the granted ones with their
    /// approval.
    pub(in crate::authorization) fn platform_actions(&mut self) -> JsonObject {
        let agent = self.agent;
        let policy = &agent.delivery_policy.platform_actions;
        let requested = &self.manifest.permissions.platform_api;
        let mut granted = JsonObject::new();
        for name in action_names() {
            let is_requested = requested.iter().any(|one| one == name);
            let approval = policy.get(name).copied();
            if !is_requested && approval.is_none() {
                continue;
            }
            let checks = [
                (
                    Layer::Manifest,
                    is_requested,
                    "permissions.platform_api does not name it",
                ),
                (
                    Layer::AgentPolicy,
                    approval.is_some(),
                    "delivery_policy.platform_actions does not name it",
                ),
                (
                    // Its event has no delivery, and no person to ask.
                    Layer::Parent,
                    self.parent.is_none(),
                    "a child run requests no platform actions",
                ),
            ];
            if !self.decide("platform_api", name, "request", &checks) {
                continue;
            }
            let approval = approval.unwrap_or(ActionApproval::Ask);
            if approval == ActionApproval::Ask {
                let rule = "delivery_policy.platform_actions is auto";
                let checks = [(Layer::AgentPolicy, true, rule)];
                self.decide("platform_api", name, "ask", &checks);
            }
            let form = json!({"approval": approval.as_str()});
            granted.insert(name.to_owned(), form);
        }
        granted
    }
}
