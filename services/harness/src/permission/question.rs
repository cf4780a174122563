//! Permission questions to a person: interactions that the live run waits for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use protocol::context::AgentRunContext;
use protocol::interaction::{AwaitedInteraction, INTERACTION_REQUESTED};
use protocol::resources::StateScope;
use protocol::result::ResultType;
use runner_kit::host::Host;
use runner_kit::{ResultSender, results};
use serde_json::{Value, json};

use super::{ALLOWED, ActionKind, Permission};
use crate::shorten::cut;
use clock::Clock;

/// Maximum bytes of the action's details in a question.
const DETAIL_BYTES: usize = 8_000;
const TITLE_BYTES: usize = 900;
const ALLOW: &str = "Allow: ";

const ONCE: &str = "allow_once";
const CONVERSATION: &str = "allow_conversation";
const REJECT: &str = "reject";

/// Outcome of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuestionOutcome {
    Once,
    Conversation,
    No,
    Expired,
    Unavailable,
    /// Answered, but the question did not show the complete command.
    TooLong,
    Cancelled,
}

/// Asks the questions of one run.
pub(super) struct RunQuestions {
    host: Host,
    out: ResultSender,
    time: Duration,
    can_ask: bool,
    question_count: AtomicU64,
}

impl RunQuestions {
    pub(super) fn new(
        context: &AgentRunContext,
        time: Duration,
        host: Host,
        out: ResultSender,
    ) -> Self {
        Self {
            host,
            out,
            time,
            can_ask: context.delivery.interactions.is_some(),
            question_count: AtomicU64::new(0),
        }
    }

    /// Asks, and waits for the answer until the question expires.
    pub(super) async fn ask(&self, permission: &Permission) -> QuestionOutcome {
        if !self.can_ask {
            return QuestionOutcome::Unavailable;
        }
        let number = self.question_count.fetch_add(1, Ordering::Relaxed) + 1;
        let id = format!("permission-{number}");
        let payload = self.request(&id, permission);
        let data = json!({"action": INTERACTION_REQUESTED, "payload": payload});
        let data = data.as_object().cloned().unwrap_or_default();
        self.out
            .send(results::custom(ResultType::ActionRequested.as_str(), data))
            .await;
        // A client may send actions that were not offered; do not trust its answer to a cut question.
        match self.wait(&id).await {
            QuestionOutcome::Once | QuestionOutcome::Conversation | QuestionOutcome::No
                if !can_be_allowed(permission) =>
            {
                QuestionOutcome::TooLong
            }
            outcome => outcome,
        }
    }

    /// Stores the grants of the conversation.
    pub(super) async fn remember(&self, allowed: Value) {
        let result = results::state_updated(StateScope::Conversation, ALLOWED, allowed);
        self.out.send(result).await;
    }

    fn request(&self, id: &str, permission: &Permission) -> Value {
        let title = cut(&format!("{ALLOW}{}", permission.title), TITLE_BYTES);
        let detail = both_ends(&permission.detail, DETAIL_BYTES);
        let now = Clock::system().since_epoch();
        let mut actions = Vec::new();
        if can_be_allowed(permission) {
            actions.push(json!({"id": ONCE, "label": "Allow once", "style": "primary"}));
            actions.push(json!({"id": CONVERSATION, "label": "Allow for this conversation"}));
        }
        actions.push(json!({"id": REJECT, "label": "Refuse", "style": "danger"}));
        json!({
            "interaction_id": id, "kind": "confirmation", "title": title, "description": detail, "await": true,
            "actions": actions,
            "expires_at": (now + self.time).as_secs(),
            "fallback_text": format!("{title}\n\n{detail}"),
        })
    }

    async fn wait(&self, id: &str) -> QuestionOutcome {
        match self.host.interactions().wait(id).await {
            Ok(AwaitedInteraction::Submitted { action_id, .. }) => match action_id.as_deref() {
                Some(ONCE) => QuestionOutcome::Once,
                Some(CONVERSATION) => QuestionOutcome::Conversation,
                _ => QuestionOutcome::No,
            },
            // `wait` polls again while the question is open, so `Open` is not expected here.
            Ok(AwaitedInteraction::Expired | AwaitedInteraction::Open) => QuestionOutcome::Expired,
            Ok(AwaitedInteraction::Cancelled) => QuestionOutcome::Cancelled,
            Err(error) if error.is_cancelled() || error.is_deadline_exceeded() => {
                QuestionOutcome::Cancelled
            }
            Err(error) => {
                tracing::warn!(
                    interaction.id = id,
                    code = error.code,
                    "cannot wait for the answer to a permission question, refusing the permission"
                );
                QuestionOutcome::Unavailable
            }
        }
    }
}

/// True if the question shows the complete action. Edits may be longer: their effect is limited to a file.
fn can_be_allowed(permission: &Permission) -> bool {
    let Permission { title, detail, .. } = permission;
    let shows_title = ALLOW.len() + title.len() <= TITLE_BYTES || detail.contains(title);
    permission.kind == ActionKind::Edit || (detail.len() <= DETAIL_BYTES && shows_title)
}

/// The text, or its beginning and end with the number of omitted bytes, within `max_bytes`.
fn both_ends(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    // 100 bytes of each half are for the sentence between them.
    let half = max_bytes / 2 - 100;
    let head = &text[..text.floor_char_boundary(half)];
    let tail = &text[text.ceil_char_boundary(text.len() - half)..];
    let (all, left_out) = (text.len(), text.len() - head.len() - tail.len());
    format!("{head}\n\n[… {left_out} of {all} bytes are not shown …]\n\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_details_show_both_ends_and_length() {
        let text = format!("begin {} end", "世".repeat(4_000));
        let shown = both_ends(&text, DETAIL_BYTES);
        assert!(shown.len() <= DETAIL_BYTES, "{}", shown.len());
        assert!(shown.starts_with("begin ") && shown.ends_with(" end"));
        assert!(shown.contains("of 12010 bytes are not shown"), "{shown}");
        assert_eq!(both_ends("ls -l", DETAIL_BYTES), "ls -l");
    }

    #[test]
    fn only_shown_commands_can_be_allowed() {
        let long = "x".repeat(DETAIL_BYTES);
        let longer = format!("{long}x");
        let command = "y".repeat(TITLE_BYTES);
        for (kind, title, detail, expected) in [
            (ActionKind::Execute, "run", "ls -l", true),
            (ActionKind::Execute, "run", &long, true),
            (ActionKind::Execute, "run", &longer, false),
            (ActionKind::Execute, &command, "ls -l", false),
            (ActionKind::Execute, &command, &command, true),
            (ActionKind::Edit, "edit", &longer, true),
        ] {
            let permission = Permission {
                kind,
                title: title.to_owned(),
                detail: detail.to_owned(),
                paths: Vec::new(),
            };
            let bytes = (title.len(), detail.len());
            assert_eq!(can_be_allowed(&permission), expected, "{bytes:?}");
        }
    }
}
