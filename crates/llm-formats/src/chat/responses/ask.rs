//! Converts a Responses request to a completion request.

use std::collections::{BTreeMap, BTreeSet};

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::{Value, json};

use super::input::Chat;
use super::pointers::PointerMap;
use super::tools::{FunctionNames, read_choice, read_tools};
use crate::escaped;

/// API of the target provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProviderApi {
    /// Chat completions.
    Chat,
    /// Responses, passed through.
    Responses,
}

/// Maximum output tokens of a request.
const MAX_OUTPUT_TOKENS: u64 = i32::MAX as u64;
/// Members that the gateway interprets.
const READ: [&str; 13] = [
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "max_output_tokens",
    "include",
    "store",
    "stream",
    "background",
];
/// Members that a completion has under the same name.
const SAME: [&str; 5] = [
    "temperature",
    "top_p",
    "user",
    "safety_identifier",
    "prompt_cache_key",
];
/// Objects about client or transport, without effect on the answer.
const ABOUT: [&str; 3] = ["metadata", "client_metadata", "stream_options"];
/// Members that need stored responses or prompts.
const STORED: [(&str, &str); 3] = [
    (
        "previous_response_id",
        "the gateway holds no such response for the run; send the full conversation as input",
    ),
    (
        "conversation",
        "conversations are not stored here; send the full conversation as input",
    ),
    (
        "prompt",
        "prompts of the provider are not the run's; send instructions and input",
    ),
];
/// Members of `reasoning`.
const REASONING: [&str; 4] = ["effort", "summary", "generate_summary", "context"];
/// Supported values of `include`.
pub(super) const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";
const OWN_INCLUDE: [&str; 2] = [
    "message.output_text.logprobs",
    "message.input_image.image_url",
];

/// A parsed request.
#[derive(Debug)]
pub struct ResponsesRequest {
    /// Body of the completion: messages, tools and settings, without a model.
    pub chat: JsonObject,
    /// Texts for a Responses provider that are not in `chat`.
    pub beside: Vec<String>,
    /// Types of `input` items that are left out, because no provider could read them.
    pub left_out: BTreeSet<String>,
    pub(super) own_tools: Option<Value>,
    pub(super) own_tools_of_items: BTreeMap<usize, Value>,
    pub(super) names: FunctionNames,
    pub(super) pointers: PointerMap,
    /// True if the client requests reasoning to send back.
    pub(super) returns_reasoning: bool,
    /// True if later requests may refer to the items of the answer.
    pub(super) keeps_items: bool,
}

impl ResponsesRequest {
    /// Maps a fault of the completion's body to the request.
    #[must_use]
    pub fn fault(&self, mut fault: Fault) -> Fault {
        fault.pointer = self.pointer(&fault.pointer);
        fault
    }

    /// Maps a pointer into the completion's body to the request.
    pub fn pointer(&self, pointer: &str) -> String {
        match pointer {
            // The completion has the limit under one of two names, depending on the provider.
            "/max_tokens" | "/max_completion_tokens" => "/max_output_tokens".to_owned(),
            pointer => self.pointers.of(pointer),
        }
    }
}

/// Returns true if the request asks for streaming.
pub fn wants_stream(body: &JsonObject) -> Result<bool, Fault> {
    switch(body, "stream").map(|flag| flag == Some(true))
}

/// Returns true if later requests may refer to the answer. It is the default.
pub fn keeps_items(body: &JsonObject) -> bool {
    // Anything but false is the default here; the parser reports other types.
    body.get("store") != Some(&Value::Bool(false))
}

