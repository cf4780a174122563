//! `RunAgentInput`: the last turn of the user, or the answers to interrupts.

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::context::InputAttachment;
use protocol::message::ContentElement;
use serde_json::Value;

use crate::body::RequestMembers;
use crate::input::{
    FileOfMessage, FileOrigin, LastUserMessage, MessageParts, RequestTurn, TurnReader,
};

/// Maximum answers of one input.
const MAX_ANSWERS: usize = 20;
/// Members of the input that become members of the event's data.
const DATA: [(&str, &str); 4] = [
    ("state", "state"),
    ("tools", "tools"),
    ("context", "context"),
    ("forwardedProps", "forwarded_props"),
];

/// A valid input.
pub(super) struct AgUiInput {
    pub(super) thread_id: String,
    pub(super) run_id: String,
    pub(super) turn: AgUiTurn,
    /// Data of the event.
    pub(super) data: JsonObject,
}

/// The part of an input that acts.
pub(super) enum AgUiTurn {
    Message(LastUserMessage),
    /// At least one.
    Answers(Vec<ResumeEntry>),
}

/// The answer to an interrupt.
#[derive(Debug, PartialEq)]
pub(super) struct ResumeEntry {
    /// Id of the interaction.
    pub(super) interrupt: String,
    pub(super) given: ResumeStatus,
}

/// Outcome of an interrupt at the client.
#[derive(Debug, PartialEq)]
pub(super) enum ResumeStatus {
    /// Payload of the answer.
    Resolved(Value),
    Cancelled,
}

impl AgUiInput {
    pub(super) fn read(request: &RequestMembers) -> Result<Self, Fault> {
        let id = |name: &str| match request.required_text(name)? {
            "" => Err(Fault::new(format!("/{name}"), "must not be empty")),
            id => Ok(id.to_owned()),
        };
        let (thread_id, run_id) = (id("threadId")?, id("runId")?);
        let resume = request.list("resume")?;
        let mut data = JsonObject::new();
        let (turn, instructions) = if resume.is_empty() {
            let (instructions, message) = read_messages(request.list("messages")?)?;
            (AgUiTurn::Message(message), instructions)
        } else {
            (AgUiTurn::Answers(read_resume(resume)?), String::new())
        };
        if !instructions.is_empty() {
            data.insert("instructions".to_owned(), Value::String(instructions));
        }
        for (member, name) in DATA {
            let value = request.get(member).filter(|value| !is_empty(value));
            data.extend(value.map(|value| (name.to_owned(), value.clone())));
        }
        Ok(Self {
            thread_id,
            run_id,
            turn,
            data,
        })
    }
}

/// Clients send absent members as empty ones.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

fn read_resume(entries: &[Value]) -> Result<Vec<ResumeEntry>, Fault> {
    if entries.len() > MAX_ANSWERS {
        let message = format!("must have at most {MAX_ANSWERS} answers");
        return Err(Fault::new("/resume", message));
    }
    let read = |(at, entry): (usize, &Value)| {
        let interrupt = entry["interruptId"].as_str().map(str::to_owned);
        let interrupt = interrupt.ok_or_else(|| {
            let pointer = format!("/resume/{at}/interruptId");
            Fault::new(pointer, "must be the id of an interrupt")
        })?;
        let given = match entry["status"].as_str() {
            Some("resolved") => ResumeStatus::Resolved(entry["payload"].clone()),
            Some("cancelled") => ResumeStatus::Cancelled,
            _ => {
                let pointer = format!("/resume/{at}/status");
                return Err(Fault::new(pointer, "must be resolved or cancelled"));
            }
        };
        Ok(ResumeEntry { interrupt, given })
    };
    entries.iter().enumerate().map(read).collect()
}

/// The instructions and the last turn.
fn read_messages(messages: &[Value]) -> Result<(String, LastUserMessage), Fault> {
    let mut reader = TurnReader::default();
    for (at, message) in messages.iter().enumerate() {
        let pointer = format!("/messages/{at}/content");
        match message["role"].as_str().unwrap_or_default() {
            "system" | "developer" => {
                let parts = read_content(&message["content"], &pointer)?;
                reader.add_instructions(parts.text());
            }
            "user" => reader.add_user(read_content(&message["content"], &pointer)?),
            "assistant" => {
                let parts = read_content(&message["content"], &pointer)?;
                reader.add_assistant(&parts.text());
            }
            // The client has them from the agent.
            "tool" | "activity" | "reasoning" => {}
            _ => {
                let message = "must be a role of AG-UI";
                return Err(Fault::new(format!("/messages/{at}/role"), message));
            }
        }
    }
    let (instructions, turn) = reader.finish("/messages")?;
    match turn {
        RequestTurn::Message(message) => Ok((instructions, message)),
        RequestTurn::Answers(_) => Err(Fault::new("/messages", "must end with a message")),
    }
}

