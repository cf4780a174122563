//! Cancellation of child runs, which end with their parent.

use protocol::id::RunId;
use store::StoreError;

use crate::deps::RunDeps;
use crate::live::LiveRun;

/// Requests the end of the child runs of a cancelled run.
pub(super) async fn cancel_children(deps: &RunDeps, id: RunId) {
    let live = deps.live.get(id);
    // A run of another process may have children; only the query can answer.
    if live.is_none_or(|live| live.may_have_children()) {
        end_children_of(deps, id).await;
    }
}

/// Requests the end of the child runs of an ended run, unless it leaves them running.
pub(super) async fn end_children(deps: &RunDeps, live: &LiveRun, id: RunId) {
    if live.may_have_children() {
        end_children_of(deps, id).await;
    }
}

async fn end_children_of(deps: &RunDeps, id: RunId) {
    if let Err(error) = ask_children(deps, Some(id)).await {
        let error = &error as &dyn std::error::Error;
        tracing::warn!(
            run.id = %id, error,
            "cannot cancel the child runs of run {id}; recovery will"
        );
    }
}

/// The same for all child runs whose parents have ended, for processes that died before their request.
pub(super) async fn end_all_children(deps: &RunDeps) -> Result<(), StoreError> {
    ask_children(deps, None).await
}

async fn ask_children(deps: &RunDeps, parent: Option<RunId>) -> Result<(), StoreError> {
    let at = deps.clock.now_ms();
    for child in deps.store.runs().end_children(parent, at).await? {
        deps.send_cancel(child, at);
    }
    Ok(())
}
