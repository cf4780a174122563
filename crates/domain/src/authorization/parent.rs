//! Layer `parent`: the grants of a child run are a subset of its parent's grants.

use protocol::child_run::{ChildGrants, MAX_CHILD_DEPTH};
use protocol::id::{AgentId, EndpointId, RunId};
use protocol::resources::ToolApproval;
use serde::{Deserialize, Serialize};

use super::AuthorizationSnapshot;

/// An ancestor of a child run. Its budgets also apply to the child run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    pub agent_id: AgentId,
    pub endpoint_id: EndpointId,
    pub run_id: RunId,
}

/// The parent's snapshot, and the `grants` of its request.
#[derive(Clone, Copy, Debug)]
pub struct ParentGrant<'a> {
    pub snapshot: &'a AuthorizationSnapshot,
    pub grants: Option<&'a ChildGrants>,
}

const NOT_GRANTED: &str = "the parent run was not granted it";
const TOO_DEEP: &str = "a child run at depth 3 starts no child runs";

impl ParentGrant<'_> {
    /// Returns the ancestors of the child run, parent first.
    pub(super) fn lineage(&self) -> Vec<Ancestor> {
        let parent = self.snapshot;
        let own = Ancestor {
            agent_id: parent.agent_id,
            endpoint_id: parent.endpoint_id,
            run_id: parent.run_id,
        };
        // Parent first, then its own ancestors.
        std::iter::once(own)
            .chain(parent.ancestors.iter().cloned())
            .collect()
    }

    /// Returns the rule that denies the operation. `None`: the parent has the grant, and its request does not
    /// exclude it.
    pub(super) fn refusal(
        &self,
        kind: &'static str,
        id: &str,
        operation: &str,
    ) -> Option<&'static str> {
        // Before the request's list: a child must not gain a grant by naming it.
        if !self.parent_may(kind, id, operation) {
            return Some(NOT_GRANTED);
        }
        // Bounds the recursion of runs that start each other.
        if kind == "agents" && self.depth() >= MAX_CHILD_DEPTH as usize {
            return Some(TOO_DEEP);
        }
        let (listed, rule) = self.narrowed(kind)?;
        let names = |name: &str| listed.iter().any(|listed| listed == name);
        // Requests list agents by id or by name.
        let is_named = names(id) || (kind == "agents" && self.name_of(id).is_some_and(names));
        (!is_named).then_some(rule)
    }

    /// Returns the approval that the parent's calls of a tool need.
    pub(super) fn approval_of(&self, tool: &str) -> Option<ToolApproval> {
        let mut tools = self.snapshot.resources.tools.iter();
        tools.find(|one| one.tool_name == tool)?.approval
    }

    /// Levels below the run that an event started; 1 for its child run.
    fn depth(&self) -> usize {
        self.snapshot.ancestors.len() + 1
    }

    fn parent_may(&self, kind: &'static str, id: &str, operation: &str) -> bool {
        let snapshot = self.snapshot;
        let resources = &snapshot.resources;
        match kind {
            "models" => resources.models.iter().any(|one| {
                let may =
                    |granted: &&protocol::resources::ModelOperation| granted.as_str() == operation;
                one.model_id == id && one.operations.iter().any(|granted| may(&granted))
            }),
            "tools" => resources.tools.iter().any(|one| {
                let mut granted = one.operations.iter();
                one.tool_name == id && granted.any(|granted| granted.as_str() == operation)
            }),
            "knowledge_bases" => resources.knowledge_bases.iter().any(|one| {
                let mut granted = one.operations.iter();
                one.kb_id == id && granted.any(|granted| granted.as_str() == operation)
            }),
            "skills" => resources.skills.iter().any(|one| one.skill_name == id),
            // Access by name or id, like in the API.
            "agents" => snapshot.agent(id).is_ok(),
            "files" => {
                let is_it =
                    |file: &protocol::JsonObject| file.get("name").is_some_and(|name| name == id);
                resources.files.iter().any(is_it)
            }
            "history" if operation == "conversation" => snapshot.other_history(id).is_ok(),
            // The prompt is part of the child's own event.
            "prompt" => true,
            // All other kinds are singletons, which the set of operations covers.
            _ => snapshot.operations.contains(&format!("{kind}:{operation}")),
        }
    }

    /// Returns the request's list for this kind, and the rule that denies unlisted entries.
    fn narrowed(&self, kind: &'static str) -> Option<(&[String], &'static str)> {
        let grants = self.grants?;
        let (listed, rule) = match kind {
            "models" => (&grants.models, "the request's grants.models lacks it"),
            "tools" => (&grants.tools, "the request's grants.tools lacks it"),
            "knowledge_bases" => (
                &grants.knowledge_bases,
                "the request's grants.knowledge_bases lacks it",
            ),
            "skills" => (&grants.skills, "the request's grants.skills lacks it"),
            "agents" => (&grants.agents, "the request's grants.agents lacks it"),
            _ => return None,
        };
        Some((listed.as_deref()?, rule))
    }

    fn name_of(&self, agent_id: &str) -> Option<&str> {
        let agents = &self.snapshot.resources.agents;
        let found = agents.iter().find(|one| one.agent_id == agent_id)?;
        found.display_name.as_deref()
    }
}
