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
use crate::outbound::redact::Redactor;

/// Tools of one server.
const MOST_TOOLS: usize = 256;
const MOST_PAGES: usize = 64;
const NAME_BYTES: usize = 128;
const DESCRIPTION_BYTES: usize = 8 * 1024;

/// Of all tools of one server together, so much is kept.
const LIST_BYTES: usize = 8 * 1024 * 1024;
const LIST_PATTERNS: usize = 512;

/// What a server lists, judged page by page: so much of it as is wanted.
#[derive(Default)]
pub(super) struct List {
    known: Vec<Arc<KnownTool>>,
    /// Why others cannot be offered.
    unusable: Vec<String>,
    bytes: usize,
    patterns: usize,
    /// There were more.
    cut: bool,
}

/// Asks for the tools that are wanted of a server.
pub(super) async fn list(
    server: &Arc<Server>,
    peer: &Peer<RoleClient>,
    redactor: &Redactor,
) -> Result<List, ServiceError> {
    let mut list = List::default();
    let mut cursor = None;
    for _ in 0..MOST_PAGES {
        let page = PaginatedRequestParams::default().with_cursor(cursor);
        let page = peer.list_tools(Some(page)).await?;
        cursor = page.next_cursor;
        let (server, redactor) = (Arc::clone(server), redactor.clone());
        // Schemas take their time to compile.
        let judging = move || list.with_page(&server, page.tools, &redactor);
        let judging = tokio::task::spawn_blocking(judging);
        let judged = judging.await;
        list = judged.map_err(|_| ServiceError::TransportClosed)?;
        if cursor.is_none() || list.cut {
            break;
        }
    }
    list.cut |= cursor.is_some();
    Ok(list)
}

impl List {
    /// Judges the tools of one page, and keeps those that can be offered.
    fn with_page(mut self, server: &Arc<Server>, tools: Vec<Tool>, redactor: &Redactor) -> Self {
        let named = server.spec.tools.as_ref();
        let is_wanted = |tool: &Tool| named.is_none_or(|names| names.contains(tool.name.as_ref()));
        for tool in tools.into_iter().filter(is_wanted) {
            if self.known.len() + self.unusable.len() == MOST_TOOLS {
                self.cut = true;
                break;
            }
            let resource = resource(&server.spec, &tool, redactor);
            match resource.and_then(|tool| self.with_room_for(tool)) {
                Ok((resource, schema)) => self.known.push(Arc::new(KnownTool {
                    resource,
                    schema: Some(schema),
                    callee: Callee::Mcp {
                        server: Arc::clone(server),
                        name: tool.name.to_string(),
                    },
                })),
                Err(reason) => self.unusable.push(reason),
            }
        }
        self
    }

    /// Counts a tool, if it fits beside those that are kept.
    fn with_room_for(
        &mut self,
        (resource, schema): (ToolResource, Schema),
    ) -> Result<(ToolResource, Schema), String> {
        let text = serde_json::to_string(&resource).unwrap_or_default();
        let (bytes, patterns) = (text.len() + self.bytes, schema.patterns() + self.patterns);
        let name = &resource.tool_name;
        if bytes > LIST_BYTES {
            return Err(format!(
                "{name}: the tools of a server may have 8 MiB together"
            ));
        }
        if patterns > LIST_PATTERNS {
            return Err(format!(
                "{name}: the tools of a server may have {LIST_PATTERNS} patterns together"
            ));
        }
        (self.bytes, self.patterns) = (bytes, patterns);
        Ok((resource, schema))
    }

    /// The tools that can be offered, and why the others cannot.
    pub(super) fn finish(mut self, spec: &McpServerSpec) -> (Vec<Arc<KnownTool>>, Vec<String>) {
        if let Some(names) = &spec.tools {
            let has = |name: &str| {
                self.known.iter().any(|tool| match &tool.callee {
                    Callee::Mcp { name: listed, .. } => listed == name,
                    _ => false,
                })
            };
            let missing = names.iter().filter(|name| !has(name));
            let missing = missing.map(|name| format!("{name}: the server does not list it"));
            let missing: Vec<_> = missing.collect();
            self.unusable.extend(missing);
        }
        if self.cut {
            self.unusable
                .push("all beyond the first 256 tools".to_owned());
        }
        (self.known, self.unusable)
    }
}

