//! Platform actions: the catalogue, checks of requests, and the question for approval.

mod catalogue;

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::interaction::{
    InteractionAction, InteractionActionStyle, InteractionKind, InteractionRequest,
};
use protocol::platform_action::{
    ACTION_KEY_CHARS, ACTION_REQUEST_BYTES, ActionApproval, DEFAULT_ACTION_SECONDS,
    MAX_ACTION_SECONDS, PlatformActionRequest,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::canonical::canonical_json;
use crate::event::contains_nul;
use crate::form::escape_pointer;
use catalogue::{MemberShape, MemberType};

pub use catalogue::{ACTIONS, ActionDefinition, action_names, definition, unknown_action};

const APPROVE: &str = "approve";
const DECLINE: &str = "decline";
/// Maximum characters of the arguments in a question.
const ARGUMENT_CHARS: usize = 2_000;

/// A checked request of a run that is granted the action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedAction {
    pub action: String,
    /// `target` and `payload` as canonical JSON.
    pub request: String,
    pub idempotency_key: Option<String>,
    pub timeout_seconds: u64,
    pub approval: ActionApproval,
}

impl CheckedAction {
    /// The request after [`check_request`] has found no fault.
    pub fn of(request: PlatformActionRequest, approval: ActionApproval) -> Self {
        let PlatformActionRequest {
            action,
            target,
            payload,
            idempotency_key,
            timeout_seconds,
        } = request;
        Self {
            request: canonical_json(&json!({"target": target, "payload": payload})),
            action,
            idempotency_key,
            timeout_seconds: timeout_seconds.unwrap_or(DEFAULT_ACTION_SECONDS),
            approval,
        }
    }

    /// The question for approval of the action with this id.
    pub fn question(&self, id: Uuid) -> InteractionRequest {
        let mut arguments = self.request.clone();
        if let Some((end, _)) = arguments.char_indices().nth(ARGUMENT_CHARS) {
            arguments.truncate(end);
            arguments.push('…');
        }
        let title = format!("May the agent perform {}?", self.action);
        let description = format!(
            "The agent asks the chat platform for the action {}, in the conversation of its event.\n\
             Arguments: {arguments}",
            self.action
        );
        let action = |id: &str, label: &str, style| InteractionAction {
            id: id.to_owned(),
            label: label.to_owned(),
            style,
        };
        InteractionRequest {
            interaction_id: format!("platform_action.{id}"),
            kind: InteractionKind::Confirmation,
            fallback_text: format!("{title}\n{description}"),
            title,
            description: Some(description),
            fields: Vec::new(),
            actions: vec![
                action(APPROVE, "Approve", InteractionActionStyle::Primary),
                action(DECLINE, "Decline", InteractionActionStyle::Danger),
            ],
            expires_at: None,
            awaits: true,
        }
    }
}

/// A person's decision about an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalVerdict {
    Approved,
    Declined,
}

impl ApprovalVerdict {
    /// Returns the verdict of a chosen action of the question.
    pub fn of(action_id: Option<&str>) -> Self {
        // Deny by default: only the one action opens it.
        if action_id == Some(APPROVE) {
            Self::Approved
        } else {
            Self::Declined
        }
    }
}

/// Returns all faults of a request.
pub fn check_request(request: &PlatformActionRequest) -> Vec<Fault> {
    let mut faults = Vec::new();
    let Some(definition) = definition(&request.action) else {
        return vec![Fault::new("/action", unknown_action(&request.action))];
    };
    check_members("/target", definition.target, &request.target, &mut faults);
    check_members(
        "/payload",
        definition.payload,
        &request.payload,
        &mut faults,
    );
    let texts = canonical_json(request);
    if texts.len() > ACTION_REQUEST_BYTES {
        faults.push(Fault::new("", "is larger than 64 KiB"));
    }
    if contains_nul(&texts) {
        faults.push(Fault::new("", "must not contain the character U+0000"));
    }
    if let Some(key) = &request.idempotency_key
        && !(1..=ACTION_KEY_CHARS).contains(&key.chars().count())
    {
        faults.push(Fault::new(
            "/idempotency_key",
            "must have 1 to 255 characters",
        ));
    }
    if request
        .timeout_seconds
        .is_some_and(|seconds| !(1..=MAX_ACTION_SECONDS).contains(&seconds))
    {
        faults.push(Fault::new("/timeout_seconds", "must be 1 to 86400"));
    }
    faults
}

