//! Reads and validates the tool list of a server.

use std::collections::HashSet;
use std::sync::Arc;

use domain::json_text::check_json_text;
use protocol::resources::{EffectSource, ToolEffect, ToolOperation, ToolResource};
use rmcp::ServiceError;
use rmcp::model::{
    ClientRequest, CustomResult, ListToolsRequest, PaginatedRequestParams, ServerResult, Tool,
};
use rmcp::service::{Peer as Connection, RoleClient};
use secrets::digest::sha256_hex;
use serde_json::{Value, json};

use super::super::available_tool::{AvailableTool, Callee};
use super::super::schema::Schema;
use super::super::{McpServerSpec, ToolEffects};
use super::ManagedServer;
use super::listed_tool::{self, ListedTool};
use super::offered_name::offered_name;
use egress::redact::Redactor;
use telemetry::tolerance::{Peer, tolerated};

/// Maximum number of tools of one server.
const MAX_TOOLS: usize = 256;
const MAX_PAGES: usize = 64;
const NAME_BYTES: usize = 128;
const DESCRIPTION_BYTES: usize = 8 * 1024;

/// Maximum size of all tools of one server.
const LIST_BYTES: usize = 8 * 1024 * 1024;
const LIST_PATTERNS: usize = 512;

/// Maximum number of recorded deviations.
const MAX_NOTES: usize = 50;

/// Tools of a server, validated page by page and filtered by the configuration.
#[derive(Default)]
pub(super) struct ListedTools {
    pub(super) tools: Vec<Arc<AvailableTool>>,
    /// Reasons for omitted tools.
    pub(super) unusable: Vec<String>,
    /// Accepted deviations, at most `MAX_NOTES`.
    pub(super) notes: Vec<String>,
    /// Number of entries read so far.
    read: usize,
    bytes: usize,
    patterns: usize,
    /// The list was truncated.
    cut: bool,
}

/// Requests and validates the configured tools of a server.
pub(super) async fn list(
    server: &Arc<ManagedServer>,
    peer: &Connection<RoleClient>,
    redactor: &Redactor,
) -> Result<ListedTools, ServiceError> {
    let mut list = ListedTools::default();
    let mut cursor: Option<String> = None;
    let (mut cursors, mut pages) = (HashSet::new(), HashSet::new());
    for _ in 0..MAX_PAGES {
        let page = page(peer, cursor.take()).await?;
        let next = page.next;
        // A server that ignores cursors repeats the same page.
        let is_new = pages.insert(sha256_hex(json!(page.tools).to_string().as_bytes()));
        if !is_new {
            list.note_cursor(&server.spec.name);
            break;
        }
        let (owner, redactor) = (Arc::clone(server), redactor.clone());
        // Schema compilation is slow.
        let judging = move || list.with_page(&owner, page.tools, &redactor);
        let judging = tokio::task::spawn_blocking(judging);
        let judged = judging.await;
        list = judged.map_err(|_| ServiceError::TransportClosed)?;
        let Some(next) = next else { break };
        // Repeated cursors would loop until the page limit.
        if next.is_empty() || !cursors.insert(next.clone()) {
            list.note_cursor(&server.spec.name);
            break;
        }
        cursor = Some(next);
        if list.cut {
            break;
        }
    }
    list.cut |= cursor.is_some();
    Ok(list)
}

/// One page with unvalidated entries.
struct ToolListPage {
    tools: Vec<Value>,
    next: Option<String>,
}

/// Requests one page. `list_tools` of the SDK would reject a page for a single bad entry.
async fn page(
    peer: &Connection<RoleClient>,
    cursor: Option<String>,
) -> Result<ToolListPage, ServiceError> {
    let params = PaginatedRequestParams::default().with_cursor(cursor);
    let request = ListToolsRequest::with_param(params);
    match peer
        .send_request(ClientRequest::ListToolsRequest(request))
        .await?
    {
        ServerResult::ListToolsResult(page) => {
            let tools = page.tools.iter().map(serde_json::to_value);
            let tools: Result<_, _> = tools.collect();
            Ok(ToolListPage {
                tools: tools.map_err(|_| ServiceError::UnexpectedResponse)?,
                next: page.next_cursor,
            })
        }
        ServerResult::CustomResult(CustomResult(Value::Object(mut page))) => {
            let next = page.remove("nextCursor");
            match page.remove("tools") {
                Some(Value::Array(tools)) => Ok(ToolListPage {
                    tools,
                    next: next.as_ref().and_then(Value::as_str).map(str::to_owned),
                }),
                _ => Err(ServiceError::UnexpectedResponse),
            }
        }
        _ => Err(ServiceError::UnexpectedResponse),
    }
}

