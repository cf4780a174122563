//! Allow-list of a request: the members, roles, blocks, sources and tools that a run may send.

mod blocks;

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use crate::escaped;
use blocks::{BLOCKS, Within};

/// Maximum messages of one request.
pub const MAX_MESSAGES: usize = 10_000;
/// Maximum tools of one request.
pub const MAX_TOOLS: usize = 512;

/// Request members that only affect the answer.
const MEMBERS: [&str; 17] = [
    "model",
    "messages",
    "system",
    "max_tokens",
    "stop_sequences",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "tools",
    "tool_choice",
    "thinking",
    "metadata",
    "output_config",
    "output_format",
    "context_management",
    "cache_control",
];
/// Allowed members of nested objects, by pointer. Other members are rejected.
const MEMBERS_OF: [(&str, &[&str]); 4] = [
    ("metadata", &["user_id"]),
    ("output_config", &["effort", "format"]),
    ("context_management", &["edits"]),
    ("thinking", &["type", "budget_tokens", "display"]),
];
/// Context edits that call no model. Compaction is excluded because the provider bills it separately.
const EDITS: [&str; 2] = ["clear_tool_uses_20250919", "clear_thinking_20251015"];

/// Members of a tool that the run executes.
const TOOL_MEMBERS: [&str; 9] = [
    "type",
    "name",
    "description",
    "input_schema",
    "cache_control",
    "strict",
    "eager_input_streaming",
    "defer_loading",
    "input_examples",
];
/// Type prefixes of tools that the provider defines and the run executes.
const CLIENT_TOOLS: [&str; 4] = ["bash_", "text_editor_", "computer_", "memory_"];
const CLIENT_TOOL_MEMBERS: [&str; 8] = [
    "type",
    "name",
    "cache_control",
    "max_characters",
    "display_width_px",
    "display_height_px",
    "display_number",
    "enable_zoom",
];

/// Rejects content outside the allow-list. `opened`: additional members that the operator allows for the model.
/// Pointers of faults start at the body. Null members are ignored.
pub fn check_request(body: &JsonObject, opened: &[String]) -> Result<(), Fault> {
    let is_opened = |name: &str| opened.iter().any(|opened| opened == name);
    // An allow-list: a new member of Anthropic's API might start tools or store data.
    for (name, value) in set_members(body) {
        if !MEMBERS.contains(&name.as_str()) && !is_opened(name) {
            let message = "is not allowed; the operator can allow it by `extra_members` of the model's \
                           [[model_providers]]";
            return Err(Fault::new(pointer_of(name), message));
        }
        // Pointers of inner faults start at the member.
        check_member(name, value).map_err(|fault| fault.under(&pointer_of(name)))?;
    }
    match body.get("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => Ok(()),
        _ => Err(Fault::new(
            "/messages",
            "must be a list of 1 or more messages",
        )),
    }
}

fn check_member(name: &str, value: &Value) -> Result<(), Fault> {
    if let Some((_, members)) = MEMBERS_OF.iter().find(|(of, _)| *of == name) {
        check_members(value, members)?;
    }
    match name {
        // The first fault of a list ends its check, since a request may have thousands of messages.
        "messages" => each(value, MAX_MESSAGES, check_message),
        "tools" => each(value, MAX_TOOLS, check_tool),
        "system" if value.is_string() => Ok(()),
        "system" => each(value, MAX_MESSAGES, |block| {
            check_block(block, Within::System)
        }),
        "stop_sequences" => each(value, MAX_TOOLS, |stop| {
            let is_text = stop.is_string();
            require(is_text, "", "must be a text")
        }),
        "stream" => require(value.is_boolean(), "", "must be true or false"),
        "model" => require(value.is_string(), "", "must be the id of a granted model"),
        "context_management" => match value.get("edits") {
            None | Some(Value::Null) => Ok(()),
            Some(edits) => {
                each(edits, MAX_TOOLS, check_edit).map_err(|fault| fault.under("/edits"))
            }
        },
        "thinking" => {
            let kinds = ["enabled", "adaptive", "between_tools", "disabled"];
            check_kind(value, &kinds)
        }
        "tool_choice" => check_choice(value),
        _ => Ok(()),
    }
}

fn check_edit(edit: &Value) -> Result<(), Fault> {
    check_kind(edit, &EDITS)
}

