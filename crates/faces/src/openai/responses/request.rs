//! Requests for responses.

use domain::large_text::PathStep::{self, Each, Member};
use protocol::admin::Fault;
use serde_json::Value;

use crate::body::{FilePaths, RequestMembers};
use crate::input::{RequestTurn, TurnReader};
use crate::openai::parts::read_content;
use crate::openai::{actor_of, check_text_format};
use crate::questions::{AnswerOutput, declares_ask_user};

/// Paths of files in a request.
pub(crate) struct ResponseFiles;

impl FilePaths for ResponseFiles {
    fn file_paths() -> Vec<Vec<PathStep>> {
        let part = [Member("input"), Each, Member("content"), Each];
        let files: [&[PathStep]; 3] = [
            &[Member("image_url")],
            &[Member("file_data")],
            &[Member("input_audio"), Member("data")],
        ];
        files.map(|file| [&part[..], file].concat()).into()
    }
}

/// Conversation of a request.
#[derive(Debug, PartialEq)]
pub(super) enum NamedConversation {
    /// That of the run of an earlier response.
    Of(String),
    Id(String),
    /// A new one.
    New,
}

/// A valid request.
#[derive(Debug)]
pub(super) struct ValidResponseRequest {
    pub(super) model: String,
    pub(super) turn: RequestTurn,
    pub(super) instructions: String,
    pub(super) conversation: NamedConversation,
    pub(super) actor: Option<String>,
    pub(super) takes_questions: bool,
    pub(super) wants_stream: bool,
    pub(super) is_background: bool,
}

impl ValidResponseRequest {
    pub(super) fn read(request: &RequestMembers) -> Result<Self, Fault> {
        let model = request.required_text("model")?.to_owned();
        if request.get("prompt").is_some() {
            let message = "must be absent: the agent has its own prompt";
            return Err(Fault::new("/prompt", message));
        }
        let format = request.object("text")?.and_then(|text| text.get("format"));
        check_text_format(format, "/text/format")?;
        let tools = request.list("tools")?;
        let takes_questions = declares_ask_user(tools, |tool| &tool["name"])?;
        let mut reader = TurnReader::default();
        if let Some(instructions) = request.text("instructions")? {
            reader.add_instructions(instructions.to_owned());
        }
        match request.get("input") {
            Some(Value::String(text)) => reader.add_user(text.clone().into()),
            Some(Value::Array(items)) => read_items(items, &mut reader)?,
            _ => return Err(Fault::new("/input", "must be a text or a list of items")),
        }
        let (instructions, turn) = reader.finish("/input")?;
        Ok(Self {
            model,
            turn,
            instructions,
            conversation: conversation_of(request)?,
            actor: actor_of(request)?,
            takes_questions,
            wants_stream: request.flag("stream")?,
            is_background: request.flag("background")?,
        })
    }
}

fn conversation_of(request: &RequestMembers) -> Result<NamedConversation, Fault> {
    let previous = request.text("previous_response_id")?;
    let conversation = match request.get("conversation") {
        Some(Value::Object(object)) => object.get("id"),
        conversation => conversation,
    };
    match (previous, conversation) {
        (None, None) => Ok(NamedConversation::New),
        (None, Some(Value::String(id))) => Ok(NamedConversation::Id(id.clone())),
        (None, Some(_)) => Err(Fault::new(
            "/conversation",
            "must be an id, or an object with it",
        )),
        (Some(id), None) => Ok(NamedConversation::Of(id.to_owned())),
        (Some(_), Some(_)) => {
            let message =
                "must be absent with `previous_response_id`, which names the conversation";
            Err(Fault::new("/conversation", message))
        }
    }
}

fn read_items(items: &[Value], reader: &mut TurnReader) -> Result<(), Fault> {
    for (at, item) in items.iter().enumerate() {
        let pointer = format!("/input/{at}");
        match item["type"].as_str().unwrap_or("message") {
            "message" => read_message(item, &pointer, reader)?,
            "function_call_output" => {
                let call = item["call_id"].as_str().unwrap_or_default();
                let pointer = format!("{pointer}/output");
                let output = read_content(&item["output"], &pointer)?.text();
                reader.add_answer(AnswerOutput::read(call.to_owned(), &output, &pointer)?);
            }
            // Calls, reasoning and references of earlier responses: the run has its own record of them.
            _ => {}
        }
    }
    Ok(())
}

fn read_message(item: &Value, pointer: &str, reader: &mut TurnReader) -> Result<(), Fault> {
    let parts = read_content(&item["content"], &format!("{pointer}/content"))?;
    match item["role"].as_str().unwrap_or_default() {
        "system" | "developer" => reader.add_instructions(parts.text()),
        "user" => reader.add_user(parts),
        "assistant" => reader.add_assistant(&parts.text()),
        _ => {
            let message = "must be system, developer, user or assistant";
            return Err(Fault::new(format!("{pointer}/role"), message));
        }
    }
    Ok(())
}
