//! Approvals: one question for several waiting actions, each with its bound arguments.

use action_graph::graph::Millis;
use action_graph::ids::ActionId;
use action_graph::json::pretty;
use action_graph::rules::StandingApproval;
use action_graph::schedule::ApprovalRequest;
use protocol::interaction::{
    InteractionActionStyle, InteractionField, InteractionFieldType, InteractionKind,
    InteractionOption, InteractionRequest,
};
use serde_json::Value;

use super::{DESCRIPTION, LABEL, button, clip};
use crate::records::{Submission, pattern};

/// Allows this call once.
const ONCE: &str = "allow_once";
/// Allows calls of the displayed pattern for the conversation.
const CONVERSATION: &str = "allow_conversation";
/// Refuses the call.
const REFUSE: &str = "refuse";
/// Submits the answers of the fields.
const SUBMIT: &str = "submit";
/// Maximum bytes of arguments in a question about an effect of unknown outcome.
const ARGUMENTS: usize = 3_000;
/// Maximum actions of one question. Its text with all labels stays below the gateway's bound.
const TOGETHER: usize = 16;
/// Separator between the texts of two actions.
const GAP: &str = "\n\n";
const LABELS: [(&str, &str); 3] = [
    (ONCE, "Allow once"),
    (CONVERSATION, "Allow for this conversation"),
    (REFUSE, "Refuse"),
];

/// Answer to an approval question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consent {
    /// Allows exactly these arguments once.
    Once,
    /// Allows calls of the displayed pattern for the conversation.
    Conversation,
    Refuse,
}

/// Approvals grouped by question.
#[derive(Debug, Default)]
pub(crate) struct GroupedApprovals {
    pub(crate) groups: Vec<Vec<ApprovalRequest>>,
    /// Actions that no question can display completely.
    pub(crate) too_long: Vec<ActionId>,
}

/// Groups approvals so that each question shows all arguments of its actions.
pub(crate) fn grouped(requests: Vec<ApprovalRequest>) -> GroupedApprovals {
    let mut grouped = GroupedApprovals::default();
    let mut used = 0;
    for request in requests {
        let length = text(&request).chars().count();
        // An approval of hidden arguments would be blind, so such an action gets no question.
        if length > DESCRIPTION {
            grouped.too_long.push(request.id);
            continue;
        }
        let fits = used + GAP.len() + length <= DESCRIPTION;
        match grouped.groups.last_mut() {
            Some(group) if fits && group.len() < TOGETHER => {
                group.push(request);
                used += GAP.len() + length;
            }
            _ => {
                grouped.groups.push(vec![request]);
                used = length;
            }
        }
    }
    grouped
}

/// Question with buttons for one action, or with a field for each of several.
pub(crate) fn request(
    id: String,
    requests: &[ApprovalRequest],
    until: Millis,
) -> InteractionRequest {
    let texts: Vec<_> = requests.iter().map(text).collect();
    if let [one] = requests {
        let style = |id| match id {
            ONCE => InteractionActionStyle::Primary,
            REFUSE => InteractionActionStyle::Danger,
            _ => InteractionActionStyle::Default,
        };
        let actions = LABELS.map(|(id, label)| button(id, label, style(id)));
        let title = format!("Allow: {}", one.title);
        let kind = InteractionKind::Confirmation;
        return super::request(
            id,
            kind,
            &title,
            &texts.concat(),
            Vec::new(),
            actions.into(),
            until,
        );
    }
    let fields = requests.iter().map(|one| InteractionField {
        id: one.id.0.clone(),
        label: clip(&format!("{}: `{}`", one.title, one.target), LABEL),
        kind: InteractionFieldType::Select,
        required: true,
        options: LABELS.map(|(id, label)| option(id, label)).into(),
        placeholder: None,
        default: Value::Null,
    });
    let fields = fields.collect();
    let actions = vec![
        button(SUBMIT, "Submit", InteractionActionStyle::Primary),
        button(REFUSE, "Refuse all", InteractionActionStyle::Danger),
    ];
    let title = format!("Allow {} actions", requests.len());
    let text = texts.join(GAP);
    super::request(
        id,
        InteractionKind::Form,
        &title,
        &text,
        fields,
        actions,
        until,
    )
}

fn option(value: &str, label: &str) -> InteractionOption {
    InteractionOption {
        value: value.to_owned(),
        label: label.to_owned(),
        description: None,
    }
}

/// Text of one action: tool, effects, arguments with their hash, and the calls covered by a conversation approval.
fn text(request: &ApprovalRequest) -> String {
    let effects: Vec<_> = request.effects.iter().map(|one| one.as_str()).collect();
    let effects = effects.join(", ");
    let hash: String = request.hash.chars().take(12).collect();
    let covered = pattern(
        &request.target,
        &request.effects.iter().copied().collect(),
        &request.input,
    );
    format!(
        "{}: `{}` ({effects}), arguments {hash}\n\n{}\n\n{}",
        request.title,
        request.target,
        block(&pretty(&request.input)),
        format_args!("For this conversation means: {}.", calls_of(&covered)),
    )
}

