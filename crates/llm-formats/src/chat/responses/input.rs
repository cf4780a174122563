//! Converts the items of a request to chat messages.

use std::collections::BTreeSet;

use protocol::admin::Fault;
use serde_json::{Value, json};

use super::ProviderApi;
use super::assistant_turn::AssistantTurn;
use super::envelope::{ReasoningEnvelope, is_sealed};
use super::parts::{AllowedContent, ContentPart, read_parts, text_of};
use super::pointers::PointerMap;
use super::tools::{custom_arguments, function_name};
use super::unknown::{is_unknown, kind_of, logged_kind, message_of};

/// Maximum items of one request.
const MAX_ITEMS: usize = 10_000;
/// Maximum images, documents and audio parts of one request.
const MAX_MEDIA_PARTS: usize = 1000;

/// Builder of the chat messages.
pub(super) struct Chat<'a> {
    /// The granted model.
    model: &'a str,
    target: ProviderApi,
    /// System text with its first pointer.
    system: Option<(String, String)>,
    messages: Vec<Value>,
    /// Faults of the messages refer to their pointers; the map leads back to the request.
    pointers: PointerMap,
    /// The assistant's turn that items may continue.
    turn: Option<AssistantTurn>,
    /// Images and files of tool results. They follow the results in a user message, because few providers accept
    /// them in a result.
    attached: Vec<(Value, Option<String>)>,
    /// Number of images, documents and audio parts.
    data: usize,
    /// Texts for the provider that are in no message.
    pub(super) beside: Vec<String>,
    /// Types of items without text that are left out.
    pub(super) left_out: BTreeSet<String>,
}

impl<'a> Chat<'a> {
    pub(super) fn new(model: &'a str, target: ProviderApi) -> Self {
        Self {
            model,
            target,
            system: None,
            messages: Vec::new(),
            pointers: PointerMap::default(),
            turn: None,
            attached: Vec::new(),
            data: 0,
            beside: Vec::new(),
            left_out: BTreeSet::new(),
        }
    }

    /// Adds system text to the one system message at the beginning: many chat templates accept no other.
    pub(super) fn add_system_text(&mut self, text: &str, pointer: &str) {
        match &mut self.system {
            Some((before, _)) => {
                before.push_str("\n\n");
                before.push_str(text);
            }
            None => self.system = Some((text.to_owned(), pointer.to_owned())),
        }
    }

    /// Reads `input`. Pointers of faults refer to the request.
    pub(super) fn read(&mut self, input: &Value) -> Result<(), Fault> {
        match input {
            Value::String(text) => {
                self.push(json!({"role": "user", "content": text}), "/input");
                return Ok(());
            }
            Value::Array(items) if items.len() <= MAX_ITEMS => {
                for (n, item) in items.iter().enumerate() {
                    let pointer = format!("/input/{n}");
                    self.read_item(item, &pointer)?;
                    // Checked per item, so that the fault names the item that exceeds the limit.
                    if self.data + self.attached.len() > MAX_MEDIA_PARTS {
                        let message = format!(
                            "must be one of at most {MAX_MEDIA_PARTS} images, files and sounds"
                        );
                        return Err(Fault::new(pointer, message));
                    }
                }
            }
            Value::Array(_) => {
                let message = format!("must have at most {MAX_ITEMS} items");
                return Err(Fault::new("/input", message));
            }
            _ => return Err(Fault::new("/input", "must be a text or a list of items")),
        }
        // Attachments of the last tool results have no following item.
        self.close();
        Ok(())
    }

    /// Returns the messages, with the request pointers of their parts.
    pub(super) fn finish(mut self) -> (Vec<Value>, PointerMap) {
        if let Some((text, pointer)) = self.system {
            // The system message comes first, so all recorded pointers move by one.
            self.pointers.shift_messages();
            self.pointers.add("/messages/0".to_owned(), pointer);
            let message = json!({"role": "system", "content": text});
            self.messages.insert(0, message);
        }
        (self.messages, self.pointers)
    }

    fn read_item(&mut self, item: &Value, pointer: &str) -> Result<(), Fault> {
        // A client repeats its complete history: one unknown item must not end the session.
        if is_unknown(item, self.target) {
            let Some(message) = message_of(item) else {
                // Reported by its type; its content may be secret.
                self.left_out.insert(logged_kind(item));
                return Ok(());
            };
            return self.read_message(&message, pointer);
        }
        match kind_of(item) {
            "message" => self.read_message(item, pointer),
            "function_call" => {
                let arguments = text_at(item, "arguments", pointer)?;
                self.add_call(item, arguments, pointer)
            }
            "custom_tool_call" => {
                let arguments = custom_arguments(text_at(item, "input", pointer)?);
                self.add_call(item, &arguments, pointer)
            }
            "function_call_output" | "custom_tool_call_output" => self.read_output(item, pointer),
            "reasoning" => {
                self.read_reasoning(item, pointer);
                Ok(())
            }
            // Its tools are read with those of the request.
            "additional_tools" => Ok(()),
            "item_reference" => {
                let message = "names an item that this gateway does not hold for the run: it is not of one of the \
                    run's own newest responses; send the item itself";
                Err(Fault::new(pointer, message))
            }
            "" => Err(Fault::new(
                format!("{pointer}/type"),
                "must be the type of the item",
            )),
            _ => {
                self.count_opaque(item);
                Ok(())
            }
        }
    }

