//! Ownership of tool names that several servers list.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::available_tool::{AvailableTool, Callee};
use super::mcp::ManagedServer;

/// Server indexes by owned name. A server owns a name while it lists it.
#[derive(Default)]
pub(super) struct NameOwners(BTreeMap<String, usize>);

impl NameOwners {
    /// Owners after the current lists, given the previous catalog.
    pub(super) fn held(
        previous: &BTreeMap<String, Arc<AvailableTool>>,
        servers: &[Arc<ManagedServer>],
        listed: &[Vec<Arc<AvailableTool>>],
    ) -> Self {
        let holder = |tool: &AvailableTool| {
            let Callee::Mcp { server, .. } = &tool.callee else {
                return None;
            };
            let is_it = |other: &Arc<ManagedServer>| Arc::ptr_eq(other, server);
            let at = servers.iter().position(is_it)?;
            let is_listed =
                |other: &Arc<AvailableTool>| other.resource.tool_name == tool.resource.tool_name;
            listed.get(at)?.iter().any(is_listed).then_some(at)
        };
        let held = previous.iter();
        let held = held.filter_map(|(name, tool)| Some((name.clone(), holder(tool)?)));
        Self(held.collect())
    }

    /// True if a server can own a name. Later servers do not replace the owner. During the start, configuration
    /// order decides, regardless of response order.
    pub(super) fn may_own(&self, name: &str, server: usize, is_starting: bool) -> bool {
        let holder = self.0.get(name);
        holder.is_none_or(|&holder| holder == server || (is_starting && server < holder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_keep_names_they_own() {
        let names = NameOwners(BTreeMap::from([("search".to_owned(), 1)]));
        for (name, server, is_starting, may) in [
            ("search", 1, false, true),
            ("search", 0, false, false),
            ("search", 2, false, false),
            ("search", 0, true, true),
            ("search", 2, true, false),
            ("other", 2, false, true),
        ] {
            let allowed = names.may_own(name, server, is_starting);
            assert_eq!(allowed, may, "{name} {server} {is_starting}");
        }
    }
}