/// Calls covered by an approval for the conversation, as text.
pub(crate) fn calls_of(pattern: &StandingApproval) -> String {
    let name = |pointer: &str| pointer.trim_start_matches('/').to_owned();
    let fixed = pattern.arguments.iter();
    let fixed: Vec<_> = fixed
        .map(|(pointer, value)| format!("{} = {value}", name(pointer)))
        .collect();
    let free: Vec<_> = pattern.free.iter().map(|pointer| name(pointer)).collect();
    let mut text = format!("every `{}`", pattern.target);
    if !fixed.is_empty() {
        text.push_str(" with ");
        text.push_str(&fixed.join(", "));
    }
    if !free.is_empty() {
        text.push_str(", with any ");
        text.push_str(&free.join(", "));
    }
    text
}

/// JSON as a code block. Fences within it are replaced, so that arguments cannot end the block.
fn block(text: &str) -> String {
    format!("```json\n{}\n```", text.replace("```", "'''"))
}

/// Arguments as a JSON block, with the number of omitted bytes.
pub(super) fn arguments(input: Option<&Value>) -> String {
    let text = input.map(pretty).unwrap_or_default();
    let end = text.floor_char_boundary(ARGUMENTS);
    let more = match text.len() - end {
        0 => String::new(),
        more => format!("\n… {more} bytes more"),
    };
    format!("{}{more}", block(&text[..end]))
}

/// Answer about one action.
pub(crate) fn consent_of(action: &ActionId, submission: &Submission) -> Consent {
    let word = match submission.action.as_deref() {
        Some(SUBMIT) | None => submission
            .values
            .get(action.as_str())
            .and_then(Value::as_str),
        button => button,
    };
    match word {
        Some(ONCE) => Consent::Once,
        Some(CONVERSATION) => Consent::Conversation,
        // Fail closed: unknown buttons and values refuse.
        _ => Consent::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use action_graph::action::Effect;
    use protocol::JsonObject;
    use serde_json::json;

    use super::*;

    fn approval(id: &str) -> ApprovalRequest {
        ApprovalRequest {
            id: id.into(),
            title: format!("Send {id}"),
            target: "send_mail".to_owned(),
            input: json!({"to": "a@example.com"}),
            effects: vec![Effect::Send],
            hash: "0123456789abcdef".to_owned(),
        }
    }

    fn submission(action: Option<&str>, values: Value) -> Submission {
        let values = match values {
            Value::Object(values) => values,
            _ => JsonObject::new(),
        };
        Submission {
            interaction: "i".to_owned(),
            action: action.map(str::to_owned),
            values,
            at: 0,
        }
    }

    #[test]
    fn one_approval_has_three_buttons() {
        let question = request("i".to_owned(), &[approval("a")], 9_000);
        let buttons: Vec<_> = question.actions.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(buttons, [ONCE, CONVERSATION, REFUSE]);
        assert_eq!(question.expires_at, Some(9));
        let text = question.description.unwrap();
        for part in [
            "`send_mail` (send)",
            "0123456789ab",
            "\"to\": \"a@example.com\"",
            "every `send_mail` with to =",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(
            question
                .fallback_text
                .contains("Allow once / Allow for this conversation / Refuse")
        );
    }

    #[test]
    fn several_approvals_have_a_field_each() {
        let question = request("i".to_owned(), &[approval("a"), approval("b")], 0);
        let fields: Vec<_> = question.fields.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(fields, ["a", "b"]);
        assert_eq!(question.fields[0].options.len(), 3);
    }

    #[test]
    fn questions_show_all_arguments_or_ask_nothing() {
        let of = |id: &str, bytes: usize| ApprovalRequest {
            input: json!({"text": "x\n".repeat(bytes / 3)}),
            ..approval(id)
        };
        for (sizes, groups, too_long) in [
            (vec![2_700; 5], vec![3, 2], 0),
            (vec![10; 40], vec![16, 16, 8], 0),
            (vec![9_000, 9_000, 10], vec![1, 2], 0),
            (vec![10, 12_000, 10], vec![2], 1),
            (vec![65_000], vec![], 1),
        ] {
            let requests = sizes.iter().enumerate();
            let requests = requests.map(|(index, bytes)| of(&format!("a{index}"), *bytes));
            let grouped = grouped(requests.collect());
            let lengths: Vec<_> = grouped.groups.iter().map(Vec::len).collect();
            assert_eq!(
                (lengths, grouped.too_long.len()),
                (groups, too_long),
                "{sizes:?}"
            );
            for group in grouped.groups {
                let question = request("i".to_owned(), &group, 9_000);
                assert!(question.fallback_text.chars().count() <= 20_000);
                let shown = question.description.unwrap();
                for one in &group {
                    assert!(shown.contains(&pretty(&one.input)), "{}", one.id);
                }
            }
        }
    }

    #[test]
    fn treats_other_answers_as_denial() {
        let of = |action: Option<&str>, values: Value| {
            consent_of(&"a".into(), &submission(action, values))
        };
        assert_eq!(of(Some(ONCE), json!({})), Consent::Once);
        assert_eq!(of(Some(CONVERSATION), json!({})), Consent::Conversation);
        assert_eq!(
            of(Some(SUBMIT), json!({"a": ONCE, "b": REFUSE})),
            Consent::Once
        );
        assert_eq!(of(Some(REFUSE), json!({"a": ONCE})), Consent::Refuse);
        assert_eq!(of(Some("other"), json!({"a": ONCE})), Consent::Refuse);
        assert_eq!(of(None, json!({})), Consent::Refuse);
    }
}
