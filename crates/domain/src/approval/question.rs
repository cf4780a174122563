//! The gateway's question whether a tool may be called, and its answer.

use std::fmt::Write as _;

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::approval::{ApprovalScope, ArgumentRule, ArgumentRules};
use protocol::interaction::{
    InteractionAction, InteractionActionStyle, InteractionField, InteractionFieldType,
    InteractionKind, InteractionRequest, InteractionSubmission,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::MAX_COUNT;
use super::rules::{RULES_BYTES, check_rules, covers};
use crate::canonical::canonical_json;
use crate::form::escape_pointer;

/// Maximum characters of the arguments in the description. Longer ones are in a field of their own.
const SHOWN_CHARS: usize = 6_000;
/// Maximum bytes of the arguments that a question can show, written out.
const CALL_BYTES: usize = 160 * 1024;
/// Maximum characters of the default rules in the field.
const RULE_CHARS: usize = 8_000;
/// Maximum characters of a reason that the model gets.
const REASON_CHARS: usize = 1_000;

const ONCE: &str = "allow_once";
const CONVERSATION: &str = "allow_conversation";
const RUN: &str = "allow_run";
const DENY: &str = "deny";
/// Field with the rules for the arguments.
const RULES: &str = "arguments";
const REASON: &str = "reason";
/// Field with the number of calls that an amendment allows.
const COUNT: &str = "count";
/// Field with arguments that the description cannot show completely.
const CALL: &str = "call";

/// A call that needs a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldCall {
    pub tool: String,
    pub parameters: JsonObject,
    /// The amendment that the call needs. `None`: the run was granted the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub amends: Option<NeededAmendment>,
}

/// An amendment of a run's grant that a call needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeededAmendment {
    /// Hash of the definition of the tool: an answer opens no other tool of the same name.
    pub definition_sha256: String,
    /// The rule that denies the call.
    pub rule: String,
}

impl HeldCall {
    /// Returns the text that identifies the call, as canonical JSON.
    pub fn text(&self) -> String {
        canonical_json(self)
    }
}

/// Decision of a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApprovalDecision {
    Once,
    Conversation,
    Run,
    Deny,
}

/// A valid answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ApprovalAnswer {
    Once,
    /// Calls of the tool that these rules cover, in the conversation.
    Conversation(ArgumentRules),
    /// Calls of the tool that these rules cover, until the run ends.
    Run {
        rules: ArgumentRules,
        count: u64,
    },
    Deny,
}

/// Returns the decision of an action of the question.
pub fn decision_of(action_id: Option<&str>) -> Option<ApprovalDecision> {
    match action_id? {
        ONCE => Some(ApprovalDecision::Once),
        CONVERSATION => Some(ApprovalDecision::Conversation),
        RUN => Some(ApprovalDecision::Run),
        DENY => Some(ApprovalDecision::Deny),
        _ => None,
    }
}

/// Returns the reason of a denial, if the person gave one.
pub fn denial_reason(values: &JsonObject) -> Option<String> {
    let reason = values.get(REASON)?.as_str()?.trim();
    (!reason.is_empty()).then(|| reason.chars().take(REASON_CHARS).collect())
}

/// Returns the question about a call. `None`: its arguments are too long to be shown completely. `id` is not predictable,
/// so a runner cannot ask under this id before. `widest`: `Conversation` offers to allow calls of the
/// conversation; an amendment ends with its run in any case. `expires_at`: epoch seconds.
pub fn question(
    id: &str,
    call: &HeldCall,
    widest: ApprovalScope,
    expires_at: i64,
) -> Option<InteractionRequest> {
    let shown = written_out(&canonical_json(&call.parameters));
    if shown.len() > CALL_BYTES {
        return None;
    }
    let tool = written_out(&call.tool);
    let title = match call.amends {
        None => format!("Allow the call of {tool}?"),
        Some(_) => format!("Add {tool} to the grant of this run?"),
    };
    let mut fields = Vec::new();
    let arguments = if shown.chars().count() <= SHOWN_CHARS {
        format!("Arguments: {shown}")
    } else {
        let label = "Arguments of the call; changes have no effect";
        fields.push(field(
            CALL,
            label,
            InteractionFieldType::Textarea,
            shown.into(),
        ));
        format!("The arguments are in the field `{CALL}`.")
    };
    let description = match &call.amends {
        None => format!(
            "The run waits to call the tool {tool}. {arguments}\n\
             Allow this call once, or calls like it in this conversation; the rules for their arguments are in the \
             field `{RULES}`. Leave the question open to decide later."
        ),
        Some(NeededAmendment { rule, .. }) => format!(
            "The run waits to call the tool {tool}, which it was not granted: {rule}. {arguments}\n\
             Newly allowed by this call once: 1 call of {tool} with exactly these arguments, until the run ends. \
             By calls like it: the number of calls in the field `{COUNT}`, whose arguments the rules in the field \
             `{RULES}` cover, until the run ends. Leave the question open to decide later."
        ),
    };
    let rules = canonical_json(&exact_rules(&call.parameters));
    let is_short = rules.chars().count() <= RULE_CHARS;
    let mut actions = vec![action(ONCE, "Allow once", InteractionActionStyle::Primary)];
    let text = InteractionFieldType::Textarea;
    if call.amends.is_some() && is_short {
        let label = "Rules for the arguments, for this run";
        fields.push(field(RULES, label, text, rules.into()));
        let label = "Number of calls, for this run";
        fields.push(field(COUNT, label, InteractionFieldType::Number, json!(1)));
        let label = "Allow for this run";
        actions.push(action(RUN, label, InteractionActionStyle::Default));
    } else if call.amends.is_none() && is_short && widest == ApprovalScope::Conversation {
        let label = "Rules for the arguments, for this conversation";
        fields.push(field(RULES, label, text, rules.into()));
        let label = "Allow for this conversation";
        actions.push(action(CONVERSATION, label, InteractionActionStyle::Default));
    }
    let label = "Reason of a denial, for the model";
    fields.push(field(
        REASON,
        label,
        InteractionFieldType::Text,
        Value::Null,
    ));
    actions.push(action(DENY, "Deny", InteractionActionStyle::Danger));
    Some(InteractionRequest {
        interaction_id: id.to_owned(),
        kind: InteractionKind::Confirmation,
        fallback_text: format!("{title}\n{description}"),
        title,
        description: Some(description),
        fields,
        actions,
        expires_at: Some(expires_at),
        awaits: true,
    })
}

