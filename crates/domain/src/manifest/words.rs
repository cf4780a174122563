//! Words of a manifest: capabilities, permissions and their operations. Unknown ones are dropped with a warning.

use protocol::admin::Fault;
use protocol::manifest::{Capabilities, Permissions};
use protocol::peer_text::shown;
use protocol::resources::{
    AgentOperation, ArtifactOperation, EventOperation, FileOperation, HistoryOperation,
    InteractionOperation, KnowledgeOperation, ModelOperation, ScheduleOperation, StateScope,
    StorageArea, ToolOperation,
};
use serde_json::Value;

use super::{mapping, typed};
use crate::form::escape_pointer;
use crate::nearest::nearest;
use crate::platform_action::{definition, unknown_action};

pub(super) const CAPABILITIES: [&str; 13] = [
    "streaming",
    "tool_calling",
    "knowledge_retrieval",
    "multimodal_input",
    "event_context",
    "platform_api",
    "interrupt",
    "stateful_session",
    "self_managed_context",
    "skill_authoring",
    "steering",
    "interactions",
    "resumable",
];
pub(super) const PERMISSIONS: [&str; 13] = [
    "models",
    "tools",
    "knowledge_bases",
    "history",
    "events",
    "artifacts",
    "storage",
    "state",
    "files",
    "interactions",
    "agents",
    "schedules",
    "platform_api",
];

pub(super) fn capabilities(
    value: Option<&Value>,
    warnings: &mut Vec<Fault>,
) -> Result<Capabilities, Fault> {
    let mut found = Capabilities::default();
    for (name, value) in mapping(value, "/capabilities")? {
        let at = format!("/capabilities/{}", escape_pointer(&shown(name)));
        // A wrong type rejects the manifest: a dropped capability would change the behaviour of the runner silently.
        let Some(flag) = value.as_bool() else {
            return Err(Fault::new(at, "must be true or false"));
        };
        let field = match name {
            "streaming" => &mut found.streaming,
            "tool_calling" => &mut found.tool_calling,
            "knowledge_retrieval" => &mut found.knowledge_retrieval,
            "multimodal_input" => &mut found.multimodal_input,
            "event_context" => &mut found.event_context,
            "platform_api" => &mut found.platform_api,
            "interrupt" => &mut found.interrupt,
            "stateful_session" => &mut found.stateful_session,
            "self_managed_context" => &mut found.self_managed_context,
            "skill_authoring" => &mut found.skill_authoring,
            "steering" => &mut found.steering,
            "interactions" => &mut found.interactions,
            "resumable" => &mut found.resumable,
            _ => {
                warnings.push(unknown_word(
                    at,
                    "capability",
                    name,
                    "ignored",
                    &CAPABILITIES,
                ));
                continue;
            }
        };
        *field = flag;
    }
    Ok(found)
}

pub(super) fn permissions(
    value: Option<&Value>,
    warnings: &mut Vec<Fault>,
) -> Result<Permissions, Fault> {
    let mut found = Permissions::default();
    for (name, value) in mapping(value, "/permissions")? {
        let at = format!("/permissions/{}", escape_pointer(&shown(name)));
        let names: Vec<String> = typed(value, &at, "must be a list of texts")?;
        macro_rules! read {
            ($operation:ident) => {
                supported_words(&names, $operation::ALL, $operation::as_str, &at, warnings)
            };
        }
        match name {
            "models" => found.models = read!(ModelOperation),
            "tools" => found.tools = read!(ToolOperation),
            "knowledge_bases" => found.knowledge_bases = read!(KnowledgeOperation),
            "history" => found.history = read!(HistoryOperation),
            "events" => found.events = read!(EventOperation),
            "artifacts" => found.artifacts = read!(ArtifactOperation),
            "storage" => found.storage = read!(StorageArea),
            "state" => found.state = read!(StateScope),
            "files" => found.files = read!(FileOperation),
            "interactions" => found.interactions = read!(InteractionOperation),
            "agents" => found.agents = read!(AgentOperation),
            "schedules" => found.schedules = read!(ScheduleOperation),
            "platform_api" => found.platform_api = platform_actions(names, &at, warnings),
            _ => warnings.push(unknown_word(
                at,
                "permission",
                name,
                "dropped",
                &PERMISSIONS,
            )),
        }
    }
    Ok(found)
}

/// Names are free: a newer gateway may define more actions. Unknown ones have no effect.
fn platform_actions(names: Vec<String>, at: &str, warnings: &mut Vec<Fault>) -> Vec<String> {
    for (index, name) in names.iter().enumerate() {
        if definition(name).is_none() {
            let message = format!("{:?} {}", shown(name), unknown_action(&shown(name)));
            warnings.push(Fault::new(format!("{at}/{index}"), message));
        }
    }
    names
}

pub(super) fn supported_words<T: PartialEq + Copy>(
    names: &[String],
    all: &[T],
    as_str: fn(T) -> &'static str,
    at: &str,
    warnings: &mut Vec<Fault>,
) -> Vec<T> {
    let mut operations = Vec::new();
    let words: Vec<_> = all.iter().map(|one| as_str(*one)).collect();
    for (index, name) in names.iter().enumerate() {
        match all.iter().find(|one| as_str(**one) == name) {
            // A repeated name has no effect and deserves no warning.
            Some(operation) if operations.contains(operation) => {}
            Some(operation) => operations.push(*operation),
            None => warnings.push(unknown_word(
                format!("{at}/{index}"),
                "name",
                name,
                "dropped",
                &words,
            )),
        }
    }
    operations
}

/// Begins each warning about an unknown word.
const UNKNOWN: &str = "unknown ";

/// Warning about a word of a manifest, with the known word that is meant, or all of them.
fn unknown_word(at: String, noun: &str, word: &str, effect: &str, valid_words: &[&str]) -> Fault {
    let word = shown(word);
    let advice = match nearest(&word, valid_words.iter().copied()) {
        Some(meant) => format!("did you mean {meant}?"),
        None => format!("known are {}", valid_words.join(", ")),
    };
    Fault::new(at, format!("{UNKNOWN}{noun} {word:?}, {effect}; {advice}"))
}

/// Warnings about words that a runner probably mistyped. The requested capability or permission is missing.
pub fn mistyped_words(warnings: &[Fault]) -> impl Iterator<Item = &Fault> {
    const PARTS: [&str; 3] = ["/capabilities/", "/permissions/", "/usages/"];
    let is_word = |fault: &&Fault| {
        fault.message.starts_with(UNKNOWN)
            && PARTS.iter().any(|part| fault.pointer.starts_with(part))
    };
    warnings.iter().filter(is_word)
}
