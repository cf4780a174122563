//! Events of a run with the other rows of their commit.

use std::sync::Arc;
use std::time::Duration;

use domain::normalize::{Rejection, RunQuestion, StateUpdate};
use protocol::id::{ApprovalId, RunId, WorkspaceId};
use protocol::run::RunStatus;
use uuid::Uuid;

use crate::generations::ConversationGenerations;
use crate::model::audit::AuditEntry;
use crate::model::new_run::NewRun;
use crate::model::platform_action::NewPlatformAction;
use crate::model::registry::Candidate;

/// One commit of one run. When the compare-and-set updates no row, the owner has lost the run and nothing is
/// written.
#[derive(Clone, Debug)]
pub struct Append {
    pub run_id: RunId,
    pub workspace: WorkspaceId,
    pub epoch: i64,
    /// Last sequence before and after; equal when the commit has only rejections or an end.
    pub from: u64,
    pub to: u64,
    /// The events as JSON lines, each terminated by LF.
    pub lines: String,
    pub states: Vec<StateUpdate>,
    pub rejections: Vec<Rejection>,
    /// Number of the first rejection, from 1.
    pub first_rejection: u64,
    pub audits: Vec<AuditEntry>,
    /// Announced artifacts, each with the sequence of its event.
    pub artifacts: Vec<(Uuid, u64)>,
    /// Questions in these events.
    pub interactions: Vec<NewInteraction>,
    /// Platform actions that these events request.
    pub actions: Vec<NewPlatformAction>,
    /// Platform actions of host calls, each with the sequence of its event.
    pub announced: Vec<(String, u64)>,
    /// Amendments of the run, each with the sequence of its event.
    pub amended: Vec<(ApprovalId, u64)>,
    /// For async runs: all results up to this number are in the ledger after this commit.
    pub judged_through: Option<u64>,
    /// Append calls that this commit accepts, in the order of their results. None with an end.
    pub accepted: Vec<AcceptedCall>,
    pub terminal: Option<RunEnd>,
    /// Epoch milliseconds.
    pub at: i64,
}

impl Append {
    /// Follow-up of the end, if it ends a run with a conversation.
    pub(crate) fn promotion(&self) -> Option<&Promotion> {
        self.terminal.as_ref()?.promotion.as_ref()
    }
}

/// An append call whose results are accepted by the commit that writes their events.
#[derive(Clone, Debug)]
pub struct AcceptedCall {
    pub attempt: u32,
    /// The run ends after this long without a heartbeat.
    pub lease: Duration,
    pub first: u64,
    pub last: u64,
    /// The results as a JSON list.
    pub payload: String,
    /// See [`crate::result_digest`].
    pub digests: String,
    /// Bytes of the results.
    pub bytes: u64,
}

/// The end of a run, written with its last event.
#[derive(Clone, Debug)]
pub struct RunEnd {
    pub status: RunStatus,
    pub reason: String,
    pub output: Option<String>,
    pub error: Option<String>,
    pub usage: Option<String>,
    pub metadata: String,
    /// Messages of the run in order, for a run with a conversation.
    pub transcript: Vec<TranscriptWrite>,
    /// Follow-up of the end, for a run with a conversation.
    pub promotion: Option<Promotion>,
}

/// Result of an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Appended {
    /// `next`: queued runs promoted by this end, to be dispatched.
    Written { next: Vec<RunId> },
    /// The run has another owner, or has ended.
    Lost,
    /// Another replica has accepted results with the numbers of `accepted`. Nothing is written: the owner resumes
    /// the run behind the last validated result.
    Overtaken,
}

/// A question to store.
#[derive(Clone, Debug)]
pub struct NewInteraction {
    pub id: Uuid,
    /// Sequence of the ledger event that asks.
    pub sequence: u64,
    pub question: RunQuestion,
}

/// A transcript item; the transaction assigns its sequence.
#[derive(Clone, Debug)]
pub struct TranscriptWrite {
    pub id: Uuid,
    pub conversation_key: String,
    pub event_id: String,
    pub role: &'static str,
    pub content: Option<String>,
    pub content_json: String,
    /// A JSON list.
    pub attachment_refs: String,
    /// The author, as JSON.
    pub author: Option<String>,
    /// See [`crate::terms_of`].
    pub terms: String,
}

/// Follow-up work of a run's end: re-queue unpulled steering events and start the next waiting run.
#[derive(Clone)]
pub struct Promotion {
    pub conversation_key: String,
    /// Creates a run for an unpulled event, if an agent still accepts it.
    pub promote_next: CreateForEvent,
}

/// Decides on an event that the run left unpulled.
pub type CreateForEvent = Arc<
    dyn Fn(&SteeredEvent, &[Candidate], &ConversationGenerations) -> Option<NewRun> + Send + Sync,
>;

/// An absorbed event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeredEvent {
    pub event_id: String,
    /// The envelope as JSON.
    pub envelope: String,
    /// Time of absorption, epoch milliseconds.
    pub at: i64,
}
