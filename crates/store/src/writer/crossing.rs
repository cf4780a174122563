//! Two replicas that write the same rows in one moment: they take them in one order, or the database stops both for a
//! second and chooses.

use std::collections::{BTreeSet, HashSet};
use std::mem::discriminant;

use sea_orm::{DatabaseTransaction, DbBackend};
use uuid::Uuid;

use super::job::Item;
use crate::bulk::Key;
use crate::conversation::lock_all;
use crate::error::StoreError;
use crate::sql::Sql;

/// The rows that a batch writes for its conversations and runs, where its items would take them in an order that is
/// not everybody's.
#[derive(Default)]
pub(super) struct Crossing {
    conversations: BTreeSet<String>,
    runs: BTreeSet<Uuid>,
}

impl Crossing {
    /// None where all is of one kind and done together: that is one statement after the other, in everybody's order.
    /// Nor for events, which are by themselves and find out only then what they write.
    pub(super) fn of(batch: &[Box<dyn Item>]) -> Self {
        let (mut crossing, mut kinds) = (Self::default(), HashSet::new());
        for item in batch {
            let work = item.together();
            let writes_no_run = matches!(
                work.map(|work| work.key()),
                Some(Key::Audit | Key::Outcome(_))
            );
            if item.takes_event() {
                return Self::default();
            }
            if writes_no_run || item.order().is_nil() {
                continue;
            }
            kinds.insert(work.map(|work| discriminant(&work)));
            crossing.runs.insert(item.order());
            let conversation = item.conversation().map(str::to_owned);
            crossing.conversations.extend(conversation);
        }
        let is_of_one_kind = kinds.len() == 1 && !kinds.contains(&None);
        if crossing.runs.len() < 2 || is_of_one_kind {
            return Self::default();
        }
        crossing
    }

    /// Locks them: conversations first, as events do, their runs after. `SQLite` has one writer.
    pub(super) async fn hold(&self, tx: &DatabaseTransaction) -> Result<(), StoreError> {
        if Sql::backend(tx) == DbBackend::Sqlite || self.runs.is_empty() {
            return Ok(());
        }
        lock_all(tx, self.conversations.iter().map(String::as_str)).await?;
        let hold = "SELECT id FROM runs WHERE id = ANY (string_to_array($1, ' ')) \
                    ORDER BY id COLLATE \"C\" FOR NO KEY UPDATE";
        let ids: Vec<_> = self.runs.iter().map(ToString::to_string).collect();
        tx.query_sql(hold.to_owned(), vec![ids.join(" ").into()])
            .await?;
        Ok(())
    }
}
