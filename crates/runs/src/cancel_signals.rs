//! Cancel signals of runs.

use std::sync::Arc;

use protocol::id::RunId;

use crate::bus::Notification;
use crate::live::LiveRegistry;
use crate::notifier::Notifier;

/// Delivers stored cancel requests to the processes that drive the runs.
#[derive(Clone)]
pub(super) struct CancelSignals {
    pub(super) live: Arc<LiveRegistry>,
    pub(super) notifier: Arc<Notifier>,
}

impl CancelSignals {
    /// Wakes the task of a run that lives here, and notifies other replicas of any other. `at`: epoch milliseconds.
    pub(super) fn send(&self, run: RunId, at: i64) {
        match self.live.get(run) {
            Some(live) => live.request_cancel(at),
            None => self.notifier.notify(Notification::Cancelled(run)),
        }
    }
}