fn check_choice(choice: &Value) -> Result<(), Fault> {
    check_members(choice, &["type", "name", "disable_parallel_tool_use"])?;
    check_kind(choice, &["auto", "any", "tool", "none"])?;
    // Without a name, the provider's own error would have no pointer of the run.
    let has_name = choice["type"] != "tool" || choice["name"].is_string();
    require(has_name, "/name", "must be the name of a tool")
}

fn check_message(message: &Value) -> Result<(), Fault> {
    check_members(message, &["role", "content"])?;
    let within = match message["role"].as_str() {
        Some("user") => Within::User,
        Some("assistant") => Within::Assistant,
        Some("system") => Within::System,
        _ => return Err(Fault::new("/role", "must be user or assistant")),
    };
    check_content(&message["content"], within).map_err(|fault| fault.under("/content"))
}

/// Checks a text or a list of blocks.
fn check_content(content: &Value, within: Within) -> Result<(), Fault> {
    if content.is_string() {
        return Ok(());
    }
    each(content, MAX_MESSAGES, |block| check_block(block, within))
}

fn check_block(block: &Value, within: Within) -> Result<(), Fault> {
    let kind = text_or_fault(block, "type")?;
    // The rule depends on the position: a user cannot send a call.
    let rule = BLOCKS
        .iter()
        .find(|rule| rule.kind == kind && rule.within.contains(&within));
    let Some(rule) = rule else {
        let taken = BLOCKS.iter().filter(|rule| rule.within.contains(&within));
        let taken: Vec<_> = taken.map(|rule| rule.kind).collect();
        let message = format!(
            "must be one of {} here: blocks of tools that a provider runs itself are not granted",
            taken.join(", ")
        );
        return Err(Fault::new("/type", message));
    };
    let beside = ["type", "cache_control"];
    let members: Vec<_> = rule.members.iter().chain(&beside).copied().collect();
    check_members(block, &members)?;
    // Only texts that are required; others may be absent or null.
    for name in rule.texts {
        text_or_fault(block, name)?;
    }
    match rule.kind {
        "image" => check_source(&block["source"], &["base64", "url"]),
        "document" => check_source(&block["source"], &["base64", "text", "url", "content"]),
        "search_result" => {
            let content = check_content(&block["content"], Within::Document);
            content.map_err(|fault| fault.under("/content"))
        }
        "tool_use" => check_call(block),
        // A result without content is valid: the tool returned nothing.
        "tool_result" if !block["content"].is_null() => {
            let content = check_content(&block["content"], Within::ToolResult);
            content.map_err(|fault| fault.under("/content"))
        }
        _ => Ok(()),
    }
}

/// A call may name only the run as caller, not a tool of the provider.
fn check_call(block: &Value) -> Result<(), Fault> {
    let input = &block["input"];
    require(
        input.is_object() || input.is_null(),
        "/input",
        "must be an object",
    )?;
    let caller = &block["caller"];
    // Another caller is a tool that runs at the provider.
    let is_direct = caller.is_null() || caller["type"] == "direct";
    require(is_direct, "/caller/type", "must be direct")
}

fn check_source(source: &Value, kinds: &[&str]) -> Result<(), Fault> {
    let check = || {
        let kind = text_or_fault(source, "type")?;
        // Files at the provider belong to the operator's account.
        if kind == "file" {
            let message = "must not be file: files at the provider belong to no run; send the data, or `artifact:` and \
                           an id as the URL of an image";
            return Err(Fault::new("/type", message));
        }
        check_kind(source, kinds)?;
        let members: &[&str] = match kind {
            "url" => &["url"],
            "content" => &["content"],
            _ => &["media_type", "data"],
        };
        let all: Vec<_> = members.iter().chain(&["type"]).copied().collect();
        check_members(source, &all)?;
        if kind == "content" {
            let content = check_content(&source["content"], Within::Document);
            return content.map_err(|fault| fault.under("/content"));
        }
        // Each member of a source is required.
        members
            .iter()
            .try_for_each(|name| text_or_fault(source, name).map(drop))
    };
    check().map_err(|fault| fault.under("/source"))
}