    fn read_message(&mut self, item: &Value, pointer: &str) -> Result<(), Fault> {
        let content = format!("{pointer}/content");
        match item["role"].as_str().unwrap_or_default() {
            "system" | "developer" => {
                let parts = read_parts(&item["content"], &content, AllowedContent::Text)?;
                self.add_system_text(&text_of(&parts), pointer);
            }
            "assistant" => {
                let parts = read_parts(&item["content"], &content, AllowedContent::Text)?;
                let text = text_of(&parts);
                // A turn of the assistant also continues across reasoning and calls.
                let turn = self.turn(pointer);
                if !text.is_empty() {
                    turn.texts.push(text);
                }
            }
            "user" => {
                let parts = read_parts(&item["content"], &content, AllowedContent::Any)?;
                self.close();
                self.push_user(parts, pointer);
            }
            _ => {
                let message = "must be user, assistant, system or developer";
                return Err(Fault::new(format!("{pointer}/role"), message));
            }
        }
        Ok(())
    }

    fn push_user(&mut self, parts: Vec<(ContentPart, String)>, pointer: &str) {
        // A plain text stays a text: some servers reject lists of parts.
        if let [(ContentPart::Text(text), _)] = parts.as_slice() {
            return self.push_user_content(json!(text), pointer);
        }
        let parts = parts.into_iter().map(|(part, source)| match part {
            ContentPart::Text(text) => (json!({"type": "text", "text": text}), None),
            ContentPart::Data(data) => (data, Some(source)),
        });
        self.push_user_parts(parts.collect(), pointer);
    }

    /// Adds parts of the user, and records the source pointers of the media parts.
    fn push_user_parts(&mut self, parts: Vec<(Value, Option<String>)>, pointer: &str) {
        let (message, before) = match self.messages.last() {
            // Consecutive user messages become one, so the parts continue its content.
            Some(last) if last["role"] == "user" => {
                let content = last["content"].as_array();
                (self.messages.len() - 1, content.map_or(1, Vec::len))
            }
            _ => (self.messages.len(), 0),
        };
        let record = |(n, (part, source)): (usize, (Value, Option<String>))| {
            if let Some(source) = source {
                self.data += 1;
                self.pointers.add(
                    format!("/messages/{message}/content/{}", before + n),
                    source,
                );
            }
            part
        };
        let content = parts.into_iter().enumerate().map(record).collect();
        self.push_user_content(content, pointer);
    }

    /// Adds content of the user.
    fn push_user_content(&mut self, content: Value, pointer: &str) {
        // Consecutive messages become one: many chat templates demand alternating turns.
        let Some(last) = self
            .messages
            .last_mut()
            .filter(|last| last["role"] == "user")
        else {
            let message = json!({"role": "user", "content": content});
            return self.push(message, pointer);
        };
        last["content"] = match (last["content"].take(), content) {
            (Value::String(before), Value::String(text)) => json!(format!("{before}\n\n{text}")),
            (before, content) => parts_of(before).chain(parts_of(content)).collect(),
        };
    }

    fn add_call(&mut self, item: &Value, arguments: &str, pointer: &str) -> Result<(), Fault> {
        let id = text_at(item, "call_id", pointer)?;
        let name = function_name(item["namespace"].as_str(), text_at(item, "name", pointer)?);
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        // The call joins the open turn: chat completions have text and calls in one message.
        self.turn(pointer).calls.push(call);
        if item["encrypted_content"].is_string() {
            // Stored calls hold the reasoning of their answer.
            self.read_reasoning(item, pointer);
        }
        Ok(())
    }

    fn read_output(&mut self, item: &Value, pointer: &str) -> Result<(), Fault> {
        let id = text_at(item, "call_id", pointer)?;
        let parts = read_parts(
            &item["output"],
            &format!("{pointer}/output"),
            AllowedContent::Any,
        )?;
        self.close_turn();
        let mut text = text_of(&parts);
        let data = parts.into_iter().filter_map(|(part, source)| match part {
            ContentPart::Data(data) => Some((data, Some(source))),
            ContentPart::Text(_) => None,
        });
        let data: Vec<_> = data.collect();
        // Few providers accept media in a result, so they follow in a user message.
        if !data.is_empty() {
            let label = format!("Attached to the result of the tool call {id}:");
            self.attached
                .push((json!({"type": "text", "text": label}), None));
            self.attached.extend(data);
            // An empty result would look like a failed call.
            if text.is_empty() {
                "The result is attached below.".clone_into(&mut text);
            }
        }
        self.push(
            json!({"role": "tool", "tool_call_id": id, "content": text}),
            pointer,
        );
        Ok(())
    }

