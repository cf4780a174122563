//! Lock order of the writer: replicas lock shared rows in one order, so they do not deadlock. A deadlock costs a
//! second and aborts one transaction.

use std::collections::{BTreeSet, HashSet};
use std::mem::discriminant;

use sea_orm::DbBackend;
use uuid::Uuid;

use super::job::Item;
use crate::advisory_key::AdvisoryKey;
use crate::batch_op::BatchOp;
use crate::conversation::{lock_all, lock_runs};
use crate::error::StoreError;
use crate::sql::Sql;

/// First number of the two-part advisory lock key in `PostgreSQL`.
const KEY_CLASS: i32 = 0x5275_6e6c;

/// The locks of a batch: conversations and runs that its items would otherwise lock out of order.
#[derive(Default)]
pub(super) struct LockSet {
    shares: BTreeSet<AdvisoryKey>,
    conversations: BTreeSet<String>,
    runs: BTreeSet<Uuid>,
}

impl LockSet {
    /// The locks that the statements of the batch do not already take in order.
    pub(super) fn of<'a>(batch: impl IntoIterator<Item = &'a (dyn Item + 'static)>) -> Self {
        let (mut lock_order, mut kinds) = (Self::default(), HashSet::new());
        let (mut is_moved_at_once, mut count) = (true, 0);
        for item in batch {
            let work = item.batched();
            let writes_no_run = matches!(
                work,
                Some(BatchOp::Audit(_) | BatchOp::Audited(_) | BatchOp::Outcome(_))
            );
            if item.takes_event() {
                // Events commit separately and learn their rows only then, so none can be locked in advance.
                return Self::default();
            }
            if writes_no_run {
                // Audit rows and outcomes of attempts lock no row of `runs`.
                continue;
            }
            lock_order.shares.extend(item.advisory_keys());
            kinds.insert(work.map(|work| discriminant(&work)));
            is_moved_at_once &= matches!(
                work,
                Some(BatchOp::Append(_) | BatchOp::End(_) | BatchOp::Dispatch(_))
            );
            count += 1;
            if !item.order().is_nil() {
                lock_order.runs.insert(item.order());
                let conversation = item.conversation().map(str::to_owned);
                lock_order.conversations.extend(conversation);
            }
        }
        // One statement updates all runs in sorted order and so locks them in order. A single item that ends no run
        // cannot lock out of order.
        let is_moved_at_once = is_moved_at_once && kinds.len() == 1;
        if is_moved_at_once || (count < 2 && lock_order.conversations.is_empty()) {
            lock_order.runs.clear();
            lock_order.conversations.clear();
        }
        lock_order
    }

    /// Takes the locks. None on `SQLite`, which has one writer.
    pub(super) async fn hold(&self, tx: &impl Sql) -> Result<(), StoreError> {
        if tx.backend() == DbBackend::Sqlite {
            return Ok(());
        }
        self.lock_advisory_keys(tx).await?;
        if self.runs.is_empty() {
            return Ok(());
        }
        let keys = || self.conversations.iter().map(String::as_str);
        // Conversations first, as events do; then their runs, and the queued runs that an end may promote.
        lock_all(tx, keys()).await?;

        lock_runs(tx, &self.runs, keys()).await
    }

    /// Advisory locks, because rows that do not exist yet cannot be locked but still conflict.
    async fn lock_advisory_keys(&self, tx: &impl Sql) -> Result<(), StoreError> {
        if self.shares.is_empty() {
            return Ok(());
        }
        let hold = "SELECT pg_advisory_xact_lock($1, share) FROM \
                    (SELECT unnest(CAST($2 AS integer[])) AS share ORDER BY 1) AS s";
        let shares: Vec<_> = self.shares.iter().map(|share| share.number()).collect();
        let shares = shares.iter().map(ToString::to_string).collect::<Vec<_>>();
        let values = vec![KEY_CLASS.into(), format!("{{{}}}", shares.join(",")).into()];
        // Ordered in the statement: two replicas with overlapping sets take them in the same order.
        tx.execute_sql(hold.to_owned(), values).await
    }
}
