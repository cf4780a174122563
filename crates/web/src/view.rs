//! Conversions from stored rows to API types.

use protocol::JsonObject;
use protocol::child_run::ChildRun;
use protocol::history::TranscriptItem;
use protocol::raw::RawJson;
use protocol::run::{AgentRun, RunClaim, RunStatus};

use domain::authorization::FrozenConversation;
use domain::run::Run;
use protocol::id::WorkspaceId;
use store::TranscriptRecord;

use keys::cursor::{Cursors, history_cursor};

/// Converts millionths to units.
#[expect(
    clippy::cast_precision_loss,
    reason = "sums are far below what a double counts exactly"
)]
pub fn micros(number: u64) -> f64 {
    number as f64 / 1e6
}

/// An optional part of a conversation: stored as `''`, shown as null.
pub fn present(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Maximum characters of an input preview.
const PREVIEW_CHARACTERS: usize = 200;

/// Characters to read for a preview: one more shows that the text is longer.
pub const PREVIEW_READ: u32 = 201;

/// Shortens the begin of a text to a preview.
pub fn preview(text: String) -> String {
    if text.chars().count() <= PREVIEW_CHARACTERS {
        return text;
    }
    let mut short: String = text.chars().take(PREVIEW_CHARACTERS - 1).collect();
    short.push('…');
    short
}

/// Converts a run, with its conversation if it has one.
pub fn agent_run(run: Run, conversation: Option<&FrozenConversation>) -> AgentRun {
    let part =
        |select: fn(&FrozenConversation) -> &str| conversation.and_then(|c| present(select(c)));
    let seconds = |millis: i64| millis.div_euclid(1000);
    AgentRun {
        id: None,
        run_id: run.id,
        event_id: run.event_id,
        agent_id: run.agent_id,
        agent_name: None,
        input_preview: None,
        parent_run_id: run.parent_run_id,
        retry_of: run.retry_of,
        retry_from: run.retry_from,
        retried_as: None,
        posted_by: None,
        cancelled_by: None,
        binding_id: None,
        runner_id: run.runner_id,
        conversation_id: part(|c| &c.conversation_id),
        thread_id: part(|c| &c.thread_id),
        bot_id: part(|c| &c.bot_id),
        workspace_id: run.workspace.to_string(),
        status: run.status,
        status_reason: run.status_reason,
        created_at: seconds(run.created_at),
        started_at: run.started_at.map(seconds),
        finished_at: run.finished_at.map(seconds),
        duration_ms: (run.started_at.zip(run.finished_at))
            .map(|(started, finished)| (finished - started).max(0)),
        updated_at: None,
        deadline_at: Some(seconds(run.deadline_at)),
        cancel_requested_at: run.cancel_requested_at.map(seconds),
        dispatch_attempts: i64::from(run.attempt),
        claim: RunClaim::default(),
        last_sequence: run.last_sequence,
        output: run.output,
        error: run.error,
        usage: run.usage.filter(RawJson::is_object),
        cost: None,
        metadata: run.metadata,
    }
}

/// Converts a child run for its parent; `None` if the run has no parent.
pub fn child_run(run: Run) -> Option<ChildRun> {
    let seconds = |millis: i64| millis.div_euclid(1000);
    let is_completed = run.status == RunStatus::Completed;
    let outcome = run.metadata.value().get("outcome").cloned();
    let outcome = outcome.and_then(|outcome| serde_json::from_value(outcome).ok());
    Some(ChildRun {
        run_id: run.id,
        parent_run_id: run.parent_run_id?,
        agent_id: run.agent_id,
        status: run.status,
        created_at: seconds(run.created_at),
        finished_at: run.finished_at.map(seconds),
        deadline_at: seconds(run.deadline_at),
        // The status reason of a completed run is its finish reason.
        finish_reason: run.status_reason.clone().filter(|_| is_completed),
        status_reason: run.status_reason,
        outcome: outcome.filter(|_| is_completed),
        output: run.output,
        error: run.error,
        usage: run.usage.filter(RawJson::is_object),
    })
}

/// Direction of a history page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Newest first.
    #[default]
    Backward,
    /// Oldest first.
    Forward,
}

/// Converts a transcript item and adds its cursor.
pub fn transcript_item(
    record: TranscriptRecord,
    cursors: &Cursors,
    workspace: &WorkspaceId,
    conversation: &FrozenConversation,
) -> TranscriptItem {
    let cursor = history_cursor(cursors, workspace, conversation, record.seq);
    TranscriptItem {
        cursor: Some(cursor),
        transcript_id: record.id,
        event_id: record.event_id,
        run_id: Some(record.run_id),
        conversation_id: present(&conversation.conversation_id),
        bot_id: present(&conversation.bot_id),
        workspace_id: Some(workspace.to_string()),
        thread_id: present(&conversation.thread_id),
        role: record.role,
        item_type: record.item_type,
        content: record.content,
        content_json: record.content_json,
        attachment_refs: record.attachment_refs,
        seq: record.seq,
        created_at: record.created_at.div_euclid(1000),
        metadata: JsonObject::from_iter(record.author.map(|actor| ("actor".to_owned(), actor))),
    }
}
