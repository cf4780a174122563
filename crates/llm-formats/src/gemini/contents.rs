//! Contents of a request as messages.

use std::collections::VecDeque;

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::message::{
    ContentElement, FunctionCall, ImageUrl, Message, MessageContent, ToolCall,
};
use serde_json::Value;

use super::members::{check_members, items, member, member_of, text};
use super::signature::SignedMembers;
use crate::chat::chat_message;
use crate::chat::responses::pointers::PointerMap;
use crate::messages::BEGINS_EARLIER;

/// Maximum contents of a request, and parts of a content.
const MAX_ITEMS: usize = 10_000;
/// Separator between texts of different parts.
const BETWEEN: &str = "\n\n";
/// Members of a part, of which one has its content.
const PART: [&str; 7] = [
    "text",
    "thought",
    "thoughtSignature",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
];
const DATA: [&str; 5] = [
    "text",
    "inlineData",
    "fileData",
    "functionCall",
    "functionResponse",
];

/// Messages in the form of chat completions, with the pointers of their contents.
pub(super) struct Contents<'a> {
    model: &'a str,
    messages: Vec<Value>,
    pointers: Vec<(String, String)>,
    /// Calls of the last turn of the model that have no result yet.
    open_calls: VecDeque<OpenFunctionCall>,
    /// Number of calls so far, for those without an id.
    calls: usize,
}

struct OpenFunctionCall {
    id: String,
    name: String,
}

/// A part with its pointer from the body.
struct LocatedPart<'a> {
    pointer: String,
    part: &'a Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    User,
    Model,
}

impl<'a> Contents<'a> {
    /// Reads the contents and the system instruction of a request for `model`.
    pub(super) fn read(body: &JsonObject, model: &'a str) -> Result<Self, Fault> {
        let mut read = Self {
            model,
            messages: Vec::new(),
            pointers: Vec::new(),
            open_calls: VecDeque::new(),
            calls: 0,
        };
        read.system(member_of(body, "systemInstruction"))
            .map_err(|fault| fault.under("/systemInstruction"))?;
        let turns = turns(member_of(body, "contents"))?;
        // Chat templates demand that a user speaks first.
        if turns.first().is_some_and(|(side, _)| *side == Side::Model) {
            read.push(&Message::text("user", BEGINS_EARLIER), "/contents/0");
        }
        for (side, parts) in turns {
            match side {
                Side::User => read.user(&parts)?,
                Side::Model => read.assistant(&parts)?,
            }
        }
        Ok(read)
    }

    pub(super) fn add_to(self, chat: &mut JsonObject, pointers: &mut PointerMap) {
        for (of_chat, of_request) in self.pointers {
            pointers.add(of_chat, of_request);
        }
        chat.insert("messages".to_owned(), Value::Array(self.messages));
    }

    fn push(&mut self, message: &Message, pointer: &str) {
        let index = self.messages.len();
        self.point(&format!("/messages/{index}"), pointer);
        self.messages.push(chat_message(message, self.model));
    }

    fn point(&mut self, chat: &str, request: &str) {
        self.pointers.push((chat.to_owned(), request.to_owned()));
    }

    /// All system texts become one message, because many chat templates accept only one.
    fn system(&mut self, instruction: &Value) -> Result<(), Fault> {
        if instruction.is_null() {
            return Ok(());
        }
        check_members(instruction, &["role", "parts"])?;
        let mut texts = Vec::new();
        let parts = items(member(instruction, "parts"), MAX_ITEMS);
        let parts = parts.map_err(|fault| fault.under("/parts"))?;
        for (n, part) in parts.iter().enumerate() {
            let at = format!("/parts/{n}");
            check_members(part, &["text"]).map_err(|fault| fault.under(&at))?;
            texts.push(text(part, "text"));
        }
        texts.retain(|text| !text.trim().is_empty());
        if !texts.is_empty() {
            let message = Message::text("system", texts.join(BETWEEN));
            self.push(&message, "/systemInstruction");
        }
        Ok(())
    }