/// Parses a request to the granted `model`. `opened`: additional members that the operator allows for its
/// provider. Pointers of faults refer to the request.
pub fn read_request(
    body: &JsonObject,
    model: &str,
    target: ProviderApi,
    opened: &[String],
) -> Result<ResponsesRequest, Fault> {
    // First, because a reference to a stored response explains all other faults.
    check_stored(body)?;
    let mut chat = JsonObject::new();
    // Null means absent in OpenAI's API.
    for (name, value) in body.iter().filter(|(_, value)| !value.is_null()) {
        let name = name.as_str();
        if SAME.contains(&name) {
            chat.insert(name.to_owned(), value.clone());
        } else if ABOUT.contains(&name) {
            // Validated, but not sent: providers of completions reject unknown members.
            check_object(name, value)?;
        } else if !READ.contains(&name) {
            if opened.iter().any(|opened| opened == name) {
                chat.insert(name.to_owned(), value.clone());
            } else {
                check_other(name, value, target)?;
            }
        }
    }
    let mut messages = Chat::new(model, target);
    match body.get("instructions") {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => messages.add_system_text(text, "/instructions"),
        Some(_) => return Err(Fault::new("/instructions", "must be a text")),
    }
    messages.read(body.get("input").unwrap_or(&Value::Null))?;
    let beside = std::mem::take(&mut messages.beside);
    let left_out = std::mem::take(&mut messages.left_out);
    // Only now all system text is known, which becomes the first message.
    let (messages, mut pointers) = messages.finish();
    chat.insert("messages".to_owned(), Value::Array(messages));
    let mut tools = read_tools(body, &mut pointers)?;
    let choice = body.get("tool_choice").unwrap_or(&Value::Null);
    let choice = read_choice(choice, &mut tools.functions)?;
    // The member is absent, not empty, if the client sent none.
    let own_tools = body.get("tools").map(|_| Value::Array(tools.own));
    // Some providers reject a choice or an empty list without tools.
    if !tools.functions.is_empty() {
        chat.insert("tools".to_owned(), Value::Array(tools.functions));
        if let Some(choice) = choice {
            chat.insert("tool_choice".to_owned(), choice);
        }
        if let Some(parallel) = switch(body, "parallel_tool_calls")? {
            chat.insert("parallel_tool_calls".to_owned(), json!(parallel));
        }
    }
    read_bound(body, &mut chat)?;
    read_reasoning(body, &mut chat)?;
    read_text(body, &mut chat)?;
    Ok(ResponsesRequest {
        chat,
        beside,
        left_out,
        own_tools,
        own_tools_of_items: tools.own_of_items,
        names: tools.names,
        pointers,
        returns_reasoning: read_include(body, target)?,
        keeps_items: keeps_items(body),
    })
}

fn check_stored(body: &JsonObject) -> Result<(), Fault> {
    for (name, message) in STORED {
        if body.get(name).is_some_and(|value| !value.is_null()) {
            return Err(Fault::new(
                format!("/{name}"),
                format!("must be absent: {message}"),
            ));
        }
    }
    switch(body, "store")?;
    // A background response would need storage at the provider or here.
    if switch(body, "background")? == Some(true) {
        let message = "must be false: responses are not stored here; read the answer as it comes, with stream";
        return Err(Fault::new("/background", message));
    }
    Ok(())
}

fn check_object(name: &str, value: &Value) -> Result<(), Fault> {
    if value.is_object() {
        return Ok(());
    }
    Err(Fault::new(format!("/{name}"), "must be an object"))
}

/// Checks members of which only some values affect an answer.
fn check_other(name: &str, value: &Value, target: ProviderApi) -> Result<(), Fault> {
    let is_own = target == ProviderApi::Responses;
    let message = match name {
        "service_tier" if value == "auto" || value == "default" => return Ok(()),
        "truncation" if value == "disabled" || (is_own && value == "auto") => return Ok(()),
        "truncation" => "must be disabled: this model's provider cuts no input; send less",
        "top_logprobs" if is_own || value == 0 => return Ok(()),
        "top_logprobs" => {
            "must be absent: only providers with the Responses API return probabilities"
        }
        _ => {
            "is not allowed; the operator can allow it by `extra_members` of the model's [[model_providers]]"
        }
    };
    Err(Fault::new(format!("/{}", escaped(name)), message))
}

fn switch(body: &JsonObject, name: &str) -> Result<Option<bool>, Fault> {
    match body.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(_) => Err(Fault::new(format!("/{name}"), "must be true or false")),
    }
}

fn read_bound(body: &JsonObject, chat: &mut JsonObject) -> Result<(), Fault> {
    let Some(bound) = body
        .get("max_output_tokens")
        .filter(|bound| !bound.is_null())
    else {
        return Ok(());
    };
    if !bound
        .as_u64()
        .is_some_and(|bound| (1..=MAX_OUTPUT_TOKENS).contains(&bound))
    {
        let message = format!("must be an integer from 1 to {MAX_OUTPUT_TOKENS}");
        return Err(Fault::new("/max_output_tokens", message));
    }
    // `max_completion_tokens` includes reasoning, like the limit of the Responses API.
    chat.insert("max_completion_tokens".to_owned(), bound.clone());
    Ok(())
}

