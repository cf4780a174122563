//! Calls that find out what became of an earlier call with an unknown outcome.

use std::sync::Arc;

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::resources::ToolEffect;
use serde_json::Value;

use super::available_tool::Callee;
use super::{AvailableTool, CallOrigin, Tools};
use egress::upstream::UpstreamError;

/// Parameter with the ticket of the earlier call.
const TICKET: &str = "ticket";

impl Tools {
    /// Asks the tool's `reconcile` tool about a call with these parameters and this ticket. `None`: the tool names none.
    pub async fn reconcile(
        &self,
        tool: &AvailableTool,
        parameters: &JsonObject,
        ticket: &str,
        origin: CallOrigin<'_>,
    ) -> Option<Result<Value, UpstreamError>> {
        let name = tool.reconcile.as_deref()?;
        let Some(reconciler) = self.same_source(tool, name) else {
            let message = format!("its server does not list the `reconcile` tool {name}");
            return Some(Err(UpstreamError::Away(message)));
        };
        if reconciler.resource.effect != Some(ToolEffect::Read) {
            let message = format!("the effect of its `reconcile` tool {name} is not `read`");
            return Some(Err(UpstreamError::Unsupported(message)));
        }
        let parameters = arguments(&reconciler, parameters, ticket);
        if let Err(faults) = reconciler.check(&parameters).await {
            let named = Fault::first(&faults);
            let first = named.first().map_or("", |fault| fault.pointer.as_str());
            let message = format!("`reconcile` tool {name}: its schema refuses {first}");
            return Some(Err(UpstreamError::Rejected(message)));
        }
        // The question is no effect, so it has no ticket of its own.
        let origin = CallOrigin {
            key: None,
            ..origin
        };
        Some(self.call(&reconciler, &parameters, origin).await)
    }

    /// A configured tool by its name, or a tool of the same MCP server by its upstream name.
    pub(super) fn same_source(
        &self,
        tool: &AvailableTool,
        name: &str,
    ) -> Option<Arc<AvailableTool>> {
        let Callee::Mcp { server, .. } = &tool.callee else {
            let mut declared = self.0.declared.iter();
            return declared.find(|one| one.resource.tool_name == name).cloned();
        };
        let is_it = |one: &Arc<AvailableTool>| matches!(&one.callee, Callee::Mcp { name: listed, .. } if listed == name);
        server.listed().into_iter().find(is_it)
    }
}

/// The parameters of the earlier call as far as the reconciler tool has them, with the ticket.
fn arguments(reconciler: &AvailableTool, parameters: &JsonObject, ticket: &str) -> JsonObject {
    let schema = reconciler.resource.parameters.as_ref();
    let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
    let is_taken = |name: &str| properties.is_none_or(|properties| properties.contains_key(name));
    let taken = parameters.iter().filter(|(name, _)| is_taken(name));
    let mut arguments: JsonObject = taken
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    // It overrides a parameter of the same name.
    arguments.insert(TICKET.to_owned(), ticket.into());
    arguments
}
