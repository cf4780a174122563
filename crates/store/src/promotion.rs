//! Promotes the next run of a conversation when a run ends (`docs/protocol.md`, Conversation policies).

use protocol::id::RunId;

use crate::conversation::promote_next;
use crate::error::StoreError;
use crate::failpoint;
use crate::generations::generations_of;
use crate::model::append::{Append, Promotion};
use crate::new_run::{Begin, RunEvent, RunRow, candidates, insert_runs};
use crate::shared_parts::StoredParts;
use crate::sql::Sql;
use crate::steering::drop_unpulled;
use crate::tx_cache::TxCache;

impl std::fmt::Debug for Promotion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Succession")
            .field("conversation_key", &self.conversation_key)
            .finish_non_exhaustive()
    }
}

impl Promotion {
    /// Queues unpulled events as runs of their own, then promotes the oldest waiting run.
    pub(crate) async fn promote(
        &self,
        tx: &impl Sql,
        end: &Append,
    ) -> Result<Vec<RunId>, StoreError> {
        let key = self.conversation_key.as_str();
        let left = drop_unpulled(tx, &end.workspace, end.run_id).await?;
        // Their events have no run yet; events that the run pulled are done.
        if !left.is_empty() {
            let candidates = candidates(tx, &end.workspace).await?;
            let generations = generations_of(tx, &candidates, Some(key), 0).await?;
            for event in left {
                let Some(run) = (self.promote_next)(&event, &candidates, &generations) else {
                    continue;
                };
                let event = RunEvent {
                    workspace: &end.workspace,
                    event_id: &event.event_id,
                    conversation_key: Some(key),
                    at: end.at,
                };
                let (run, begin) = (&run, &Begin::Queued);
                let parts =
                    StoredParts::find(tx, [&run.shared].into_iter(), &mut TxCache::default())
                        .await?;
                insert_runs(tx, &[RunRow { event, run, begin }], &parts).await?;
            }
        }
        failpoint::pass("succession.before_next").await?;
        promote_next(tx, key).await
    }
}
