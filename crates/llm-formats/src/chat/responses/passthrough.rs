//! Pass-through of requests and answers for providers with a Responses API, member by member.

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use super::ask::{ENCRYPTED_REASONING, ProviderApi, ResponsesRequest};
use super::envelope::is_sealed;
use super::head::ResponseHead;
use super::unknown::{is_unknown, message_of};
use domain::artifact::SCHEME;
use domain::usage::usage;

/// Request members that pass unchanged. Others are replaced, dropped or rejected.
const PASSED: [&str; 17] = [
    "input",
    "instructions",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "text",
    "include",
    "temperature",
    "top_p",
    "top_logprobs",
    "truncation",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "stream_options",
    "service_tier",
    "max_output_tokens",
];

/// Returns the body for a Responses provider. `chat`: the completion body with resolved images, capped token
/// limit and the provider's name of the model. `opened`: additional members that the operator allows.
pub fn passthrough_body(
    mut body: JsonObject,
    responses_request: &ResponsesRequest,
    chat: &JsonObject,
    opened: &[String],
) -> JsonObject {
    // An allow-list: a new member of OpenAI's API might store data or start tools.
    body.retain(|name, value| {
        let is_passed = PASSED.contains(&name.as_str()) || opened.contains(name);
        is_passed && !value.is_null()
    });
    // Parsed tools have only members that the gateway has checked.
    if let Some(tools) = &responses_request.own_tools {
        body.insert("tools".to_owned(), tools.clone());
    }
    // Artifacts were resolved in the completion's body; copy their data to the request's own positions.
    for (from, to) in responses_request.pointers.images() {
        let to = to
            .strip_prefix("/input")
            .and_then(|to| body.get_mut("input")?.pointer_mut(to));
        let from = from
            .strip_prefix("/messages")
            .and_then(|from| chat.get("messages")?.pointer(from));
        // Other URLs passed the gateway's checks and stay as they are.
        if let (Some(image), Some(url)) = (from, to)
            && url.as_str().is_some_and(|url| url.starts_with(SCHEME))
        {
            *url = image.clone();
        }
    }
    if let Some(Value::Array(items)) = body.get_mut("input") {
        for (n, tools) in &responses_request.own_tools_of_items {
            if let Some(item) = items.get_mut(*n) {
                item["tools"] = tools.clone();
            }
        }
        let items_before = std::mem::take(items);
        items.extend(items_before.into_iter().filter_map(passed_item));
    }
    if let Some(model) = chat.get("model") {
        // The provider's own name of the model, not the granted one.
        body.insert("model".to_owned(), model.clone());
    }
    let bounds = ["max_completion_tokens", "max_tokens"];
    // The limit is capped by the grant; the request's own value may be higher.
    if let Some(bound) = bounds.iter().find_map(|name| chat.get(*name)) {
        body.insert("max_output_tokens".to_owned(), bound.clone());
    }
    // Models without reasoning reject the include value.
    if responses_request.keeps_items && body.get("reasoning").is_some_and(Value::is_object) {
        include_reasoning(&mut body);
    }
    // Nothing of a run may stay at the provider.
    body.insert("store".to_owned(), json!(false));
    body
}

/// Asks for reasoning that can return without storage at the provider.
fn include_reasoning(body: &mut JsonObject) {
    let include = body.entry("include").or_insert_with(|| json!([]));
    if let Some(include) = include.as_array_mut()
        && !include.iter().any(|name| name == ENCRYPTED_REASONING)
    {
        include.push(json!(ENCRYPTED_REASONING));
    }
}

/// Returns an item as this provider can read it. `None`: it has no content that the provider could use.
fn passed_item(mut item: Value) -> Option<Value> {
    if is_unknown(&item, ProviderApi::Responses) {
        return message_of(&item);
    }
    let is_reasoning = item["type"] == "reasoning";
    let encrypted = item["encrypted_content"].as_str();
    // The provider would reject content that it did not encrypt.
    if encrypted.is_some_and(is_sealed) {
        item.as_object_mut()?.remove("encrypted_content");
        return (!is_reasoning).then_some(item);
    }
    let has_content = item["content"]
        .as_array()
        .is_some_and(|parts| !parts.is_empty());
    // The provider stores nothing, so reasoning that only its id names cannot be resolved.
    (!is_reasoning || encrypted.is_some() || has_content).then_some(item)
}

/// Sets the granted model name, `store: false` and the client's reference in a response.
pub fn rewrite_response(response: &mut Value, head: &ResponseHead) {
    if let Some(members) = response.as_object_mut() {
        // Clients must not learn the operator's name of the model.
        members.insert("model".to_owned(), json!(head.model));
        members.insert("store".to_owned(), json!(false));
        // The gateway resolved the reference itself; the provider never received it.
        if let Some(previous) = &head.previous {
            members.insert("previous_response_id".to_owned(), json!(previous));
        }
    }
}

