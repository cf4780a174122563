//! Prepares a request for a provider with this API.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::own_signature_model;

/// Beta features that only change the format of requests or answers. Betas that change the price or let the
/// provider execute something are excluded.
const BETAS: [&str; 20] = [
    "claude-code-20250219",
    "computer-use-2025-01-24",
    "computer-use-2025-11-24",
    "context-management-2025-06-27",
    "effort-2025-11-24",
    "extended-cache-ttl-2025-04-11",
    "fine-grained-tool-streaming-2025-05-14",
    "interleaved-thinking-2025-05-14",
    "model-context-window-exceeded-2025-08-26",
    "output-128k-2025-02-19",
    "pdfs-2024-09-25",
    "prompt-caching-2024-07-31",
    "prompt-caching-scope-2026-01-05",
    "search-results-2025-06-09",
    "structured-outputs-2025-11-13",
    "structured-outputs-2025-12-15",
    "thinking-display-updates-2026-08-18",
    "thinking-token-count-2026-05-13",
    "token-efficient-tools-2025-02-19",
    "tool-examples-2025-10-29",
];

/// Context edit of reasoning blocks.
const CLEAR_THINKING: &str = "clear_thinking_20251015";
/// Minimum thinking budget that the API accepts.
const MIN_THINKING_BUDGET: u64 = 1024;

/// Returns the known betas of an `anthropic-beta` header without duplicates, and the number of unknown names.
pub fn betas(header: &str) -> (Vec<&'static str>, usize) {
    let (mut supported, mut unknown) = (Vec::new(), 0);
    let names = header.split(',').map(str::trim);
    for name in names.filter(|name| !name.is_empty()) {
        match BETAS.iter().find(|beta| **beta == name) {
            // Some clients repeat a name, which the provider rejects.
            Some(beta) if supported.contains(beta) => {}
            Some(beta) => supported.push(*beta),
            // Only counted: the names are the client's.
            None => unknown += 1,
        }
    }
    (supported, unknown)
}

/// Prepares a validated request: limits `max_tokens` to `limit`. Removes content that the provider rejects
/// although clients send it: empty texts, reasoning of other models, and reasoning without a signature.
pub fn pass_request(body: &mut JsonObject, limit: Option<u64>) {
    // SDKs serialize unset members as null, which the API rejects.
    body.retain(|_, value| !value.is_null());
    let max_tokens = body.get("max_tokens").and_then(Value::as_u64);
    // The lower of both limits; either may be absent.
    if let Some(least) = max_tokens.into_iter().chain(limit).min() {
        body.insert("max_tokens".to_owned(), json!(least));
        // The client's own values passed the provider's rules; only a lowered limit may break them.
        if max_tokens != Some(least) {
            limit_thinking_budget(body, least);
        }
    }
    // The provider would reject the request for one block that it did not sign.
    remove_thinking_blocks(body, is_unsigned);
    if let Some(messages) = body.get_mut("messages").and_then(Value::as_array_mut) {
        for message in messages.iter_mut() {
            if let Some(content) = message.get_mut("content") {
                leave_out(content);
            }
        }
        // Messages that are empty now would be rejected as well.
        messages.retain(|message| message["content"] != json!([]) && message["content"] != "");
    }
    if let Some(system) = body.get_mut("system") {
        leave_out(system);
        if *system == json!([]) || *system == "" {
            body.remove("system");
        }
    }
}

/// The thinking budget is part of the answer's limit and must be smaller.
fn limit_thinking_budget(body: &mut JsonObject, limit: u64) {
    let budget = body.get_mut("thinking");
    let Some(budget) = budget.and_then(|thinking| thinking.get_mut("budget_tokens")) else {
        return;
    };
    // A text as budget is left for the provider's own error.
    if budget.as_u64().is_none_or(|budget| budget < limit) {
        return;
    }
    // Below the minimum, reasoning is impossible.
    if limit > MIN_THINKING_BUDGET {
        *budget = json!(limit - 1);
    } else {
        disable_thinking(body);
    }
}

/// Removes the reasoning blocks for which `is_removed` is true, and the thinking budget if the last turn with tool
/// calls loses reasoning. Returns whether the body changed.
pub fn remove_thinking_blocks(body: &mut JsonObject, is_removed: impl Fn(&Value) -> bool) -> bool {
    let (mut has_changed, mut last_has_changed) = (false, false);
    let messages = body.get_mut("messages").and_then(Value::as_array_mut);
    for message in messages.into_iter().flatten() {
        let is_assistant = message["role"] == "assistant";
        // Only the last turn of the assistant matters: earlier reasoning is optional.
        last_has_changed &= !is_assistant;
        let Some(blocks) = message.get_mut("content").and_then(Value::as_array_mut) else {
            continue;
        };
        let before = blocks.len();
        blocks.retain(|block| !is_thinking(block) || !is_removed(block));
        has_changed |= blocks.len() < before;
        let has_calls = blocks.iter().any(|block| block["type"] == "tool_use");
        last_has_changed |= is_assistant && has_calls && blocks.len() < before;
    }
    // A model with a budget rejects a turn with calls that has lost its reasoning.
    if last_has_changed {
        has_changed |= disable_budget(body);
    }
    has_changed
}

/// Removes a thinking budget. Returns whether the request had one.
pub fn disable_budget(body: &mut JsonObject) -> bool {
    // Adaptive reasoning accepts turns without reasoning.
    let has_budget = body
        .get("thinking")
        .is_some_and(|thinking| thinking["type"] == "enabled");
    if has_budget {
        disable_thinking(body);
    }
    has_budget
}

