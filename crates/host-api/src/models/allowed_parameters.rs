//! Allow-list of request fields. Fields that only shape the answer are allowed. Fields that select provider,
//! price, tools or storage are not.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::Value;

use llm_formats::escaped;

/// Allowed fields of a chat completion.
const ALLOWED_FIELDS: [&str; 42] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "top_k",
    "top_a",
    "min_p",
    "typical_p",
    "seed",
    "n",
    "best_of",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "length_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "reasoning_effort",
    "reasoning",
    "include_reasoning",
    "thinking",
    "thinking_budget",
    "enable_thinking",
    "verbosity",
    "user",
    "safety_identifier",
    "prompt_cache_key",
];
/// Tool types that the run executes itself. Provider-side tools bypass the egress rules.
const TOOLS: [&str; 2] = ["function", "custom"];
/// Other allowed fields of a tool.
const TOOL_FIELDS: [&str; 3] = ["type", "strict", "cache_control"];

/// Rejects fields that are neither allowed nor `opened` by the operator. Null counts as absent. Pointers are
/// relative to the body.
pub(crate) fn check_parameters(body: &JsonObject, opened: &[String]) -> Result<(), Fault> {
    let is_opened = |name: &str| opened.iter().any(|opened| opened == name);
    for (name, value) in body {
        // Null counts as absent: many clients send all fields of their type.
        if !value.is_null() && !ALLOWED_FIELDS.contains(&name.as_str()) && !is_opened(name) {
            let message = "is not allowed; the operator can allow it by `extra_members` of the model's [[model_providers]]";
            return Err(Fault::new(format!("/{}", escaped(name)), message));
        }
    }
    check_tools(body)
}

fn check_tools(body: &JsonObject) -> Result<(), Fault> {
    let tools = match body.get("tools") {
        None | Some(Value::Null) => return Ok(()),
        Some(Value::Array(tools)) => tools,
        Some(_) => return Err(Fault::new("/tools", "must be a list")),
    };
    let of_ours = |name: &str| TOOLS.contains(&name);
    for (n, tool) in tools.iter().enumerate() {
        let fault = |member: &str| {
            let message =
                "must be function or custom: tools that the provider runs are not granted";
            Err(Fault::new(format!("/tools/{n}{member}"), message))
        };
        let Some(members) = tool.as_object() else {
            return fault("");
        };
        let kind = members.get("type");
        if kind.is_some_and(|kind| !kind.as_str().is_some_and(of_ours)) {
            return fault("/type");
        }
        // Some servers accept a built-in tool by its name, without a type.
        let values = members.iter().filter(|(_, value)| !value.is_null());
        let mut others =
            values.filter(|(name, _)| !of_ours(name) && !TOOL_FIELDS.contains(&name.as_str()));
        if let Some((other, _)) = others.next() {
            return fault(&format!("/{}", escaped(other)));
        }
        if !members.keys().any(|name| of_ours(name)) {
            return fault("");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(body: &Value, opened: &[&str]) -> Result<(), String> {
        let opened: Vec<_> = opened.iter().map(|name| (*name).to_owned()).collect();
        let checked = check_parameters(body.as_object().unwrap(), &opened);
        checked.map_err(|fault| fault.pointer)
    }

    #[test]
    fn rejects_parameters_for_routing_and_price() {
        for name in [
            "models",
            "fallbacks",
            "route",
            "plugins",
            "web_search_options",
            "provider",
            "service_tier",
            "store",
            "api_base",
            "base_url",
            "api_key",
            "extra_body",
            "extra_headers",
            "prediction",
        ] {
            let body = json!({"messages": [], name: "x"});
            assert_eq!(check(&body, &[]), Err(format!("/{name}")));
            assert_eq!(check(&body, &[name]), Ok(()));
            assert_eq!(check(&json!({name: null}), &[]), Ok(()));
        }
        assert_eq!(check(&json!({"a/b~": 1}), &[]), Err("/a~1b~0".to_owned()));
    }

    #[test]
    fn rejects_tools_that_the_provider_runs() {
        let tools = |kind: &str| json!({"tools": [{"type": "function", "function": {"name": "f"}}, {"type": kind, kind: {}}, {"function": {}}]});
        assert_eq!(check(&tools("custom"), &[]), Ok(()));
        for kind in ["web_search", "mcp", "code_interpreter"] {
            assert_eq!(check(&tools(kind), &[]), Err("/tools/1/type".to_owned()));
        }
        for (tools, pointer) in [
            (json!([{"googleSearch": {}}]), "/tools/0/googleSearch"),
            (
                json!([{"function": {}, "codeExecution": {}}]),
                "/tools/0/codeExecution",
            ),
            (json!([{"type": "function"}]), "/tools/0"),
            (json!(["web_search"]), "/tools/0"),
            (json!({"googleSearch": {}}), "/tools"),
        ] {
            let refused = check(&json!({"tools": tools}), &[]);
            assert_eq!(refused, Err(pointer.to_owned()), "{tools}");
        }
        for tools in [
            json!(null),
            json!([{"type": "function", "function": {}, "strict": true, "defer": null}]),
        ] {
            assert_eq!(check(&json!({"tools": tools}), &[]), Ok(()), "{tools}");
        }
    }
}