fn read_content(content: &Value, pointer: &str) -> Result<MessageParts, Fault> {
    let mut parts = MessageParts::default();
    match content {
        // Assistants with tool calls have no content.
        Value::Null => {}
        Value::String(text) => parts.contents.push(ContentElement::text(text)),
        Value::Array(list) => {
            for (at, part) in list.iter().enumerate() {
                read_part(part, &format!("{pointer}/{at}"), &mut parts)?;
            }
        }
        _ => return Err(Fault::new(pointer, "must be a text or a list of parts")),
    }
    Ok(parts)
}

fn read_part(part: &Value, pointer: &str, parts: &mut MessageParts) -> Result<(), Fault> {
    let default_type = match part["type"].as_str().unwrap_or_default() {
        "text" => {
            let text = part["text"].as_str();
            let text =
                text.ok_or_else(|| Fault::new(format!("{pointer}/text"), "must be a text"))?;
            parts.contents.push(ContentElement::text(text));
            return Ok(());
        }
        // The part is an image, also without a type of its own.
        "image" => Some("image/*"),
        "audio" | "video" | "document" => None,
        _ => {
            let message = "must be text, image, audio, video or document";
            return Err(Fault::new(format!("{pointer}/type"), message));
        }
    };
    let source = &part["source"];
    let value = source["value"].as_str();
    let value =
        value.ok_or_else(|| Fault::new(format!("{pointer}/source/value"), "must be a text"))?;
    let content = match source["type"].as_str().unwrap_or_default() {
        "data" => FileOrigin::Base64(value),
        "url" => FileOrigin::Url(value),
        // An upload is an attachment, so that the event binds it.
        "file" => {
            parts.attachments.push(InputAttachment {
                id: Some(value.to_owned()),
                ..InputAttachment::default()
            });
            return Ok(());
        }
        _ => {
            let message = "must be data, url, or file with the id of an uploaded artifact";
            return Err(Fault::new(format!("{pointer}/source/type"), message));
        }
    };
    let file = FileOfMessage {
        source: content,
        media_type: source["mimeType"].as_str().or(default_type),
        name: None,
    };
    parts.contents.push(file.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(more: &Value) -> Result<AgUiInput, Fault> {
        let mut body = json!({"threadId": "t", "runId": "r",
            "messages": [{"id": "m", "role": "user", "content": "hi"}]});
        let members = body.as_object_mut().unwrap();
        members.extend(more.as_object().unwrap().clone());
        AgUiInput::read(&RequestMembers::from(members.clone()))
    }

    #[test]
    fn reads_parts_of_messages() {
        let content = json!([
            {"type": "text", "text": "a"},
            {"type": "image", "source": {"type": "url", "value": "https://x/y"}},
            {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}},
            {"type": "document", "source": {"type": "data", "value": "AAAA", "mimeType": "text/plain"}},
            {"type": "audio", "source": {"type": "file", "value": "01a2"}},
        ]);
        let parts = read_content(&content, "").unwrap();
        let expected = json!([
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "https://x/y"}},
            {"type": "image_base64", "image_base64": "data:image/png;base64,AAAA"},
            {"type": "file_base64", "file_base64": "data:text/plain;base64,AAAA"},
        ]);
        assert_eq!(serde_json::to_value(&parts.contents).unwrap(), expected);
        assert_eq!(parts.attachments[0].id.as_deref(), Some("01a2"));
    }

    #[test]
    fn empty_members_are_absent() {
        let more = json!({"state": {}, "tools": [], "context": [{"description": "d", "value": "v"}],
            "forwardedProps": {"a": 1}});
        let data = read(&more).unwrap_or_else(|fault| panic!("{fault:?}")).data;
        let expected =
            json!({"context": [{"description": "d", "value": "v"}], "forwarded_props": {"a": 1}});
        assert_eq!(Value::Object(data), expected);
    }

    #[test]
    fn faults_point_into_the_input() {
        for (more, pointer) in [
            (json!({"threadId": ""}), "/threadId"),
            (json!({"runId": null}), "/runId"),
            (json!({"messages": []}), "/messages"),
            (json!({"messages": [{"role": "robot"}]}), "/messages/0/role"),
            (
                json!({"messages": [{"role": "user", "content": [{"type": "x"}]}]}),
                "/messages/0/content/0/type",
            ),
            (
                json!({"resume": [{"status": "resolved"}]}),
                "/resume/0/interruptId",
            ),
            (
                json!({"resume": [{"interruptId": "i"}]}),
                "/resume/0/status",
            ),
        ] {
            let fault = read(&more).err();
            assert_eq!(fault.map(|fault| fault.pointer).as_deref(), Some(pointer));
        }
    }
}