    /// Function responses come first, as chat completions require, then all other content.
    fn user(&mut self, parts: &[LocatedPart<'_>]) -> Result<(), Fault> {
        let mut shown = Vec::new();
        for located in parts {
            let response = member(located.part, "functionResponse");
            if !response.is_null() {
                let result = self.response(response, &located.pointer, &mut shown);
                let message = result.map_err(|fault| {
                    fault.under(&format!("{}/functionResponse", located.pointer))
                })?;
                self.push(&message, &located.pointer);
            }
        }
        for located in parts {
            if member(located.part, "functionResponse").is_null() {
                let element =
                    element_of(located.part).map_err(|fault| fault.under(&located.pointer))?;
                shown.extend(element.map(|element| (element, located.pointer.clone())));
            }
        }
        let Some((_, first)) = shown.first() else {
            return Ok(());
        };
        let (index, first) = (self.messages.len(), first.clone());
        let texts: Option<Vec<_>> = shown
            .iter()
            .map(|(element, _)| element.text.as_deref())
            .collect();
        // Some servers reject a list of parts.
        let content = if let Some(texts) = texts {
            MessageContent::Text(texts.join(BETWEEN))
        } else {
            for (n, (element, pointer)) in shown.iter().enumerate() {
                let at = format!("/messages/{index}/content/{n}");
                self.point(&at, pointer);
                let data = if element.image_url.is_some() {
                    "fileData/fileUri"
                } else {
                    "inlineData/data"
                };
                for holder in ["image_url/url", "file/file_data"] {
                    self.point(&format!("{at}/{holder}"), &format!("{pointer}/{data}"));
                }
            }
            MessageContent::Parts(shown.into_iter().map(|(element, _)| element).collect())
        };
        let message = Message {
            content: Some(content),
            ..Message::text("user", "")
        };
        self.push(&message, &first);
        Ok(())
    }

    /// The message of one function response. Its media go to `shown`, because tool messages contain only text.
    fn response(
        &mut self,
        response: &Value,
        pointer: &str,
        shown: &mut Vec<(ContentElement, String)>,
    ) -> Result<Message, Fault> {
        check_members(response, &["id", "name", "response", "parts"])?;
        let (id, name) = (text(response, "id"), text(response, "name"));
        let is_its = |call: &OpenFunctionCall| match id {
            // Without an id, calls of one function are answered in their order.
            "" => call.name == name,
            id => call.id == id,
        };
        let found = self.open_calls.iter().position(is_its);
        let call = found.and_then(|at| self.open_calls.remove(at));
        let call = call.ok_or_else(|| {
            Fault::new(
                "",
                "must answer a functionCall of the model's content before it",
            )
        })?;
        let parts = items(member(response, "parts"), MAX_ITEMS);
        let parts = parts.map_err(|fault| fault.under("/parts"))?;
        let before = shown.len();
        for (n, part) in parts.iter().enumerate() {
            let at = format!("/parts/{n}");
            let element = check_members(part, &["inlineData", "fileData"])
                .and_then(|()| element_of(part))
                .map_err(|fault| fault.under(&at))?;
            let pointer = format!("{pointer}/functionResponse{at}");
            shown.extend(element.map(|element| (element, pointer)));
        }
        let mut content = response_text(member(response, "response"));
        if shown.len() > before {
            content += "\n\n(its images and files are in the next message)";
        }
        Ok(Message {
            tool_call_id: Some(call.id),
            ..Message::text("tool", content)
        })
    }

    fn assistant(&mut self, parts: &[LocatedPart<'_>]) -> Result<(), Fault> {
        self.open_calls.clear();
        let (mut texts, mut calls) = (String::new(), Vec::new());
        let mut fields: Option<JsonObject> = None;
        for LocatedPart { pointer, part } in parts {
            let signed = SignedMembers::read(text(part, "thoughtSignature")).unwrap_or_default();
            if !signed.message.is_empty() {
                fields = Some(signed.message);
            }
            let call = member(part, "functionCall");
            if !call.is_null() {
                let call = self.call(call, signed.call);
                calls.push(call.map_err(|fault| fault.under(&format!("{pointer}/functionCall")))?);
            } else if let Some(text) = member(part, "text").as_str() {
                // Reasoning returns in the signature only: other models would take it for the answer.
                if member(part, "thought") != true {
                    texts.push_str(text);
                }
            } else {
                let message =
                    "must be text or a functionCall: models read no other content of their own";
                return Err(Fault::new(pointer.as_str(), message));
            }
        }
        let Some(first) = parts.first() else {
            return Ok(());
        };
        // Reasoning without text and calls is no message for a completion.
        if texts.is_empty() && calls.is_empty() {
            return Ok(());
        }
        let message = Message {
            content: (!texts.is_empty()).then_some(MessageContent::Text(texts)),
            tool_calls: (!calls.is_empty()).then_some(calls),
            provider_specific_fields: fields,
            ..Message::text("assistant", "")
        };
        self.push(&message, &first.pointer);
        Ok(())
    }

    fn call(&mut self, call: &Value, members: JsonObject) -> Result<ToolCall, Fault> {
        check_members(call, &["id", "name", "args"])?;
        let (id, name) = (text(call, "id"), text(call, "name"));
        require(!name.is_empty(), "/name", "must be the name of a function")?;
        let args = member(call, "args");
        let is_object = args.is_null() || args.is_object();
        require(is_object, "/args", "must be an object")?;
        self.calls += 1;
        let id = match id {
            "" => format!("call_{}", self.calls),
            id => id.to_owned(),
        };
        self.open_calls.push_back(OpenFunctionCall {
            id: id.clone(),
            name: name.to_owned(),
        });
        Ok(ToolCall {
            id,
            kind: "function".to_owned(),
            function: FunctionCall {
                name: name.to_owned(),
                arguments: match args {
                    Value::Null => "{}".to_owned(),
                    args => args.to_string(),
                },
            },
            provider_specific_fields: (!members.is_empty()).then_some(members),
        })
    }
}

/// Parts by side: consecutive contents of one role are one turn, because streams of clients have many.
fn turns(contents: &Value) -> Result<Vec<(Side, Vec<LocatedPart<'_>>)>, Fault> {
    let contents = items(contents, MAX_ITEMS).map_err(|fault| fault.under("/contents"))?;
    require(
        !contents.is_empty(),
        "/contents",
        "must be a list of 1 or more contents",
    )?;
    let mut turns: Vec<(Side, Vec<LocatedPart<'_>>)> = Vec::new();
    for (n, content) in contents.iter().enumerate() {
        let at = format!("/contents/{n}");
        let (side, parts) = parts_of(content, &at).map_err(|fault| fault.under(&at))?;
        match turns.last_mut() {
            Some((last, all)) if *last == side => all.extend(parts),
            // Contents without parts separate no others.
            _ if parts.is_empty() => {}
            _ => turns.push((side, parts)),
        }
    }
    Ok(turns)
}

fn parts_of<'a>(content: &'a Value, at: &str) -> Result<(Side, Vec<LocatedPart<'a>>), Fault> {
    check_members(content, &["role", "parts"])?;
    let side = match text(content, "role") {
        "" | "user" | "function" | "tool" => Side::User,
        "model" => Side::Model,
        _ => return Err(Fault::new("/role", "must be user or model")),
    };
    let parts = items(member(content, "parts"), MAX_ITEMS);
    let parts = parts.map_err(|fault| fault.under("/parts"))?;
    let mut located = Vec::with_capacity(parts.len());
    for (n, part) in parts.iter().enumerate() {
        check_part(part).map_err(|fault| fault.under(&format!("/parts/{n}")))?;
        located.push(LocatedPart {
            pointer: format!("{at}/parts/{n}"),
            part,
        });
    }
    Ok((side, located))
}

fn check_part(part: &Value) -> Result<(), Fault> {
    check_members(part, &PART)?;
    let contents = DATA.iter().filter(|name| !member(part, name).is_null());
    let message = "must have one of text, inlineData, fileData, functionCall and functionResponse";
    require(contents.count() == 1, "", message)
}

/// The element of a user's part. `None`: it has no content for a completion.
fn element_of(part: &Value) -> Result<Option<ContentElement>, Fault> {
    if let Some(text) = member(part, "text").as_str() {
        let is_blank = text.trim().is_empty();
        return Ok((!is_blank).then(|| ContentElement::text(text)));
    }
    let data = member(part, "inlineData");
    if !data.is_null() {
        return inline(data)
            .map(Some)
            .map_err(|fault| fault.under("/inlineData"));
    }
    let file = member(part, "fileData");
    if !file.is_null() {
        return by_url(file)
            .map(Some)
            .map_err(|fault| fault.under("/fileData"));
    }
    let message = "must be text, inlineData, fileData or a functionResponse in a user's content";
    Err(Fault::new("", message))
}

fn inline(data: &Value) -> Result<ContentElement, Fault> {
    check_members(data, &["mimeType", "data", "displayName"])?;
    let (kind, bytes) = (text(data, "mimeType"), text(data, "data"));
    require(kind.contains('/'), "/mimeType", "must be a media type")?;
    // Python's client writes bytes in the alphabet of URLs.
    let bytes = bytes.replace('-', "+").replace('_', "/");
    let url = format!("data:{kind};base64,{bytes}");
    if kind.starts_with("image/") {
        return Ok(ContentElement {
            kind: "image_base64".to_owned(),
            image_base64: Some(url),
            ..ContentElement::default()
        });
    }
    let name = Some(text(data, "displayName")).filter(|name| !name.is_empty());
    Ok(ContentElement {
        kind: "file_base64".to_owned(),
        file_base64: Some(url),
        file_name: name.map(str::to_owned),
        ..ContentElement::default()
    })
}

/// Images only: the gateway fetches no documents, and completions accept none by URL.
fn by_url(file: &Value) -> Result<ContentElement, Fault> {
    check_members(file, &["mimeType", "fileUri", "displayName"])?;
    let (kind, url) = (text(file, "mimeType"), text(file, "fileUri"));
    let is_image = kind.is_empty() || kind.starts_with("image/");
    require(
        is_image,
        "/mimeType",
        "must be an image: send other files as inlineData",
    )?;
    // Files that the provider stores belong to the account of the operator.
    let is_stored = url.is_empty() || url.starts_with("files/") || url.contains("/v1beta/files/");
    let message = "must be `artifact:` and an id, or the URL of an image: files at the provider belong to no run";
    require(!is_stored, "/fileUri", message)?;
    Ok(ContentElement {
        kind: "image_url".to_owned(),
        image_url: Some(ImageUrl {
            url: url.to_owned(),
        }),
        ..ContentElement::default()
    })
}

/// The text of a result. Google's clients put a text under `output` or `result`.
fn response_text(response: &Value) -> String {
    let members = response.as_object();
    let single = members.filter(|members| members.len() == 1);
    let text = single.and_then(|members| {
        let mut texts = ["output", "result"].iter();
        texts.find_map(|name| members.get(*name)?.as_str())
    });
    match (text, response) {
        (Some(text), _) => text.to_owned(),
        (None, Value::Null) => String::new(),
        (None, response) => response.to_string(),
    }
}

fn require(holds: bool, pointer: &str, message: &str) -> Result<(), Fault> {
    if holds {
        return Ok(());
    }
    Err(Fault::new(pointer, message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(body: &Value) -> Result<Value, Fault> {
        let mut chat = JsonObject::new();
        let contents = Contents::read(body.as_object().unwrap(), "m")?;
        contents.add_to(&mut chat, &mut PointerMap::default());
        Ok(chat["messages"].clone())
    }

    #[test]
    fn turn_with_calls_keeps_ids_and_order() {
        let picture = json!({"mimeType": "image/png", "data": "A-_="});
        let chat = messages(&json!({"system_instruction": {"parts": [{"text": "be"}, {"text": "kind"}]}, "contents": [
            {"role": "user", "parts": [{"text": "look"}, {"inline_data": picture}]},
            {"role": "model", "parts": [{"text": "hm", "thought": true}]},
            {"role": "model", "parts": [{"text": "I lo"}]},
            {"role": "model", "parts": [{"text": "ok."}, {"functionCall": {"id": "c-1", "name": "f", "args": {"a": 1}}},
                {"functionCall": {"name": "g"}}, {"functionCall": {"name": "g"}}]},
            {"role": "user", "parts": [
                {"text": "continue"},
                {"functionResponse": {"name": "g", "response": {"output": "one"}}},
                {"functionResponse": {"id": "c-1", "name": "f", "response": {"a": 1, "output": "x"}, "parts": [{"inlineData": picture}]}},
                {"functionResponse": {"name": "g", "response": {"result": "two"}}}]}]}))
        .unwrap();
        let image =
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,A+/="}});
        let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        assert_eq!(
            chat,
            json!([
                {"role": "system", "content": "be\n\nkind"},
                {"role": "user", "content": [{"type": "text", "text": "look"}, image]},
                {"role": "assistant", "content": "I look.",
                    "tool_calls": [call("c-1", "f", "{\"a\":1}"), call("call_2", "g", "{}"), call("call_3", "g", "{}")]},
                {"role": "tool", "tool_call_id": "call_2", "content": "one"},
                {"role": "tool", "tool_call_id": "c-1",
                    "content": "{\"a\":1,\"output\":\"x\"}\n\n(its images and files are in the next message)"},
                {"role": "tool", "tool_call_id": "call_3", "content": "two"},
                {"role": "user", "content": [image, {"type": "text", "text": "continue"}]},
            ])
        );
    }

    #[test]
    fn files_become_elements() {
        let chat = messages(&json!({"contents": [{"parts": [
            {"fileData": {"fileUri": "artifact:a-1", "mimeType": "image/png"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0", "displayName": "a.pdf"}}]},
            {"role": "model", "parts": []}, {"parts": [{"text": " "}, {"text": "see"}]}]}))
        .unwrap();
        let parts = json!([{"type": "image_url", "image_url": {"url": "artifact:a-1"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0"}},
            {"type": "text", "text": "see"}]);
        assert_eq!(chat, json!([{"role": "user", "content": parts}]));
    }

    #[test]
    fn signed_members_return_to_the_same_model() {
        let signature = |model: &str| {
            let object = crate::object;
            let members = SignedMembers {
                message: object(json!({"reasoning_content": "hm"})),
                call: object(json!({"extra_content": {"google": {"thought_signature": "S"}}})),
            };
            members.sign(model).unwrap()
        };
        let back = |model: &str| {
            let call = json!({"functionCall": {"id": "c", "name": "f"}, "thoughtSignature": signature(model)});
            let body = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}, {"role": "model", "parts": [call]}]});
            messages(&body).unwrap()[1].clone()
        };
        assert_eq!(back("m")["reasoning_content"], "hm");
        assert_eq!(
            back("m")["tool_calls"][0]["extra_content"]["google"]["thought_signature"],
            "S"
        );
        assert!(back("n").get("reasoning_content").is_none());
        assert!(back("n")["tool_calls"][0].get("extra_content").is_none());
    }

    #[test]
    fn faults_have_pointers() {
        let user = |part: Value| json!({"contents": [{"role": "user", "parts": [part]}]});
        for (body, pointer) in [
            (json!({}), "/contents"),
            (
                json!({"contents": [{"role": "system", "parts": []}]}),
                "/contents/0/role",
            ),
            (
                json!({"contents": [{"parts": [{"text": "a"}], "x": 1}]}),
                "/contents/0/x",
            ),
            (user(json!({})), "/contents/0/parts/0"),
            (
                user(json!({"executableCode": {}})),
                "/contents/0/parts/0/executableCode",
            ),
            (
                user(json!({"functionCall": {"name": "f"}})),
                "/contents/0/parts/0",
            ),
            (
                user(json!({"functionResponse": {"name": "f"}})),
                "/contents/0/parts/0/functionResponse",
            ),
            (
                user(json!({"inlineData": {"data": "AA"}})),
                "/contents/0/parts/0/inlineData/mimeType",
            ),
            (
                user(json!({"fileData": {"fileUri": "files/x"}})),
                "/contents/0/parts/0/fileData/fileUri",
            ),
            (
                user(
                    json!({"fileData": {"fileUri": "https://a/b", "mimeType": "application/pdf"}}),
                ),
                "/contents/0/parts/0/fileData/mimeType",
            ),
            (
                json!({"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f", "args": []}}]}]}),
                "/contents/0/parts/0/functionCall/args",
            ),
            (
                json!({"systemInstruction": {"parts": [{"inlineData": {}}]}, "contents": []}),
                "/systemInstruction/parts/0/inlineData",
            ),
        ] {
            assert_eq!(messages(&body).unwrap_err().pointer, pointer, "{body}");
        }
    }
}
