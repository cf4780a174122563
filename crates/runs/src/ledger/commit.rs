//! One commit of a run's ledger as a state machine. No I/O, no clock.

use std::sync::Arc;
use std::time::Duration;

use domain::run::Run;
use store::{Append, Appended, StoreError};
use tokio::time::Instant;

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Time in which transient errors are retried: one lease from the first error on.
pub(crate) struct RetryWindow {
    lease: Duration,
    end: Option<Instant>,
}

/// Reaction to an error.
#[derive(Debug)]
pub(crate) enum AfterError {
    /// Try again after the pause. `first`: the error, if it is the first one of the window.
    Retry {
        pause: Duration,
        first: Option<StoreError>,
    },
    Fail(StoreError),
}

impl RetryWindow {
    pub(crate) fn new(lease: Duration) -> Self {
        Self { lease, end: None }
    }

    pub(crate) fn after(&mut self, error: StoreError, now: Instant) -> AfterError {
        if !error.is_transient() {
            return AfterError::Fail(error);
        }
        let is_first = self.end.is_none();
        let end = *self.end.get_or_insert_with(|| now + self.lease);
        if now + PAUSE >= end {
            return AfterError::Fail(error);
        }
        AfterError::Retry {
            pause: PAUSE,
            first: is_first.then_some(error),
        }
    }
}

/// An action of the shell.
#[derive(Debug)]
pub(crate) enum CommitOutput {
    /// Write the append.
    Write,
    /// Read the row of the run: the write changed none.
    FindRun,
    Pause {
        pause: Duration,
        first: Option<StoreError>,
    },
    Done(Result<Appended, StoreError>),
}

/// Writes an append, and recognises its own earlier commit after a lost answer.
pub(crate) struct CommitMachine {
    append: Arc<Append>,
    window: RetryWindow,
    lease: Duration,
    is_confirming: bool,
}

impl CommitMachine {
    pub(crate) fn new(append: Arc<Append>, lease: Duration) -> Self {
        Self {
            append,
            window: RetryWindow::new(lease),
            lease,
            is_confirming: false,
        }
    }

    pub(crate) fn append(&self) -> &Arc<Append> {
        &self.append
    }

    /// The action at the begin, and after a pause.
    pub(crate) fn next(&self) -> CommitOutput {
        if self.is_confirming {
            CommitOutput::FindRun
        } else {
            CommitOutput::Write
        }
    }

    /// Takes the outcome of a write.
    pub(crate) fn on_written(
        &mut self,
        outcome: Result<Appended, StoreError>,
        now: Instant,
    ) -> CommitOutput {
        match outcome {
            // After a lost answer, the second try of a commit finds its sequence taken.
            Ok(Appended::Lost) => {
                self.is_confirming = true;
                self.window = RetryWindow::new(self.lease);
                self.next()
            }
            Ok(done @ (Appended::Written { .. } | Appended::Overtaken)) => {
                CommitOutput::Done(Ok(done))
            }
            Err(error) => self.after(error, now),
        }
    }

    /// Takes the row of the run.
    pub(crate) fn on_found(
        &mut self,
        row: Result<Option<Run>, StoreError>,
        now: Instant,
    ) -> CommitOutput {
        match row {
            // The commit released the next run; recovery dispatches it.
            Ok(Some(row)) if is_committed(&self.append, &row) => {
                CommitOutput::Done(Ok(Appended::Written { next: Vec::new() }))
            }
            Ok(_) => CommitOutput::Done(Ok(Appended::Lost)),
            Err(error) => self.after(error, now),
        }
    }

    fn after(&mut self, error: StoreError, now: Instant) -> CommitOutput {
        match self.window.after(error, now) {
            AfterError::Retry { pause, first } => CommitOutput::Pause { pause, first },
            AfterError::Fail(error) => CommitOutput::Done(Err(error)),
        }
    }
}

/// True when the row proves the commit of this append.
fn is_committed(append: &Append, row: &Run) -> bool {
    let has_ended = append
        .terminal
        .as_ref()
        .is_none_or(|terminal| row.status == terminal.status_after(row.cancel_requested_at));
    // Only this owner writes under this epoch, so these values prove the commit.
    row.fencing_token == append.epoch && row.last_sequence == append.to && has_ended
}