/// A tool as it is offered: many read it, so that nothing of it repeats what the server was sent to know us by.
fn resource(
    spec: &McpServerSpec,
    tool: &Tool,
    redactor: &Redactor,
) -> Result<(ToolResource, Schema), String> {
    if redactor.finds_known(&tool.name) {
        return Err("a name that holds a credential of ours is offered to nobody".to_owned());
    }
    let name = format!("{}{}", spec.prefix, tool.name);
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(is_plain) {
        let shown: String = name.escape_debug().take(40).collect();
        return Err(format!(
            "{shown}: a name has at most 128 letters, digits, `-`, `_` and `.`"
        ));
    }
    let mut parameters = tool.input_schema.as_ref().clone();
    redactor.take_known_out_of(&mut parameters);
    let schema = Schema::compile(&parameters).map_err(|why| format!("{name}: {why}"))?;
    let told = tool.description.as_deref();
    let told = told.map(|text| redactor.redact_known(text));
    let says_read = tool
        .annotations
        .as_ref()
        .and_then(|hints| hints.read_only_hint);
    let effect = spec.effects.get(tool.name.as_ref()).copied();
    let resource = ToolResource {
        tool_type: Some("mcp".to_owned()),
        description: told.as_deref().and_then(description),
        operations: ToolOperation::ALL.to_vec(),
        parameters: Some(parameters),
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

    use protocol::JsonObject;
    use serde_json::{Value, json};

    use super::super::super::McpTransport;
    use super::*;
    use crate::clock::Clock;

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
        let redactor = Redactor::new(["Bearer key-of-ours".into()]);
        resource(&spec(), &tool, &redactor)
            .map(|(resource, _)| serde_json::to_value(resource).unwrap())
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
    fn a_list_is_bounded_as_a_whole() {
        let server = Arc::new(Server::new(spec(), Clock::system()));
        let page = |schema: &Value| -> Vec<Tool> {
            let tools = (0..300).map(|at| json!({"name": format!("t{at}"), "inputSchema": schema}));
            tools
                .map(|tool| serde_json::from_value(tool).unwrap())
                .collect()
        };
        let large = json!({"description": "x".repeat(60_000)});
        let properties = (0..64).map(|at| (format!("p{at}"), json!({"pattern": "^a+$"})));
        let patterns = json!({"properties": properties.collect::<JsonObject>()});
        for (schema, kept) in [(json!({}), 256), (large, 139), (patterns, 8)] {
            let list = List::default().with_page(&server, page(&schema), &Redactor::default());
            assert!(list.cut);
            let (known, unusable) = list.finish(&server.spec);
            assert_eq!((known.len(), unusable.len()), (kept, 257 - kept));
        }
    }

    #[test]
    fn a_server_that_repeats_how_it_knows_us_tells_nobody() {
        let schema = json!({
            "description": "ask with Bearer key-of-ours",
            "properties": {"key-of-ours": {"enum": ["key-of-ours", "b"]}},
        });
        let tool = json!({"name": "e", "description": "of key-of-ours", "inputSchema": schema});
        let listed = listed(&tool).unwrap();
        assert_eq!(listed["description"], "of [redacted]");
        let parameters = json!({
            "description": "ask with [redacted]",
            "properties": {"[redacted]": {"enum": ["[redacted]", "b"]}},
        });
        assert_eq!(listed["parameters"], parameters);
    }

    #[test]
    fn what_cannot_be_offered_is_left_out_with_a_reason() {
        for (tool, reason) in [
            (
                json!({"name": "a b", "inputSchema": {}}),
                "p_a b: a name has",
            ),
            (
                json!({"name": "key-of-ours", "inputSchema": {}}),
                "a name that holds a credential of ours",
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