fn check_tool(tool: &Value) -> Result<(), Fault> {
    let kind = match &tool["type"] {
        Value::Null => "custom",
        Value::String(kind) => kind,
        _ => return Err(Fault::new("/type", "must be a text")),
    };
    text_or_fault(tool, "name")?;
    // Tools without a type are the client's own.
    if kind == "custom" {
        check_members(tool, &TOOL_MEMBERS)?;
        return require(
            tool["input_schema"].is_object(),
            "/input_schema",
            "must be a JSON schema",
        );
    }
    if !is_client_tool(kind) {
        // The name comes from the client and ends in an error message.
        let kind: String = kind.chars().take(64).collect();
        let message = format!(
            "must be custom, or a tool that the run runs itself: {kind} runs at the provider, which is not granted"
        );
        return Err(Fault::new("/type", message));
    }
    check_members(tool, &CLIENT_TOOL_MEMBERS)
}

/// Matches a name and a date, such as `bash_20250124`.
fn is_client_tool(kind: &str) -> bool {
    let versions = CLIENT_TOOLS
        .iter()
        .filter_map(|name| kind.strip_prefix(name));
    let mut dates = versions.filter(|date| {
        // A version is a date; the check also keeps prefixes such as `bash_` from matching other tools.
        let is_digits = date.bytes().all(|byte| byte.is_ascii_digit());
        is_digits && date.len() == 8
    });
    dates.next().is_some()
}

fn check_kind(value: &Value, kinds: &[&str]) -> Result<(), Fault> {
    let kind = text_or_fault(value, "type")?;
    let is_allowed = kinds.contains(&kind);
    require(
        is_allowed,
        "/type",
        &format!("must be one of {}", kinds.join(", ")),
    )
}

/// Checks for an object without other members.
fn check_members(value: &Value, members: &[&str]) -> Result<(), Fault> {
    let Some(object) = value.as_object() else {
        return Err(Fault::new("", "must be an object"));
    };
    match set_members(object).find(|(name, _)| !members.contains(&name.as_str())) {
        Some((other, _)) => {
            let message = format!("is not allowed; allowed members: {}", members.join(", "));
            Err(Fault::new(pointer_of(other), message))
        }
        None => Ok(()),
    }
}

fn text_or_fault<'a>(value: &'a Value, name: &str) -> Result<&'a str, Fault> {
    if !value.is_object() {
        return Err(Fault::new("", "must be an object"));
    }
    let found = value.get(name).and_then(Value::as_str);
    found.ok_or_else(|| Fault::new(pointer_of(name), "must be a text"))
}

fn each(
    items: &Value,
    max_items: usize,
    check: impl Fn(&Value) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let Some(items) = items.as_array() else {
        return Err(Fault::new("", "must be a list"));
    };
    require(
        items.len() <= max_items,
        "",
        &format!("must have at most {max_items} items"),
    )?;
    let mut items = items.iter().enumerate();
    items.try_for_each(|(n, item)| check(item).map_err(|fault| fault.under(&format!("/{n}"))))
}

fn require(holds: bool, pointer: &str, message: &str) -> Result<(), Fault> {
    if holds {
        return Ok(());
    }
    Err(Fault::new(pointer, message))
}

fn set_members(object: &JsonObject) -> impl Iterator<Item = (&String, &Value)> {
    // SDKs serialize unset members as null.
    object.iter().filter(|(_, value)| !value.is_null())
}