fn members<'a>(
    body: &'a JsonObject,
    name: &str,
    allowed: &[&str],
) -> Result<Option<&'a JsonObject>, Fault> {
    let members = match body.get(name) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(members)) => members,
        Some(_) => return Err(Fault::new(format!("/{name}"), "must be an object")),
    };
    // An ignored setting would change the answer silently.
    let unknown = members
        .iter()
        .find(|(member, value)| !value.is_null() && !allowed.contains(&member.as_str()));
    match unknown {
        Some((member, _)) => {
            let message = format!("is unknown; send {}", allowed.join(", "));
            Err(Fault::new(format!("/{name}/{}", escaped(member)), message))
        }
        None => Ok(Some(members)),
    }
}

fn read_reasoning(body: &JsonObject, chat: &mut JsonObject) -> Result<(), Fault> {
    let Some(reasoning) = members(body, "reasoning", &REASONING)? else {
        return Ok(());
    };
    match reasoning.get("effort") {
        None | Some(Value::Null) => Ok(()),
        Some(effort @ Value::String(_)) => {
            chat.insert("reasoning_effort".to_owned(), effort.clone());
            Ok(())
        }
        Some(_) => Err(Fault::new("/reasoning/effort", "must be a text")),
    }
}

fn read_text(body: &JsonObject, chat: &mut JsonObject) -> Result<(), Fault> {
    let Some(text) = members(body, "text", &["format", "verbosity"])? else {
        return Ok(());
    };
    if let Some(verbosity) = text
        .get("verbosity")
        .filter(|verbosity| verbosity.is_string())
    {
        chat.insert("verbosity".to_owned(), verbosity.clone());
    }
    let Some(format) = text.get("format").filter(|format| !format.is_null()) else {
        return Ok(());
    };
    let format = match format["type"].as_str() {
        // The default of completions.
        Some("text") => return Ok(()),
        Some("json_object") => json!({"type": "json_object"}),
        // Completions nest the schema in a member of its own.
        Some("json_schema") => {
            let schema = format.as_object().into_iter().flatten();
            let schema = schema.filter(|(name, value)| *name != "type" && !value.is_null());
            let schema: JsonObject = schema
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect();
            json!({"type": "json_schema", "json_schema": schema})
        }
        _ => {
            let message = "must be text, json_object or json_schema";
            return Err(Fault::new("/text/format/type", message));
        }
    };
    chat.insert("response_format".to_owned(), format);
    Ok(())
}