/// Returns the text bytes of a response, the fallback for missing token counts.
pub fn output_bytes(response: &Value) -> usize {
    let items = response["output"].as_array().into_iter().flatten();
    items
        .map(|item| {
            let texts = ["arguments", "input", "encrypted_content"];
            let own: usize = texts
                .iter()
                .filter_map(|name| item[*name].as_str())
                .map(str::len)
                .sum();
            let parts = [&item["content"], &item["summary"]]
                .into_iter()
                .filter_map(Value::as_array);
            let parts = parts
                .flatten()
                .flat_map(|part| [&part["text"], &part["refusal"]]);
            own + parts.filter_map(Value::as_str).map(str::len).sum::<usize>()
        })
        .sum()
}

/// End of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerEnd {
    /// `response.completed` or `response.incomplete`.
    Complete,
    /// `response.failed` or `error`, with the provider's message.
    Failed(String),
}

/// Reads the events of one answer during the pass-through.
#[derive(Debug)]
pub struct ResponsesPassthrough {
    head: ResponseHead,
    /// `sequence_number` of an event that the gateway would add.
    next: u64,
    /// Token usage.
    pub usage: Option<LlmTokenUsage>,
    /// Text bytes of the current event.
    pub text_bytes: usize,
    /// The newest response object, without its items.
    response: Option<Value>,
}

impl ResponsesPassthrough {
    /// `head`: metadata to use until the provider sends its own.
    pub fn new(head: ResponseHead) -> Self {
        Self {
            head,
            next: 0,
            usage: None,
            text_bytes: 0,
            response: None,
        }
    }

    /// Returns the metadata that the gateway sets in the response.
    pub fn head(&self) -> &ResponseHead {
        &self.head
    }

    /// Returns the last event of a failed answer, with OpenAI's error code.
    pub fn fail(self, code: &str, message: &str) -> Value {
        // Without any event of the provider, the response has only the gateway's metadata.
        let mut response = self.response.unwrap_or_else(|| {
            let echo = JsonObject::new();
            self.head
                .response(&echo, "failed", Vec::new(), &Value::Null)
        });
        response["status"] = json!("failed");
        response["error"] = json!({"code": code, "message": message});
        json!({"type": "response.failed", "sequence_number": self.next, "response": response})
    }

