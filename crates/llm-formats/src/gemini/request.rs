//! Requests of clients as chat completions.

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::{Value, json};

use super::contents::Contents;
use super::members::{check_members, check_object, items, member, member_of, text};
use super::schema::json_schema;
use super::thinking::RequestedThinking;
use super::tools::add_tools;
use crate::chat::responses::pointers::PointerMap;

/// Members of a request. Safety settings and labels have no meaning for other APIs.
const MEMBERS: [&str; 8] = [
    "model",
    "contents",
    "systemInstruction",
    "tools",
    "toolConfig",
    "generationConfig",
    "safetySettings",
    "labels",
];
/// Members of `generationConfig` that have another name in chat completions, with that name.
const PASSED: [(&str, &str); 8] = [
    ("temperature", "temperature"),
    ("topP", "top_p"),
    ("topK", "top_k"),
    ("maxOutputTokens", "max_tokens"),
    ("stopSequences", "stop"),
    ("seed", "seed"),
    ("presencePenalty", "presence_penalty"),
    ("frequencyPenalty", "frequency_penalty"),
];
/// Further members of `generationConfig`.
const CONFIG: [&str; 6] = [
    "candidateCount",
    "responseMimeType",
    "responseSchema",
    "responseJsonSchema",
    "responseModalities",
    "thinkingConfig",
];
const MAX_STOPS: usize = 512;

/// A request as a chat completion, without the model.
#[derive(Debug)]
pub struct GeminiRequest {
    pub chat: JsonObject,
    /// The client wants to see the model's reasoning.
    pub shows_reasoning: bool,
    pointers: PointerMap,
}

impl GeminiRequest {
    /// Maps a pointer into the chat completion to one into the request.
    pub fn pointer(&self, chat: &str) -> String {
        self.pointers.of(chat)
    }
}

/// Reads a request for `model`, the granted model's id. Consecutive contents of one role are merged. Reasoning and
/// signatures return only to the same model.
///
/// # Errors
/// A fault at the part of the request that is not allowed, or that chat completions cannot express.
pub fn read_request(body: &JsonObject, model: &str) -> Result<GeminiRequest, Fault> {
    // An allow-list: a new member of the API might start tools or store data.
    check_object(body, &MEMBERS)?;
    let mut chat = JsonObject::new();
    let mut pointers = PointerMap::default();
    let contents = Contents::read(body, model)?;
    contents.add_to(&mut chat, &mut pointers);
    let (tools, choice) = (member_of(body, "tools"), member_of(body, "toolConfig"));
    add_tools(tools, choice, &mut chat, &mut pointers)?;
    let config = member_of(body, "generationConfig");
    let thinking = if config.is_null() {
        RequestedThinking::default()
    } else {
        add_config(config, &mut chat, &mut pointers)
            .map_err(|fault| fault.under("/generationConfig"))?
    };
    Ok(GeminiRequest {
        chat,
        shows_reasoning: thinking.is_shown,
        pointers,
    })
}

fn add_config(
    config: &Value,
    chat: &mut JsonObject,
    pointers: &mut PointerMap,
) -> Result<RequestedThinking, Fault> {
    let allowed: Vec<_> = PASSED.iter().map(|(name, _)| *name).chain(CONFIG).collect();
    check_members(config, &allowed)?;
    for (name, of_chat) in PASSED {
        let value = member(config, name);
        if !value.is_null() {
            chat.insert(of_chat.to_owned(), value.clone());
            pointers.add(format!("/{of_chat}"), format!("/generationConfig/{name}"));
        }
    }
    let stops = items(member(config, "stopSequences"), MAX_STOPS);
    let stops = stops.map_err(|fault| fault.under("/stopSequences"))?;
    if stops.is_empty() {
        // Some servers reject an empty list.
        chat.remove("stop");
    }
    let answers = member(config, "candidateCount");
    let is_one = answers.is_null() || answers == 1;
    require(
        is_one,
        "/candidateCount",
        "must be 1: send a request for each answer",
    )?;
    let modalities = member(config, "responseModalities");
    let is_text = items(modalities, MAX_STOPS).is_ok_and(|all| {
        all.iter()
            .all(|one| one.as_str().is_some_and(is_text_modality))
    });
    require(is_text, "/responseModalities", "must be TEXT only")?;
    if let Some(format) = response_format(config)? {
        chat.insert("response_format".to_owned(), format);
    }
    let thinking = RequestedThinking::read(member(config, "thinkingConfig"));
    let thinking = thinking.map_err(|fault| fault.under("/thinkingConfig"))?;
    if let Some(effort) = thinking.effort {
        chat.insert("reasoning_effort".to_owned(), json!(effort));
        let request = "/generationConfig/thinkingConfig";
        pointers.add("/reasoning_effort".to_owned(), request.to_owned());
    }
    Ok(thinking)
}

fn is_text_modality(name: &str) -> bool {
    name.eq_ignore_ascii_case("text")
}

/// The format of the answer. `None`: text.
fn response_format(config: &Value) -> Result<Option<Value>, Fault> {
    let kind = text(config, "responseMimeType");
    let schemas = ["responseJsonSchema", "responseSchema"].map(|name| member(config, name));
    let schema = schemas.into_iter().find(|schema| !schema.is_null());
    match (kind, schema) {
        ("application/json", Some(schema)) => {
            // Completions require a name for the schema.
            let schema = json!({"name": "answer", "schema": json_schema(schema)});
            Ok(Some(json!({"type": "json_schema", "json_schema": schema})))
        }
        ("application/json", None) => Ok(Some(json!({"type": "json_object"}))),
        ("" | "text/plain", None) => Ok(None),
        _ => Err(Fault::new(
            "/responseMimeType",
            "must be text/plain, or application/json with or without a schema",
        )),
    }
}

fn require(holds: bool, pointer: &str, message: &str) -> Result<(), Fault> {
    if holds {
        return Ok(());
    }
    Err(Fault::new(pointer, message))
}