impl ListedTools {
    /// Logs problems that the server's previous list did not have.
    pub(super) fn log_new_problems(&self, server: &ManagedServer) {
        let status = server.status();
        let name = &server.spec.name;
        let is_new = |reason: &&String| !status.unusable.contains(reason);
        for reason in self.unusable.iter().filter(is_new) {
            tracing::warn!(mcp.server = name, "a tool is omitted: {reason}");
        }
        let is_new = |note: &&String| !status.notes.contains(note);
        for note in self.notes.iter().filter(is_new) {
            tracing::info!(mcp.server = name, "MCP server {name}: {note}");
        }
    }

    /// Validates the tools of one page and keeps the usable ones.
    fn with_page(
        mut self,
        server: &Arc<ManagedServer>,
        tools: Vec<Value>,
        redactor: &Redactor,
    ) -> Self {
        let named = server.spec.tools.as_ref();
        let is_wanted = |entry: &Value| {
            let name = entry.get("name").and_then(Value::as_str);
            named.is_none_or(|names| name.is_none_or(|name| names.contains(name)))
        };
        let first = self.read;
        self.read += tools.len();
        for (index, entry) in (first..).zip(tools).filter(|(_, entry)| is_wanted(entry)) {
            if self.tools.len() + self.unusable.len() == MAX_TOOLS {
                self.cut = true;
                break;
            }
            let Err(reason) = self.take(server, entry, index, redactor) else {
                continue;
            };
            tolerated(Peer::ToolServer, "tool_left_out", &server.spec.name);
            // The reason may echo credentials that the server received.
            self.unusable
                .push(redactor.redact_registered(&reason).into_owned());
        }
        self
    }

    /// Keeps one tool if it is usable.
    fn take(
        &mut self,
        server: &Arc<ManagedServer>,
        entry: Value,
        index: usize,
        redactor: &Redactor,
    ) -> Result<(), String> {
        let ListedTool { tool, dropped } = listed_tool::read(entry, index)?;
        let (resource, schema) = resource(&server.spec, &tool, redactor)?;
        let offered = resource.tool_name.clone();
        let is_it = |existing: &&Arc<AvailableTool>| existing.resource.tool_name == offered;
        if let Some(existing) = self.tools.iter().find(is_it) {
            if existing.resource == resource {
                return Ok(());
            }
            self.note("tool_listed_twice", &server.spec.name, || {
                format!("{offered} is listed more than once; the first one counts")
            });
            return Ok(());
        }
        let (resource, schema) = self.within_limits(resource, schema)?;
        for member in dropped {
            self.note("tool_member_dropped", &server.spec.name, || {
                format!("{offered}: its `{member}` cannot be read and is left out")
            });
        }
        let full = format!("{}{}", server.spec.prefix, tool.name);
        if full != offered {
            self.note("tool_renamed", &server.spec.name, || {
                format!("{full} is offered as {offered}: models take no other names")
            });
        }
        self.tools.push(Arc::new(AvailableTool {
            resource,
            schema: Some(schema),
            callee: Callee::Mcp {
                server: Arc::clone(server),
                name: tool.name.to_string(),
            },
            reconcile: server.spec.reconcile.get(tool.name.as_ref()).cloned(),
        }));
        Ok(())
    }

    fn note_cursor(&mut self, server: &str) {
        self.note("cursor_repeats", server, || {
            "its list continues at an empty or repeated cursor; the list ends there".to_owned()
        });
    }

    /// Records an accepted deviation once.
    fn note(&mut self, kind: &'static str, server: &str, text: impl FnOnce() -> String) {
        if self.notes.len() == MAX_NOTES {
            return;
        }
        let text = text();
        if !self.notes.contains(&text) {
            tolerated(Peer::ToolServer, kind, server);
            self.notes.push(text);
        }
    }