    /// Reads one event and sets the granted model name in it. `Some`: it is the last event.
    pub fn read(&mut self, event: &mut JsonObject) -> Option<AnswerEnd> {
        if let Some(number) = event.get("sequence_number").and_then(Value::as_u64) {
            self.next = number.saturating_add(1);
        }
        let kind = event
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        // Only delta events of a text have one.
        let delta = event.get("delta").and_then(Value::as_str);
        self.text_bytes = delta.map_or(0, str::len);
        if let Some(response) = event.get_mut("response") {
            rewrite_response(response, &self.head);
            if let Some(usage) = response.get("usage").and_then(usage) {
                self.usage = Some(usage);
            }
        }
        // OpenAI nests the message; an `error` event has it at the top.
        let message = |holder: &Value| {
            let message = holder["message"].as_str();
            message.unwrap_or("the provider gave no reason").to_owned()
        };
        match kind.as_str() {
            "response.completed" | "response.incomplete" => Some(AnswerEnd::Complete),
            "response.failed" => {
                let error = event
                    .get("response")
                    .map(|response| message(&response["error"]));
                Some(AnswerEnd::Failed(error.unwrap_or_default()))
            }
            "error" => Some(AnswerEnd::Failed(message(&Value::Object(event.clone())))),
            _ => {
                if let Some(response) = event.get("response") {
                    // The items would double the memory of a large answer, and a failed response needs none.
                    let mut response = response.clone();
                    response["output"] = json!([]);
                    self.response = Some(response);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::read_request;
    use super::*;

    fn object(value: &Value) -> JsonObject {
        value.as_object().unwrap().clone()
    }

    fn passed(request: &Value, chat: &Value) -> Value {
        let request = object(request);
        let opened = ["guided".to_owned()];
        let responses_request =
            read_request(&request, "m", ProviderApi::Responses, &opened).unwrap();
        let mut body = responses_request.chat.clone();
        body.extend(object(chat));
        passthrough_body(request, &responses_request, &body, &opened).into()
    }

    #[test]
    fn requests_pass_member_by_member() {
        let reasoning =
            json!({"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAA"});
        let ours = json!({"type": "reasoning", "summary": [], "encrypted_content": "runnel:1:{}"});
        let tool =
            json!({"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark"}});
        let request = json!({"model": "m", "store": true, "stream": true, "metadata": {}, "client_metadata": {"a": 1},
            "input": [reasoning, ours, {"role": "user", "content": "hi"}], "tools": [tool],
            "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "guided": 1, "user": null,
            "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 900});
        assert_eq!(
            passed(
                &request,
                &json!({"model": "gpt", "max_completion_tokens": 50})
            ),
            json!({"model": "gpt", "store": false, "input": [reasoning, {"role": "user", "content": "hi"}],
                "tools": [tool], "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "guided": 1,
                "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 50})
        );
        let reasoning = json!({"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "a"}]});
        let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
        let mut sealed = call.clone();
        sealed["encrypted_content"] = json!("runnel:1:{}");
        let request =
            json!({"model": "m", "input": [reasoning, sealed], "reasoning": {}, "store": null});
        let body = passed(&request, &json!({}));
        assert_eq!(body["input"], json!([call]));
        assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    }

    #[test]
    fn passes_no_unknown_items_and_tool_members() {
        let message = json!({"role": "user", "content": "hi"});
        let tool = json!({"type": "function", "name": "f", "unknown": 1});
        let request = json!({"model": "m", "input": [{"type": "additional_tools", "role": "developer", "tools": [tool]},
            {"type": "mcp_approval_response", "approve": true}, {"type": "note", "text": "a"}, message]});
        let body = passed(&request, &json!({}));
        let tools = json!([{"type": "function", "name": "f"}]);
        let note = json!({"type": "message", "role": "user", "content": "a"});
        let expected = json!([{"type": "additional_tools", "role": "developer", "tools": tools}, note, message]);
        assert_eq!(body["input"], expected);
    }

    #[test]
    fn replaces_artifact_urls_by_data() {
        let image = |url: &str| json!({"type": "input_image", "image_url": url});
        let request = json!({"model": "m", "input": [
            {"type": "reasoning", "summary": [], "encrypted_content": "runnel:1:{}"},
            {"role": "user", "content": [image("https://a/b.png"), image("artifact:x")]}]});
        let read = json!([{"role": "user", "content": [
            {"image_url": {"url": "https://a/b.png"}}, {"image_url": {"url": "data:image/png;base64,AA"}}]}]);
        let body = passed(&request, &json!({"messages": read}));
        assert_eq!(
            body["input"][0]["content"],
            json!([image("https://a/b.png"), image("data:image/png;base64,AA")])
        );
    }

    fn passing() -> ResponsesPassthrough {
        ResponsesPassthrough::new(ResponseHead {
            key: "k".to_owned(),
            created_at: 7,
            model: "m".to_owned(),
            previous: None,
        })
    }

    #[test]
    fn events_use_granted_model_name() {
        let usage = json!({"input_tokens": 5, "output_tokens": 2, "total_tokens": 7});
        let mut passing = passing();
        for (event, text_bytes, end) in [
            (
                json!({"type": "response.created", "sequence_number": 0,
                "response": {"id": "r", "model": "gpt", "store": true, "output": []}}),
                0,
                None,
            ),
            (
                json!({"type": "response.output_text.delta", "sequence_number": 1, "delta": "abc"}),
                3,
                None,
            ),
            (
                json!({"type": "response.completed", "sequence_number": 2,
                "response": {"model": "gpt", "usage": usage, "service_tier": "flex"}}),
                0,
                Some(AnswerEnd::Complete),
            ),
        ] {
            let mut event = object(&event);
            assert_eq!(passing.read(&mut event), end);
            assert_eq!(passing.text_bytes, text_bytes);
            if let Some(response) = event.get("response") {
                assert_eq!(
                    (&response["model"], &response["store"]),
                    (&json!("m"), &json!(false))
                );
            }
        }
        assert_eq!(passing.usage.unwrap().completion_tokens, Some(2));
    }

    #[test]
    fn failures_end_the_answer() {
        for event in [
            json!({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "oops"}}}),
            json!({"type": "error", "code": "server_error", "message": "oops"}),
        ] {
            assert_eq!(
                passing().read(&mut object(&event)),
                Some(AnswerEnd::Failed("oops".to_owned()))
            );
        }
        let mut cut = passing();
        let created = json!({"type": "response.created", "sequence_number": 4, "response": {"id": "r", "output": [1]}});
        cut.read(&mut object(&created));
        let failed = cut.fail("server_error", "cut");
        assert_eq!(
            (&failed["sequence_number"], &failed["response"]["id"]),
            (&json!(5), &json!("r"))
        );
        assert_eq!(
            failed["response"]["error"],
            json!({"code": "server_error", "message": "cut"})
        );
        assert_eq!(failed["response"]["output"], json!([]));
        assert_eq!(passing().fail("c", "m")["response"]["id"], "resp_k");
    }

    #[test]
    fn counts_all_output_bytes() {
        let response = json!({"output": [
            {"type": "message", "content": [{"text": "ab"}, {"refusal": "c"}]},
            {"type": "reasoning", "summary": [{"text": "d"}], "encrypted_content": "ef"},
            {"type": "function_call", "name": "uncounted", "arguments": "{}"}]});
        assert_eq!(output_bytes(&response), 8);
    }
}
