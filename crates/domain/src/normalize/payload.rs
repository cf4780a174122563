//! Payload of each known result type.

use std::borrow::Cow;

use protocol::JsonObject;
use protocol::interaction::{INTERACTION_REQUESTED, InteractionRequest};
use protocol::message::{Message, MessageContent, ToolCall};
use protocol::platform_action::PlatformActionRequest;
use protocol::resources::StateScope;
use protocol::result::{
    MessageCompletedPayload, ProcessorLogPayload, ResultType, RunCompletedPayload,
    RunFailedPayload, RunOutcome,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use super::Reason;
use crate::artifact::{has_false_reference, id_of};
use crate::authorization::{AuthorizationSnapshot, granted_action};
use crate::canonical::canonical_json;
use crate::interaction::{check_request, expires_at};
use crate::platform_action::{self, CheckedAction};
use crate::state::check_key;

/// A state entry that a runner asks to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateUpdate {
    pub scope: StateScope,
    /// Frozen identity of the scope.
    pub identity: String,
    pub key: String,
    /// JSON text.
    pub value: String,
}

/// Maximum questions of one run. Each is stored until it is answered.
pub(super) const QUESTIONS: usize = 100;

/// A question of a runner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunQuestion {
    /// Runner-side id of the question.
    pub interaction_id: String,
    /// The [`InteractionRequest`] as JSON text.
    pub request: String,
    /// Expiry, in epoch seconds.
    pub expires_at: i64,
    /// True if the run waits for the answer.
    pub is_awaited: bool,
}

/// A validated payload.
pub(super) enum CheckedPayload<'r> {
    /// Telemetry without an effect.
    Plain,
    Delta(Delta<'r>),
    Message(Box<Message>),
    State(StateUpdate),
    /// The id of an artifact to bind to the run.
    Artifact(Option<Uuid>),
    RunQuestion(Box<RunQuestion>),
    PlatformAction(Box<CheckedAction>),
    Completed {
        finish_reason: String,
        message: Option<Message>,
        outcome: Option<RunOutcome>,
    },
    Failed {
        code: String,
        message: String,
        retryable: bool,
    },
}

/// The text of one delta.
pub(super) struct Delta<'r> {
    pub(super) increment: Cow<'r, str>,
    pub(super) full_text: Option<Cow<'r, str>>,
}

/// Reason of an invalid payload.
pub(super) struct PayloadFault {
    pub(super) reason: Reason,
    pub(super) message: &'static str,
}

fn invalid(message: &'static str) -> PayloadFault {
    PayloadFault {
        reason: Reason::InvalidPayload,
        message,
    }
}

/// Validates the `data` of a known type. `now`: epoch seconds; `None`: its times were checked before.
pub(super) fn check<'r>(
    kind: ResultType,
    data: &'r str,
    snapshot: &AuthorizationSnapshot,
    state_value_bytes: usize,
    now: Option<i64>,
) -> Result<CheckedPayload<'r>, PayloadFault> {
    match kind {
        ResultType::MessageDelta => delta(data),
        ResultType::MessageCompleted => message_completed(data),
        ResultType::StateUpdated => state_updated(data, snapshot, state_value_bytes),
        ResultType::RunCompleted => run_completed(data),
        ResultType::RunFailed => run_failed(data),
        ResultType::ActionRequested => action_requested(data, snapshot, now),
        ResultType::ProcessorLog => {
            let log: ProcessorLogPayload = parse_owned(data, "processor.log needs a text")?;
            if log.text.chars().count() > 65_536 {
                return Err(invalid("processor.log holds more than 65,536 characters"));
            }
            Ok(CheckedPayload::Plain)
        }
        ResultType::ArtifactCreated => Ok(CheckedPayload::Artifact(artifact_id(data))),
        ResultType::ToolCallStarted | ResultType::ToolCallCompleted => Ok(CheckedPayload::Plain),
    }
}

/// A message of a runner. Readers of its artifact references build paths of them.
fn check_message(role: &str, content: Option<&MessageContent>) -> Result<(), PayloadFault> {
    // Other roles could forge messages of the user or the operator in the transcript.
    check_speaker(role)?;
    // Readers build paths of the reference.
    if has_false_reference(content) {
        return Err(invalid(
            "a message names an artifact by `artifact:` and its id only",
        ));
    }
    Ok(())
}

fn parse<'a, T: Deserialize<'a>>(data: &'a str, message: &'static str) -> Result<T, PayloadFault> {
    serde_json::from_str(data).map_err(|_| invalid(message))
}

/// Parses a payload whose unset members may be null: null counts as absent in it and in its message.
fn parse_owned<T: DeserializeOwned>(data: &str, message: &'static str) -> Result<T, PayloadFault> {
    // The first attempt borrows the text and serves nearly all results.
    if let Ok(payload) = serde_json::from_str(data) {
        return Ok(payload);
    }
    let mut payload: JsonObject = parse(data, message)?;
    // SDKs serialize unset members as null.
    payload.retain(|_, value| !value.is_null());
    if let Some(Value::Object(message_members)) = payload.get_mut("message") {
        message_members.retain(|_, value| !value.is_null());
    }
    serde_json::from_value(Value::Object(payload)).map_err(|_| invalid(message))
}

