//! Batch operations: a few statements for many items of one commit, instead of some for each.

mod appends;
mod attempts;
mod audits;

use protocol::id::RunId;
use sea_orm::Value;

use crate::attempts::{AttemptOutcome, Dispatch, Dispatched};
use crate::audit::{AuditEntry, AuditOutcome};
use crate::error::StoreError;
use crate::ingest::{Ingest, Ingested, ingest_batch};
use crate::ledger::{Append, Appended};
use crate::sql::Sql;
use crate::tx_cache::TxCache;

pub(crate) use appends::{advance, insert_segments, items_of};
pub(crate) use attempts::{DispatchIntent, insert_intents};

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

/// Applies work in batch operations, each run once per kind. Results are in the order of `work`; `None`: apply
/// the item singly.
pub(crate) async fn apply(
    tx: &impl Sql,
    work: &[BatchOp<'_>],
    tx_cache: &mut TxCache,
) -> Result<Vec<Option<BatchResult>>, StoreError> {
    let (mut ingests, mut appends, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    let (mut dispatches, mut outcomes) = (Vec::new(), Vec::new());
    let (mut audits, mut audited) = (Vec::new(), Vec::new());
    for one in work {
        match one {
            BatchOp::Ingest(ingest) => ingests.push(*ingest),
            BatchOp::Append(append) => appends.push(*append),
            BatchOp::End(append) => ends.push(*append),
            BatchOp::Dispatch(dispatch) => dispatches.push(*dispatch),
            BatchOp::Outcome(outcome) => outcomes.push(*outcome),
            BatchOp::Audit(entry) => audits.push(*entry),
            BatchOp::Audited(outcome) => audited.push(*outcome),
        }
    }
    // Conversations before their runs.
    let mut ingested = ingest_batch(tx, &ingests, tx_cache).await?.into_iter();
    let mut ended = appends::end_all(tx, &ends).await?.into_iter();
    let mut dispatched = attempts::dispatch_all(tx, &dispatches).await?.into_iter();
    attempts::note_all(tx, &outcomes).await?;
    crate::audit::insert(tx, audits).await?;
    audits::end_all(tx, &audited).await?;
    let mut appended = appends::append_all(tx, &appends).await?.into_iter();
    let done = work.iter().map(|one| match one {
        BatchOp::Ingest(_) => ingested.next().flatten().map(BatchResult::Ingest),
        BatchOp::End(_) => ended.next().flatten().map(BatchResult::Append),
        BatchOp::Append(_) => appended.next().map(BatchResult::Append),
        BatchOp::Dispatch(_) => dispatched.next().flatten().map(BatchResult::Dispatch),
        BatchOp::Outcome(_) => Some(BatchResult::Outcome),
        BatchOp::Audit(_) | BatchOp::Audited(_) => Some(BatchResult::Audited),
    });
    Ok(done.collect())
}

fn text(id: RunId) -> Value {
    id.to_string().into()
}
