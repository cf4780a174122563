//! Batch operations: a few statements for many items of one commit, instead of some for each.

mod appends;
mod attempts;
mod audits;

use protocol::id::RunId;
use sea_orm::Value;

use crate::attempts::{AttemptOutcome, Dispatch, Dispatched};
use crate::audit::{AuditEntry, AuditOutcome};
use crate::common::Common;
use crate::error::StoreError;
use crate::ingest::{Ingest, Ingested, take_together};
use crate::ledger::{Append, Appended};
use crate::sql::Sql;

pub(crate) use appends::{advance, insert_segments, items_of};
pub(crate) use attempts::{Intent, insert_intents};

/// Work with a batch operation.
#[derive(Clone, Copy)]
pub enum Together<'a> {
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
pub enum Done {
    Ingest(Ingested),
    Append(Appended),
    Dispatch(Dispatched),
    Outcome,
    Audited,
}

/// A batch operation takes each run once per kind, except for kinds that read no earlier state.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Ingest,
    Append(RunId),
    Dispatch(RunId),
    Outcome(RunId),
    Audit,
}

impl Together<'_> {
    /// Kind and run.
    pub(crate) fn key(&self) -> Key {
        match self {
            Self::Ingest(_) => Key::Ingest,
            Self::Append(append) | Self::End(append) => Key::Append(append.run_id),
            Self::Dispatch(dispatch) => Key::Dispatch(dispatch.run.id),
            Self::Outcome(outcome) => Key::Outcome(outcome.run_id),
            Self::Audit(_) | Self::Audited(_) => Key::Audit,
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

/// Applies work in batch operations, each run once per kind. Results are in the order of `work`; `None`: apply
/// the item singly.
pub(crate) async fn apply(
    tx: &impl Sql,
    work: &[Together<'_>],
    common: &mut Common,
) -> Result<Vec<Option<Done>>, StoreError> {
    let (mut ingests, mut appends, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let (mut dispatches, mut outcomes) = (Vec::new(), Vec::new());
    let (mut audits, mut audited) = (Vec::new(), Vec::new());
    for one in work {
        match one {
            Together::Ingest(ingest) => ingests.push(*ingest),
            Together::Append(append) => appends.push(*append),
            Together::End(append) => ends.push(*append),
            Together::Dispatch(dispatch) => dispatches.push(*dispatch),
            Together::Outcome(outcome) => outcomes.push(*outcome),
            Together::Audit(entry) => audits.push(*entry),
            Together::Audited(outcome) => audited.push(*outcome),
        }
    }
    // Conversations before their runs.
    let mut ingested = take_together(tx, &ingests, common).await?.into_iter();
    let mut ended = appends::end_all(tx, &ends).await?.into_iter();
    let mut dispatched = attempts::dispatch_all(tx, &dispatches).await?.into_iter();
    attempts::note_all(tx, &outcomes).await?;
    crate::audit::insert(tx, audits).await?;
    audits::end_all(tx, &audited).await?;
    let mut appended = appends::append_all(tx, &appends).await?.into_iter();
    let done = work.iter().map(|one| match one {
        Together::Ingest(_) => ingested.next().flatten().map(Done::Ingest),
        Together::End(_) => ended.next().flatten().map(Done::Append),
        Together::Append(_) => appended.next().map(Done::Append),
        Together::Dispatch(_) => dispatched.next().flatten().map(Done::Dispatch),
        Together::Outcome(_) => Some(Done::Outcome),
        Together::Audit(_) | Together::Audited(_) => Some(Done::Audited),
    });
    Ok(done.collect())
}

fn text(id: RunId) -> Value {
    id.to_string().into()
}
