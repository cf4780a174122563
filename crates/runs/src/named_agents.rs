//! Agents that a setting names, by name or id.

use protocol::admin::Fault;
use protocol::id::{AgentId, WorkspaceId};
use store::{Store, StoreError};

/// Ids of named agents, or the faults of the list `/agents`. The caller bounds the list: each item is a query.
pub(crate) async fn named_agents(
    store: &Store,
    workspace: &WorkspaceId,
    named: &[String],
) -> Result<Result<Vec<AgentId>, Vec<Fault>>, StoreError> {
    let mut agents = Vec::new();
    let mut faults = Vec::new();
    for (index, name) in named.iter().enumerate() {
        let pointer = || format!("/agents/{index}");
        match store.agents().find_agent_id(workspace, name).await? {
            Some(agent) if agents.contains(&agent) => {
                faults.push(Fault::new(pointer(), "is in the list already"));
            }
            Some(agent) => agents.push(agent),
            None => {
                let message = "names no agent of this workspace";
                faults.push(Fault::new(pointer(), message));
            }
        }
    }
    Ok(if faults.is_empty() {
        Ok(agents)
    } else {
        Err(faults)
    })
}
