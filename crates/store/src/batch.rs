//! Batch operations: a few statements for many items of one commit, instead of some for each.

use crate::attempts::{dispatch_all, note_all};
use crate::audit;
use crate::batch_op::{BatchOp, BatchResult};
use crate::error::StoreError;
use crate::ingest::ingest_batch;
use crate::ledger::{append_all, end_all};
use crate::sql::Sql;
use crate::tx_cache::TxCache;

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
    // Conversations before their runs: the lock order of all transactions.
    let mut ingested = ingest_batch(tx, &ingests, tx_cache).await?.into_iter();
    let mut ended = end_all(tx, &ends).await?.into_iter();
    let mut dispatched = dispatch_all(tx, &dispatches).await?.into_iter();
    note_all(tx, &outcomes).await?;
    audit::insert(tx, audits).await?;
    audit::end_all(tx, &audited).await?;
    let mut appended = append_all(tx, &appends).await?.into_iter();
    // Each kind has returned its results in the order of its items.
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