    fn read_reasoning(&mut self, item: &Value, pointer: &str) {
        let content = item["encrypted_content"].as_str().unwrap_or_default();
        // A Responses provider receives its own reasoning item unchanged.
        let opened = (self.target == ProviderApi::Chat)
            .then(|| ReasoningEnvelope::open(content, self.model))
            .flatten();
        if let Some(opened) = opened {
            let turn = self.turn(pointer);
            turn.reasoning_members.extend(opened.reasoning_members);
            turn.carried.extend(opened.calls);
        }
        // The gateway's own content is removed before the request, so it costs no tokens.
        if self.target == ProviderApi::Responses && !is_sealed(content) {
            self.count_opaque(item);
        }
    }

    /// Counts the texts of an item that a Responses provider receives unchanged.
    fn count_opaque(&mut self, item: &Value) {
        let members = item.as_object().into_iter().flatten();
        let texts = members
            .filter(|(name, value)| !value.is_null() && !["id", "type"].contains(&name.as_str()));
        self.beside
            .extend(texts.map(|(_, value)| value.to_string()));
    }

    /// Returns the open assistant turn, or a new one.
    fn turn(&mut self, pointer: &str) -> &mut AssistantTurn {
        if self.turn.is_none() {
            self.attach();
        }
        self.turn.get_or_insert_with(|| AssistantTurn {
            pointer: pointer.to_owned(),
            ..AssistantTurn::default()
        })
    }

    fn close(&mut self) {
        self.close_turn();
        self.attach();
    }

    fn close_turn(&mut self) {
        let Some(turn) = self.turn.take() else { return };
        // Reasoning without text and calls has no message to which it could belong.
        if turn.texts.is_empty() && turn.calls.is_empty() {
            return;
        }
        self.attach();
        let pointer = turn.pointer.clone();
        self.push(turn.message(), &pointer);
    }

    /// Adds the message with the attachments of tool results.
    fn attach(&mut self) {
        if self.attached.is_empty() {
            return;
        }
        let attached = std::mem::take(&mut self.attached);
        self.push_user_parts(attached, "/input");
    }

    fn push(&mut self, message: Value, pointer: &str) {
        self.pointers.add(
            format!("/messages/{}", self.messages.len()),
            pointer.to_owned(),
        );
        self.messages.push(message);
    }
}

/// Returns content as parts.
fn parts_of(content: Value) -> impl Iterator<Item = Value> {
    let parts = match content {
        Value::Array(parts) => parts,
        text => vec![json!({"type": "text", "text": text})],
    };
    parts.into_iter()
}