/// Returns true if the answer must contain reasoning for the next turn.
fn read_include(body: &JsonObject, target: ProviderApi) -> Result<bool, Fault> {
    let include = match body.get("include") {
        None | Some(Value::Null) => return Ok(false),
        Some(Value::Array(include)) => include,
        Some(_) => return Err(Fault::new("/include", "must be a list")),
    };
    let mut returns_reasoning = false;
    for (n, name) in include.iter().enumerate() {
        // Only providers with the Responses API can return these.
        let is_own = OWN_INCLUDE.iter().any(|own| name == own) && target == ProviderApi::Responses;
        if name == ENCRYPTED_REASONING {
            returns_reasoning = true;
        } else if !is_own {
            let message = format!(
                "must be {ENCRYPTED_REASONING}: this model's provider supports no other value"
            );
            return Err(Fault::new(format!("/include/{n}"), message));
        }
    }
    Ok(returns_reasoning)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value, target: ProviderApi, opened: &[&str]) -> Result<ResponsesRequest, Fault> {
        let opened: Vec<_> = opened.iter().map(|name| (*name).to_owned()).collect();
        read_request(body.as_object().unwrap(), "m", target, &opened)
    }

    fn with(more: &Value) -> Value {
        let mut body = json!({"model": "m", "input": "hi"});
        let members = body.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        body
    }

    #[test]
    fn maps_settings_to_chat_completions() {
        let messages = json!([{"role": "user", "content": "hi"}]);
        for (more, expected) in [
            (json!({}), json!({})),
            (
                json!({"store": true, "background": false, "stream": true, "previous_response_id": null}),
                json!({}),
            ),
            (
                json!({"metadata": {}, "client_metadata": {}, "stream_options": {"include_obfuscation": false}}),
                json!({}),
            ),
            (
                json!({"service_tier": "auto", "truncation": "disabled", "top_logprobs": 0}),
                json!({}),
            ),
            (
                json!({"include": [ENCRYPTED_REASONING], "tools": [], "tool_choice": "auto", "parallel_tool_calls": true}),
                json!({}),
            ),
            (
                json!({"max_output_tokens": 16}),
                json!({"max_completion_tokens": 16}),
            ),
            (
                json!({"temperature": 0.5, "prompt_cache_key": "k"}),
                json!({"temperature": 0.5, "prompt_cache_key": "k"}),
            ),
            (
                json!({"reasoning": {"effort": "low", "summary": "auto"}}),
                json!({"reasoning_effort": "low"}),
            ),
            (
                json!({"text": {"format": {"type": "text"}, "verbosity": "low"}}),
                json!({"verbosity": "low"}),
            ),
            (
                json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": true}}}),
                json!({"response_format": {"type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}, "strict": true}}}),
            ),
        ] {
            let mut chat = read(&with(&more), ProviderApi::Chat, &[]).unwrap().chat;
            assert_eq!(chat.remove("messages"), Some(messages.clone()), "{more}");
            assert_eq!(Value::Object(chat), expected, "{more}");
        }
    }

    #[test]
    fn rejects_stored_responses_by_pointer() {
        for (member, value) in [
            ("previous_response_id", json!("resp_1")),
            ("conversation", json!({"id": "conv_1"})),
            ("prompt", json!({"id": "p"})),
            ("background", json!(true)),
        ] {
            for target in [ProviderApi::Chat, ProviderApi::Responses] {
                let refused = read(&with(&json!({member: value})), target, &[member]).unwrap_err();
                assert_eq!(refused.pointer, format!("/{member}"));
            }
        }
    }

    #[test]
    fn rejects_unlisted_members_unless_allowed() {
        for (more, pointer) in [
            (json!({"service_tier": "priority"}), "/service_tier"),
            (json!({"max_tool_calls": 3}), "/max_tool_calls"),
            (json!({"context_management": []}), "/context_management"),
            (json!({"a/b": 1}), "/a~1b"),
        ] {
            let body = with(&more);
            assert_eq!(
                read(&body, ProviderApi::Chat, &[]).unwrap_err().pointer,
                pointer
            );
            let name = more.as_object().unwrap().keys().next().unwrap();
            let opened = read(&body, ProviderApi::Chat, &[name]).unwrap();
            assert_eq!(opened.chat[name], more[name]);
        }
        for (more, pointer) in [
            (json!({"input": null}), "/input"),
            (json!({"instructions": 7}), "/instructions"),
            (json!({"store": "no"}), "/store"),
            (json!({"metadata": []}), "/metadata"),
            (json!({"max_output_tokens": 0}), "/max_output_tokens"),
            (json!({"max_output_tokens": "9"}), "/max_output_tokens"),
            (json!({"truncation": "auto"}), "/truncation"),
            (json!({"top_logprobs": 2}), "/top_logprobs"),
            (
                json!({"include": ["file_search_call.results"]}),
                "/include/0",
            ),
            (
                json!({"include": ["message.output_text.logprobs"]}),
                "/include/0",
            ),
            (
                json!({"reasoning": {"max_tokens": 9}}),
                "/reasoning/max_tokens",
            ),
            (json!({"reasoning": "low"}), "/reasoning"),
            (
                json!({"text": {"format": {"type": "grammar"}}}),
                "/text/format/type",
            ),
        ] {
            let refused = read(&with(&more), ProviderApi::Chat, &[]).unwrap_err();
            assert_eq!(refused.pointer, pointer, "{more}");
        }
        for more in [
            json!({"truncation": "auto"}),
            json!({"top_logprobs": 2}),
            json!({"include": OWN_INCLUDE}),
        ] {
            assert!(
                read(&with(&more), ProviderApi::Responses, &[]).is_ok(),
                "{more}"
            );
        }
    }

    #[test]
    fn faults_point_into_the_request() {
        let body = json!({"model": "m", "instructions": "be kind",
            "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"},
                {"type": "input_image", "image_url": "http://10.0.0.1/a"}]}]});
        let responses_request = read(&body, ProviderApi::Chat, &[]).unwrap();
        let fault = Fault::new("/messages/1/content/1/image_url/url", "is no place");
        assert_eq!(
            responses_request.fault(fault).pointer,
            "/input/0/content/1/image_url"
        );
        assert_eq!(
            responses_request.pointer("/max_tokens"),
            "/max_output_tokens"
        );
    }
}
