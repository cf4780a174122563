//! Tools that a person may add to the frozen grant of a run.

use protocol::admin::{OnDenied, ToolRule};
use protocol::resources::{ToolOperation, ToolResource};

use super::{Decision, Layer, LayerEvaluation};
use crate::authorization::questions::AMEND;

impl LayerEvaluation<'_> {
    /// Decides whether a call of a tool that is not granted asks for an amendment. Only a policy that differs from the
    /// default adds this decision. `entry`: the rule of the policy, if an entry matches. `granted`: operations of the
    /// tool.
    pub(in crate::authorization) fn amendment(
        &mut self,
        tool: &ToolResource,
        entry: Option<ToolRule>,
        granted: &[ToolOperation],
    ) {
        let call = ToolOperation::Call;
        if self.agent.resource_policy.on_denied != OnDenied::Ask || granted.contains(&call) {
            return;
        }
        // A person decides about what the agent's policy leaves open, never about what an operator has denied, and the
        // manifest stays the upper bound of the runner.
        let is_open = entry != Some(ToolRule::Deny)
            && tool.operations.contains(&call)
            && self.manifest.permissions.tools.contains(&call);
        // A child run reaches no more than its parent's snapshot, also by an amendment.
        let is_of_parent = self.parent.is_none_or(|parent| {
            let refusal = parent.refusal("tools", &tool.tool_name, call.as_str());
            refusal.is_none()
        });
        if is_open && is_of_parent {
            self.decisions.push(Decision {
                kind: "tool".into(),
                id: tool.tool_name.clone(),
                operation: AMEND.into(),
                granted: true,
                layer: Layer::AgentPolicy,
                rule: "resource_policy.on_denied asks before each call".into(),
            });
        }
    }
}
