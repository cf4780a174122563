//! The list of a server's tools, as they are offered.

use std::sync::Arc;

use domain::json_text::check_json_text;
use protocol::resources::{ToolEffect, ToolOperation, ToolResource};
use rmcp::ServiceError;
use rmcp::model::{PaginatedRequestParams, Tool};
use rmcp::service::{Peer, RoleClient};

use super::super::schema::Schema;
use super::super::{Callee, KnownTool, McpServerSpec};
use super::Server;

/// Tools of one server.
const MOST_TOOLS: usize = 256;
const MOST_PAGES: usize = 64;
const NAME_BYTES: usize = 128;
const DESCRIPTION_BYTES: usize = 8 * 1024;

/// What a server lists: so much of it as is wanted.
pub(super) struct List {
    tools: Vec<Tool>,
    /// There were more.
    cut: bool,
}

/// Asks for the tools that are wanted of a server.
pub(super) async fn list(
    spec: &McpServerSpec,
    peer: &Peer<RoleClient>,
) -> Result<List, ServiceError> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MOST_PAGES {
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        let page = peer.list_tools(Some(page)).await?;
        let wanted = |tool: &Tool| {
            let named = spec.tools.as_ref();
            named.is_none_or(|names| names.contains(tool.name.as_ref()))
        };
        tools.extend(page.tools.into_iter().filter(wanted));
        cursor = page.next_cursor;
        if cursor.is_none() || tools.len() > MOST_TOOLS {
            break;
        }
    }
    let cut = cursor.is_some() || tools.len() > MOST_TOOLS;
    tools.truncate(MOST_TOOLS);
    Ok(List { tools, cut })
}

impl List {
    /// The tools that can be offered, and why the others cannot.
    pub(super) fn into_known(self, server: &Arc<Server>) -> (Vec<Arc<KnownTool>>, Vec<String>) {
        let (mut known, mut unusable) = (Vec::new(), Vec::new());
        for tool in self.tools {
            let name = tool.name.to_string();
            match resource(&server.spec, &tool) {
                Ok((resource, schema)) => known.push(Arc::new(KnownTool {
                    resource,
                    schema: Some(schema),
                    callee: Callee::Mcp {
                        server: Arc::clone(server),
                        name,
                    },
                })),
                Err(reason) => unusable.push(reason),
            }
        }
        if let Some(names) = &server.spec.tools {
            let has = |name: &str| {
                known.iter().any(|tool| match &tool.callee {
                    Callee::Mcp { name: listed, .. } => listed == name,
                    _ => false,
                })
            };
            let missing = names.iter().filter(|name| !has(name));
            unusable.extend(missing.map(|name| format!("{name}: the server does not list it")));
        }
        if self.cut {
            unusable.push("all beyond the first 256 tools".to_owned());
        }
        (known, unusable)
    }
}

fn resource(spec: &McpServerSpec, tool: &Tool) -> Result<(ToolResource, Schema), String> {
    let name = format!("{}{}", spec.prefix, tool.name);
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(is_plain) {
        let shown: String = name.escape_debug().take(40).collect();
        return Err(format!(
            "{shown}: a name has at most 128 letters, digits, `-`, `_` and `.`"
        ));
    }
    let schema = Schema::compile(&tool.input_schema).map_err(|why| format!("{name}: {why}"))?;
    let says_read = tool
        .annotations
        .as_ref()
        .and_then(|hints| hints.read_only_hint);
    let effect = spec.effects.get(tool.name.as_ref()).copied();
    let resource = ToolResource {
        tool_type: Some("mcp".to_owned()),
        description: tool.description.as_deref().and_then(description),
        operations: ToolOperation::ALL.to_vec(),
        parameters: Some(tool.input_schema.as_ref().clone()),
        source: Some(format!("mcp:{}", spec.name)),
        effect: effect.or_else(|| (says_read == Some(true)).then_some(ToolEffect::Read)),
        tool_name: name,
    };
    Ok((resource, schema))
}

/// As much of it as is told, if it is text that can be kept.
fn description(text: &str) -> Option<String> {
    let text = &text[..text.floor_char_boundary(DESCRIPTION_BYTES)];
    let json = serde_json::to_vec(text).ok()?;
    check_json_text(&json).is_ok().then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::super::McpTransport;
    use super::*;

    fn spec() -> McpServerSpec {
        McpServerSpec {
            name: "s".to_owned(),
            transport: McpTransport::Child {
                program: "x".to_owned(),
                arguments: Vec::new(),
                env: Vec::new(),
            },
            tools: None,
            prefix: "p_".to_owned(),
            effects: BTreeMap::from([("a".to_owned(), ToolEffect::Irreversible)]),
            timeout: Duration::from_secs(1),
        }
    }

    fn listed(tool: &Value) -> Result<Value, String> {
        let tool: Tool = serde_json::from_value(tool.clone()).unwrap();
        resource(&spec(), &tool).map(|(resource, _)| serde_json::to_value(resource).unwrap())
    }

    #[test]
    fn the_operator_stands_above_what_a_server_says_of_its_tools() {
        let tool = |name: &str, read_only: bool| json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": read_only}});
        for (name, read_only, effect) in [
            ("a", true, json!("irreversible")),
            ("b", true, json!("read")),
            ("b", false, Value::Null),
        ] {
            let listed = listed(&tool(name, read_only)).unwrap();
            assert_eq!(listed["tool_name"], format!("p_{name}"));
            assert_eq!(listed["source"], "mcp:s");
            assert_eq!(listed["effect"], effect, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_offered_is_left_out_with_a_reason() {
        for (tool, reason) in [
            (
                json!({"name": "a b", "inputSchema": {}}),
                "p_a b: a name has",
            ),
            (
                json!({"name": "x".repeat(127), "inputSchema": {}}),
                "a name has at most 128",
            ),
            (
                json!({"name": "c", "inputSchema": {"type": 1}}),
                "p_c: its schema",
            ),
            (
                json!({"name": "d", "inputSchema": {"title": "x".repeat(70_000)}}),
                "larger than 64 KiB",
            ),
        ] {
            let refused = listed(&tool).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
        let long = json!({"name": "e", "description": "ä".repeat(8000), "inputSchema": {}});
        let listed = listed(&long).unwrap();
        assert_eq!(
            listed["description"].as_str().unwrap().len(),
            DESCRIPTION_BYTES
        );
    }
}
