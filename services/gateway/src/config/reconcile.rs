//! `reconcile` of `[[tools]]` and `[[mcp_servers]]`: the tool that knows what became of a call.

use super::mcp_server::McpServerEntry;
use super::table::{Reported, Table};
use super::tool::ToolEntry;

const READ: &str = "read";
const OF_READER: &str = "has no effect for a tool that reads: its calls are repeated freely";

/// The tool must exist and only read. The tools of MCP servers are listed later, so their existence is checked at
/// each use.
pub(super) fn check_reconcile(
    tools: &Result<Vec<ToolEntry>, Reported>,
    servers: &Result<Vec<McpServerEntry>, Reported>,
    table: &mut Table<'_>,
) -> Result<(), Reported> {
    let (Ok(tools), Ok(servers)) = (tools, servers) else {
        return Err(Reported);
    };
    let mut result = Ok(());
    for (index, entry) in tools.iter().enumerate() {
        if let Some(message) = fault_of_tool(entry, tools) {
            result = Err(table.fault(&format!("tools[{index}].reconcile"), message));
        }
    }
    for (index, server) in servers.iter().enumerate() {
        for (name, reconciler) in &server.reconcile {
            if let Some(message) = fault_of_server(server, name, reconciler) {
                let key = format!("mcp_servers[{index}].reconcile.{name}");
                result = Err(table.fault(&key, message));
            }
        }
    }
    result
}

fn fault_of_tool(entry: &ToolEntry, tools: &[ToolEntry]) -> Option<String> {
    let reconciler = entry.reconcile.as_deref()?;
    let Some(http) = &entry.http else {
        return Some("has no effect without `url`; leave it out".to_owned());
    };
    if entry.effect.as_deref() == Some(READ) {
        return Some(OF_READER.to_owned());
    }
    if http
        .headers
        .keys()
        .any(|name| name.eq_ignore_ascii_case("idempotency-key"))
    {
        let message =
            "needs the ticket in `Idempotency-Key`, which `headers` replace; remove that header";
        return Some(message.to_owned());
    }
    let mut called = tools.iter().filter(|tool| tool.http.is_some());
    match called.find(|tool| tool.tool_name == reconciler) {
        None => Some(format!(
            "names {reconciler:?}, which is no tool of [[tools]] with a `url`"
        )),
        Some(tool) if tool.effect.as_deref() != Some(READ) => Some(format!(
            "names {reconciler:?}, whose `effect` is not \"read\": it may be called any number of times"
        )),
        Some(_) => None,
    }
}

fn fault_of_server(server: &McpServerEntry, name: &str, reconciler: &str) -> Option<String> {
    let effect = |name: &str| server.effects.get(name).map(String::as_str);
    if effect(name) == Some(READ) {
        return Some(OF_READER.to_owned());
    }
    if name == reconciler || effect(reconciler).is_some_and(|effect| effect != READ) {
        return Some(format!(
            "names {reconciler:?}, whose effect is not \"read\": it may be called any number of times"
        ));
    }
    let is_listed = |name: &str| {
        let listed = server.tools.as_ref();
        listed.is_none_or(|names| names.iter().any(|listed| listed == name))
    };
    let missing = [name, reconciler].into_iter().find(|name| !is_listed(name));
    missing.map(|name| format!("needs {name:?}, which `tools` does not list"))
}
