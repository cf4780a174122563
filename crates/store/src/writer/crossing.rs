//! Two replicas that write the same rows in one moment: they take them in one order, or the database stops both for a
//! second and chooses.

use std::collections::{BTreeSet, HashSet};
use std::mem::discriminant;

use aws_lc_rs::digest::{SHA256, digest};
use sea_orm::{DatabaseTransaction, DbBackend};
use uuid::Uuid;

use super::job::Item;
use crate::bulk::{Key, Together};
use crate::conversation::{hold_runs, lock_all};
use crate::error::StoreError;
use crate::sql::Sql;

/// What runs of any conversation write rows of: a scope of state, or an agent. Two that are taken for one wait for each
/// other for the length of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u16);

/// So many shares are told apart. A server has room for some thousand locks, and a commit may need many.
const DIFFERENT: u16 = 4096;
/// The first of the two numbers by which `PostgreSQL` knows such a lock.
const SHARES: i32 = 0x5275_6e6c;

impl Share {
    /// That of a scope or an agent, by its identity.
    pub(crate) fn of(identity: &str) -> Self {
        let hash = digest(&SHA256, identity.as_bytes());
        let &[first, second, ..] = hash.as_ref() else {
            return Self(0);
        };
        Self(u16::from_be_bytes([first, second]) % DIFFERENT)
    }
}

/// The rows that a batch writes for its conversations and runs, where its items would take them in an order that is
/// not everybody's.
#[derive(Default)]
pub(super) struct Crossing {
    shares: BTreeSet<Share>,
    conversations: BTreeSet<String>,
    runs: BTreeSet<Uuid>,
}

impl Crossing {
    /// No runs where all are moved by one statement, in everybody's order, which ends see to themselves; nor for one item
    /// that ends none. Nothing for events, which are by themselves and find out only then what they write.
    pub(super) fn of(batch: &[Box<dyn Item>]) -> Self {
        let (mut crossing, mut kinds) = (Self::default(), HashSet::new());
        let (mut is_moved_at_once, mut count) = (true, 0);
        for item in batch {
            let work = item.together();
            let writes_no_run = matches!(
                work.map(|work| work.key()),
                Some(Key::Audit | Key::Outcome(_))
            );
            if item.takes_event() {
                return Self::default();
            }
            if writes_no_run {
                continue;
            }
            crossing.shares.extend(item.shares());
            kinds.insert(work.map(|work| discriminant(&work)));
            is_moved_at_once &= matches!(
                work,
                Some(Together::Append(_) | Together::End(_) | Together::Dispatch(_))
            );
            count += 1;
            if !item.order().is_nil() {
                crossing.runs.insert(item.order());
                let conversation = item.conversation().map(str::to_owned);
                crossing.conversations.extend(conversation);
            }
        }
        let is_moved_at_once = is_moved_at_once && kinds.len() == 1;
        if is_moved_at_once || (count < 2 && crossing.conversations.is_empty()) {
            crossing.runs.clear();
            crossing.conversations.clear();
        }
        crossing
    }

    /// Locks them: conversations first, as events do, their runs after, and those that wait there, which an end may let
    /// go. `SQLite` has one writer.
    pub(super) async fn hold(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        if Sql::backend(tx) == DbBackend::Sqlite {
            return Ok(());
        }
        self.hold_shares(tx).await?;
        if self.runs.is_empty() {
            return Ok(());
        }
        let keys = || self.conversations.iter().map(String::as_str);
        lock_all(tx, keys()).await?;

        hold_runs(tx, &self.runs, keys()).await
    }

    /// Rows that are not there yet cannot be locked, and wait for each other all the same.
    async fn hold_shares(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        if self.shares.is_empty() {
            return Ok(());
        }
        let hold = "SELECT pg_advisory_xact_lock($1, share) FROM \
                    (SELECT unnest(CAST($2 AS integer[])) AS share ORDER BY 1) AS s";
        let shares: Vec<_> = self.shares.iter().map(|share| share.0).collect();
        let shares = shares.iter().map(ToString::to_string).collect::<Vec<_>>();
        let values = vec![SHARES.into(), format!("{{{}}}", shares.join(",")).into()];
        tx.execute_sql(hold.to_owned(), values).await
    }
}
