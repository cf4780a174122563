//! The commit's state machine, and its window of retries.

use std::sync::Arc;
use std::time::Duration;

use domain::run::Run;
use protocol::run::RunStatus;
use store::{Append, Appended, StoreError};
use tokio::time::Instant;

use super::simulation::settings::run;
use crate::event_buffer::EventBuffer;
use crate::ledger::commit::{AfterError, CommitMachine, CommitOutput, RetryWindow};

const LEASE: Duration = Duration::from_secs(3);

/// The append of one event to a running run.
fn append() -> (Run, Arc<Append>) {
    let run = Run {
        fencing_token: 4,
        status: RunStatus::Running,
        ..run(0, 0, 0, 0)
    };
    let mut buffer = EventBuffer::new(&run);
    buffer.note("note", 0);
    let (append, _) = buffer.take(None, 0);
    (run, Arc::new(append))
}

fn machine(append: &Arc<Append>) -> CommitMachine {
    CommitMachine::new(Arc::clone(append), LEASE)
}

#[test]
fn recognises_own_commit_after_lost_answer() {
    let (run, append) = append();
    let now = Instant::now();
    let mut commit = machine(&append);
    let output = commit.on_written(Err(StoreError::Unreachable), now);
    assert!(matches!(output, CommitOutput::Pause { first: Some(_), .. }));
    assert!(matches!(commit.next(), CommitOutput::Write));
    let output = commit.on_written(Ok(Appended::Lost), now);
    assert!(matches!(output, CommitOutput::FindRun));
    let row = Run {
        last_sequence: 1,
        ..run
    };
    let output = commit.on_found(Ok(Some(row)), now);
    assert!(matches!(
        output,
        CommitOutput::Done(Ok(Appended::Written { .. }))
    ));
}

#[test]
fn loses_run_to_other_epoch_or_sequence() {
    let (run, append) = append();
    let rows = [
        Some(Run {
            last_sequence: 1,
            fencing_token: 5,
            ..run.clone()
        }),
        Some(run),
        None,
    ];
    for row in rows {
        let mut commit = machine(&append);
        let now = Instant::now();
        commit.on_written(Ok(Appended::Lost), now);
        let output = commit.on_found(Ok(row), now);
        assert!(matches!(output, CommitOutput::Done(Ok(Appended::Lost))));
    }
}

#[test]
fn retries_transient_errors_for_one_lease() {
    let begin = Instant::now();
    let mut window = RetryWindow::new(LEASE);
    let first = window.after(StoreError::Unreachable, begin);
    assert!(matches!(first, AfterError::Retry { first: Some(_), .. }));
    let again = window.after(StoreError::Locked, begin + LEASE / 2);
    assert!(matches!(again, AfterError::Retry { first: None, .. }));
    let last = window.after(StoreError::Unreachable, begin + LEASE);
    assert!(matches!(last, AfterError::Fail(StoreError::Unreachable)));
    let mut window = RetryWindow::new(LEASE);
    let lasting = window.after(StoreError::Panicked, begin);
    assert!(matches!(lasting, AfterError::Fail(StoreError::Panicked)));
}
