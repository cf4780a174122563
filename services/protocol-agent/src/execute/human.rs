//! Questions to a person (forms, approvals, effects of unknown outcome) and the interpretation of their answers.

mod approval;
mod form;

use action_graph::code::Code;
use action_graph::declaration::DecisionChoice;
use action_graph::graph::{Graph, Millis};
use action_graph::node::Node;
use protocol::interaction::{
    INTERACTION_REQUESTED, InteractionAction, InteractionActionStyle, InteractionKind,
    InteractionRequest,
};
use protocol::result::{ActionRequestedPayload, AgentRunResult, ResultType};
use runner_kit::results;
use serde_json::Value;

use crate::records::Submission;

pub(crate) use approval::{Consent, calls_of, consent_of, grouped, request as approvals};
pub(crate) use form::{outcome, request as question};

/// Maximum characters of a title. Below the gateway's bound, as the other limits here.
const TITLE: usize = 900;
/// Maximum characters of a description.
pub(crate) const DESCRIPTION: usize = 9_900;
/// Maximum characters of a label.
const LABEL: usize = 500;

/// Answer: the effect happened.
const HAPPENED: &str = "happened";
/// Answer: the effect did not happen, repeat it.
const AGAIN: &str = "again";
/// Answer: the effect did not happen, skip it.
const GIVE_UP: &str = "give_up";

/// Result that sends a question.
pub(crate) fn question_result(request: &InteractionRequest) -> AgentRunResult {
    let payload = ActionRequestedPayload {
        action: INTERACTION_REQUESTED.to_owned(),
        target: Value::Null,
        payload: serde_json::to_value(request).unwrap_or_default(),
        idempotency_key: None,
        timeout_seconds: None,
    };
    results::typed(ResultType::ActionRequested, &payload)
}

/// Question about an effect of unknown outcome.
pub(crate) fn uncertain(
    id: String,
    graph: &Graph,
    node: &Node,
    until: Millis,
) -> InteractionRequest {
    let title = format!("Did this happen? {}", node.action.title);
    let description = format!(
        "`{}` was called for \"{}\", and its answer did not come: {}\n\n{}",
        node.target(),
        graph.info.title,
        cause(node),
        approval::arguments(node.input.as_ref()),
    );
    let actions = vec![
        button(
            HAPPENED,
            "It happened: continue",
            InteractionActionStyle::Primary,
        ),
        button(
            AGAIN,
            "It did not happen: do it now",
            InteractionActionStyle::Default,
        ),
        button(GIVE_UP, "Leave it", InteractionActionStyle::Danger),
    ];
    request(
        id,
        InteractionKind::Confirmation,
        &title,
        &description,
        Vec::new(),
        actions,
        until,
    )
}

/// Reason for a missing response, as text for a person.
fn cause(node: &Node) -> &str {
    let Some(error) = &node.error else {
        return "the reason is not known";
    };
    // Messages of the host API advise runners; these codes get a text for persons.
    match error.code {
        Code::Canceled => "the run was cancelled meanwhile",
        Code::Timeout | Code::Deadline => "it took too long",
        Code::HostUnavailable | Code::LeaseLost => "the connection was lost",
        _ => error.message.lines().next().unwrap_or_default(),
    }
}

/// Decision for an answer to the question about an effect of unknown outcome.
pub(crate) fn verdict(submission: &Submission) -> DecisionChoice {
    match submission.action.as_deref() {
        Some(HAPPENED) => DecisionChoice::Continue,
        Some(AGAIN) => DecisionChoice::Retry,
        // Unknown buttons must not repeat an effect.
        _ => DecisionChoice::Skip,
    }
}

fn button(id: &str, label: &str, style: InteractionActionStyle) -> InteractionAction {
    InteractionAction {
        id: id.to_owned(),
        label: clip(label, LABEL),
        style,
    }
}

fn request(
    id: String,
    kind: InteractionKind,
    title: &str,
    description: &str,
    fields: Vec<protocol::interaction::InteractionField>,
    actions: Vec<InteractionAction>,
    until: Millis,
) -> InteractionRequest {
    let title = clip(title, TITLE);
    let description = clip(description, DESCRIPTION);
    let buttons: Vec<_> = actions.iter().map(|one| one.label.as_str()).collect();
    let labels: Vec<_> = fields.iter().map(|one| one.label.as_str()).collect();
    let mut lines = vec![title.clone()];
    lines.extend([description.clone(), labels.join(", "), buttons.join(" / ")]);
    lines.retain(|line| !line.is_empty());
    InteractionRequest {
        interaction_id: id,
        kind,
        title,
        description: (!description.is_empty()).then_some(description),
        fields,
        actions,
        // The protocol counts seconds.
        expires_at: i64::try_from(until / 1_000).ok(),
        fallback_text: lines.join("\n\n"),
        // No run waits: the answer is the event of a later run.
        awaits: false,
    }
}

/// Clips a text to its first characters, with an ellipsis.
fn clip(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
