//! Cancellation of child runs, which end with their parent.

use protocol::id::RunId;
use store::{Store, StoreError};

use crate::cancel_signals::CancelSignals;
use crate::live::LiveRun;
use clock::Clock;

/// Requests the end of child runs.
#[derive(Clone)]
pub(super) struct ChildCancellation {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) signals: CancelSignals,
}

impl ChildCancellation {
    /// Requests the end of the child runs of a cancelled run.
    pub(super) async fn cancel_children(&self, id: RunId) {
        let live = self.signals.live.get(id);
        // A run of another process may have children; only the query can answer.
        if live.is_none_or(|live| live.may_have_children()) {
            self.end_children_of(id).await;
        }
    }

    /// Requests the end of the child runs of an ended run, unless it leaves them running.
    pub(super) async fn end_children(&self, live: &LiveRun, id: RunId) {
        if live.may_have_children() {
            self.end_children_of(id).await;
        }
    }

    async fn end_children_of(&self, id: RunId) {
        if let Err(error) = self.ask_children(Some(id)).await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(
                run.id = %id, error,
                "cannot cancel the child runs of run {id}; recovery will"
            );
        }
    }

    /// The same for all child runs whose parents have ended, for processes that died before their request.
    pub(super) async fn end_all_children(&self) -> Result<(), StoreError> {
        self.ask_children(None).await
    }

    async fn ask_children(&self, parent: Option<RunId>) -> Result<(), StoreError> {
        let at = self.clock.now_ms();
        for child in self.store.runs().end_children(parent, at).await? {
            self.signals.send(child, at);
        }
        Ok(())
    }
}
