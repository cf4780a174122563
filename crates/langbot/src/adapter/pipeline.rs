//! Converts a bot pipeline's Query to an event envelope.
//!
//! Query-specific data goes to `ctx.adapter.extra`. The effective prompt is stored until a runner pulls it. The
//! adapter selects no runner, configuration, history window or resource.

mod input;

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::context::{ActorContext, DeliveryContext, SubjectContext};
use protocol::event::{EventAdapter, EventConversation, EventEnvelope, MESSAGE_RECEIVED};
use protocol::pipeline::{Identifier, MessageElement, PipelineQuery};
use serde_json::{Value, json};

use domain::canonical::canonical_json;
use domain::event::check_event;
use input::{input, omitted, quote};

/// Maximum bytes of the public variables, as JSON.
pub const PARAMS_BYTES: usize = 64 * 1024;
/// Maximum bytes of an effective prompt, as JSON.
pub const PROMPT_BYTES: usize = 256 * 1024;
/// Maximum elements of a message chain.
pub const CHAIN_ELEMENTS: usize = 1000;

/// Maximum bytes of a text in the event's data. Longer texts of the platform's event are omitted.
const DATA_TEXT_BYTES: usize = 512;
/// Words that make a variable's name private.
const PRIVATE: [&str; 5] = ["secret", "token", "key", "password", "credential"];

/// Source of the event's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryIdentity {
    /// A unique id of the Query.
    Own(String),
    /// A counter of the pipeline's process with its scope. The event id is a digest of this text.
    Scoped(String),
}

/// Returns the identity of a Query. It is the same for each repeated POST.
pub fn identity(query: &PipelineQuery) -> QueryIdentity {
    match (&query.query_uuid, &query.query_id) {
        (Some(uuid), _) => QueryIdentity::Own(uuid.clone()),
        (None, Identifier::Text(id)) => QueryIdentity::Own(id.clone()),
        // LangBot's counter restarts with each process, so the scope makes it unique.
        (None, Identifier::Number(count)) => QueryIdentity::Scoped(canonical_json(&json!([
            query.pipeline_uuid,
            query.bot_uuid,
            query.launcher_type,
            query.launcher_id,
            query.sender_id,
            message_id(query),
            event_time(query),
            count,
        ]))),
    }
}

/// Returns all faults of a Query, with pointers into the Query.
pub fn check_query(query: &PipelineQuery, event: &EventEnvelope) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut fault = |pointer: &str, message: &str| faults.push(Fault::new(pointer, message));
    if !matches!(query.launcher_type.len(), 1..=64) {
        fault("/launcher_type", "must have 1 to 64 bytes");
    }
    if query.launcher_id.as_id().is_none() {
        fault("/launcher_id", "must name the launcher");
    }
    if query.message_chain.len() > CHAIN_ELEMENTS {
        fault("/message_chain", "has more than 1000 elements");
    }
    if query.message_chain.is_empty() && query.user_message.is_none() {
        fault("/message_chain", "is required without a user_message");
    }
    for (member, fits) in [
        ("type", Value::is_string as fn(&Value) -> bool),
        ("time", Value::is_number),
        ("sender", Value::is_object),
    ] {
        let value = query.message_event.get(member);
        if value.is_some_and(|value| !value.is_null() && !fits(value)) {
            let message = "must have the type of this member in a platform's event";
            fault(&format!("/message_event/{member}"), message);
        }
    }
    // Checked after the conversion, since private values do not count.
    if let Some(adapter) = &event.adapter {
        if canonical_json(&adapter.extra["params"]).len() > PARAMS_BYTES {
            fault("/variables", "hold more than 64 KiB of public values");
        }
        if canonical_json(&adapter.prompt).len() > PROMPT_BYTES {
            fault("/prompt/messages", "are larger than 256 KiB");
        }
    }
    let further = check_event(event);
    faults.extend(further.into_iter().map(|fault| named_in(query, fault)));
    faults
}

/// Maps a fault of the envelope to its pointer in the Query.
fn named_in(query: &PipelineQuery, fault: Fault) -> Fault {
    let pointer = match fault.pointer.as_str() {
        "/event_id" if query.query_uuid.is_some() => "/query_uuid",
        "/event_id" => "/query_id",
        "/bot_id" => "/bot_uuid",
        "/conversation/conversation_id" => conversation_id(query).1,
        "/actor/actor_id" if sender(query, "id").is_some() => "/message_event/sender/id",
        "/actor/actor_id" => "/sender_id",
        "/subject/subject_id" => "/message_chain",
        "/data" => "/message_event",
        input if input.starts_with("/input/") => match query.user_message {
            Some(_) => "/user_message/content",
            None => "/message_chain",
        },
        _ => "",
    };
    Fault::new(pointer, fault.message)
}