fn text_at<'a>(item: &'a Value, member: &str, pointer: &str) -> Result<&'a str, Fault> {
    let text = item[member].as_str();
    text.ok_or_else(|| Fault::new(format!("{pointer}/{member}"), "must be a text"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use protocol::JsonObject;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "for json! in place")]
    fn read(items: Value, target: ProviderApi) -> Result<(Vec<Value>, PointerMap), Fault> {
        let mut messages = Chat::new("m", target);
        messages.read(&items)?;
        Ok(messages.finish())
    }

    #[test]
    fn converts_items_to_messages() {
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let output =
            |id: &str| json!({"type": "function_call_output", "call_id": id, "output": id});
        let text = |role: &str, text: &str| json!({"role": role, "content": [{"type": "input_text", "text": text}]});
        let chat_call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}});
        let rows = [
            (json!("hi"), json!([{"role": "user", "content": "hi"}])),
            (
                json!([
                    text("developer", "a"),
                    text("system", "b"),
                    text("user", "c"),
                    text("developer", "d")
                ]),
                json!([{"role": "system", "content": "a\n\nb\n\nd"}, {"role": "user", "content": "c"}]),
            ),
            (
                json!([
                    text("user", "a"),
                    text("assistant", "b"),
                    text("developer", "s"),
                    text("assistant", "c"),
                    text("user", "d"),
                    text("system", "t"),
                    text("user", "e")
                ]),
                json!([{"role": "system", "content": "s\n\nt"}, {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "b\n\nc"}, {"role": "user", "content": "d\n\ne"}]),
            ),
            (
                json!([text("user", "go"), text("assistant", "first"), {"type": "reasoning", "summary": []},
                    call("1"), call("2"), text("assistant", "more"), output("1"), output("2")]),
                json!([{"role": "user", "content": "go"},
                    {"role": "assistant", "content": "first\n\nmore", "tool_calls": [chat_call("1"), chat_call("2")]},
                    {"role": "tool", "tool_call_id": "1", "content": "1"},
                    {"role": "tool", "tool_call_id": "2", "content": "2"}]),
            ),
            (
                json!([{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "x"},
                    {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]}]),
                json!([{"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "patch", "arguments": "{\"input\":\"x\"}"}}]},
                    {"role": "tool", "tool_call_id": "c", "content": "ok"}]),
            ),
            (
                json!([{"type": "function_call", "call_id": "c", "namespace": "n", "name": "f", "arguments": ""}]),
                json!([{"role": "assistant", "content": null, "tool_calls": [
                    {"id": "c", "type": "function", "function": {"name": "n__f", "arguments": ""}}]}]),
            ),
        ];
        for (items, expected) in rows {
            let (messages, _) = read(items.clone(), ProviderApi::Chat).unwrap();
            assert_eq!(Value::Array(messages), expected, "{items}");
        }
    }

    #[test]
    fn images_of_tool_results_follow_as_user_parts() {
        let image = json!({"type": "input_image", "image_url": "artifact:a"});
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
        let items = json!([call("1"), call("2"),
            {"type": "function_call_output", "call_id": "1", "output": [image]},
            {"type": "function_call_output", "call_id": "2", "output": "two"},
            {"role": "user", "content": "and?"}]);
        let (messages, pointers) = read(items, ProviderApi::Chat).unwrap();
        let roles: Vec<_> = messages.iter().map(|message| &message["role"]).collect();
        assert_eq!(roles, ["assistant", "tool", "tool", "user"]);
        let last = json!({"type": "text", "text": "and?"});
        assert_eq!(messages[3]["content"][2], last);
        assert_eq!(messages[3]["content"][1]["image_url"]["url"], "artifact:a");
        let source = pointers.of("/messages/3/content/1/image_url/url");
        assert_eq!(source, "/input/2/output/0/image_url");
    }

    #[test]
    fn reasoning_returns_with_calls_to_its_model() {
        let reasoning_members =
            JsonObject::from_iter([("reasoning_content".to_owned(), json!("T"))]);
        let carried = JsonObject::from_iter([("signature".to_owned(), json!("S"))]);
        let envelope = ReasoningEnvelope {
            reasoning_members,
            calls: BTreeMap::from([("c".to_owned(), carried)]),
        };
        for (model, has_reasoning) in [("m", true), ("other", false)] {
            let sealed = envelope.seal(model).unwrap();
            let items = json!([{"type": "reasoning", "encrypted_content": sealed},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]);
            let (messages, _) = read(items, ProviderApi::Chat).unwrap();
            assert_eq!(
                messages[0].get("reasoning_content").is_some(),
                has_reasoning
            );
            assert_eq!(
                messages[0]["tool_calls"][0].get("signature").is_some(),
                has_reasoning
            );
        }
    }

    #[test]
    fn unknown_items_never_reject_a_request() {
        let items = json!([{"role": "user", "content": "a"}, {"type": "web_search_call", "action": {}},
            {"type": "agent_message", "content": [{"type": "input_text", "text": "b"}]},
            {"type": "additional_tools", "tools": []}, {"type": "compaction", "encrypted_content": "x"}]);
        let (messages, _) = read(items, ProviderApi::Chat).unwrap();
        assert_eq!(messages, [json!({"role": "user", "content": "a\n\nb"})]);
    }

    #[test]
    fn rejects_malformed_items_by_pointer() {
        for (item, pointer) in [
            (json!({"type": "item_reference", "id": "i"}), "/input/0"),
            (json!({"content": "x"}), "/input/0/type"),
            (json!({"role": "tool", "content": "x"}), "/input/0/role"),
            (json!({"role": "user"}), "/input/0/content"),
            (
                json!({"type": "function_call", "name": "f", "arguments": "{}"}),
                "/input/0/call_id",
            ),
            (
                json!({"type": "function_call", "call_id": "c", "name": "f"}),
                "/input/0/arguments",
            ),
            (
                json!({"type": "function_call_output", "call_id": "c"}),
                "/input/0/output",
            ),
            (json!(7), "/input/0/type"),
        ] {
            let refused = read(json!([item]), ProviderApi::Chat).unwrap_err();
            assert_eq!(refused.pointer, pointer, "{item}");
        }
        assert_eq!(
            read(json!(7), ProviderApi::Chat).unwrap_err().pointer,
            "/input"
        );
        let opaque = json!([{"type": "compaction", "encrypted_content": "x"}]);
        assert!(read(opaque, ProviderApi::Responses).is_ok());
    }
}
