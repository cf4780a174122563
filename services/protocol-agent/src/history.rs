//! Transcript before this run: turns stored by earlier runs, and other messages of the conversation.

use std::collections::BTreeSet;

use action_graph::transcript::{Attachment, TranscriptTurn};
use protocol::context::{AgentInput, AgentRunContext};
use protocol::history::TranscriptItem;
use runner_kit::HostError;
use runner_kit::host::HistoryPageQuery;

use crate::host::GraphAgentHost;
use crate::records::Digest;

/// Maximum messages of the conversation that are read.
const ITEMS: u32 = 50;

/// Turns before the current event, oldest first.
pub(crate) async fn before(
    host: &impl GraphAgentHost,
    context: &AgentRunContext,
    digests: Vec<Digest>,
) -> Result<Vec<TranscriptTurn>, HostError> {
    if !context.context.available_apis.history_page {
        return Ok(digests
            .into_iter()
            .flat_map(|digest| digest.turns)
            .collect());
    }
    let query = HistoryPageQuery {
        limit: Some(ITEMS),
        ..HistoryPageQuery::default()
    };
    let page = match host.history(&query).await {
        Ok(page) => page.items,
        Err(error) if error.is_cancelled() || error.is_deadline_exceeded() => return Err(error),
        Err(error) => {
            tracing::warn!(
                code = error.code,
                "cannot read the history, the run continues without it"
            );
            Vec::new()
        }
    };
    Ok(merge(page, digests, &context.event.event_id))
}

/// Merges stored turns and messages, oldest first. `page` is newest first.
fn merge(page: Vec<TranscriptItem>, digests: Vec<Digest>, current: &str) -> Vec<TranscriptTurn> {
    // Events older than the page have stored turns only.
    let events: BTreeSet<String> = page.iter().map(|item| item.event_id.clone()).collect();
    let (mut within, older): (Vec<_>, Vec<_>) = digests
        .into_iter()
        .partition(|digest| events.contains(&digest.event));
    let mut turns: Vec<TranscriptTurn> =
        older.into_iter().flat_map(|digest| digest.turns).collect();
    let stored_events: BTreeSet<String> =
        within.iter().map(|digest| digest.event.clone()).collect();
    for item in page
        .into_iter()
        .rev()
        .filter(|item| item.event_id != current)
    {
        // Stored turns replace all messages of their event: they include protocol turns, which the history lacks.
        if !stored_events.contains(&item.event_id) {
            turns.extend(of_item(&item));
            continue;
        }
        let is_its = |digest: &Digest| digest.event == item.event_id;
        let (its, others): (Vec<_>, Vec<_>) = within.into_iter().partition(is_its);
        within = others;
        turns.extend(its.into_iter().flat_map(|digest| digest.turns));
    }
    turns
}

fn of_item(item: &TranscriptItem) -> Option<TranscriptTurn> {
    let text = item.content.clone()?;
    match item.role.as_str() {
        "user" => Some(TranscriptTurn::User {
            text,
            attachments: Vec::new(),
        }),
        "assistant" => Some(TranscriptTurn::Answer { text }),
        _ => None,
    }
}

/// Turn of an input; `None` without text and attachments.
pub(crate) fn of_input(input: &AgentInput) -> Option<TranscriptTurn> {
    let parts = input
        .contents
        .iter()
        .filter_map(|part| part.text.as_deref());
    let text = input.text.clone().unwrap_or_else(|| parts.collect());
    let attachments: Vec<_> = input.attachments.iter().map(attachment).collect();
    let is_empty = text.trim().is_empty() && attachments.is_empty();
    (!is_empty).then_some(TranscriptTurn::User { text, attachments })
}

fn attachment(one: &protocol::context::InputAttachment) -> Attachment {
    let reference = one.id.as_ref().map(|id| format!("artifact://{id}"));
    let reference = reference
        .or_else(|| one.path.clone())
        .or_else(|| one.url.clone());
    Attachment {
        name: one.name.clone().unwrap_or_default(),
        kind: one
            .mime_type
            .clone()
            .or_else(|| one.kind.clone())
            .unwrap_or_default(),
        size: one
            .size
            .and_then(|size| u64::try_from(size).ok())
            .unwrap_or(0),
        reference: reference.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(event: &str, role: &str, text: &str) -> TranscriptItem {
        serde_json::from_value(json!({
            "transcript_id": "t", "event_id": event, "conversation_id": "c", "bot_id": null, "workspace_id": null,
            "thread_id": null, "role": role, "item_type": "message", "content": text, "content_json": null,
            "attachment_refs": [], "seq": 1, "cursor": null, "created_at": 0, "metadata": {},
        }))
        .unwrap()
    }

    fn user(text: &str) -> TranscriptTurn {
        TranscriptTurn::User {
            text: text.to_owned(),
            attachments: Vec::new(),
        }
    }

    fn answer(text: &str) -> TranscriptTurn {
        TranscriptTurn::Answer {
            text: text.to_owned(),
        }
    }

    fn digest(event: &str, turns: Vec<TranscriptTurn>) -> Digest {
        Digest {
            run: format!("r-{event}"),
            event: event.to_owned(),
            at: 0,
            turns,
        }
    }

    #[test]
    fn stored_turns_replace_messages_of_their_event() {
        let page = vec![
            item("now", "user", "current"),
            item("e2", "assistant", "plain"),
            item("e2", "user", "second"),
            item("e1", "assistant", "as sent"),
            item("e1", "user", "first"),
        ];
        let digests = vec![
            digest("e0", vec![user("older"), answer("gone from the page")]),
            digest("e1", vec![user("first"), answer("as kept")]),
        ];
        let expected = [
            user("older"),
            answer("gone from the page"),
            user("first"),
            answer("as kept"),
            user("second"),
            answer("plain"),
        ];
        assert_eq!(merge(page, digests, "now"), expected);
    }
}