#[derive(Deserialize)]
struct DeltaData<'a> {
    #[serde(borrow)]
    chunk: DeltaChunk<'a>,
}

#[derive(Deserialize)]
struct DeltaChunk<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    all_content: Option<Cow<'a, str>>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
}

/// A text, borrowed unless it has escapes.
#[derive(Deserialize)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

fn delta(data: &str) -> Result<CheckedPayload<'_>, PayloadFault> {
    const MESSAGE: &str = "message.delta needs a chunk with role and content";
    let DeltaData { chunk } = parse(data, MESSAGE)?;
    check_speaker(&chunk.role)?;
    let has_no_text = chunk.content.is_none() && chunk.all_content.is_none();
    // `content: null` is a valid delta of a provider's chunk; an absent content is not.
    if has_no_text && chunk.tool_calls.is_none() && !data.contains("\"content\"") {
        return Err(invalid(MESSAGE));
    }
    let increment = match chunk.content {
        None => Cow::Borrowed(""),
        // Fast path: nearly every delta is a plain text without escapes.
        Some(raw) if raw.get().starts_with('"') => parse::<BorrowedText<'_>>(raw.get(), MESSAGE)?.0,
        Some(raw) => {
            // Lists of parts may name artifacts, which need the check.
            let content = parse::<MessageContent>(raw.get(), MESSAGE)?;
            check_message(&chunk.role, Some(&content))?;
            Cow::Owned(content.plain_text())
        }
    };
    Ok(CheckedPayload::Delta(Delta {
        increment,
        full_text: chunk.all_content,
    }))
}

fn message_completed(data: &str) -> Result<CheckedPayload<'static>, PayloadFault> {
    const MESSAGE: &str = "message.completed needs a message with role and content";
    let payload: MessageCompletedPayload = parse_owned(data, MESSAGE)?;
    if payload.file_ids.len() > 100 {
        return Err(invalid("message.completed names more than 100 file_ids"));
    }
    check_message(&payload.message.role, payload.message.content.as_ref())?;
    Ok(CheckedPayload::Message(Box::new(payload.message)))
}

/// Exact roles of a run's messages. Other spellings could pass for a user or the operator.
const ROLES: [&str; 2] = ["assistant", "tool"];

fn check_speaker(role: &str) -> Result<(), PayloadFault> {
    if ROLES.contains(&role) {
        Ok(())
    } else {
        Err(invalid("a message of a run has the role assistant or tool"))
    }
}

#[derive(Deserialize)]
struct StateData<'a> {
    #[serde(borrow)]
    scope: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    value: &'a RawValue,
}

/// The value if it has at most `max_bytes`, without the escapes and spaces of its runner, as the host API counts it.
fn within(value: &RawValue, max_bytes: usize) -> Option<String> {
    // The raw text bounds the value: without escapes and spaces it is never longer.
    if value.get().len() <= max_bytes {
        return Some(value.get().to_owned());
    }
    let value: Value = serde_json::from_str(value.get()).ok()?;
    Some(value.to_string()).filter(|value| value.len() <= max_bytes)
}

fn state_updated(
    data: &str,
    snapshot: &AuthorizationSnapshot,
    max_bytes: usize,
) -> Result<CheckedPayload<'static>, PayloadFault> {
    let StateData { scope, key, value } = parse(data, "state.updated needs scope, key and value")?;
    let scope = StateScope::parse(&scope).ok_or(invalid("state.updated needs a known scope"))?;
    let value = within(value, max_bytes).ok_or(invalid(
        "a state value is larger than limits.state_value_bytes; store larger data by PUT /host/v1/storage/{area}/{key} \
         or as an artifact, and its name in the state",
    ))?;
    let refused = |message| PayloadFault {
        reason: Reason::Unauthorized,
        message,
    };
    // Before the scope: the fault of the key is the more useful one.
    check_key(&key).map_err(|fault| match fault {
        crate::state::StateKeyFault::Malformed => invalid("a state key is malformed"),
        crate::state::StateKeyFault::Reserved => {
            refused("state keys under host. are the gateway's")
        }
    })?;
    let identity = snapshot
        .state_scope(scope)
        .map_err(|_| refused("this run was not granted the state scope"))?
        .to_owned();
    let key = key.into_owned();
    Ok(CheckedPayload::State(StateUpdate {
        scope,
        identity,
        key,
        value,
    }))
}

/// Returns the artifact of the data of `artifact.created`.
pub(super) fn artifact_id(data: &str) -> Option<Uuid> {
    #[derive(Deserialize)]
    struct Announced<'a> {
        #[serde(borrow)]
        artifact_id: Cow<'a, str>,
    }
    let announced: Announced<'_> = serde_json::from_str(data).ok()?;
    id_of(&announced.artifact_id)
}

