//! Live runs of this server, by id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::signal::Signal;

/// At most `capacity` runs, each id once.
#[derive(Debug)]
pub(super) struct RunRegistry {
    capacity: usize,
    runs: Mutex<HashMap<String, Signal>>,
}

/// Cause of a rejected run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddError {
    Full,
    Present,
}

/// Registration of a live run. Dropping it removes the run and fires its token.
#[derive(Debug)]
pub(super) struct RunRegistration {
    runs: Arc<RunRegistry>,
    run_id: String,
    signal: Signal,
}

impl RunRegistry {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            runs: Mutex::default(),
        }
    }

    /// Registers the run until the result is dropped.
    pub(super) fn add(
        self: &Arc<Self>,
        run_id: &str,
        token: CancellationToken,
    ) -> Result<RunRegistration, AddError> {
        let mut runs = self.lock();
        // A retried POST must not start the same run twice.
        if runs.contains_key(run_id) {
            return Err(AddError::Present);
        }
        if runs.len() >= self.capacity {
            return Err(AddError::Full);
        }
        let signal = Signal::new(token);
        runs.insert(run_id.to_owned(), signal.clone());
        Ok(RunRegistration {
            runs: Arc::clone(self),
            run_id: run_id.to_owned(),
            signal,
        })
    }

    /// Fires a run's token; false for unknown runs.
    pub(super) fn cancel(&self, run_id: &str) -> bool {
        // Cloned, so that the lock is free when the token wakes its tasks.
        let signal = self.lock().get(run_id).cloned();
        signal.inspect(Signal::cancel).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Signal>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RunRegistration {
    pub(super) fn signal(&self) -> &Signal {
        &self.signal
    }
}

impl Drop for RunRegistration {
    fn drop(&mut self) {
        self.runs.lock().remove(&self.run_id);
        // Work that the run has spawned holds clones of the token.
        self.signal.token().cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_run_once_until_dropped() {
        let runs = Arc::new(RunRegistry::new(2));
        let cancel = CancellationToken::new();
        let first = runs.add("a", cancel.clone()).unwrap();
        assert_eq!(
            runs.add("a", CancellationToken::new()).unwrap_err(),
            AddError::Present
        );
        let second = runs.add("b", CancellationToken::new()).unwrap();
        assert_eq!(
            runs.add("c", CancellationToken::new()).unwrap_err(),
            AddError::Full
        );

        assert!(runs.cancel("b") && second.signal().token().is_cancelled());
        assert!(!cancel.is_cancelled());
        drop(first);
        assert!(
            cancel.is_cancelled(),
            "the remaining work of the run is cancelled"
        );
        assert!(!runs.cancel("a"));
        assert!(runs.add("c", CancellationToken::new()).is_ok());
    }

    #[test]
    fn keeps_cancel_cause_after_shutdown() {
        let runs = Arc::new(RunRegistry::new(2));
        let stop = CancellationToken::new();
        let first = runs.add("a", stop.child_token()).unwrap();
        let second = runs.add("b", stop.child_token()).unwrap();
        assert!(runs.cancel("a") && !first.signal().is_shutdown());
        assert!(!second.signal().is_shutdown());
        stop.cancel();
        assert!(!first.signal().is_shutdown());
        assert!(second.signal().is_shutdown());
    }
}
