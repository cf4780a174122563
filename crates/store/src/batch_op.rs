//! Kinds of batch operations and their results.

use domain::event::ConversationIdentity;
use protocol::id::{RunId, WorkspaceId};

use crate::model::append::{Append, Appended};
use crate::model::audit::{AuditEntry, AuditOutcome};
use crate::model::dispatch::{AttemptOutcome, Dispatch, Dispatched};
use crate::model::ingest::{AnyEffects, AnyIngest, Ingested};

/// Work with a batch operation.
#[derive(Clone, Copy)]
pub enum BatchOp<'a> {
    Ingest(&'a AnyIngest),
    /// Events of a run.
    Append(&'a Append),
    /// The last events of a run.
    End(&'a Append),
    Dispatch(&'a Dispatch),
    Outcome(&'a AttemptOutcome),
    Audit(&'a AuditEntry),
    Audited(&'a AuditOutcome),
}

/// The result of a batch operation.
pub enum BatchResult {
    /// With the effects of the decision, if one was made.
    Ingest(Ingested, Option<AnyEffects>),
    Append(Appended),
    Dispatch(Dispatched),
    Outcome,
    Audited,
}

/// A row that a batch operation reads and changes: it takes only one item for each.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BatchKey<'a> {
    EventId(&'a WorkspaceId, &'a str),
    DedupeKey(&'a WorkspaceId, &'a str),
    Conversation(&'a WorkspaceId, &'a ConversationIdentity),
    /// Parent of a new child run: it counts its children.
    Parent(RunId),
    Append(RunId),
    /// Conversation of a run that ends.
    Promotion(&'a str),
    Dispatch(RunId),
    Outcome(RunId),
}

impl<'a> BatchOp<'a> {
    /// The rows that it depends on. None for kinds that read no earlier state.
    pub(crate) fn keys(self) -> Vec<BatchKey<'a>> {
        match self {
            Self::Ingest(ingest) => {
                let workspace = &ingest.workspace;
                let mut keys = vec![
                    BatchKey::EventId(workspace, &ingest.event_id),
                    BatchKey::DedupeKey(workspace, &ingest.dedupe_key),
                ];
                let conversation = ingest.conversation.as_ref();
                keys.extend(conversation.map(|own| BatchKey::Conversation(workspace, own)));
                keys.extend(ingest.parent.map(|parent| BatchKey::Parent(parent.run_id)));
                keys
            }
            Self::Append(append) => vec![BatchKey::Append(append.run_id)],
            Self::End(end) => {
                let promoting = end.promotion();
                let promotion =
                    promoting.map(|promotion| BatchKey::Promotion(&promotion.conversation_key));
                [BatchKey::Append(end.run_id)]
                    .into_iter()
                    .chain(promotion)
                    .collect()
            }
            Self::Dispatch(dispatch) => vec![BatchKey::Dispatch(dispatch.run.id)],
            Self::Outcome(outcome) => vec![BatchKey::Outcome(outcome.run_id)],
            Self::Audit(_) | Self::Audited(_) => Vec::new(),
        }
    }

    pub(crate) fn takes_event(self) -> bool {
        matches!(self, Self::Ingest(_))
    }

    /// Lock order key of the event's conversation. `None`: no conversation, or no event.
    pub(crate) fn conversation(self) -> Option<[String; 4]> {
        match self {
            Self::Ingest(ingest) => ingest.conversation_identity(),
            _ => None,
        }
    }
}