/// Converts a Query to an envelope with the given event id.
pub fn to_event(query: &PipelineQuery, event_id: String) -> EventEnvelope {
    let (conversation_id, _) = conversation_id(query);
    let message = message_id(query);
    let launcher = query.launcher_id.as_id();
    EventEnvelope {
        event_type: MESSAGE_RECEIVED.to_owned(),
        source: "host_adapter".to_owned(),
        source_event_type: text_of(query.message_event.get("type")),
        event_time: event_time(query),
        locale: None,
        timezone: None,
        bot_id: present(query.bot_uuid.as_deref()),
        // The adapter's data holds it.
        pipeline_id: None,
        conversation: Some(EventConversation {
            conversation_id: Some(conversation_id),
            thread_id: None,
            launcher_type: Some(query.launcher_type.clone()),
            launcher_id: launcher.clone(),
        }),
        actor: actor(query),
        subject: Some(SubjectContext {
            subject_type: "message".to_owned(),
            subject_id: Some(message.clone().unwrap_or_else(|| event_id.clone())),
            data: object(json!({
                "launcher_type": query.launcher_type,
                "launcher_id": launcher,
                "sender_id": query.sender_id.as_ref().and_then(Identifier::as_id),
                "bot_uuid": query.bot_uuid,
            })),
        }),
        input: Some(input(query)),
        delivery: DeliveryContext {
            // The pipeline delivers the run's answer.
            automatic_reply: true,
            surface: "platform".to_owned(),
            reply_target: Some(object(json!({
                "target_type": query.launcher_type,
                "target_id": launcher,
                "message_id": message,
            }))),
            ..DeliveryContext::default()
        },
        data: plain_values(&query.message_event),
        raw: None,
        raw_ref: None,
        adapter: Some(EventAdapter {
            pipeline_id: present(query.pipeline_uuid.as_deref()),
            extra: extra(query),
            prompt: query
                .prompt
                .as_ref()
                .map(|prompt| prompt.messages.clone())
                .unwrap_or_default(),
        }),
        event_id: Some(event_id),
    }
}

/// Returns the conversation id and its pointer in the Query.
fn conversation_id(query: &PipelineQuery) -> (String, &'static str) {
    let session = query.session.as_ref();
    let using = session.and_then(|session| session.using_conversation.as_ref());
    let variable = query
        .variables
        .as_ref()
        .and_then(|variables| variables.get("conversation_id")?.as_str());
    // The order is LangBot's own: an explicit conversation, a plugin's variable, then the launcher.
    if let Some(uuid) = present(using.and_then(|using| using.uuid.as_deref())) {
        return (uuid, "/session/using_conversation/uuid");
    }
    if let Some(id) = present(variable) {
        return (id, "/variables/conversation_id");
    }
    let launcher = query.launcher_id.as_id().unwrap_or_default();
    (
        format!("{}_{launcher}", query.launcher_type),
        "/launcher_id",
    )
}

/// Returns the platform's message id: the id of the chain's `Source`.
fn message_id(query: &PipelineQuery) -> Option<String> {
    let is_source = |element: &&MessageElement| element.kind == "Source";
    query
        .message_chain
        .iter()
        .find(is_source)?
        .id
        .as_ref()?
        .as_id()
}

fn sender<'a>(query: &'a PipelineQuery, member: &str) -> Option<&'a Value> {
    query
        .message_event
        .get("sender")?
        .get(member)
        .filter(|value| !value.is_null())
}

fn actor(query: &PipelineQuery) -> Option<ActorContext> {
    let id = match sender(query, "id") {
        Some(Value::Number(number)) => Some(number.to_string()),
        Some(Value::String(id)) if !id.is_empty() => Some(id.clone()),
        _ => query.sender_id.as_ref().and_then(Identifier::as_id),
    };
    let names = ["nickname", "member_name", "display_name", "remark"];
    Some(ActorContext {
        actor_type: "user".to_owned(),
        actor_id: Some(id?),
        actor_name: names
            .iter()
            .find_map(|name| present(sender(query, name)?.as_str())),
        ..ActorContext::default()
    })
}

/// Returns the event time in epoch seconds, from seconds, milliseconds or microseconds.
fn event_time(query: &PipelineQuery) -> Option<i64> {
    let mut time = query.message_event.get("time")?.as_f64()?;
    // 1e10 seconds is in the year 2286; larger numbers have a finer unit.
    while time.abs() > 1e10 {
        time /= 1000.0;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "at most 1e10, and full seconds suffice"
    )]
    Some(time as i64)
}

/// Returns the short scalar values of a platform's event without nested and long ones.
fn plain_values(event: &JsonObject) -> JsonObject {
    let small = |value: &Value| match value {
        Value::String(text) => text.len() <= DATA_TEXT_BYTES,
        Value::Array(_) | Value::Object(_) => false,
        _ => true,
    };
    // Private names may occur in a platform's event, too.
    event
        .iter()
        .filter(|(name, value)| is_public(name) && small(value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Returns the Query-specific data, without prompt, history, tools and resources.
fn extra(query: &PipelineQuery) -> JsonObject {
    let mut extra = JsonObject::new();
    let variables = query.variables.clone().unwrap_or_default();
    extra.insert("params".to_owned(), Value::Object(public(variables)));
    extra.insert("query_id".to_owned(), json!(query.query_id));
    if let Some(uuid) = present(query.pipeline_uuid.as_deref()) {
        extra.insert("pipeline_uuid".to_owned(), json!(uuid));
    }
    extra.extend(quote(&query.message_chain).map(|quote| ("quote".to_owned(), quote)));
    let omitted = omitted(&query.message_chain);
    if !omitted.is_empty() {
        extra.insert("omitted_elements".to_owned(), json!(omitted));
    }
    extra
}

/// Removes private members at every depth.
fn public(variables: JsonObject) -> JsonObject {
    variables
        .into_iter()
        .filter(|(name, _)| is_public(name))
        .map(|(name, value)| (name, public_value(value)))
        .collect()
}

fn public_value(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(public(members)),
        Value::Array(items) => Value::Array(items.into_iter().map(public_value).collect()),
        plain => plain,
    }
}

fn is_public(name: &str) -> bool {
    // Plugins write names in any case.
    let lower = name.to_lowercase();
    !name.starts_with('_') && !PRIVATE.iter().any(|word| lower.contains(word))
}

fn present(text: Option<&str>) -> Option<String> {
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

fn text_of(value: Option<&Value>) -> Option<String> {
    present(value?.as_str())
}

fn object(value: Value) -> JsonObject {
    match value {
        Value::Object(mut members) => {
            members.retain(|_, value| !value.is_null());
            members
        }
        _ => JsonObject::new(),
    }
}

#[cfg(test)]
mod tests;