fn action(id: &str, label: &str, style: InteractionActionStyle) -> InteractionAction {
    InteractionAction {
        id: id.to_owned(),
        label: label.to_owned(),
        style,
    }
}

fn field(id: &str, label: &str, kind: InteractionFieldType, default: Value) -> InteractionField {
    InteractionField {
        id: id.to_owned(),
        label: label.to_owned(),
        kind,
        required: false,
        options: Vec::new(),
        placeholder: None,
        default,
    }
}

/// Reads an answer to the question about `call`, which was checked against the question.
pub fn read_answer(
    submission: &InteractionSubmission,
    call: &HeldCall,
) -> Result<ApprovalAnswer, Fault> {
    let decision = decision_of(submission.action_id.as_deref());
    match (decision, &call.amends) {
        (Some(ApprovalDecision::Once), _) => Ok(ApprovalAnswer::Once),
        (Some(ApprovalDecision::Conversation), None) => {
            answered_rules(submission, call).map(ApprovalAnswer::Conversation)
        }
        (Some(ApprovalDecision::Run), Some(_)) => Ok(ApprovalAnswer::Run {
            rules: answered_rules(submission, call)?,
            count: answered_count(submission)?,
        }),
        (Some(ApprovalDecision::Deny), _) => Ok(ApprovalAnswer::Deny),
        // An amendment never outlives its run.
        (_, None) => Err(Fault::new(
            "/action_id",
            "is required: allow_once, allow_conversation or deny",
        )),
        (_, Some(_)) => Err(Fault::new(
            "/action_id",
            "is required: allow_once, allow_run or deny",
        )),
    }
}

fn answered_count(submission: &InteractionSubmission) -> Result<u64, Fault> {
    let Some(value) = submission
        .values
        .get(COUNT)
        .filter(|value| !value.is_null())
    else {
        return Ok(1);
    };
    let count = value
        .as_u64()
        .filter(|count| (1..=MAX_COUNT).contains(count));
    count.ok_or_else(|| Fault::new("/values/count", "must be an integer of 1 to 1,000,000"))
}

fn answered_rules(
    submission: &InteractionSubmission,
    call: &HeldCall,
) -> Result<ArgumentRules, Fault> {
    let at = "/values/arguments";
    let edited = submission.values.get(RULES).and_then(Value::as_str);
    let rules = match edited.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) if text.len() > RULES_BYTES => {
            return Err(Fault::new(at, "must have 32 KiB at most"));
        }
        Some(text) => serde_json::from_str(text).map_err(|error| {
            let message = format!("must be a JSON object of rules by JSON pointer: {error}");
            Fault::new(at, message)
        })?,
        None => exact_rules(&call.parameters),
    };
    if let Some(fault) = check_rules(&rules, "").into_iter().next() {
        let message = format!("has a fault at {}: {}", fault.pointer, fault.message);
        return Err(Fault::new(at, message));
    }
    // An approval of other calls would leave this one waiting.
    if !covers(&rules, &call.parameters.clone().into()) {
        let message = "must cover the call of the question; each argument needs a rule";
        return Err(Fault::new(at, message));
    }
    Ok(rules)
}

/// Rules for calls with equal arguments.
fn exact_rules(parameters: &JsonObject) -> ArgumentRules {
    let rules = parameters.iter().map(|(name, value)| {
        let pointer = format!("/{}", escape_pointer(name));
        (pointer, ArgumentRule::Equals(value.clone()))
    });
    rules.collect()
}

/// Writes hidden characters as JSON escapes: those without a glyph, and those that change the direction or the shape of
/// others.
fn written_out(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for letter in json.chars() {
        if !is_hidden(letter) {
            text.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}

/// Control and format characters, spaces other than U+0020, fillers, variation selectors and tags.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || letter != ' ' && letter.is_whitespace()
        || matches!(u32::from(letter),
            0xAD | 0x34F | 0x61C | 0x115F..=0x1160 | 0x17B4..=0x17B5 | 0x180B..=0x180F | 0x200B..=0x200F
            | 0x202A..=0x202E | 0x2060..=0x206F | 0x2800 | 0x3164 | 0xFE00..=0xFE0F | 0xFEFF | 0xFFA0
            | 0xFFF0..=0xFFFB | 0x1_D173..=0x1_D17A | 0xE_0000..=0xE_0FFF)
}
