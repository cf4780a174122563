//! A copy of the pauses in memory.

use std::sync::Arc;

use domain::run::Run;
use protocol::id::{AgentId, WorkspaceId};
use protocol::pause::PauseMode;
use protocol::run::RunStatus;
use store::{PauseRecord, Store, StoreError};
use telemetry::metrics;
use tokio::sync::watch;

/// The pauses as this process has read them last.
#[derive(Default)]
pub(crate) struct PauseBoard(pub(super) watch::Sender<Arc<[PauseRecord]>>);

impl PauseBoard {
    pub(crate) fn current(&self) -> Arc<[PauseRecord]> {
        Arc::clone(&self.0.borrow())
    }

    /// True if a pause holds the run. A cancelled run is not held, because it must end.
    pub(crate) fn holds(&self, run: &Run) -> bool {
        let is_waiting = run.status == RunStatus::Created && run.cancel_requested_at.is_none();
        let holds = |pause: &PauseRecord| {
            pause.scope.covers(&run.workspace, run.agent_id) && pause.holds(run.created_at)
        };
        is_waiting && self.0.borrow().iter().any(holds)
    }

    /// True if the run is of a paused scope.
    pub(crate) fn covers(&self, run: &Run) -> bool {
        let covers = |pause: &PauseRecord| pause.scope.covers(&run.workspace, run.agent_id);
        self.0.borrow().iter().any(covers)
    }

    /// Reads the pauses.
    pub(crate) async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        let read = store.agents().all_pauses().await?;
        for mode in PauseMode::ALL {
            let count = read.iter().filter(|pause| pause.mode == mode).count();
            metrics::set_pauses(mode.as_str(), u32::try_from(count).unwrap_or(u32::MAX));
        }
        self.0.send_if_modified(|pauses| {
            let is_changed = **pauses != *read;
            if is_changed {
                *pauses = read.into();
            }
            is_changed
        });
        Ok(())
    }
}

/// True if a pause delays the host calls of the agent's runs.
pub(crate) fn is_frozen(pauses: &[PauseRecord], workspace: &WorkspaceId, agent: AgentId) -> bool {
    let mut frozen = pauses
        .iter()
        .filter(|pause| pause.mode == PauseMode::Freeze);
    frozen.any(|pause| pause.scope.covers(workspace, agent))
}
