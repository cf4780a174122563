//! Kinds of batch operations and their results.

use protocol::id::RunId;

use crate::model::append::{Append, Appended};
use crate::model::audit::{AuditEntry, AuditOutcome};
use crate::model::dispatch::{AttemptOutcome, Dispatch, Dispatched};
use crate::model::ingest::{Ingest, Ingested};

/// Work with a batch operation.
#[derive(Clone, Copy)]
pub enum BatchOp<'a> {
    Ingest(&'a Ingest),
    /// Events of a run without other effects.
    Append(&'a Append),
    /// The last events of a run without other effects.
    End(&'a Append),
    Dispatch(&'a Dispatch),
    Outcome(&'a AttemptOutcome),
    Audit(&'a AuditEntry),
    Audited(&'a AuditOutcome),
}

/// The result of a batch operation.
pub enum BatchResult {
    Ingest(Ingested),
    Append(Appended),
    Dispatch(Dispatched),
    Outcome,
    Audited,
}

/// A batch operation takes each run once per kind, except for kinds that read no earlier state.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum BatchKey {
    Ingest,
    Append(RunId),
    Dispatch(RunId),
    Outcome(RunId),
    Audit,
}

impl BatchOp<'_> {
    /// Kind and run.
    pub(crate) fn key(&self) -> BatchKey {
        match self {
            Self::Ingest(_) => BatchKey::Ingest,
            Self::Append(append) | Self::End(append) => BatchKey::Append(append.run_id),
            Self::Dispatch(dispatch) => BatchKey::Dispatch(dispatch.run.id),
            Self::Outcome(outcome) => BatchKey::Outcome(outcome.run_id),
            Self::Audit(_) | Self::Audited(_) => BatchKey::Audit,
        }
    }

    /// Lock order key of the event's conversation. `None`: no conversation, or no event.
    pub(crate) fn conversation(&self) -> Option<[String; 4]> {
        match self {
            Self::Ingest(ingest) => ingest.conversation_identity(),
            _ => None,
        }
    }
}