    /// Counts a tool if it fits within the limits of the list.
    fn within_limits(
        &mut self,
        resource: ToolResource,
        schema: Schema,
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

    /// Completes the list and the reasons for omitted tools.
    pub(super) fn finish(mut self, spec: &McpServerSpec) -> Self {
        if let Some(names) = &spec.tools {
            let has = |name: &str| {
                self.tools.iter().any(|tool| match &tool.callee {
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
        self
    }
}

/// The tool as listed in the catalog. Credentials that the server received are redacted.
fn resource(
    spec: &McpServerSpec,
    tool: &Tool,
    redactor: &Redactor,
) -> Result<(ToolResource, Schema), String> {
    // The error does not repeat the name, which holds the credential.
    if redactor.finds_registered(&tool.name) {
        return Err("a tool name that contains a credential of the gateway is omitted".to_owned());
    }
    let full = format!("{}{}", spec.prefix, tool.name);
    let is_allowed = |letter: u8| letter.is_ascii_alphanumeric() || b"-_./:".contains(&letter);
    if full.len() > NAME_BYTES || !full.bytes().all(is_allowed) {
        let shown: String = full.escape_debug().take(40).collect();
        return Err(format!(
            "{shown}: a name has at most 128 letters, digits, `-`, `_`, `.`, `/` and `:`"
        ));
    }
    let name = offered_name(&full);
    let mut parameters = tool.input_schema.as_ref().clone();
    // A schema is shown to models and runners.
    redactor.redact_registered_in_object(&mut parameters);
    let schema = Schema::compile(&parameters).map_err(|why| format!("{name}: {why}"))?;
    let redacted = tool.description.as_deref();
    let redacted = redacted.map(|text| redactor.redact_registered(text));
    let facts = spec
        .facts
        .get(tool.name.as_ref())
        .copied()
        .unwrap_or_else(|| effects_of(tool));
    let resource = ToolResource {
        tool_type: Some("mcp".to_owned()),
        description: redacted.as_deref().and_then(description),
        operations: ToolOperation::ALL.to_vec(),
        parameters: Some(parameters),
        source: Some(format!("mcp:{}", spec.name)),
        effect: facts.effect,
        idempotent: facts.idempotent,
        effect_source: facts.source,
        approval: None,
        tool_name: name,
    };
    Ok((resource, schema))
}

/// Facts from the server's hints. Missing hints add no facts.
fn effects_of(tool: &Tool) -> ToolEffects {
    let Some(hints) = &tool.annotations else {
        return ToolEffects::default();
    };
    let effect = match (hints.read_only_hint, hints.destructive_hint) {
        (Some(true), _) => Some(ToolEffect::Read),
        (_, Some(true)) => Some(ToolEffect::Irreversible),
        (_, Some(false)) => Some(ToolEffect::Write),
        (_, None) => None,
    };
    ToolEffects::of(effect, hints.idempotent_hint, EffectSource::Server)
}

/// The description, truncated. `None` if it is not storable text.
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

    use super::super::super::McpTransport;
    use super::*;
    use clock::Clock;

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
            facts: BTreeMap::from([(
                "a".to_owned(),
                ToolEffects::of(Some(ToolEffect::Irreversible), None, EffectSource::Operator),
            )]),
            reconcile: BTreeMap::new(),
            timeout: Duration::from_secs(1),
            on_behalf_of: None,
        }
    }

    fn listed(tool: &Value) -> Result<Value, String> {
        let tool: Tool = serde_json::from_value(tool.clone()).unwrap();
        let redactor = Redactor::new(["Bearer key-of-ours".into()]);
        resource(&spec(), &tool, &redactor)
            .map(|(resource, _)| serde_json::to_value(resource).unwrap())
    }

    #[test]
    fn operator_facts_override_server_hints() {
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
    fn marks_hints_with_their_source() {
        for (name, hints, expected) in [
            (
                "b",
                json!({"destructiveHint": true, "idempotentHint": true}),
                json!(["irreversible", true, "server"]),
            ),
            (
                "b",
                json!({"destructiveHint": false}),
                json!(["write", null, "server"]),
            ),
            (
                "b",
                json!({"readOnlyHint": true, "destructiveHint": true}),
                json!(["read", null, "server"]),
            ),
            ("b", json!({"title": "B"}), json!([null, null, null])),
            (
                "a",
                json!({"idempotentHint": true}),
                json!(["irreversible", null, "operator"]),
            ),
        ] {
            let tool =
                json!({"name": name, "inputSchema": {"type": "object"}, "annotations": hints});
            let listed = listed(&tool).unwrap();
            let facts = json!([
                listed["effect"],
                listed["idempotent"],
                listed["effect_source"]
            ]);
            assert_eq!(facts, expected, "{tool}");
        }
    }

    #[test]
    fn limits_total_size_of_a_list() {
        let server = Arc::new(ManagedServer::new(spec(), Clock::system()));
        let page = |schema: &Value| -> Vec<Value> {
            let tools = (0..300).map(|at| json!({"name": format!("t{at}"), "inputSchema": schema}));
            tools.collect()
        };
        let large = json!({"description": "x".repeat(60_000)});
        let properties = (0..64).map(|at| (format!("p{at}"), json!({"pattern": "^a+$"})));
        let patterns = json!({"properties": properties.collect::<JsonObject>()});
        for (schema, usable) in [(json!({}), 256), (large, 139), (patterns, 8)] {
            let list =
                ListedTools::default().with_page(&server, page(&schema), &Redactor::default());
            assert!(list.cut);
            let list = list.finish(&server.spec);
            assert_eq!(
                (list.tools.len(), list.unusable.len()),
                (usable, 257 - usable)
            );
        }
    }

    #[test]
    fn bad_entries_do_not_affect_others() {
        let server = Arc::new(ManagedServer::new(spec(), Clock::system()));
        let page = vec![
            json!({"name": "a", "inputSchema": {}}),
            json!({"name": "b"}),
            json!({"name": "c", "inputSchema": {}, "description": 5}),
            json!({"name": "a", "inputSchema": {"type": "object"}}),
            json!({"name": "d.e", "inputSchema": {}}),
            json!(7),
        ];
        let list = ListedTools::default().with_page(&server, page, &Redactor::default());
        let list = list.finish(&server.spec);
        let names: Vec<_> = list
            .tools
            .iter()
            .map(|tool| &tool.resource.tool_name)
            .collect();
        assert_eq!(names[..2], ["p_a", "p_c"]);
        assert!(
            names[2].starts_with("p_d_e_") && names.len() == 3,
            "{names:?}"
        );
        assert!(
            list.unusable[0].starts_with("b: has no"),
            "{:?}",
            list.unusable
        );
        assert!(
            list.unusable[1].starts_with("tool 6: is no"),
            "{:?}",
            list.unusable
        );
        let notes = list.notes.join("\n");
        for note in [
            "p_c: its `description`",
            "p_a is listed more than once",
            "p_d.e is offered as",
        ] {
            assert_eq!(notes.matches(note).count(), 1, "{notes}");
        }
    }

    #[test]
    fn similar_names_map_to_their_own_tools() {
        let server = Arc::new(ManagedServer::new(spec(), Clock::system()));
        let real = ["a.b", "a_b", "a/b", "a:b"];
        let page = real.map(|name| json!({"name": name, "inputSchema": {}}));
        let list = ListedTools::default().with_page(&server, page.into(), &Redactor::default());
        let offered: HashSet<_> = list
            .tools
            .iter()
            .map(|tool| &tool.resource.tool_name)
            .collect();
        assert_eq!(offered.len(), real.len(), "{offered:?}");
        let called: Vec<_> = list
            .tools
            .iter()
            .map(|tool| match &tool.callee {
                Callee::Mcp { name, .. } => name.as_str(),
                _ => panic!("it is a tool of the server"),
            })
            .collect();
        assert_eq!(called, real);
    }

    #[test]
    fn redacts_credentials_echoed_in_lists() {
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
    fn omits_unusable_tools_with_a_reason() {
        for (tool, reason) in [
            (
                json!({"name": "a b", "inputSchema": {}}),
                "p_a b: a name has",
            ),
            (
                json!({"name": "key-of-ours", "inputSchema": {}}),
                "contains a credential of the gateway",
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