/// Removes the thinking parameters. Context edits of reasoning need them.
fn disable_thinking(body: &mut JsonObject) {
    body.remove("thinking");
    let edits = body.get_mut("context_management");
    let Some(edits) = edits.and_then(|management| management.get_mut("edits")?.as_array_mut())
    else {
        return;
    };
    edits.retain(|edit| edit["type"] != CLEAR_THINKING);
    // An empty edit list is an error.
    if edits.is_empty() {
        body.remove("context_management");
    }
}

fn is_thinking(block: &Value) -> bool {
    block["type"] == "thinking" || block["type"] == "redacted_thinking"
}

/// Returns true for a block that no provider signed. Transcripts of clients hold such blocks.
fn is_unsigned(block: &Value) -> bool {
    let has = |name: &str| block[name].as_str().is_some_and(|text| !is_blank(text));
    match block["type"].as_str() {
        Some("redacted_thinking") => !has("data"),
        _ => {
            !has("signature")
                || !block["thinking"].is_string()
                || own_signature_model(block).is_some()
        }
    }
}

fn leave_out(content: &mut Value) {
    let Some(blocks) = content.as_array_mut() else {
        return;
    };
    blocks.retain(|block| {
        // Anthropic rejects blank texts, which its own clients send.
        let is_empty = block["type"] == "text" && block["text"].as_str().is_some_and(is_blank);
        !is_empty
    });
    for block in blocks {
        // Results nest blocks once.
        if block["type"] == "tool_result"
            && let Some(content) = block.get_mut("content")
        {
            leave_out(content);
        }
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(body: &Value, limit: Option<u64>) -> Value {
        let mut body = body.as_object().unwrap().clone();
        pass_request(&mut body, limit);
        Value::Object(body)
    }

    #[test]
    fn removes_only_empty_texts_and_foreign_reasoning() {
        let signed = json!({"type": "thinking", "thinking": "a", "signature": "EqMD"});
        let cached = json!({"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}});
        let body = json!({"max_tokens": 9, "top_k": null, "system": [{"type": "text", "text": " "}], "messages": [
            {"role": "user", "content": [{"type": "text", "text": ""}, cached]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "runnel:other"}, signed]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": ""}]}]},
            {"role": "user", "content": [{"type": "text", "text": "\n"}]},
        ]});
        let expected = json!({"max_tokens": 9, "messages": [
            {"role": "user", "content": [cached]}, {"role": "assistant", "content": [signed]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": []}]},
        ]});
        assert_eq!(passed(&body, None), expected);
    }

    #[test]
    fn removes_reasoning_without_signature() {
        let call = json!({"type": "tool_use", "id": "t", "name": "f", "input": {}});
        let signed = json!({"type": "thinking", "thinking": "", "signature": "EqMD"});
        let edits = json!({"edits": [{"type": "clear_thinking_20251015"}]});
        let thinks = json!({"type": "enabled", "budget_tokens": 2000});
        for (block, thinking, is_retained) in [
            (
                json!({"type": "thinking", "thinking": "a", "signature": ""}),
                &thinks,
                false,
            ),
            (json!({"type": "thinking", "thinking": "a"}), &thinks, false),
            (
                json!({"type": "thinking", "thinking": "a", "signature": null}),
                &thinks,
                false,
            ),
            (
                json!({"type": "thinking", "signature": "EqMD"}),
                &thinks,
                false,
            ),
            (json!({"type": "redacted_thinking"}), &thinks, false),
            (
                json!({"type": "redacted_thinking", "data": " "}),
                &thinks,
                false,
            ),
            (
                json!({"type": "redacted_thinking", "data": "x"}),
                &thinks,
                true,
            ),
            (signed.clone(), &thinks, true),
            (
                json!({"type": "thinking", "thinking": "a"}),
                &json!({"type": "adaptive"}),
                true,
            ),
        ] {
            let content = json!([block, call]);
            let result = json!([{"type": "tool_result", "tool_use_id": "t"}]);
            let body = json!({"thinking": thinking, "context_management": edits, "messages": [
                {"role": "assistant", "content": content}, {"role": "user", "content": result}]});
            let passed = passed(&body, None);
            let is_signed = passed["messages"][0]["content"] == content;
            assert_eq!(is_signed, is_retained && *thinking == thinks, "{block}");
            let still_thinks = passed.get("thinking").is_some();
            assert_eq!(still_thinks, is_retained, "{block}");
            assert_eq!(
                passed.get("context_management").is_some(),
                is_retained,
                "{block}"
            );
        }
    }

    #[test]
    fn limits_answer_and_thinking_budget() {
        let thinks = |budget: u64| json!({"type": "enabled", "budget_tokens": budget});
        for (body, limit, expected) in [
            (
                json!({"max_tokens": 9000}),
                Some(5000),
                json!({"max_tokens": 5000}),
            ),
            (
                json!({"max_tokens": 9000}),
                None,
                json!({"max_tokens": 9000}),
            ),
            (
                json!({"max_tokens": 90}),
                Some(5000),
                json!({"max_tokens": 90}),
            ),
            (
                json!({"max_tokens": 9000, "thinking": thinks(8000)}),
                Some(5000),
                json!({"max_tokens": 5000, "thinking": thinks(4999)}),
            ),
            (
                json!({"max_tokens": 9000, "thinking": thinks(8000)}),
                Some(100),
                json!({"max_tokens": 100}),
            ),
        ] {
            assert_eq!(passed(&body, limit), expected, "{body}");
        }
    }

    #[test]
    fn passes_supported_betas_and_counts_unknown() {
        let header = "interleaved-thinking-2025-05-14, context-1m-2025-08-07,,pdfs-2024-09-25,pdfs-2024-09-25,x";
        let supported = vec!["interleaved-thinking-2025-05-14", "pdfs-2024-09-25"];
        assert_eq!(betas(header), (supported, 2));
        assert_eq!(betas(""), (Vec::new(), 0));
    }
}