fn check_members(at: &str, shape: &[MemberShape], found: &JsonObject, faults: &mut Vec<Fault>) {
    for (name, value) in found {
        let pointer = format!("{at}/{}", escape_pointer(name));
        match shape.iter().find(|member| member.name == name) {
            None => faults.push(Fault::new(pointer, "is no member of this action")),
            Some(member) => {
                if let Some(message) = fault_of(member.kind, value) {
                    faults.push(Fault::new(pointer, message));
                }
            }
        }
    }
    let missing = shape
        .iter()
        .filter(|member| member.is_required && !found.contains_key(member.name));
    for member in missing {
        let pointer = format!("{at}/{}", member.name);
        faults.push(Fault::new(pointer, "is required by this action"));
    }
}

fn fault_of(kind: MemberType, value: &Value) -> Option<String> {
    let has = |text: &str, max: usize| (1..=max).contains(&text.chars().count());
    match kind {
        MemberType::Text(max) => {
            let fits = value.as_str().is_some_and(|text| has(text, max));
            (!fits).then(|| format!("must be a text of 1 to {max} characters"))
        }
        MemberType::Id => {
            let fits = value.is_i64() || value.is_u64();
            let fits = fits || value.as_str().is_some_and(|text| has(text, 255));
            (!fits).then(|| "must be a text of 1 to 255 characters, or an integer".to_owned())
        }
        MemberType::Integer(max) => {
            let fits = value.as_u64().is_some_and(|number| number <= max);
            (!fits).then(|| format!("must be an integer of 0 to {max}"))
        }
        MemberType::Flag => (!value.is_boolean()).then(|| "must be true or false".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interaction;

    fn request(body: &Value) -> PlatformActionRequest {
        serde_json::from_value(body.clone()).unwrap()
    }

    #[test]
    fn reports_faults_of_requests_by_pointer() {
        let edit = json!({"action": "message.edit", "target": {"message_id": "m-1"}, "payload": {"text": "t"}});
        let with = |pointer: &str, value: Value| {
            let mut body = edit.clone();
            let (part, name) = pointer.rsplit_once('/').unwrap();
            let at = body.pointer_mut(part).unwrap().as_object_mut().unwrap();
            at.insert(name.to_owned(), value);
            body
        };
        for (body, expected) in [
            (edit.clone(), vec![]),
            (with("/target/message_id", json!(17)), vec![]),
            (
                with("/target/message_id", json!(1.5)),
                vec!["/target/message_id"],
            ),
            (
                with("/target/message_id", json!("")),
                vec!["/target/message_id"],
            ),
            // The conversation is frozen: a target elsewhere is refused.
            (
                with("/target/chat_id", json!("c-9")),
                vec!["/target/chat_id"],
            ),
            (with("/payload", json!({})), vec!["/payload/text"]),
            (with("/payload/text", json!("a\u{0}b")), vec![""]),
            (
                with("/payload/text", json!("x".repeat(20_001))),
                vec!["/payload/text"],
            ),
            (
                with("/idempotency_key", json!("")),
                vec!["/idempotency_key"],
            ),
            (with("/timeout_seconds", json!(0)), vec!["/timeout_seconds"]),
            (with("/action", json!("message.edt")), vec!["/action"]),
            (
                json!({"action": "message.react", "target": {"message_id": 1}, "payload": {"reaction": "👍", "remove": 1}}),
                vec!["/payload/remove"],
            ),
            (
                json!({"action": "member.mute", "target": {"user_id": 1}, "payload": {"duration_seconds": -1}}),
                vec!["/payload/duration_seconds"],
            ),
            (json!({"action": "group.leave"}), vec![]),
        ] {
            let faults = check_request(&request(&body));
            let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
            assert_eq!(pointers, expected, "{body}");
        }
    }

    #[test]
    fn suggests_the_meant_action() {
        assert!(unknown_action("message.edt").contains("message.edit"));
        assert!(unknown_action("shop.refund").contains("message.recall"));
    }

    #[test]
    fn approval_questions_are_valid_and_deny_by_default() {
        let text = "ä".repeat(20_000);
        let body = json!({"action": "message.edit", "target": {"message_id": 1}, "payload": {"text": text}});
        let action = CheckedAction::of(request(&body), ActionApproval::Ask);
        let question = action.question(Uuid::nil());
        assert_eq!(interaction::check_request(&question, Some(0)), []);
        let verdicts = question.actions.iter();
        let verdicts: Vec<_> = verdicts
            .map(|action| ApprovalVerdict::of(Some(&action.id)))
            .collect();
        assert_eq!(
            verdicts,
            [ApprovalVerdict::Approved, ApprovalVerdict::Declined]
        );
        assert_eq!(ApprovalVerdict::of(None), ApprovalVerdict::Declined);
    }

    #[test]
    fn names_are_sorted_and_unique() {
        assert!(ACTIONS.is_sorted_by(|one, other| one.name < other.name));
    }
}