fn pointer_of(name: &str) -> String {
    format!("/{}", escaped(name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(body: &Value) -> Result<(), String> {
        let checked = check_request(body.as_object().unwrap(), &[]);
        checked.map_err(|fault| fault.pointer)
    }

    fn with(name: &str, value: &Value) -> Value {
        let mut body =
            json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        body[name] = value.clone();
        body
    }

    #[test]
    fn accepts_requests_of_official_clients() {
        let content = json!([
            {"type": "text", "text": "look", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "image", "source": {"type": "url", "url": "artifact:x"}},
            {"type": "document", "title": "d", "citations": {"enabled": true},
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi"}},
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a"}]}},
            {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "a"}]},
            {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [
                {"type": "text", "text": "no"}, {"type": "tool_reference", "tool_name": "f"}]},
            {"type": "tool_result", "tool_use_id": "t2"},
        ]);
        let answer = json!([
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "see", "citations": [{"type": "char_location", "cited_text": "a"}]},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {}, "caller": {"type": "direct"}},
        ]);
        let body = json!({"model": "m", "max_tokens": 9, "stream": true, "service_tier": null,
            "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": content}, {"role": "assistant", "content": answer}],
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "defer_loading": true},
                {"type": "bash_20250124", "name": "bash"}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
            "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
            "output_config": {"effort": "low"}, "stop_sequences": ["END"], "temperature": 1, "top_k": 5,
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919", "keep": {}}]}});
        assert_eq!(check(&body), Ok(()));
    }

    #[test]
    fn rejects_members_with_provider_price_or_storage() {
        for name in [
            "service_tier",
            "container",
            "mcp_servers",
            "inference_geo",
            "speed",
            "fallbacks",
            "anthropic_beta",
        ] {
            let body = with(name, &json!("x"));
            assert_eq!(check(&body), Err(format!("/{name}")));
            let opened = check_request(body.as_object().unwrap(), &[name.to_owned()]);
            assert_eq!(opened, Ok(()), "{name}");
        }
    }

    #[test]
    fn rejects_malformed_members_by_pointer() {
        for (name, value, pointer) in [
            ("messages", json!([]), "/messages"),
            ("messages", json!("x"), "/messages"),
            ("messages", json!([7]), "/messages/0"),
            (
                "messages",
                json!([{"role": "tool", "content": "x"}]),
                "/messages/0/role",
            ),
            ("messages", json!([{"role": "user"}]), "/messages/0/content"),
            (
                "messages",
                json!([{"role": "user", "content": "x", "name": "n"}]),
                "/messages/0/name",
            ),
            ("system", json!([{"type": "image"}]), "/system/0/type"),
            ("tools", json!([{"name": "f"}]), "/tools/0/input_schema"),
            ("tools", json!([{"input_schema": {}}]), "/tools/0/name"),
            (
                "tools",
                json!([{"name": "f", "input_schema": {}, "allowed_callers": []}]),
                "/tools/0/allowed_callers",
            ),
            (
                "tools",
                json!([{"type": "web_search_20250305", "name": "web_search"}]),
                "/tools/0/type",
            ),
            (
                "tools",
                json!([{"type": "bash_x", "name": "bash"}]),
                "/tools/0/type",
            ),
            (
                "tools",
                json!([{"type": "mcp_toolset", "name": "m"}]),
                "/tools/0/type",
            ),
            ("tool_choice", json!({"type": "tool"}), "/tool_choice/name"),
            ("tool_choice", json!("auto"), "/tool_choice"),
            ("thinking", json!({"type": "always"}), "/thinking/type"),
            ("metadata", json!({"account": 1}), "/metadata/account"),
            ("stream", json!("yes"), "/stream"),
            ("stop_sequences", json!([1]), "/stop_sequences/0"),
            (
                "context_management",
                json!({"edits": [{"type": "compact_20260112"}]}),
                "/context_management/edits/0/type",
            ),
        ] {
            assert_eq!(
                check(&with(name, &value)),
                Err(pointer.to_owned()),
                "{name} {value}"
            );
        }
    }

    #[test]
    fn rejects_blocks_that_providers_run_or_store() {
        let file = json!({"type": "file", "file_id": "f"});
        for (role, block, pointer) in [
            (
                "user",
                json!({"type": "container_upload", "file_id": "f"}),
                "type",
            ),
            (
                "user",
                json!({"type": "image", "source": file}),
                "source/type",
            ),
            (
                "user",
                json!({"type": "document", "source": file}),
                "source/type",
            ),
            (
                "user",
                json!({"type": "image", "source": {"type": "base64", "data": "x"}}),
                "source/media_type",
            ),
            ("user", json!({"type": "image"}), "source"),
            ("user", json!({"type": "text"}), "text"),
            (
                "user",
                json!({"type": "tool_use", "id": "t", "name": "f", "input": {}}),
                "type",
            ),
            (
                "user",
                json!({"type": "text", "text": "a", "betas": 1}),
                "betas",
            ),
            (
                "assistant",
                json!({"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}}),
                "type",
            ),
            (
                "assistant",
                json!({"type": "tool_use", "id": "t", "name": "f", "input": "x"}),
                "input",
            ),
            (
                "assistant",
                json!({"type": "tool_use", "id": "t", "name": "f", "input": {},
                "caller": {"type": "code_execution_20250825"}}),
                "caller/type",
            ),
        ] {
            let body = with("messages", &json!([{"role": role, "content": [block]}]));
            assert_eq!(
                check(&body),
                Err(format!("/messages/0/content/0/{pointer}")),
                "{block}"
            );
        }
    }
}