/// Data of `action.requested`. Members of platform actions are typed only when such an action is granted.
#[derive(Deserialize)]
struct RequestedAction {
    action: String,
    #[serde(default)]
    target: Value,
    #[serde(default)]
    payload: Value,
    #[serde(default)]
    idempotency_key: Value,
    #[serde(default)]
    timeout_seconds: Value,
}

/// Actions are telemetry, except questions and platform actions of a run that is granted them.
fn action_requested(
    data: &str,
    snapshot: &AuthorizationSnapshot,
    now: Option<i64>,
) -> Result<CheckedPayload<'static>, PayloadFault> {
    let action: RequestedAction = parse_owned(data, "action.requested needs an action")?;
    if action.action != INTERACTION_REQUESTED {
        return platform_action(action, snapshot);
    }
    // A run without the grant may still log its actions.
    if snapshot.interaction_request().is_err() {
        return Ok(CheckedPayload::Plain);
    }
    let request: InteractionRequest = serde_json::from_value(action.payload)
        .map_err(|_| invalid("interaction.requested needs a payload that is a question"))?;
    if !check_request(&request, now).is_empty() {
        return Err(invalid(
            "interaction.requested has an invalid question as its payload",
        ));
    }
    Ok(CheckedPayload::RunQuestion(Box::new(RunQuestion {
        // `now` is absent only in a replay, whose effects are discarded.
        expires_at: expires_at(&request, now.unwrap_or(0)),
        request: canonical_json(&request),
        is_awaited: request.awaits,
        interaction_id: request.interaction_id,
    })))
}

/// A platform action, as by the host API. Without the grant it is telemetry.
fn platform_action(
    requested: RequestedAction,
    snapshot: &AuthorizationSnapshot,
) -> Result<CheckedPayload<'static>, PayloadFault> {
    let Ok(approval) = granted_action(snapshot, &requested.action) else {
        return Ok(CheckedPayload::Plain);
    };
    let object = |value: Value| match value {
        Value::Null => Ok(JsonObject::new()),
        Value::Object(object) => Ok(object),
        _ => Err(invalid(
            "target and payload of a platform action are objects",
        )),
    };
    let request = PlatformActionRequest {
        action: requested.action,
        target: object(requested.target)?,
        payload: object(requested.payload)?,
        idempotency_key: serde_json::from_value(requested.idempotency_key)
            .map_err(|_| invalid("idempotency_key of a platform action is a text"))?,
        timeout_seconds: serde_json::from_value(requested.timeout_seconds)
            .map_err(|_| invalid("timeout_seconds of a platform action is a number of seconds"))?,
    };
    if !platform_action::check_request(&request).is_empty() {
        return Err(invalid(
            "action.requested does not have the target and payload that the catalogue of platform actions defines",
        ));
    }
    let action = CheckedAction::of(request, approval);
    Ok(CheckedPayload::PlatformAction(Box::new(action)))
}

fn run_completed(data: &str) -> Result<CheckedPayload<'static>, PayloadFault> {
    const MESSAGE: &str = "run.completed needs a finish_reason that is text, and a message with role and content, where it has them";
    let payload: RunCompletedPayload = parse_owned(data, MESSAGE)?;
    let RunCompletedPayload {
        finish_reason,
        message,
        outcome,
    } = payload;
    message.as_ref().map_or(Ok(()), |message| {
        check_message(&message.role, message.content.as_ref())
    })?;
    Ok(CheckedPayload::Completed {
        finish_reason,
        message,
        outcome,
    })
}

fn run_failed(data: &str) -> Result<CheckedPayload<'static>, PayloadFault> {
    const MESSAGE: &str = "run.failed needs a message or an error, as text; its code is text, its retryable true or false";
    let payload: RunFailedPayload = parse_owned(data, MESSAGE)?;
    // Both members have the same meaning; some runners send only `error`.
    let message = payload.message.or(payload.error).ok_or(invalid(MESSAGE))?;
    Ok(CheckedPayload::Failed {
        code: payload.code,
        message,
        retryable: payload.retryable,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_absent_in_payloads() {
        let failed: Result<RunFailedPayload, _> =
            parse_owned(r#"{"code":null,"error":"x","retryable":null}"#, "");
        assert_eq!(
            failed.ok().map(|failed| failed.code).as_deref(),
            Some("runner.error")
        );
        for data in [
            r#"{"finish_reason":null,"message":null}"#,
            r#"{"finish_reason":null,"message":{"role":"assistant","content":"a","name":null}}"#,
        ] {
            assert!(run_completed(data).is_ok(), "{data}");
        }
        assert!(
            message_completed(r#"{"message":{"role":"assistant","content":"a"},"file_ids":null}"#)
                .is_ok()
        );
        assert!(message_completed(r#"{"message":null}"#).is_err());
    }
}
