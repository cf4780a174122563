//! Decisions about transcripts: the run's own conversation, and others.

use protocol::resources::HistoryOperation;

use super::{Layer, LayerEvaluation};

impl LayerEvaluation<'_> {
    /// Decides `page` and `search`, in this order. `workspace` includes both.
    pub(in crate::authorization) fn history(&mut self, has_conversation: bool) -> (bool, bool) {
        let page = history_operation(self, HistoryOperation::Page, has_conversation);
        let search = history_operation(self, HistoryOperation::Search, has_conversation);
        // The workspace's history needs no conversation of the event.
        let all = history_operation(self, HistoryOperation::Workspace, true);
        let agent = self.agent;
        let named = &agent.resource_policy.history_conversations;
        // Each listed conversation gets a decision of its own, which the API checks by id.
        let mut others = false;
        for conversation in named {
            let permissions = &self.manifest.permissions;
            let checks = [
                (
                    Layer::Manifest,
                    permissions.history.contains(&HistoryOperation::Workspace),
                    "permissions.history lacks workspace",
                ),
                (
                    Layer::AgentPolicy,
                    true,
                    "resource_policy.history_conversations does not name it",
                ),
            ];
            others |= self.decide("history", conversation, "conversation", &checks);
        }
        (page || all || others, search || all || others)
    }
}

fn history_operation(
    layers: &mut LayerEvaluation<'_>,
    operation: HistoryOperation,
    in_scope: bool,
) -> bool {
    let checks = [
        (
            Layer::Manifest,
            layers.manifest.permissions.history.contains(&operation),
            "",
        ),
        (
            Layer::AgentPolicy,
            layers.agent.resource_policy.history.contains(&operation),
            "resource_policy.history does not name it",
        ),
        (Layer::EventScope, in_scope, "the event has no conversation"),
    ];
    layers.decide("history", "conversation", operation.as_str(), &checks)
}
